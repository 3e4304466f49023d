"""What releases of Slurm show of the same jobs: python -m tests.trials.releases trixie sid --seed 1 (root)

Random requests of pending jobs, as in tests.trials.requests, are read on this machine's Slurm and on those of Debian
releases (``asrpt-lab debian trixie build/compat/trixie``). Prints each field of their records in which a release
differs, how often, and an example. Releases do differ, so that this is to be read: a field that asrptd takes for
something else on one of them leaves its jobs to Slurm, or plans them with a wrong size. Takes a minute each.
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
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.lab.cluster import up
from slurm_asrpt.lab.other_release import VENV, command_in, environment
from slurm_asrpt.lab.spec import LabSpec
from slurm_asrpt.slurm.cli import CliClient
from tests.trials.compat import WORK
from tests.trials.requests import SITES, prepare, request

Records = list[tuple[str, dict[str, Any] | None]]
"""Each request with its record, None if sbatch refuses it."""
PASSING = {
    *("job_id", "number", "uid", "submit_time", "eligible_time", "accrue_time", "start_time", "end_time"),
    *("deadline", "priority", "reason", "segment"),
}
"""Fields that differ anyway. Releases before 25.05 show no segments."""


def record(requests: Sequence[Sequence[str]], site: str, port: int) -> Records:
    """Submit the requests to a new lab; the jobs are held."""
    with tempfile.TemporaryDirectory(prefix="asrpt-releases-") as folder:
        Path(folder).chmod(0o755)  # the jobs' users have to get in
        lab = up(LabSpec(Path(folder) / "lab", "4x8", port))
        try:
            prepare(lab, site)
            command = ["sbatch", "--parsable", "--hold", "-t10", "-o/dev/null"]
            ids = [lab.run([*command, *each, "--wrap", "sleep 1"], check=False).stdout.strip() for each in requests]
            client = CliClient(SlurmSettings(conf=str(lab.slurm_conf)))
            found = {job.job_id: asdict(job) for job in client.jobs()}
            return [(" ".join(each), found.get(job_id)) for each, job_id in zip(requests, ids, strict=True)]
        finally:
            lab.down(purge=True)


def differences(here: Records, there: Records) -> Iterator[tuple[str, str, Any, Any]]:
    """Field, request, and the values of both; the field is "sbatch" where only one of them takes the request."""
    for (asked, own), (_, other) in zip(here, there, strict=True):
        if own is None or other is None:
            if own is not other:
                yield "sbatch", asked, "refused" if own is None else "taken", "refused" if other is None else "taken"
            continue
        for name in own.keys() - PASSING:
            if _alike(own[name]) != _alike(other[name]):
                yield name, asked, own[name], other[name]


def _alike(value: Any) -> Any:
    """Generic resources are written in three ways."""
    return re.sub(r"gres[:/]", "", value).replace("=", ":") if isinstance(value, str) else value


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
        print(json.dumps(here, default=str))
        return 0
    here = [(text, found) for text, found in json.loads(json.dumps(here, default=str))]
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
