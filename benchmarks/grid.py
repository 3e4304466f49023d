"""For benchmarks that simulate a grid of cells."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from joblib import Parallel, delayed

from slurm_asrpt.sim.engine import Result

T = TypeVar("T")


@dataclass(frozen=True)
class Size:
    """How much is simulated. jobs: of a cell."""

    jobs: int
    loads: Sequence[float]
    seeds: Sequence[int]


def parse(parser: argparse.ArgumentParser, full: Size, quick: Size, quick_takes: str) -> argparse.Namespace:
    """The command line: the parser's own options, and those of every grid, with defaults by --quick."""
    parser.add_argument("--quick", action="store_true", help=quick_takes)
    parser.add_argument("--jobs", type=int, help=_either([full.jobs], [quick.jobs]))
    parser.add_argument("--loads", type=float, nargs="+", help=_either(full.loads, quick.loads))
    parser.add_argument("--seeds", type=int, nargs="+", help=_either(full.seeds, quick.seeds))
    parser.add_argument("-j", "--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    chosen = parser.parse_args()
    for name, default in asdict(quick if chosen.quick else full).items():
        setattr(chosen, name, getattr(chosen, name) or default)
    return chosen


def _either(full: Sequence[float], quick: Sequence[float]) -> str:
    whole, small = (" ".join(f"{value:g}" for value in values) for values in (full, quick))
    return f"{whole}; {small} with --quick"


def in_parallel(
    play: Callable[..., T], tasks: Sequence[tuple[Any, ...]], processes: int, noun: str = "cells"
) -> Iterator[T]:
    """``play(*task)`` of each task, in order; stderr shows how many are done."""
    work = (delayed(play)(*task) for task in tasks)
    for done, found in enumerate(Parallel(processes, return_as="generator")(work), start=1):
        print(f"\r{done} of {len(tasks)} {noun}", end="", file=sys.stderr, flush=True)
        yield found
    print(file=sys.stderr)


def complete(result: Result, policy: str) -> Result:
    """The result. Raises RuntimeError if a job did not end."""
    if len(result.ended) != len(result.table):
        raise RuntimeError(f"{policy}: {len(result.table) - len(result.ended)} jobs did not end")
    return result
