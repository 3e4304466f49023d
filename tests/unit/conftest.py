"""A daemon's scheduler on a Slurm in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_bench import Bench
from tests.fake_slurm import FakeSlurm

MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[MakeBench]:
    """Benches of other sizes, modes and settings."""
    made: list[Bench] = []

    def make(sizes: tuple[int, ...] = (4, 4, 4), **settings: Any) -> Bench:
        made.append(Bench(tmp_path, FakeSlurm(sizes), **settings))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    """Three nodes of four GPUs, mode enforce."""
    return make_bench()
