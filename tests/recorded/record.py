"""Record what a real Slurm answers, for the tests that run without one.

    python -m tests.recorded.record /tmp/lab-rec-1 [--base-port 17850] [--root build/compat/trixie]

needs root and Slurm on this machine (make setup). It brings a lab up in that directory, makes one moment with jobs of
every form, writes the answers to tests/recorded/<Slurm release>/, and takes the lab down. See README.md here.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.hook.hook_conf import write_hook_conf
from slurm_asrpt.lab.cluster import Lab, up
from slurm_asrpt.lab.other_release import enter
from slurm_asrpt.lab.spec import LabSpec
from slurm_asrpt.slurm.parse import json_option

NODES = "3x8:h100,1x4:t4"
SLEEP = "sleep 600"

# Names that users may give: quotes, separators, what looks like our own lines or fields, another alphabet.
ODD_NAMES = (
    "two words",
    "semi;colon 'single' \"double\" $(date) `id` \\n",
    "Größe=8 ünïcode 作业",
    "x JobState=RUNNING Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:0-7)",
    "x\nJobId=1 JobName=forged JobState=RUNNING \n   Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:0-7)",
    "tab\tand \x1b[31mescape",
)


class Recorder:
    """The lab of one recording and the jobs in it, by a short name each."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ids: dict[str, str] = {}

    def submit(self, key: str, *options: str, script: str = SLEEP, user: str | None = "asrpt1") -> str:
        named = [] if any(o.startswith("--job-name") for o in options) else [f"--job-name={key}"]
        text = f"#!/bin/sh\n{script}\n"
        done = self.lab.run(["sbatch", "--parsable", *named, *options], user=user, input=text)
        self.ids[key] = done.stdout.strip().split(";")[0]
        return self.ids[key]

    def wait(self, key: str, *states: str) -> None:
        deadline = time.monotonic() + 30
        command = ["squeue", "-h", "-o", "%T", "--states=all", "-j", self.ids[key]]
        while not set(self.lab.run(command).stdout.split()) & set(states):
            if time.monotonic() > deadline:
                raise SystemExit(f"{key} ({self.ids[key]}) is {self.lab.run(command).stdout!r}, wanted {states}")
            time.sleep(0.1)

    def running(self, key: str, *options: str, user: str | None = "asrpt1") -> None:
        self.submit(key, *options, user=user)
        self.wait(key, "RUNNING")


def make_moment(r: Recorder) -> None:
    """Jobs of every form that the readers know; the order matters, later ones find less room."""
    hook_conf(r.lab, lease=0)  # tags, but no leases
    make_ended(r)
    make_running(r)
    make_pending(r)
    time.sleep(2)  # until Slurm has given every pending job its reason


def hook_conf(lab: Lab, lease: int) -> None:
    write_hook_conf(lab.paths.hook, ["gpu"], lease, time.time() + 600, GroupSettings())


def make_ended(r: Recorder) -> None:
    r.submit("done", "-n1", "--gpus-per-task=1", script="true")
    r.wait("done", "COMPLETED")
    r.submit("failed", "-n1", "--gpus=1", script="exit 3")
    r.wait("failed", "FAILED")
    r.running("cancelled-running", "--gpus=2")
    r.lab.run(["scancel", r.ids["cancelled-running"]])
    r.wait("cancelled-running", "CANCELLED")
    r.submit("cancelled-waiting", "--gpus=2", "--begin=now+1hour")
    r.lab.run(["scancel", r.ids["cancelled-waiting"]])
    r.wait("cancelled-waiting", "CANCELLED")


def make_running(r: Recorder) -> None:
    r.running("block-n1", "-p", "other", "-w", "n1", "-N1", "--gres=gpu:6", user=None)
    r.running("block-n2", "-p", "other", "-w", "n2", "-N1", "--gres=gpu:h100:5", user=None)
    r.running("uneven", "-n6", "-N3", "-w", "n[1-3]", "-c1", "--gpus-per-task=h100:1")
    r.running("total", "--gpus=h100:2", "-N1", "--comment=asrpt:profile=vgg19-dp2")
    r.running("gres", "--gres=gpu:h100:1", "-N1", "--mem=1000")
    r.running("per-node", "--gpus-per-node=1", "-N1", "-n2", "--mem-per-cpu=100")
    r.running("t4", "--gpus=t4:1", "-n1", "--mem-per-gpu=200")
    r.running("per-task-two", "-n1", "--gpus-per-task=t4:2", "--comment=asrpt:profile=no-such-profile")
    r.running("array", "--array=0-5%1", "--gpus=t4:1", "-N1")  # one task runs, the others wait in one record
    r.running("no-gpu", "-n1", "-c2")
    r.running("two-partitions", "-p", "gpu,other", "-n1", "--gpus=1")


def make_pending(r: Recorder) -> None:
    r.submit("resources", "-n20", "--gpus-per-task=1")
    r.submit("held", "--hold", "--gpus=1")
    r.submit("dependency", "--gpus=1", f"--dependency=afterany:{r.ids['uneven']}")
    r.submit("begin", "--gpus=1", "--begin=now+1hour")
    r.submit("nodelist", "-w", "n1", "--gpus=8")
    r.submit("exclusive", "--exclusive", "--gpus=8", "-N1")
    r.submit("exclude", "-x", "n4", "--gpus=8")
    r.submit("contiguous", "--contiguous", "-N2", "--gpus-per-node=8")
    r.submit("per-socket", "--gpus-per-socket=8", "--sockets-per-node=1", "-N1")
    r.submit("bounds", "-N2-3", "--gpus=16")
    r.submit("tasks-per-node", "-N2", "--ntasks-per-node=8", "--gpus-per-task=1")
    r.submit("even", "-N2", "--gres=gpu:8")
    r.lab.run(["sbatch", "-n1", "--gpus=8", ":", "-n1", "--gpus=8"], user="asrpt1", input=f"#!/bin/sh\n{SLEEP}\n")
    for number, name in enumerate(ODD_NAMES):
        r.submit(f"odd-{number}", f"--job-name={name}", "--gpus=8", "--begin=now+1hour")
    hook_conf(r.lab, lease=600)
    r.submit("leased", "-n2", "--gpus-per-task=1")
    r.submit("leased-profile", "--gpus=4", "--comment=asrpt:profile=vgg19-dp4")


def updates(r: Recorder) -> str:
    """Good and bad updates, as the daemon would write them, for one scontrol."""
    i = r.ids
    return "".join(
        f"update {line}\n"
        for line in (
            f"JobId={i['leased']} StartTime=now+600",
            f"JobId={i['uneven']} StartTime=now+600",  # runs: refused
            f"JobId={i['leased']} NumNodes=2-2 ReqNodeList=n[1-2]",
            f"JobId={i['leased']} NumNodes=1-4 ReqNodeList= NumTasks=2",
            f"JobId={i['leased']} NumNodes=1-1 ReqNodeList=nowhere",
            "JobId=999999 StartTime=now",
            f"JobId={i['done']} StartTime=now",
            f"JobId={i['held']} Priority=5",
            f"JobId={i['leased']} NoSuchField=1",
            f"JobId={i['leased']} StartTime=now+600 Priority=4294000000",
        )
    )


def scontrol(lab: Lab, text: str) -> str:
    """One scontrol fed through stdin, both streams together, as CliClient does it."""
    done = subprocess.run(
        ["scontrol"], input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=lab.env, check=False
    )
    return done.stdout.decode()


class Scrubber:
    """Takes out what tells of the machine: its name, its kernel, its load, the paths of lab and tree."""

    def __init__(self, lab: Lab) -> None:
        tree = Path(__file__).resolve().parents[2]
        host = socket.gethostname()
        self.words = {str(lab.directory): "/lab", str(tree): "/tree", host: "labhost", host.split(".")[0]: "labhost"}

    def __call__(self, text: str) -> str:
        for word, neutral in self.words.items():
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", neutral, text)
        text = re.sub(r"OS=.*?( RealMemory=)", r"OS=Linux\1", text)
        text = re.sub(r"CPULoad=\S+", "CPULoad=0.50", text)
        text = re.sub(r"FreeMem=\S+", "FreeMem=1000", text)
        return re.sub(r"BootTime=\S+", "BootTime=2026-01-01T00:00:00", text)


def ending(r: Recorder) -> str:
    """squeue's answer while jobs are in states that soon pass."""
    stubborn = "trap '' TERM; sleep 5; sleep 5"
    for key in ("completing", "requeued", "requeue-held"):
        r.submit(key, "-p", "other", "-n1", "--requeue", script=stubborn)
    for key in ("completing", "requeued", "requeue-held"):
        r.wait(key, "RUNNING")
    time.sleep(1)  # until the scripts ignore SIGTERM
    r.lab.run(["scontrol", "requeuehold", r.ids["requeue-held"]])
    r.wait("requeue-held", "PENDING")
    r.lab.run(["scancel", r.ids["completing"]])
    r.lab.run(["scontrol", "requeue", r.ids["requeued"]])
    return squeue(r.lab, [r.ids[key] for key in ("completing", "requeued", "requeue-held")])


def squeue(lab: Lab, only: Sequence[str] = ()) -> str:
    """``squeue --json``, one job a line, so that a later recording can be compared with this one."""
    option = json_option(lab.run(["squeue", "--version"]).stdout)
    raw = json.loads(lab.run(["squeue", option, "--states=all"]).stdout)
    jobs = [_without_cores(job) for job in raw.pop("jobs") if not only or str(job["job_id"]) in only]
    rows = ",\n".join(json.dumps(job, ensure_ascii=False) for job in jobs)
    return json.dumps(raw)[:-1] + ', "jobs": [\n' + rows + "\n]}\n"


def _without_cores(job: dict[str, Any]) -> dict[str, Any]:
    """The state of each core of each node, which 24.11 and later tell, makes half of the answer and serves nobody."""
    nodes = (job.get("job_resources") or {}).get("nodes")
    for node in nodes.get("allocation", []) if isinstance(nodes, dict) else []:
        node.pop("sockets", None)
    return job


def record(lab: Lab) -> dict[str, str]:
    """The answers, by the name of the file that keeps each."""
    recorder = Recorder(lab)
    make_moment(recorder)
    answers = {
        "squeue.json": squeue(lab),
        "nodes.txt": lab.run(["scontrol", "-d", "-o", "show", "node"]).stdout,
        "jobs.txt": lab.run(["scontrol", "-d", "-o", "show", "job"]).stdout,
        "config.txt": show_config(lab),
    }
    # last: these change the moment
    answers["update.txt"] = scontrol(lab, updates(recorder))
    answers["ending.json"] = ending(recorder)
    answers["ids.json"] = json.dumps(recorder.ids, indent=1) + "\n"
    return answers


def show_config(lab: Lab) -> str:
    return lab.run(["scontrol", "show", "config"]).stdout


def keep(lab: Lab, answers: Mapping[str, str]) -> Path:
    """Write the answers, without what tells of the machine, to the folder of the lab's Slurm release."""
    scrub = Scrubber(lab)
    release = re.search(r"SLURM_VERSION\s*=\s*(\d+\.\d+)", show_config(lab))
    folder = Path(__file__).parent / (release[1] if release else "unknown")
    folder.mkdir(exist_ok=True)
    for name, text in answers.items():
        (folder / name).write_text(scrub(text), encoding="utf-8")
    return folder


def main(description: str, base_port: int, record: Callable[[Lab], Mapping[str, str]], **spec: Any) -> None:
    """Record in a lab of its own, which is taken down afterwards. spec: of the lab."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the lab is made; deleted afterwards")
    parser.add_argument("--base-port", type=int, default=base_port)
    parser.add_argument("--root", type=Path, help="folder of another Debian (asrpt-lab debian)")
    arguments = parser.parse_args()
    if arguments.root:
        module = sys.modules["__main__"].__spec__.name
        enter(arguments.root, ["python", "-m", module, str(arguments.directory), f"--base-port={arguments.base_port}"])
    lab = up(LabSpec(arguments.directory, NODES, arguments.base_port, users=1, **spec))
    try:
        print(f"wrote {keep(lab, record(lab))}")
    finally:
        lab.down(purge=True)


if __name__ == "__main__":
    main(__doc__, 17850, record)
