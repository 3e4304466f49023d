"""How asrptd reads the progress of running jobs: files may be odd, and the file server may hang."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.daemon.record import progress
from slurm_asrpt.daemon.record.progress import Observed, ProgressWatch, remaining_s, total_iterations
from slurm_asrpt.spool import (
    MAX_FILES,
    MAX_PROGRESS_BYTES,
    Progress,
    parse_progress,
    progress_dir,
    read_losses,
    read_progress,
    remove_progress,
)
from tests.benches.progress import Clock


@pytest.fixture
def watch(tmp_path: Path, clock: Clock) -> ProgressWatch:
    return ProgressWatch(tmp_path, 10.0, clock)


def report(spool: Path, job: str, text: str, written: float = 1000.0) -> None:
    path = progress_dir(spool) / job / "iterations"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (written, written))


# the file


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"5", Progress(5)),
        (b"5 10\n", Progress(5, 10)),
        (b"5 10 0.5 2\n", Progress(5, 10, 0.5, 2)),
        (b"5 0 - 0\n", Progress(5)),
        (b"5 many nan 1.5\n", Progress(5)),
        (b"5 10 0.5 2 and more words", Progress(5, 10, 0.5, 2)),
        (b"", None),
        (b"-5 10", None),
        ("٣".encode(), None),
        (b"9" * 16, None),
    ],
)
def test_progress_lines_are_parsed(text: bytes, found: Progress | None) -> None:
    assert parse_progress(text) == found


@given(text=st.binary(max_size=300))
def test_any_bytes_are_parsed_or_rejected(text: bytes) -> None:
    found = parse_progress(text)
    if found is not None:
        assert 0 <= found.done < 10**15
        assert 0 <= found.total < 10**15
        assert 0 <= found.ran <= found.done
        assert found.loss is None or abs(found.loss) < float("inf")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**12)


ODD_FILES = [
    Path.mkdir,
    os.mkfifo,
    huge,
    lambda path: path.symlink_to("/etc/passwd"),
    lambda path: path.symlink_to(path),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.write_bytes(b"\0" * 10**6),
]


@pytest.mark.parametrize("make", ODD_FILES)
@pytest.mark.parametrize("name", ["iterations", "losses"])
def test_odd_files_are_ignored_and_block_nothing(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    folder = progress_dir(tmp_path) / "7"
    folder.mkdir(parents=True)
    make(folder / name)
    assert read_progress(tmp_path, "7") is None
    assert read_losses(tmp_path, "7") == []
    remove_progress(tmp_path, "7")
    assert not folder.exists()
    assert Path("/etc/passwd").exists()


def test_a_link_to_a_number_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("42 43\n")
    folder = progress_dir(tmp_path) / "7"
    folder.mkdir(parents=True)
    (folder / "iterations").symlink_to(tmp_path / "secret")
    assert read_progress(tmp_path, "7") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
@pytest.mark.parametrize("theirs", [54321, 0])
def test_a_hard_link_to_another_users_file_is_not_read(tmp_path: Path, theirs: int) -> None:
    folder = progress_dir(tmp_path) / "7"
    folder.mkdir(parents=True)
    os.chown(folder, 12345, 0)
    (tmp_path / "secret").write_text("42 43\n")
    os.chown(tmp_path / "secret", theirs, theirs)
    os.link(tmp_path / "secret", folder / "iterations")
    assert read_progress(tmp_path, "7") is None
    os.chown(tmp_path / "secret", 12345, 12345)
    assert read_progress(tmp_path, "7") == Progress(42, 43, written=(tmp_path / "secret").stat().st_mtime)
    remove_progress(tmp_path, "7")
    assert (tmp_path / "secret").read_text() == "42 43\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device")
def test_a_device_is_not_read(tmp_path: Path) -> None:
    folder = progress_dir(tmp_path) / "7"
    folder.mkdir(parents=True)
    os.mknod(folder / "iterations", 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
    assert read_progress(tmp_path, "7") is None


def test_a_progress_directory_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "iterations").write_text("42 43\n")
    progress_dir(tmp_path).mkdir()
    (progress_dir(tmp_path) / "7").symlink_to(tmp_path / "other")
    assert read_progress(tmp_path, "7") is None
    remove_progress(tmp_path, "7")
    assert (tmp_path / "other" / "iterations").read_text() == "42 43\n"


def test_swapping_files_for_links_during_reads_gives_no_access_to_other_files(tmp_path: Path) -> None:
    """A user replaces the file by a link or a directory between asrptd's check and its read."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "iterations").write_text("42 43\n")
    stop = threading.Event()

    def swap() -> None:
        spare = tmp_path / "spare"
        while not stop.is_set():
            for make in (lambda: spare.symlink_to(outside / "iterations"), lambda: spare.write_text("1 2\n")):
                with suppress(OSError):
                    spare.unlink(missing_ok=True)
                    make()
                    spare.rename(folder / "iterations")

    folder = progress_dir(tmp_path) / "7"
    folder.mkdir(parents=True)
    user = threading.Thread(target=swap)
    user.start()
    try:
        seen = {(found.done, found.total) for _ in range(2000) if (found := read_progress(tmp_path, "7"))}
        for _ in range(200):
            remove_progress(tmp_path, "7")
            folder.mkdir(exist_ok=True)
    finally:
        stop.set()
        user.join()
    assert seen <= {(1, 2)}
    assert (outside / "iterations").read_text() == "42 43\n"


def test_nested_directories_are_not_removed(tmp_path: Path) -> None:
    """rmtree would follow a user's directories to any depth."""
    deep = progress_dir(tmp_path) / "7" / "a"
    (deep / "b").mkdir(parents=True)
    remove_progress(tmp_path, "7")
    assert deep.exists()


def test_very_many_files_are_removed_in_batches(tmp_path: Path) -> None:
    folder = progress_dir(tmp_path) / "7"
    folder.mkdir(parents=True)
    for number in range(MAX_FILES + 5):
        (folder / str(number)).touch()
    remove_progress(tmp_path, "7")
    assert len(list(folder.iterdir())) == 5


def test_only_the_first_bytes_are_read(tmp_path: Path) -> None:
    report(tmp_path, "7", " " * MAX_PROGRESS_BYTES + "5 10")
    assert read_progress(tmp_path, "7") is None


def test_the_loss_curve_is_parsed_and_bounded(tmp_path: Path) -> None:
    folder = progress_dir(tmp_path) / "7"
    folder.mkdir(parents=True)
    (folder / "losses").write_text("0 2.5\nx 1\n10 nan\n20 1.5\n" + "30 1\n" * 10_000)
    losses = read_losses(tmp_path, "7")
    assert losses[:3] == [(0, 2.5), (20, 1.5), (30, 1.0)]
    assert len(losses) <= 256


# the watch


def test_a_jobs_progress_is_read_once_per_interval(tmp_path: Path, watch: ProgressWatch, clock: Clock) -> None:
    running = {"7": 900.0}
    report(tmp_path, "7", "5 10")
    assert watch.look(running)["7"].progress.done == 5
    report(tmp_path, "7", "6 10", 1002.0)
    clock.now = 9.9
    assert watch.look(running)["7"].progress.done == 5
    clock.now = 10.0
    assert watch.look(running)["7"] == Observed(Progress(6, 10, written=1002.0), 2.0)


def test_the_speed_counts_from_the_first_report_of_the_run(tmp_path: Path, watch: ProgressWatch, clock: Clock) -> None:
    alphas = []
    for done, written in [(0, 1000), (10, 1100), (110, 1150), (50, 1200), (60, 1300)]:  # back to a checkpoint at 50
        report(tmp_path, "7", f"{done} 200", written)
        alphas.append(watch.look({"7": 900.0})["7"].alpha)
        clock.now += 10
    assert alphas == [None, 10.0, 150 / 110, None, 10.0]


def test_reports_from_before_a_requeue_are_ignored(tmp_path: Path, watch: ProgressWatch, clock: Clock) -> None:
    report(tmp_path, "7", "500 1000", 1000.0)
    assert watch.look({"7": 900.0})["7"].progress.done == 500
    assert watch.look({"7": 1100.0}) == {}
    clock.now += 10
    report(tmp_path, "7", "510 1000", 1110.0)
    assert watch.look({"7": 1100.0})["7"] == Observed(Progress(510, 1000, written=1110.0), None)


def test_an_unreadable_report_keeps_the_previous_values(tmp_path: Path, watch: ProgressWatch, clock: Clock) -> None:
    report(tmp_path, "7", "5 10")
    before = dict(watch.look({"7": 900.0}))
    (progress_dir(tmp_path) / "7" / "iterations").unlink()
    clock.now += 10
    assert watch.look({"7": 900.0}) == before


def test_progress_of_ended_jobs_is_forgotten(tmp_path: Path, watch: ProgressWatch) -> None:
    running = {str(number): 900.0 for number in range(20)}
    for number in running:
        report(tmp_path, number, "5 10")
    assert len(watch.look(running)) == 20
    assert watch.look({}) == {}
    for number in running:
        report(tmp_path, number, "6 10")
    assert {seen.progress.done for seen in watch.look(running).values()} == {6}  # read at once, as jobs never seen


def test_a_file_server_that_hangs_does_not_delay_cycles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread hangs; ``look`` returns the previous values."""
    answers, asked = threading.Event(), threading.Event()
    watch = ProgressWatch(tmp_path, 1e-9)
    report(tmp_path, "7", "5 10")
    before = dict(watch.look({"7": 900.0}))

    def hang(*_: object) -> None:
        asked.set()
        answers.wait(30)

    monkeypatch.setattr(progress, "read_progress", hang)
    watch.start()
    try:
        watch.look({"7": 900.0})
        assert asked.wait(30)
        assert watch.look({"7": 900.0, "8": 900.0}) == before
        watch.stop()
    finally:
        answers.set()


def test_the_reader_thread_reads_and_ends(tmp_path: Path) -> None:
    watch = ProgressWatch(tmp_path, 1e-9)
    before = set(threading.enumerate())
    watch.start()
    (thread,) = set(threading.enumerate()) - before
    report(tmp_path, "7", "5 10")
    deadline = time.monotonic() + 30
    while "7" not in watch.look({"7": 900.0}) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert watch.look({"7": 900.0})["7"].progress == Progress(5, 10, written=1000.0)
    watch.stop()
    thread.join(30)
    assert not thread.is_alive()


# what is left


@pytest.mark.parametrize(
    ("observed", "predicted", "total"),
    [
        (None, 0, None),
        (None, 100, 100),
        (Observed(Progress(5)), 0, None),
        (Observed(Progress(5)), 100, 100),
        (Observed(Progress(505, start=500)), 100, 600),
        (Observed(Progress(5, 70)), 100, 70),
    ],
)
def test_total_iterations_are_reported_or_predicted(
    observed: Observed | None, predicted: int, total: int | None
) -> None:
    assert total_iterations(observed, predicted) == total


@pytest.mark.parametrize(
    ("observed", "total", "alpha", "predicted_s", "ran_s", "seconds"),
    [
        (None, None, None, None, 5.0, None),
        (None, 100, 2.0, 200.0, 50.0, 150.0),
        (None, 100, 2.0, 200.0, 250.0, None),
        (Observed(Progress(40), 3.0), 100, 2.0, 200.0, 250.0, 180.0),
        (Observed(Progress(40)), 100, 2.0, 200.0, 90.0, 120.0),
        (Observed(Progress(40)), 100, None, None, 90.0, None),
        (Observed(Progress(40)), None, None, 200.0, 90.0, 110.0),
        (Observed(Progress(120), 3.0), 100, 2.0, 200.0, 250.0, None),
        (Observed(Progress(100), 3.0), 100, 2.0, 200.0, 250.0, 0.0),
    ],
)
def test_remaining_time_follows_reports_then_predictions(
    observed: Observed | None,
    total: int | None,
    alpha: float | None,
    predicted_s: float | None,
    ran_s: float,
    seconds: float | None,
) -> None:
    assert remaining_s(observed, total, alpha, predicted_s, ran_s) == seconds
