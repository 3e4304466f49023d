"""slurm_asrpt.progress: what is written, how seldom, by whom; and that nothing of it ever hurts a training."""

from __future__ import annotations

import errno
import itertools
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_asrpt import progress
from slurm_asrpt.progress import (
    COST,
    EVERY_S,
    FOLDER_VARIABLE,
    MOST_LOSSES,
    RANK_VARIABLES,
    STEP_VARIABLES,
    Losses,
    Reporter,
    has_rank_zero,
)
from slurm_asrpt.spool import parse_progress

ROOT = Path(__file__).parents[2]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reporter(tmp_path: Path, clock: Clock) -> Reporter:
    return Reporter({FOLDER_VARIABLE: str(tmp_path)}, clock)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process as rank 0 of a job; its progress folder."""
    for name in (*RANK_VARIABLES, *STEP_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    progress._forget()
    yield tmp_path
    progress._forget()


def written(folder: Path) -> list[str]:
    return (folder / "iterations").read_text().split()


def python(folder: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process of a job that runs this code."""
    environment = {"PYTHONPATH": str(ROOT), FOLDER_VARIABLE: str(folder), **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


# who writes


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
        ({"LOCAL_RANK": "1", "SLURM_PROCID": "0"}, False),  # Lightning starts its other ranks so
        ({"RANK": ""}, False),
    ],
)
def test_one_rank_writes(tmp_path: Path, environment: dict[str, str], writes: bool) -> None:
    assert has_rank_zero(environment) == writes
    reporter = Reporter({FOLDER_VARIABLE: str(tmp_path), **environment})
    reporter.report(1)
    assert (tmp_path / "iterations").exists() == writes == reporter.writes


def test_outside_of_a_job_nothing_happens(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written_to = []
    monkeypatch.setattr(progress, "_replace", lambda *arguments: written_to.append(arguments))
    for folder in (None, ""):
        monkeypatch.setenv(FOLDER_VARIABLE, folder) if folder is not None else monkeypatch.delenv(FOLDER_VARIABLE)
        progress._forget()
        progress.report(1, 10, 0.5)
        assert list(progress.track(range(3))) == [0, 1, 2]
        progress.flush()
    assert written_to == []


# how often


@given(steps=st.lists(st.floats(0, 3, allow_nan=False), max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_at_most_one_write_a_second_and_the_last_value_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[float]
) -> None:
    clock, writes = Clock(), list[float]()
    monkeypatch.setattr(progress, "_replace", lambda *_: writes.append(clock.now))
    reporter = Reporter({FOLDER_VARIABLE: str(tmp_path)}, clock)
    for number, seconds in enumerate(steps):
        clock.now += seconds
        reporter.report(number)
    assert all(later - earlier >= EVERY_S for earlier, later in itertools.pairwise(writes))
    assert bool(writes) == bool(steps)
    monkeypatch.undo()
    reporter.flush()
    assert written(tmp_path)[0] == str(max(0, len(steps) - 1))


def test_a_slow_file_system_is_written_to_more_seldom(
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


# what


def test_the_line(tmp_path: Path, reporter: Reporter) -> None:
    reporter.report(40, 1200, 0.5)
    assert (tmp_path / "iterations").read_text() == "40 1200 0.5 0\n"
    reporter.report(41)
    reporter.flush()
    assert written(tmp_path) == ["41", "1200", "0.5", "0"]
    assert sorted(os.listdir(tmp_path)) == ["iterations", "losses"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_asrptd_can_read_it_whatever_the_umask(tmp_path: Path, reporter: Reporter, mask: int) -> None:
    before = os.umask(mask)
    try:
        reporter.report(1, loss=1.0)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_epochs_add_up_and_the_last_item_counts_once_the_body_is_through(job: Path) -> None:
    seen = []
    for _ in range(3):
        for item in progress.track("abcd", total=12):
            seen.append(item)
            progress.flush()
            assert written(job)[:2] == [str(len(seen) - 1), "12"]
    progress.flush()
    assert written(job)[0] == "12"


def test_a_loop_that_is_left_counts_what_it_finished(job: Path) -> None:
    for item in progress.track(range(10)):
        if item == 4:
            break
    progress.flush()
    assert written(job)[0] == "4"


def test_what_the_items_raise_is_the_callers(job: Path) -> None:
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


def test_a_chained_job_says_where_it_began(job: Path) -> None:
    for _ in progress.track(range(3), total=700, start=500):
        pass
    progress.flush()
    assert written(job) == ["503", "700", "-", "500"]


@pytest.mark.parametrize(("told", "kept"), [(None, 500), (650, 500), (400, 400)])
def test_the_first_start_of_a_job_stays(tmp_path: Path, told: int | None, kept: int) -> None:
    (tmp_path / "iterations").write_text("700 1000 0.1 500\n")
    reporter = Reporter({FOLDER_VARIABLE: str(tmp_path)})
    if told is not None:
        reporter.resume(told)
    reporter.report(701)
    reporter.flush()
    assert written(tmp_path) == ["701", "1000", "-", str(kept)]


def test_the_curve_of_a_requeued_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "losses").write_text("0 9\n50 5\n100 3\n")
    reporter = Reporter({FOLDER_VARIABLE: str(tmp_path)})
    reporter.resume(60)
    reporter.report(70, loss=4.0)
    reporter.flush()
    assert (tmp_path / "losses").read_text() == "0 9\n50 5\n70 4\n"


# losses


@given(count=st.integers(1, 5000))
def test_the_curve_is_bounded_and_even(count: int) -> None:
    losses = Losses()
    for number in range(count):
        losses.add(number, 1.0)
    iterations = [number for number, _ in losses.points]
    assert len(iterations) < MOST_LOSSES
    assert iterations[0] == 0
    gaps = {later - earlier for earlier, later in itertools.pairwise(iterations)}
    assert len(gaps) <= 1
    assert count - iterations[-1] <= 2 * max(gaps, default=1)
    assert Losses(losses.text().encode(), before=count).points[0] == losses.points[0]


def test_a_tensor_is_looked_at_only_when_a_write_is_due(reporter: Reporter, clock: Clock) -> None:
    looks = []

    class Tensor:
        def __float__(self) -> float:
            looks.append(clock.now)
            return 2.0

    for _ in range(30):
        reporter.report(1, loss=Tensor())
        clock.now += 0.1
    assert looks == pytest.approx([0.0, 1.0, 2.0], abs=0.11)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, "x", [], 10**400])
def test_a_loss_that_is_none_is_not_written(tmp_path: Path, reporter: Reporter, loss: Any) -> None:
    reporter.report(3, 10, loss)
    assert written(tmp_path) == ["3", "10", "-", "0"]
    assert not (tmp_path / "losses").exists()


# never into training


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.integers()),
    st.complex_numbers(),
)


@given(calls=st.lists(st.tuples(odd, odd, odd), max_size=5), start=odd)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_odd_arguments(job: Path, calls: list[tuple[Any, Any, Any]], start: Any) -> None:
    progress._forget()
    progress.resume(start)
    for call in calls:
        progress.report(*call)
        progress.flush()
    assert list(progress.track("ab", total=start, start=start)) == ["a", "b"]
    with progress.reporting(total=start, start=start) as running:
        running.report(7)
    if (job / "iterations").exists():
        found = parse_progress((job / "iterations").read_bytes())
        assert found is not None
        assert found.done == 7
        assert found.loss is None or math.isfinite(found.loss)


class Hostile:
    """A number whose conversion fails in a way of its own."""

    def __int__(self) -> int:
        raise RuntimeError("CUDA error: device-side assert triggered")

    __float__ = __int__


def test_a_number_that_cannot_be_one(job: Path) -> None:
    progress.report(Hostile(), Hostile(), Hostile())
    progress.resume(Hostile())
    progress.report(5, 10)
    progress.flush()
    assert written(job)[:2] == ["5", "10"]


@pytest.mark.parametrize("call", ["open", "fchmod", "write", "close", "replace", "unlink", "uname"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), OSError(errno.ESTALE, "stale"), MemoryError()])
def test_no_failure_of_the_system_comes_through(
    tmp_path: Path, reporter: Reporter, clock: Clock, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise error

    real_close = os.close
    with monkeypatch.context() as patch:
        patch.setattr(progress.os, call, fail if call != "close" else lambda fd: (real_close(fd), fail()))
        for number in range(3):
            reporter.report(number, 10, 0.5)
            clock.now += 2
    reporter.report(3, 10)
    assert written(tmp_path)[:2] == ["3", "10"]


def test_a_short_write_replaces_nothing_and_leaves_nothing(
    tmp_path: Path, reporter: Reporter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter.report(1, 10)
    real = os.write
    monkeypatch.setattr(progress.os, "write", lambda descriptor, data: real(descriptor, data[:2]))
    assert not reporter.flush()
    assert written(tmp_path)[0] == "1"
    assert os.listdir(tmp_path) == ["iterations"]


def test_a_folder_that_goes_and_comes(tmp_path: Path, clock: Clock) -> None:
    folder = tmp_path / "17"
    reporter = Reporter({FOLDER_VARIABLE: str(folder)}, clock)
    for number in range(6):
        if number == 2:
            folder.mkdir()
        if number == 4:
            (folder / "iterations").unlink()
            folder.rmdir()
        reporter.report(number)
        clock.now += 2
        assert (folder / "iterations").exists() == (number in (2, 3))


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("/etc/passwd"), os.mkfifo])
def test_odd_things_at_the_files_name(tmp_path: Path, reporter: Reporter, make: Callable[[Path], None]) -> None:
    before = Path("/etc/passwd").read_bytes()
    make(tmp_path / "iterations")
    reporter.report(5)
    assert Path("/etc/passwd").read_bytes() == before
    assert (tmp_path / "iterations").is_dir() or written(tmp_path)[0] == "5"


def test_an_interrupt_passes_and_the_next_report_is_written(
    tmp_path: Path, reporter: Reporter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(progress.os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            reporter.report(1)
    assert os.listdir(tmp_path) == []
    clock.now += 2
    reporter.report(2)
    assert written(tmp_path)[0] == "2"


def test_threads_and_a_signal_handler_at_once(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    monkeypatch.setattr(progress, "COST", 0.0)
    interrupts = []

    def handler(*_: object) -> None:
        interrupts.append(1)
        progress.report(5_000_000, 10**6, 0.25)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    threads = [threading.Thread(target=lambda: [progress.report(n, 10**6, 0.5) for n in range(200)]) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) or len(interrupts) < 20:
            progress.report(7, 10**6, 0.75)
            line = (job / "iterations").read_text()
            assert len(line.split()) == 4
            assert line.endswith("\n")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    progress.report(8, 10**6)
    progress.flush()
    assert written(job)[0] == "8"
    assert sorted(os.listdir(job)) == ["iterations", "losses"]


# processes


def test_the_end_of_the_process_writes_the_last_value(tmp_path: Path) -> None:
    code = "from slurm_asrpt import progress\nfor n in range(1000): progress.report(n, 1000)\nraise SystemExit(3)"
    assert python(tmp_path, code).returncode == 3
    assert written(tmp_path)[:2] == ["999", "1000"]


def test_a_forked_child_writes_nothing_of_its_parents(tmp_path: Path) -> None:
    code = """
import os, sys
from slurm_asrpt import progress
with progress.reporting(total=10) as job:
    job.report(1)
    if os.fork() == 0:
        job.report(2)
        job.flush()
        sys.exit()
    os.wait()
    assert open(os.environ["ASRPT_PROGRESS_DIR"] + "/iterations").read().split()[0] == "0"
    job.report(3)
"""
    done = python(tmp_path, code)
    assert (done.returncode, done.stderr) == (0, "")
    assert written(tmp_path)[0] == "3"


def test_a_forked_child_is_a_rank_of_its_own(tmp_path: Path) -> None:
    code = """
import os, sys
from slurm_asrpt import progress
progress.report(0)
for rank in ("1", "0"):
    if os.fork() == 0:
        os.environ["RANK"] = rank
        progress.report(10 + int(rank))
        sys.exit()
    os.wait()
os._exit(0)
"""
    assert python(tmp_path, code).returncode == 0
    assert written(tmp_path)[0] == "10"


def test_processes_without_ranks_do_not_hurt_each_other(tmp_path: Path) -> None:
    code = """
from slurm_asrpt import progress
progress.EVERY_S = progress.COST = 0
for n in range(300): progress.report(n, 300, 0.5)
"""
    environment = {"PYTHONPATH": str(ROOT), FOLDER_VARIABLE: str(tmp_path)}
    processes = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    while any(process.poll() is None for process in processes):
        if (tmp_path / "iterations").exists():
            assert len((tmp_path / "iterations").read_text().split()) == 4
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert written(tmp_path) == ["299", "300", "0.5", "0"]
    assert sorted(os.listdir(tmp_path)) == ["iterations", "losses"]


def test_importing_it_imports_next_to_nothing(tmp_path: Path) -> None:
    """Beyond what each Python has loaded by the time it runs a program."""
    code = "import os, sys; before = {*sys.modules}; import slurm_asrpt.progress; print(*({*sys.modules} - before))"
    command = [sys.executable, "-S", "-c", code]
    added = set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
    assert added <= {"slurm_asrpt", "slurm_asrpt.progress", "__future__", "atexit", "itertools", "time"}
