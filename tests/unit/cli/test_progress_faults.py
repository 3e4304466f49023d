"""slurm_asrpt.progress: no failure of it ever disturbs a training."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_asrpt import progress
from slurm_asrpt.progress import FOLDER_VARIABLE, Reporter
from slurm_asrpt.spool import parse_progress
from tests.benches.progress import Clock, new_process, written

ROOT = Path(__file__).parents[3]


def run_python(folder: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run this code in a process of a job."""
    environment = {"PYTHONPATH": str(ROOT), FOLDER_VARIABLE: str(folder), **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


# no error reaches the training


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
def test_odd_arguments_never_raise(job: Path, calls: list[tuple[Any, Any, Any]], start: Any) -> None:
    new_process()
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
    """A number whose conversion raises an unusual exception."""

    def __int__(self) -> int:
        raise RuntimeError("CUDA error: device-side assert triggered")

    __float__ = __int__


def test_numbers_that_cannot_be_converted_are_ignored(job: Path) -> None:
    progress.report(Hostile(), Hostile(), Hostile())
    progress.resume(Hostile())
    progress.report(5, 10)
    progress.flush()
    assert written(job)[:2] == ["5", "10"]


@pytest.mark.parametrize("call", ["open", "fchmod", "write", "close", "replace", "unlink", "uname"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), OSError(errno.ESTALE, "stale"), MemoryError()])
def test_failed_system_calls_never_raise(
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


def test_a_short_write_keeps_the_old_file_and_no_temporary_one(
    tmp_path: Path, reporter: Reporter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter.report(1, 10)
    real = os.write
    monkeypatch.setattr(progress.os, "write", lambda descriptor, data: real(descriptor, data[:2]))
    assert not reporter.flush()
    assert written(tmp_path)[0] == "1"
    assert os.listdir(tmp_path) == ["iterations"]


def test_reports_continue_when_the_directory_reappears(tmp_path: Path, clock: Clock) -> None:
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
def test_odd_files_in_place_of_the_progress_file_are_harmless(
    tmp_path: Path, reporter: Reporter, make: Callable[[Path], None]
) -> None:
    before = Path("/etc/passwd").read_bytes()
    make(tmp_path / "iterations")
    reporter.report(5)
    assert Path("/etc/passwd").read_bytes() == before
    assert (tmp_path / "iterations").is_dir() or written(tmp_path)[0] == "5"


def test_a_keyboard_interrupt_passes_and_the_next_report_is_written(
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


def test_threads_and_signal_handlers_can_report_concurrently(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    monkeypatch.setattr(progress, "COST", 0.0)
    interrupts = []

    def handler(*_: object) -> None:
        interrupts.append(1)
        progress.report(5_000_000, 10**6, 0.25)
        signal.setitimer(
            signal.ITIMER_REAL, 0.01
        )  # not periodic: on a slow disk, nested handlers would overflow the stack

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
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
    assert run_python(tmp_path, code).returncode == 3
    assert written(tmp_path)[:2] == ["999", "1000"]


def test_a_forked_child_does_not_write_its_parents_report(tmp_path: Path) -> None:
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
    done = run_python(tmp_path, code)
    assert (done.returncode, done.stderr) == (0, "")
    assert written(tmp_path)[0] == "3"


def test_a_forked_child_can_be_another_rank(tmp_path: Path) -> None:
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
    assert run_python(tmp_path, code).returncode == 0
    assert written(tmp_path)[0] == "10"


def test_processes_without_ranks_do_not_corrupt_each_others_reports(tmp_path: Path) -> None:
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


def test_importing_progress_imports_almost_nothing(tmp_path: Path) -> None:
    """Compared with the modules that Python itself has loaded."""
    code = "import os, sys; before = {*sys.modules}; import slurm_asrpt.progress; print(*({*sys.modules} - before))"
    command = [sys.executable, "-S", "-c", code]
    added = set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
    assert added <= {"slurm_asrpt", "slurm_asrpt.progress", "__future__", "atexit", "itertools", "time"}
