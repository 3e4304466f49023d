"""What releases of Slurm show of the same jobs and site: python -m tests.trials.releases trixie sid --seed 1 (root)

Random requests of pending jobs, as in tests.trials.requests, are read on this machine's Slurm and on those of Debian
releases (``asrpt-lab debian trixie build/compat/trixie``), and so are nodes, partitions, reservations, QOS and
associations. Prints each field of their records in which a release differs, how often, and an example. Releases do
differ, so that this is to be read: a field that asrptd takes for something else on one of them leaves its jobs to
Slurm, or plans them with a wrong size. Takes a minute each. Needs slurmdbd and MariaDB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.lab.cluster import Lab, up
from slurm_asrpt.lab.other_release import VENV, command_in, environment
from slurm_asrpt.lab.spec import LabSpec
from slurm_asrpt.slurm.cli import CliClient
from tests.trials.compat import WORK
from tests.trials.requests import SITES, prepare, request

Records = list[tuple[str, dict[str, Any] | None]]
"""Each request with its record, None if Slurm refuses it; each part of the site by its name."""
PASSING = {
    *("job_id", "number", "uid", "submit_time", "eligible_time", "accrue_time", "start_time", "end_time"),
    *("deadline", "priority", "reason", "segment", "start", "end", "usage"),
}
"""Fields that differ anyway. Releases before 25.05 show no segments."""
CONF = """
AccountingStorageEnforce=associations,limits,qos
Licenses=matlab:3
PartitionName=short Nodes=n[1-2] MaxTime=1-0 MaxNodes=2 MinNodes=1 MaxCPUsPerNode=20 AllowAccounts=lab AllowQos=normal
PartitionName=shared Nodes=n3 OverSubscribe=FORCE:2 DenyAccounts=root DenyQos=caps AllowGroups=root State=DRAIN
PartitionName=whole Nodes=n4 OverSubscribe=EXCLUSIVE PriorityTier=5 PriorityJobFactor=7 GraceTime=30 State=DOWN
PartitionName=defaults Nodes=ALL DefMemPerCPU=100 DefCpuPerGPU=3 DefMemPerGPU=2000 ExclusiveUser=YES State=INACTIVE
"""
RULES = (
    "add qos caps Priority=9 GrpTRES=gres/gpu=6,node=3 GrpTRESMins=gres/gpu=99 GrpTRESRunMins=cpu=900 GrpJobs=7"
    " GrpWall=600 MaxTRESPerJob=gres/gpu=5 MaxTRESPerNode=cpu=16 MaxTRESMinsPerJob=cpu=500 MaxWall=2-0"
    " MaxTRESPerUser=gres/gpu=4 MaxTRESPerAccount=gres/gpu=9 MinTRESPerJob=gres/gpu=1",
    "add account sub parent=lab fairshare=parent",
    "add user asrpt1 account=sub fairshare=7 MaxJobs=4 GrpTRES=gres/gpu=3 MaxTRESPerJob=gres/gpu=2 Priority=3",
    "modify user asrpt1 set qos+=caps",
)
RESERVATIONS = (
    *("Users=asrpt1 Nodes=n1 Flags=MAGNETIC", "Accounts=lab Nodes=n1 Flags=MAGNETIC,FLEX", "Users=-asrpt1 Nodes=n1"),
    *("Groups=root Nodes=n1", "Users=root Nodes=n1 Flags=MAINT,IGNORE_JOBS"),
    *("Users=root Nodes=n1 Flags=TIME_FLOAT", "Users=root Nodes=n1 Flags=OVERLAP", "Users=root Nodes=n[1-2] CoreCnt=9"),
    *("Users=root Nodes=n1 TRES=cpu=4,gres/gpu=1", "Users=root Licenses=matlab:1 Flags=ANY_NODES"),
    *("Users=root Nodes=ALL PartitionName=short Flags=PART_NODES", "QOS=caps Nodes=n1 Flags=MAGNETIC"),
    *("Users=asrpt1 Nodes=n1 AllowedPartition=other Flags=MAGNETIC", "Users=root Nodes=n1 Flags=DAILY"),
)
"""Each on a day of its own, and the daily one last, so that none is in the way of another."""


def record(requests: Sequence[Sequence[str]], site: str, port: int) -> Records:
    """Submit the requests to a new lab; the jobs are held."""
    with tempfile.TemporaryDirectory(prefix="asrpt-releases-") as folder:
        Path(folder).chmod(0o755)  # the jobs' users have to get in
        lab = up(LabSpec(Path(folder) / "lab", "4x8", port, accounting=True, multifactor=True))
        try:
            for rule in RULES:
                lab.run(["sacctmgr", "-i", *rule.split()])
            lab.slurm_conf.write_text(lab.slurm_conf.read_text(encoding="utf-8") + CONF, encoding="utf-8")
            prepare(lab, site)
            command = ["sbatch", "--parsable", "--hold", "-t10", "-o/dev/null"]
            ids = [lab.run([*command, *each, "--wrap", "sleep 1"], check=False).stdout.strip() for each in requests]
            client = CliClient(SlurmSettings(conf=str(lab.slurm_conf)))
            found = {job.job_id: asdict(job) for job in client.jobs()}
            jobs = [(" ".join(each), found.get(job_id)) for each, job_id in zip(requests, ids, strict=True)]
            return [*jobs, *reserved(lab, client), *parts(lab, client)]
        finally:
            lab.down(purge=True)


def reserved(lab: Lab, client: CliClient) -> Records:
    """The reservations, None for those that this release does not know, or that asrptd does not count."""
    for day, words in enumerate(RESERVATIONS, start=1):
        when = [f"StartTime=now+{day}days", "Duration=60", f"ReservationName=day{day}"]
        lab.run(["scontrol", "create", "reservation", *when, *words.split()], check=False)
    found = {each.name: asdict(each) for each in client.reservations(client.nodes())}
    return [(words, found.get(f"day{day}")) for day, words in enumerate(RESERVATIONS, start=1)]


def parts(lab: Lab, client: CliClient) -> Records:
    """Nodes, partitions, QOS and associations."""
    for node, state in (("n3", "DRAIN"), ("n4", "DOWN")):
        lab.run(["scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=no State=IDLE"])
    site = client.site()
    found: dict[str, Any] = {f"node {each.name}": each for each in client.nodes()}
    kinds: dict[str, Mapping[Any, Any]] = {
        "partition": site.partitions,
        "defaults": site.gpu_defaults,
        "QOS": site.limits.qos,
    }
    kinds |= {"association": site.associations, "priority": site.priorities.partitions}
    found |= {f"{kind} {name}": each for kind, named in kinds.items() for name, each in named.items()}
    return [(name, asdict(each)) for name, each in sorted(found.items())]


def differences(here: Records, there: Records) -> Iterator[tuple[str, str, Any, Any]]:
    """Field, request, and the values of both; the field is "accepted" where only one of them takes the request."""
    for (asked, own), (_, other) in zip(here, there, strict=True):
        if own is None or other is None:
            if own is not other:
                yield "accepted", asked, "refused" if own is None else "taken", "refused" if other is None else "taken"
            continue
        for name in own.keys() - PASSING:
            if _alike(own[name]) != _alike(other[name]):
                yield name, asked, own[name], other[name]


def _alike(value: Any) -> Any:
    """Generic resources are written in three ways."""
    return re.sub(r"gres[:/]", "", value).replace("=", ":") if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """A value that JSON has no form for."""
    return sorted(value) if isinstance(value, frozenset) else str(value)


def in_release(suite: str, arguments: Sequence[str]) -> Records:
    command = [f"/{VENV}/bin/python", "-m", "tests.trials.releases", "--record", *arguments]
    done = subprocess.run(
        command_in(WORK / suite, command), env=environment(os.environ), stdout=subprocess.PIPE, check=True, text=True
    )
    return [(asked, found) for asked, found in json.loads(done.stdout.splitlines()[-1])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="trixie, sid")
    parser.add_argument("--seed", type=int, default=1, help="of the requests")
    parser.add_argument("--jobs", type=int, default=200, help="how many")
    parser.add_argument("--site", choices=SITES, default="plain", help="what the cluster is like")
    parser.add_argument("--port", type=int, default=27800, help="the first of 20 ports")
    parser.add_argument("--record", action="store_true", help="print the records of this machine's Slurm as JSON")
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    requests = [request(rng, rng.random() < 0.85) for _ in range(asked.jobs)]
    here = record(requests, asked.site, asked.port)
    if asked.record:
        print(json.dumps(here, default=_plain))
        return 0
    here = [(text, found) for text, found in json.loads(json.dumps(here, default=_plain))]
    for suite in asked.suites:
        options = [f"--{name}={getattr(asked, name)}" for name in ("seed", "jobs", "site", "port")]
        found = defaultdict[str, list[tuple[str, Any, Any]]](list)
        for name, *example in differences(here, in_release(suite, options)):
            found[name].append((example[0], example[1], example[2]))
        print(f"{suite}: {sum(one is not None for _, one in here)} jobs here")
        for name, examples in sorted(found.items()):
            text, own, other = examples[0]
            print(f"  {name} {len(examples)}, as {own!r} here, {other!r} there: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
