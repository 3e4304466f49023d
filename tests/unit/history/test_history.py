"""The run history: idempotent writes, migrations, and errors for files that are no history."""

from __future__ import annotations

import json
import multiprocessing
import resource
import sqlite3
import threading
from contextlib import closing
from dataclasses import astuple, fields, replace
from pathlib import Path

import pytest

from slurm_asrpt.errors import EXIT_BAD_INPUT
from slurm_asrpt.history import schema as module
from slurm_asrpt.history.store import History, HistoryError, Origin, ReadOnlyError, Run, Sample, Source

RUN = Run(
    job_id="17_3", start_time=1000, submit_time=900, end_time=2000, state="COMPLETED", user="ann", uid=1000,
    group_id="0123456789abcdef", job_name="trä\x1bin", partition="gpu", gpus=6, nodes={"n2": 2, "n1": 4},
    profile="gpt2", predicted_iterations=90, iterations=100, iterations_source=Source.REPORTED, alpha=0.25,
    program="fedcba9876543210", features={"epochs": 90.0, "lr": 0.1}, predicted_low=80, predicted_high=110,
    predicted_by="g", reported_total=120, origin=Origin.SACCT,
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def test_export_and_import_preserve_runs(path: Path) -> None:
    with History(path) as history:
        history.record([RUN])
    with History(path, read_only=True) as history:
        assert history.runs() == [RUN]


def test_recording_a_run_twice_is_safe(path: Path) -> None:
    better = replace(RUN, iterations=120)
    requeued = replace(RUN, start_time=3000, end_time=4000)
    with History(path) as history:
        for _ in range(3):
            history.record([RUN, better, requeued])
        assert history.runs() == [requeued, better]
        assert history.runs(since=2001) == [requeued]
        assert history.runs(limit=1) == [requeued]


def test_a_write_is_all_or_nothing(path: Path) -> None:
    with History(path) as history:
        with pytest.raises(HistoryError):
            history.record([RUN, replace(RUN, job_id="18", gpus=None)])  # type: ignore[arg-type]
        assert history.runs() == []


SAMPLE = Sample(RUN.group_id, 1000, 100, RUN.program, 6, {"epochs": 90.0, "lr": 0.1}, 2000, "COMPLETED")
SAMPLE = replace(SAMPLE, work_s=1000, profile="gpt2")


def test_samples_have_a_group_and_iterations(path: Path) -> None:
    runs = [
        RUN,
        replace(RUN, job_id="2", state="FAILED"),
        replace(RUN, job_id="3", iterations=0),
        replace(RUN, job_id="4", group_id=""),
        replace(RUN, job_id="5", uid=7, end_time=2001),
    ]
    with History(path) as history:
        history.record(runs)
        found = history.samples()
    assert found == [SAMPLE, replace(SAMPLE, state="FAILED"), replace(SAMPLE, user=7, end_time=2001, work_s=1001)]


def test_a_history_of_the_first_schema_is_upgraded(path: Path) -> None:
    """Rows of an older release keep all values; new columns are unknown."""
    old = Run(job_id="1", start_time=5, end_time=9, state="COMPLETED", group_id="0" * 16, iterations=4, nodes={"a": 1})
    names = [field.name for field in fields(Run)][:18]
    with closing(sqlite3.connect(path)) as connection, connection:
        module.MIGRATIONS[0](connection)
        connection.execute("PRAGMA user_version = 1")
        values = [json.dumps(value) if isinstance(value, dict) else value for value in astuple(old)[:18]]
        connection.execute(f"INSERT INTO runs ({', '.join(names)}) VALUES ({', '.join('?' * 18)})", values)
    with pytest.raises(HistoryError, match=f"schema 1, this release reads {len(module.MIGRATIONS)}; start asrptd"):
        History(path, read_only=True)
    with History(path) as history:
        assert history.runs() == [old]
        assert history.samples() == [Sample("0" * 16, -1, 4, end_time=9)]


def test_migrations_run_once_each_in_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with History(path) as history:
        history.record([RUN])

    def add_a_table(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE extra (x)")

    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, add_a_table))
    for _ in range(2):
        with History(path) as history:
            assert history.runs() == [RUN]
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (len(module.MIGRATIONS),)


def test_a_failed_migration_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with History(path) as history:
        history.record([RUN])

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE extra (x)")
        connection.execute("no sql")

    with monkeypatch.context() as patch:
        patch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, fail))
        with pytest.raises(HistoryError):
            History(path)
    assert sqlite3.connect(path).execute("SELECT name FROM sqlite_master WHERE name = 'extra'").fetchall() == []
    with History(path) as history:
        assert history.runs() == [RUN]


def test_a_newer_schema_is_refused(path: Path) -> None:
    History(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    for read_only in (False, True):
        with pytest.raises(HistoryError, match="schema 99") as refused:
            History(path, read_only=read_only)
        assert (
            read_only or refused.value.exit_code == EXIT_BAD_INPUT
        )  # the exit status with which systemd does not restart asrptd


@pytest.mark.parametrize("content", [b"this is no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_that_is_no_database_is_rejected(path: Path, content: bytes, read_only: bool) -> None:
    path.write_bytes(content)
    with pytest.raises(HistoryError, match=r"history\.sqlite: .*move the file aside"):
        History(path, read_only=read_only)
    assert path.read_bytes() == content


def test_internal_damage_is_reported(path: Path) -> None:
    with History(path) as history:
        history.record(replace(RUN, job_id=str(i)) for i in range(2000))
    raw = bytearray(path.read_bytes())
    raw[4096:] = b"\xff" * (len(raw) - 4096)
    path.write_bytes(raw)
    with pytest.raises(HistoryError), History(path) as history:
        history.samples()


def test_missing_file_or_folder(path: Path) -> None:
    with pytest.raises(HistoryError):
        History(path, read_only=True)
    assert not path.exists()
    with pytest.raises(HistoryError):
        History(path.parent / "none" / "history.sqlite")


def _write(path: Path, start: int) -> None:
    for i in range(start, start + 50):
        with History(path) as history:
            history.record([replace(RUN, job_id=str(i))])


def test_two_writers_at_once(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(path, start)) for start in (0, 1000)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    with History(path) as history:
        assert len(history.runs()) == 100


def test_opening_waits_while_another_process_has_the_file_open_for_writing(path: Path) -> None:
    with History(path):
        pass
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("PRAGMA journal_mode = DELETE")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(HistoryError, match="locked"):
        History(path, wait_s=0.1)
    ending = threading.Timer(0.5, lambda: other.execute("COMMIT"))
    ending.start()
    with History(path, wait_s=30.0) as history:
        assert history.runs() == []
    ending.join()
    other.close()


def test_a_full_disk_is_reported_and_the_next_write_succeeds(path: Path) -> None:
    """A file size limit simulates a full disk. SQLite then rolls back by itself."""
    with History(path) as history:
        history.record([RUN])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
        try:
            with pytest.raises(HistoryError, match=r"disk (is full|I/O error)|full; check"):
                history.record([replace(RUN, job_id=str(i), job_name="x" * 200) for i in range(5000)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        history.record([replace(RUN, job_id="18")])
        assert {run.job_id for run in history.runs()} == {RUN.job_id, "18"}


def test_a_write_to_a_read_only_history_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite opens a file read-only if it cannot write to it; it must be reopened for writing."""
    with History(path) as history:
        history.record([RUN])
        history.select("PRAGMA query_only = 1")
        with pytest.raises(ReadOnlyError, match="readonly"):
            history.record([RUN])
