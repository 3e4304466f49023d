"""slurm_asrpt.progress: which process writes, how often, and what."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_asrpt import progress
from slurm_asrpt.progress import COST, EVERY_S, FOLDER_VARIABLE, MAX_LOSSES, Losses, Reporter, has_rank_zero
from tests.benches.progress import Clock, new_process, written

# which process writes


@pytest.mark.parametrize(
    ("environment", "writes"),
    [
        ({}, True),
        ({"SLURM_PROCID": "0"}, True),
        ({"SLURM_PROCID": "1"}, False),
        ({"RANK": "0", "SLURM_PROCID": "1"}, True),  # torchrun on the second node was given rank 0
        ({"RANK": "8", "SLURM_PROCID": "0"}, False),
        ({"OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "0"}, False),
        ({"PMI_RANK": "0", "SLURM_PROCID": "0"}, True),
        ({"LOCAL_RANK": "1", "SLURM_PROCID": "0"}, False),  # as Lightning starts its other ranks
        ({"RANK": ""}, False),
    ],
)
def test_only_rank_zero_writes(tmp_path: Path, environment: dict[str, str], writes: bool) -> None:
    assert has_rank_zero(environment) == writes
    reporter = Reporter({FOLDER_VARIABLE: str(tmp_path), **environment})
    reporter.report(1)
    assert (tmp_path / "iterations").exists() == writes == reporter.writes


def test_outside_of_a_job_nothing_is_written(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written_to = []
    monkeypatch.setattr(progress, "_replace", lambda *arguments: written_to.append(arguments))
    for folder in (None, ""):
        monkeypatch.setenv(FOLDER_VARIABLE, folder) if folder is not None else monkeypatch.delenv(FOLDER_VARIABLE)
        new_process()
        progress.report(1, 10, 0.5)
        assert list(progress.track(range(3))) == [0, 1, 2]
        progress.flush()
    assert written_to == []


def test_in_an_accelerated_lab_a_report_has_the_time_of_the_labs_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libfaketime gives programs this clock, but not the kernel, which stamps files."""
    monkeypatch.setenv("FAKETIME", "+0 x60")
    monkeypatch.setattr("time.time_ns", lambda: 2_000_000_000 * 10**9)
    Reporter({FOLDER_VARIABLE: str(tmp_path)}).report(1)
    assert (tmp_path / "iterations").stat().st_mtime == 2_000_000_000


# how often


@given(steps=st.lists(st.floats(0, 3, allow_nan=False), max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_at_most_one_write_per_second_and_always_the_last_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[float]
) -> None:
    clock, writes = Clock(), list[float]()
    monkeypatch.setattr(progress, "_replace", lambda *_: writes.append(clock.now))
    reporter = Reporter({FOLDER_VARIABLE: str(tmp_path)}, clock)
    for number, seconds in enumerate(steps):
        clock.now += seconds
        reporter.report(number)
    assert all(later - earlier >= EVERY_S - 1e-6 for earlier, later in itertools.pairwise(writes))
    assert bool(writes) == bool(steps)
    monkeypatch.undo()
    reporter.flush()
    assert written(tmp_path)[0] == str(max(0, len(steps) - 1))


def test_a_slow_file_system_is_written_to_less_often(
    tmp_path: Path, reporter: Reporter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []

    def slow(*_: object) -> None:
        writes.append(clock.now)
        clock.now += 0.5

    monkeypatch.setattr(progress, "_replace", slow)
    for number in range(2000):
        clock.now += 0.1
        reporter.report(number)
    gaps = [later - earlier for earlier, later in itertools.pairwise(writes)]
    assert gaps
    assert all(COST * 0.5 <= gap < COST * 0.5 + 1 for gap in gaps)


# the contents


def test_the_progress_line_has_four_fields(tmp_path: Path, reporter: Reporter) -> None:
    reporter.report(40, 1200, 0.5)
    assert (tmp_path / "iterations").read_text() == "40 1200 0.5 0\n"
    reporter.report(41)
    reporter.flush()
    assert written(tmp_path) == ["41", "1200", "0.5", "0"]
    assert sorted(os.listdir(tmp_path)) == ["iterations", "losses"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_asrptd_can_read_the_reports_with_any_umask(tmp_path: Path, reporter: Reporter, mask: int) -> None:
    before = os.umask(mask)
    try:
        reporter.report(1, loss=1.0)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_epochs_add_up_and_an_item_counts_after_the_loops_body(job: Path) -> None:
    seen = []
    for _ in range(3):
        for item in progress.track("abcd", total=12):
            seen.append(item)
            progress.flush()
            assert written(job)[:2] == [str(len(seen) - 1), "12"]
    progress.flush()
    assert written(job)[0] == "12"


def test_a_loop_with_a_break_counts_its_finished_iterations(job: Path) -> None:
    for item in progress.track(range(10)):
        if item == 4:
            break
    progress.flush()
    assert written(job)[0] == "4"


def test_exceptions_of_the_items_reach_the_caller(job: Path) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("corrupt shard")

    with pytest.raises(ValueError, match="corrupt shard"):
        list(progress.track(broken()))
    progress.flush()
    assert written(job)[0] == "1"


def test_the_end_of_the_block_writes_the_last_value(job: Path) -> None:
    def train() -> None:
        with progress.reporting(total=100) as running:
            for number in range(50):
                running.report(number, loss=1.0 / (number + 1))
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        train()
    assert written(job) == ["49", "100", "0.02", "0"]


# from a checkpoint


def test_a_chained_job_reports_its_first_iteration(job: Path) -> None:
    for _ in progress.track(range(3), total=700, start=500):
        pass
    progress.flush()
    assert written(job) == ["503", "700", "-", "500"]


@pytest.mark.parametrize(("reported", "kept"), [(None, 500), (650, 500), (400, 400)])
def test_the_earliest_start_of_a_job_is_kept(tmp_path: Path, reported: int | None, kept: int) -> None:
    (tmp_path / "iterations").write_text("700 1000 0.1 500\n")
    reporter = Reporter({FOLDER_VARIABLE: str(tmp_path)})
    if reported is not None:
        reporter.resume(reported)
    reporter.report(701)
    reporter.flush()
    assert written(tmp_path) == ["701", "1000", "-", str(kept)]


def test_the_loss_curve_of_a_requeued_job_continues_from_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "losses").write_text("0 9\n50 5\n100 3\n")
    reporter = Reporter({FOLDER_VARIABLE: str(tmp_path)})
    reporter.resume(60)
    reporter.report(70, loss=4.0)
    reporter.flush()
    assert (tmp_path / "losses").read_text() == "0 9\n50 5\n70 4\n"


# losses


@given(count=st.integers(1, 5000))
def test_the_loss_curve_is_bounded_and_evenly_spaced(count: int) -> None:
    losses = Losses()
    for number in range(count):
        losses.add(number, 1.0)
    iterations = [number for number, _ in losses.points]
    assert len(iterations) < MAX_LOSSES
    assert iterations[0] == 0
    gaps = {later - earlier for earlier, later in itertools.pairwise(iterations)}
    assert len(gaps) <= 1
    assert count - iterations[-1] <= 2 * max(gaps, default=1)
    assert Losses(losses.text().encode(), before=count).points[0] == losses.points[0]


def test_a_tensor_is_converted_only_when_a_write_is_due(reporter: Reporter, clock: Clock) -> None:
    conversions = []

    class Tensor:
        def __float__(self) -> float:
            conversions.append(clock.now)
            return 2.0

    for _ in range(30):
        reporter.report(1, loss=Tensor())
        clock.now += 0.1
    assert conversions == pytest.approx([0.0, 1.0, 2.0], abs=0.11)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, "x", [], 10**400])
def test_an_invalid_loss_is_not_written(tmp_path: Path, reporter: Reporter, loss: Any) -> None:
    reporter.report(3, 10, loss)
    assert written(tmp_path) == ["3", "10", "-", "0"]
    assert not (tmp_path / "losses").exists()
