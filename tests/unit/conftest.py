"""Fixtures: a daemon's scheduler on a Slurm in memory, a clock, a job's progress directory, a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.progress import FOLDER_VARIABLE, RANK_VARIABLES, STEP_VARIABLES, Reporter
from tests.benches.browser import chromium, missing
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import FakeSlurm
from tests.benches.progress import Clock, new_process

MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[MakeBench]:
    """Make benches of other sizes, modes and settings."""
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


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reporter(tmp_path: Path, clock: Clock) -> Reporter:
    return Reporter({FOLDER_VARIABLE: str(tmp_path)}, clock)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make this process rank 0 of a job. Returns its progress directory."""
    for name in (*RANK_VARIABLES, *STEP_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    new_process()
    yield tmp_path
    new_process()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if why := missing():
        pytest.skip(why)
    pytest.importorskip("selenium.webdriver")
    with chromium() as found:
        yield found
