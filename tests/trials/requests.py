"""Random requests on plain Slurm, then under asrptd: python -m tests.trials.requests --seed 1 --site threads (root)

Each one that Slurm starts on an idle cluster of 4 x 8 GPUs must start under asrptd, too. Prints those that do not, and
with ``--nodes`` those that get another number of nodes (with a range of -N that is a matter of luck), and how many are
left to Slurm, which releases of Slurm should not differ in. Exits with 1 if one does not start. Takes some minutes.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_asrpt.audit.trail import entries
from slurm_asrpt.lab.cluster import Lab, up
from slurm_asrpt.lab.spec import LabSpec

COUNTS = {
    "--gpus={}": (1, 1, 2, 2, 3, 4, 6, 8, 9, 12, 16),
    "--gres=gpu:{}": (1, 1, 2, 3, 4, 6, 8),
    "--gpus-per-node={}": (1, 2, 4, 5, 8),
    "--gpus-per-task={}": (1, 1, 2, 3, 4),
    "--gpus=8 --gpus-per-node={}": (2, 4, 8),
    "--gpus-per-socket={} --sockets-per-node=1": (1, 2),
    "": (0,),
}
"""Forms of requests for GPUs; "": none."""
TASKS = ("", "", "-n1", "-n2", "-n3", "-n4", "-n6", "-n8", "-n12")
NODES = ("", "", "", "-N1", "-N1", "-N2", "-N1-2", "-N2-4", "-N3")
OTHERS = (
    *("-c2", "-c7", "-c16", "-c33", "-c40", "--cpus-per-gpu=2", "--cpus-per-gpu=9", "--cpus-per-gpu=12"),
    *("--cpus-per-gpu=33", "--mem=100G", "--mem=300G", "--mem=0", "--mem-per-gpu=30G", "--mem-per-gpu=130G"),
    *("--mem-per-gpu=260G", "--mem-per-cpu=8G", "--mem-per-cpu=20G", "--ntasks-per-node=1", "--ntasks-per-node=3"),
    *("--ntasks-per-node=4", "--ntasks-per-gpu=1", "--ntasks-per-gpu=2", "--exclusive", "--exclusive=user"),
    *("--mincpus=16", "--mincpus=40", "-wn1", "-wn[1-2]", "-xn1", "-xn[1-3]", "-Cfast", "-C[fast|slow]", "-Cfast*1"),
    *("--contiguous", "--switches=1", "--spread-job", "--use-min-nodes", "--hint=nomultithread", "--core-spec=2"),
    *("--threads-per-core=1", "--ntasks-per-core=1", "--overcommit", "--oversubscribe", "--cores-per-socket=8"),
    *("--ntasks-per-socket=2", "-mcyclic", "-mblock:cyclic", "-marbitrary", "--gpu-bind=closest", "--prefer=fast"),
    *("--gres-flags=enforce-binding", "--wait-all-nodes=1", "--deadline=now+1hour"),
)
SITES: dict[str, Callable[[str], str]] = {
    "plain": lambda conf: conf,
    "defaults": lambda conf: (
        conf.replace(" State=UNKNOWN", " CoreSpecCount=4 MemSpecLimit=12000 State=UNKNOWN")
        + "\nDefCpuPerGPU=7\nDefMemPerGPU=50000\n"
    ),
    "threads": lambda conf: re.sub(
        r"Sockets=1 CoresPerSocket=(\d+) ThreadsPerCore=1",
        lambda found: f"Sockets=2 CoresPerSocket={int(found[1]) // 4} ThreadsPerCore=2",
        conf,
    ),
    "types": lambda conf: conf,
}
"""What is changed in slurm.conf, by the name of the site."""
PLAIN_S, ASRPTD_S = 150.0, 240.0
"""How long the jobs of a side have: asrptd waits before it tries a refused start again."""


def request(rng: random.Random, gpus: bool) -> list[str]:
    """The options of a random job. gpus: whether it may ask for GPUs."""
    form = rng.choice(list(COUNTS) if gpus else [""])
    parts = [rng.choice(TASKS), rng.choice(NODES), form.format(rng.choice(COUNTS[form]))]
    parts += rng.sample(OTHERS, rng.choice((0, 1, 1, 2)))
    return " ".join(parts).split()


def prepare(lab: Lab, site: str) -> None:
    """Two nodes have feature fast, two slow; the site's changes in slurm.conf."""
    conf = lab.slurm_conf.read_text(encoding="utf-8")
    for names, feature in (("n[12]", "fast"), ("n[34]", "slow")):
        conf = re.sub(rf"(?m)^(NodeName={names} .*) State=UNKNOWN", rf"\1 Features={feature} State=UNKNOWN", conf)
    lab.slurm_conf.write_text(SITES[site](conf), encoding="utf-8")
    lab.restart()


def play(lab: Lab, jobs: Sequence[Sequence[str]], seconds: float) -> list[tuple[str, str]]:
    """State and number of nodes of each job when all have ended or the time is over; "" if sbatch refuses it."""
    ids = [submit(lab, options) for options in jobs]
    end = time.monotonic() + seconds
    while time.monotonic() < end and lab.run(["squeue", "-h", "-o", "%i"]).stdout.strip():
        time.sleep(2.0)
    listed = lab.run(["scontrol", "-o", "show", "job"]).stdout
    found = dict(re.findall(r"(?m)^JobId=(\d+) .* (JobState=\S+ .* NumNodes=\S+)", listed))
    lab.cancel_jobs()
    return [_outcome(found.get(job_id, "")) for job_id in ids]


def submit(lab: Lab, options: Sequence[str]) -> str:
    """The id of a job that sleeps for an instant; "" if sbatch refuses it."""
    command = ["sbatch", "--parsable", "-t10", "-o/dev/null", *options, "--wrap", "sleep 0.3"]
    return lab.run(command, check=False).stdout.strip()


def _outcome(text: str) -> tuple[str, str]:
    found = re.search(r"JobState=(\S+) .* NumNodes=(\S+)", text)
    return (found[1], found[2]) if found else ("", "")


def compare(lab: Lab, jobs: Sequence[Sequence[str]], nodes: bool) -> int:
    """Print what differs. Returns how many jobs start under plain Slurm only."""
    plain = play(lab, jobs, PLAIN_S)
    command = [str(Path(sys.executable).parent / "asrptd")]
    with (lab.directory / "log" / "asrptd.log").open("wb") as log:
        asrptd = subprocess.Popen(command, env=lab.env, stdout=log, stderr=log)
        try:
            time.sleep(5.0)
            ours = play(lab, jobs, ASRPTD_S)
        finally:
            asrptd.terminate()
            asrptd.wait()
    missing = 0
    for options, before, after in zip(jobs, plain, ours, strict=True):
        starts = before[0] == "COMPLETED"
        missing += starts and after[0] != "COMPLETED"
        if starts and (after[0] != "COMPLETED" or (nodes and before[1] != after[1])):
            print(f"{' '.join(options)}: {before[1]} nodes; under asrptd {after[0] or 'refused'} {after[1]}")
    started = sum(state == "COMPLETED" for state, _ in plain)
    print(f"{started} of {len(jobs)} start; {missing} of these not under asrptd")
    left = Counter(entry["why"] for entry in entries(lab.paths.asrpt / "state") if entry["event"] == "left")
    print("left to Slurm:", ", ".join(f"{why} {count}" for why, count in sorted(left.items())) or "none")
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the requests")
    parser.add_argument("--jobs", type=int, default=120, help="how many")
    parser.add_argument("--site", choices=SITES, default="plain", help="what the cluster is like")
    parser.add_argument("--no-gpus", action="store_true", help="only jobs without GPUs")
    parser.add_argument("--nodes", action="store_true", help="also print other numbers of nodes")
    parser.add_argument("--port", type=int, default=27800, help="the first of 20 ports")
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    jobs = [request(rng, not asked.no_gpus) for _ in range(asked.jobs)]
    with tempfile.TemporaryDirectory(prefix="asrpt-requests-") as folder:
        Path(folder).chmod(0o755)  # the jobs' users have to get in
        nodes = "2x8:h100,2x8:a100" if asked.site == "types" else "4x8"
        lab = up(LabSpec(Path(folder) / "lab", nodes, asked.port))
        try:
            prepare(lab, asked.site)
            return bool(compare(lab, jobs, asked.nodes))
        finally:
            lab.down(purge=True)


if __name__ == "__main__":
    sys.exit(main())
