"""Compare the schedules of two checkouts: python -m benchmarks.schedules --json -o before.json

Runs asrpt-sim on many cells (a workload, a policy, its settings), and prints a SHA-256 of each cell's schedule: start,
end, speed and servers of each job. Compare the file of one checkout with another:

    python -m benchmarks.schedules --bin OLD/.venv/bin -o before.json
    python -m benchmarks.schedules --against before.json

The exit code is 1 if a cell differs, is missing or is new, or if a command fails. --quick runs only the groups that
take about a minute in total, with the same names, so it can use the file of a full run. The script uses only commands
and their files, and imports no packages, so it can check any checkout. Run it in the root directory of the checkout.

Not covered, because asrpt-sim does not support it: fair-share bands, and preemption by hlas, whose settings have no
effect in a simulation.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

Hashes = dict[str, str]

COLUMNS = ("job", "submit_s", "start_s", "end_s", "alpha_s", "best_alpha_s", "iterations", "predicted", "gpus", "nodes")
"""Columns of jobs.csv.gz that are hashed; the others are names and text."""

SMALL = ("pai-like:1500", "--servers=16")
SPLIT = (*SMALL, "--gpus-per-server=6", "--single-gpu=0.3")
"""Six GPUs per server: jobs on eight GPUs are split, mostly unevenly."""
BASELINES = ("easy-backfill", "fifo", "hlas", "spjf", "spwf", "wcs-duration", "wcs-subtime", "wcs-workload")
CHEAP = ("asrpt", "asrpt-gated", *BASELINES)
"""All policies except sjf-bco-online, which takes a hundred times as long per cell."""
PLANNING = "sjf-bco-online"
PERFECT = tuple(f"{name}-perfect" for name in CHEAP if name not in ("easy-backfill", "fifo", "hlas"))
SHARING = ("asrpt:contention=true", "asrpt:contention=true,delay=aside", "asrpt-gated:contention=true")
DELAYS = tuple(f"asrpt:delay={delay},tau={tau}" for delay in ("block", "aside") for tau in (0, 1, 5, 50))
HEAVY = ("asrpt:comm_heavy=1", "asrpt:comm_heavy=3", "asrpt:comm_heavy=3,delay=aside,tau=5")
GATES = tuple(f"asrpt-gated:{more}gate={gate}" for more in ("", "contention=true,") for gate in (1, 1.3, 2, 10))
PATIENCE = tuple(f"asrpt-gated:patience_s={seconds}" for seconds in (60, 3600, 86400, "3600,contention=true"))
QUEUES = ("hlas:queues=1", "hlas:factor=2,first_gpu_s=60", "hlas:max_interruptions=0,min_run_s=0")

LOADS, SEEDS = "load=0.8,1.2", "seed=0,1"
TWO_KINDS = "--gpu-types=8:h100:2.3,8:a100:1"
THREE_KINDS = "--gpu-types=6:h100:2.3,6:a100:1,4:v100:0.4"


@dataclass(frozen=True)
class Group:
    """A sweep: each policy on each workload of the grid. arguments: their trace and options.

    Names of its cells start with ``name``.
    """

    name: str
    arguments: tuple[str, ...]
    policies: tuple[str, ...]
    grid: tuple[str, ...] = (LOADS,)
    quick: bool = False


GROUPS = (
    Group("policies", SMALL, (*CHEAP, *PERFECT), (LOADS, SEEDS), quick=True),
    Group("delays", SMALL, (*DELAYS, *HEAVY), (LOADS, SEEDS), quick=True),
    Group("gates", SPLIT, (*GATES, *PATIENCE), (LOADS, SEEDS, "contention=none,0.6"), quick=True),
    Group("hlas", SMALL, QUEUES),
    Group("contention", SMALL, (*CHEAP, *SHARING), (LOADS, "contention=none,0,0.6"), quick=True),
    Group("split and contention", SPLIT, (*CHEAP, *SHARING), (LOADS, SEEDS, "contention=none,0.6")),
    Group("two kinds of GPU", (*SMALL, TWO_KINDS), (*CHEAP, *DELAYS, *GATES, *PATIENCE), (LOADS, SEEDS), quick=True),
    Group("three kinds of GPU", (*SMALL, THREE_KINDS), (*CHEAP, *PERFECT), (LOADS, SEEDS)),
    Group("kinds and contention", (*SMALL, TWO_KINDS), (*CHEAP, *SHARING), (LOADS, "contention=0,0.6")),
    Group("predictors", SMALL, CHEAP, (LOADS, "predictor=perfect,expected,forest,last,mean,median,typical")),
    Group("forest-sklearn", (*SMALL, "--predictor=forest-sklearn"), ("asrpt", "asrpt-gated", "spwf"), ("load=1.2",)),
    Group("retraining", SMALL, CHEAP, ("load=1.2", "retrain=0,10min,1d", "history=0.05,0.5,0.8")),
    Group("networks", SMALL, (*CHEAP, *DELAYS[2:4]), (LOADS, "nic=1,50", "intra=25,300")),
    Group("sizes", SMALL, CHEAP, (LOADS, "single-gpu=0,0.7,1", "gpus-per-server=4,16")),
    Group("no profiles", (*SMALL, "--models=none"), CHEAP, (LOADS, SEEDS)),
    Group("philly", ("philly", "--servers=16"), CHEAP, ("load=none,0.9,1.5", "models=table1,none"), quick=True),
    Group("itp", ("itp", "--servers=10", "--models=table1"), CHEAP, ("load=none,0.9,1.5",)),
    Group("helios", ("helios", "--servers=10", "--models=table1"), CHEAP, ("load=none,0.9,1.5",)),
    Group("large", ("pai-like:20000",), (*CHEAP, *DELAYS[3:6], GATES[2]), ("load=0.8,1.1",)),
    Group(f"{PLANNING} small", ("pai-like:400", "--servers=16"), (PLANNING,), quick=True),
    Group(PLANNING, ("pai-like:1500", "--servers=48"), (PLANNING, f"{PLANNING}:patience_s=3600"), (LOADS, SEEDS)),
    Group(f"{PLANNING} on kinds", ("pai-like:600", TWO_KINDS), (PLANNING,), (LOADS, "contention=none,0.6")),
    Group(f"{PLANNING} on philly", ("philly", "--servers=20", "--models=table1"), (PLANNING,), ("load=none,0.9,1.5",)),
)

UNEQUAL = "unequal servers"
"""The group of what-if, the only command that supports servers of several sizes."""

PAPERS: Mapping[str, tuple[str, ...]] = {
    "asrpt": tuple(f"fig{number}" for number in range(6, 10)),
    "sjf_bco": tuple(f"bco-fig{number}" for number in range(4, 8)),
    "hare": tuple(f"hare-fig{number}" for number in range(14, 28)),
}
"""The figures of each paper, at a smaller size."""
QUICK_FIGURES = frozenset({"bco-fig5", "hare-fig16", "hare-fig22"})


class CommandError(Exception):
    """A command failed; the message has the command and its output."""


def call(command: Sequence[str | Path]) -> str:
    """Run a command; return its output. Raises CommandError."""
    done = subprocess.run([*map(str, command)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of several texts and their boundaries."""
    made = hashlib.sha256()
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.hexdigest()


def schedule_digest(folder: Path) -> str:
    """SHA-256 of the schedule in a result directory. Raises KeyError if a column is missing."""
    with gzip.open(folder / "jobs.csv.gz", "rt", encoding="utf-8", newline="") as file:
        jobs = ["\t".join(row[name] for name in COLUMNS) for row in csv.DictReader(file)]
    with np.load(folder / "placements.npz", allow_pickle=False) as arrays:
        placements = [np.asarray(arrays[name], "<i8").tobytes() for name in ("first", "node", "gpus")]
    return digest(["\n".join(jobs).encode(), *placements])


def figures_digest(figures: Any) -> str:
    """SHA-256 of JSON values, independent of the order of keys."""
    return digest([json.dumps(figures, sort_keys=True).encode()])


def cell_name(group: str, row: Mapping[str, Any], keys: Iterable[str]) -> str:
    """``delays: asrpt:delay=block,tau=0 load=0.8``."""
    varied = [f"{key}={row[key]}" for key in keys if key != "policy"]
    return " ".join([f"{group}:", str(row["policy"]), *varied])


def sweep(binaries: Path, group: Group) -> Hashes:
    """Simulate one group in one process; return hashes of its schedules. Raises CommandError."""
    grid = [f"--grid={values}" for values in group.grid]
    policies = f"--policies={','.join(group.policies)}"
    with tempfile.TemporaryDirectory(prefix="schedules-") as place:
        where = ("--output", place, "--processes=1", "--json")
        found = json.loads(call([binaries / "asrpt-sim", "sweep", *group.arguments, policies, *grid, *where]))
        keys = found["keys"]
        return {
            cell_name(group.name, row, keys): schedule_digest(Path(place) / "cells" / row["cell"])
            for row in found["cells"]
        }


def past(jobs: int, seed: int) -> str:
    """Output of sacct for this many jobs in recurrent groups: up to 8 GPUs, minutes to hours, with waits."""
    draw = random.Random(seed)
    titles = (
        "JobID|User|Partition|Submit|Start|End|ElapsedRaw|TimelimitRaw|State|ReqTRES|AllocTRES|AdminComment|JobName"
    )
    lines, submit = [titles], 1_700_000_000
    for number in range(1, jobs + 1):
        group = draw.randrange(40)
        gpus, seconds = 2 ** (group % 4), int(300 * 1.2 ** (group % 20) * (0.8 + 0.4 * draw.random()))
        submit += int(1600 * draw.random())
        start = submit + int(7200 * draw.random())
        tres = f"billing=4,cpu=4,gres/gpu={gpus},node=1"
        times = f"{submit}|{start}|{start + seconds}|{seconds}|{seconds // 30 + 60}"
        lines.append(f"{number}|user{group % 7}|gpu|{times}|COMPLETED|{tres}|{tres}||train{group}")
    return "\n".join(lines) + "\n"


def what_if(binaries: Path) -> Hashes:
    """The waits computed by what-if on servers of several sizes. Raises CommandError."""
    policies = (*CHEAP, PLANNING)
    nodes = "".join(f"n{number}|gpu:{gpus}|idle\n" for number, gpus in enumerate((8, 4, 4, 2)))
    with tempfile.TemporaryDirectory(prefix="schedules-") as place:
        dump, servers = Path(place, "jobs.txt"), Path(place, "nodes.txt")
        dump.write_text(past(600, seed=1), encoding="utf-8")
        servers.write_text(nodes, encoding="utf-8")
        given = ("--dump", dump, "--nodes", servers, f"--policies={','.join(policies)}", "--json")
        rows = json.loads(call([binaries / "asrpt-sim", "what-if", *given]))["rows"]
    return {cell_name(UNEQUAL, row, ()): figures_digest(row) for row in rows if row["policy"] in policies}


def kept(document: Any) -> Any:
    """A document of reproduce --keep without its elapsed seconds and the names of its options."""
    if isinstance(document, dict):
        return {key: value for key, value in document["figures"].items() if key != "seconds"}
    if isinstance(document[-1], list):  # for Hare: mean, weighted mean, seconds of computing, values of each job
        return [*document[:2], *document[3:]]
    return document


def reproduce(binaries: Path, paper: str, figure: str) -> Hashes:
    """The simulations of one figure of a paper, at a smaller size. Raises CommandError."""
    command = paper_command(binaries, paper)
    with tempfile.TemporaryDirectory(prefix="schedules-") as place:
        documents = Path(place, "kept")
        call([*command, figure, "--quick", "--processes=1", "--keep", documents, "--output", Path(place, "page.md")])
        found = [kept(json.loads(path.read_text(encoding="utf-8"))) for path in documents.glob("*.json")]
    texts = sorted(json.dumps(one, sort_keys=True) for one in found)
    return {f"papers: {figure}": digest(text.encode() for text in texts)}


@cache
def paper_command(binaries: Path, paper: str) -> Sequence[str | Path]:
    """The command that draws a paper's figures in this checkout. Raises CommandError if there is none."""
    python = (binaries / "python", "-m")
    candidates = ((*python, f"papers.{paper}"), (*python, "papers"), (binaries / "asrpt-sim", "reproduce"))
    for command in candidates:
        try:
            call([*command, "--help"])
        except CommandError:
            continue
        return command
    raise CommandError(f"nothing here draws the figures of {paper}; leave them out with --no-papers")


Task = tuple[str, Callable[[], Hashes]]
"""The name of a group of cells, and the function that makes them."""


def tasks(binaries: Path, quick: bool, papers: bool) -> Iterator[Task]:
    for group in GROUPS:
        if group.quick or not quick:
            yield group.name, partial(sweep, binaries, group)
    yield UNEQUAL, partial(what_if, binaries)
    for paper, figures in PAPERS.items() if papers else ():
        chosen = [figure for figure in figures if figure in QUICK_FIGURES or not quick]
        for figure in chosen:
            yield f"papers: {figure}", partial(reproduce, binaries, paper, figure)


def run(planned: Sequence[Task]) -> tuple[Hashes, list[str]]:
    """The hashes of all cells, and the failed groups; a failure does not stop the others."""
    hashes: Hashes = {}
    failed: list[str] = []
    for group, make in track(planned, "simulating", console=Console(stderr=True)):
        try:
            hashes |= make()
        except CommandError as error:
            failed.append(f"failed: {group}: {error}")
    return hashes, failed


def differences(before: Mapping[str, str], after: Mapping[str, str], groups: Iterable[str]) -> list[str]:
    """The differences between two runs, one per line. groups: those of this run; others may be missing."""
    ran = tuple(groups)
    changed = [f"differs: {cell}" for cell, value in after.items() if before.get(cell, value) != value]
    new = [f"not there before: {cell}" for cell in after if cell not in before]
    gone = [f"missing: {cell}" for cell in before if cell not in after and _in(cell, ran)]
    return changed + new + gone


def _in(cell: str, groups: Iterable[str]) -> bool:
    return any(cell == group or cell.startswith(f"{group}: ") for group in groups)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object of cells and hashes")
    parser.add_argument("--quick", action="store_true", help="run fewer groups; takes about a minute")
    parser.add_argument("--no-papers", action="store_true", help="leave out the figures of the papers")
    parser.add_argument("--bin", type=Path, default=Path(sys.executable).parent, help="directory of asrpt-sim")
    parser.add_argument("-o", "--output", type=Path, help="also write the hashes to this file, as JSON")
    parser.add_argument("--against", type=Path, help="compare with this file, written by -o")
    chosen = parser.parse_args()
    before = json.loads(chosen.against.read_text(encoding="utf-8")) if chosen.against else None
    planned = list(tasks(chosen.bin, chosen.quick, not chosen.no_papers))
    hashes, faults = run(planned)
    text = json.dumps(hashes, indent=1)
    if chosen.output:
        chosen.output.write_text(text + "\n", encoding="utf-8")
    print(text if chosen.json else "\n".join(f"{value}  {cell}" for cell, value in hashes.items()))
    if before is not None:
        faults += differences(before, hashes, [group for group, _ in planned])
    for line in [*faults, f"{len(hashes)} cells, {len(faults)} faults"]:
        print(line, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
