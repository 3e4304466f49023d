"""asrpt-lab train: a stand-in for training that runs as fast as its placement allows.

Inside a job it reads which GPUs it was given on which nodes and where its ranks are, computes the seconds per
iteration by the project's own formula and profile, sleeps that long, and reports its progress as real training would.
Standard library only: it runs with the system's Python, and often.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.errors import AsrptError, InputError, one_line
from slurm_asrpt.lab.allocation import Allocation, read_allocation, read_ranks
from slurm_asrpt.lab.checkpoint import Checkpoint, Course
from slurm_asrpt.progress import Reporter

EXIT_TERMINATED = 143
REPORT_EVERY_S = 1.0
DEFAULT_INTER = 1.25e9  # as in config.FabricSettings, which is not imported here: it needs pydantic
DEFAULT_INTRA = 300e9
UNPROFILED_ALPHA = 1.0  # a job without a profile counts one iteration a second, wherever it runs


@dataclass(frozen=True)
class Result:
    """The line that --json prints. alpha: seconds per iteration. seconds: elapsed here, less than real by --speedup."""

    profile: str | None
    nodes: tuple[str, ...]
    counts: tuple[int, ...]
    ranks: tuple[int, ...]
    mapped: bool
    alpha: float
    iterations: int
    seconds: float


def train(iterations: int, seconds_each: float, reporter: Reporter, checkpoint: Checkpoint | None = None) -> float:
    """Sleep through the iterations; the seconds it took. Progress is written at the end, whatever ends it."""
    begun = time.monotonic()
    first = checkpoint.read() if checkpoint else 0
    course = Course(iterations, seconds_each, first)
    reporter.begin_at(first)
    reporter.report(course.done, iterations)
    with reporter:
        try:
            while (left := course.left_s) > 0:
                time.sleep(min(REPORT_EVERY_S, left))
                if checkpoint and checkpoint.asked:
                    first = checkpoint.make_way(course, first, reporter)
                reporter.report(course.done)
        finally:
            reporter.report(course.done)
    if checkpoint:
        checkpoint.write(first, iterations)
    return time.monotonic() - begun


def alpha_here(profile: str, allocation: Allocation, ranks: Sequence[int], options: argparse.Namespace) -> float:
    """Seconds per iteration of a profile in this placement. Raises InputError."""
    from slurm_asrpt.profile.schema import load_profile

    loaded = load_profile(profile, options.folders)
    if loaded.gpus != len(ranks):
        raise InputError(
            f"profile {profile} has {loaded.gpus} replicas, this job has {len(ranks)} GPUs; ask for as many"
        )
    try:
        return iteration_time(loaded, ranks, allocation.totals, Fabric(options.inter, options.intra))
    except ValueError as error:  # tensor slices on several servers: no formula says how fast that is
        raise InputError(f"profile {profile}: {error}; leave the placement to asrptd") from None


def _refuse_broken(options: argparse.Namespace) -> None:
    """A profile that cannot be used is said before Slurm is asked for anything. Raises InputError."""
    from slurm_asrpt.profile.schema import load_profile

    load_profile(options.profile, options.folders)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0, 2 for bad input, 1 for a Slurm that does not answer, 143 after SIGTERM."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        options = _options(arguments)
        result = _run(options, os.environ)
    except AsrptError as error:
        print(f"asrpt-train: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps(asdict(result)), flush=True)
    return 0


def _terminate(number: int, frame: object) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)


def _run(options: argparse.Namespace, environment: Mapping[str, str]) -> Result:
    alpha, mapped = UNPROFILED_ALPHA, False
    allocation = Allocation((), (), ())
    ranks: tuple[int, ...] = ()
    if options.profile:
        _refuse_broken(options)
    if options.profile or options.json:  # a job that reports nothing about its placement need not ask for it
        allocation = read_allocation(environment)
        ranks = read_ranks(allocation, environment)
        mapped = ranks != allocation.block_ranks()
    if options.profile:
        alpha = alpha_here(options.profile, allocation, ranks, options)
    checkpoint = Checkpoint(options.checkpoint, options.wait) if options.checkpoint else None
    seconds = train(options.iterations, alpha / options.speedup, Reporter(environment), checkpoint)
    placed = (allocation.nodes, allocation.counts, ranks, mapped)
    return Result(options.profile, *placed, alpha=alpha, iterations=options.iterations, seconds=round(seconds, 3))


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every command of the project does."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; --help lists the options")


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="asrpt-lab train",
        description="A stand-in for training, as fast as its placement; runs inside a job.",
        epilog="Example:\n  asrpt-lab train --profile vgg19-dp4 --iterations 100",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--profile", metavar="NAME", help="profile by name or path; without one: one iteration a second")
    made.add_argument("--iterations", metavar="N", type=_count, default=60, help="iterations to train (default 60)")
    made.add_argument("--speedup", metavar="X", type=_positive, default=1.0, help="so many times faster than real time")
    made.add_argument("--checkpoint", metavar="FILE", type=Path, help="written on USR1 and USR2; goes on from there")
    made.add_argument(
        "--wait", metavar="S", type=_positive, default=120.0, help="seconds to wait for a requeue then (default 120)"
    )
    made.add_argument("--inter", metavar="RATE", type=_positive, help="B_inter in bytes/s; else as in asrpt.toml")
    made.add_argument("--intra", metavar="RATE", type=_positive, help="B_intra in bytes/s; else as in asrpt.toml")
    made.add_argument("--json", action="store_true", help="print the placement and the time as one JSON line")
    return made


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser().parse_args(arguments)
    settings = _settings(os.environ)
    fabric = _table(settings, "fabric")
    options.inter = options.inter or float(fabric.get("inter_bytes_per_s", DEFAULT_INTER))
    options.intra = options.intra or float(fabric.get("intra_bytes_per_s", DEFAULT_INTRA))
    options.folders = [Path(folder) for folder in _table(settings, "paths").get("profiles", [])]
    return options


def _settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """The tables of $ASRPT_CONFIG, unchecked: asrptd is the one to complain about them."""
    try:
        return tomllib.loads(Path(environment["ASRPT_CONFIG"]).read_text(encoding="utf-8"))
    except (KeyError, OSError, ValueError):
        return {}


def _table(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = settings.get(name)
    return table if isinstance(table, dict) else {}


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"a number above 0 is needed, not {text}")
    return value


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= value < 10**12:
        raise argparse.ArgumentTypeError(f"a whole number from 0 is needed, not {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
