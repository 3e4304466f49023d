"""For benchmarks that simulate a grid of cells."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from joblib import Parallel, delayed

from slurm_asrpt.sim.engine import Result

T = TypeVar("T")


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
