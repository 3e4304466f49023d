"""The run history: idempotent, migrating, and clear about files that are no history."""

from __future__ import annotations

import multiprocessing
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt.predict import history as module
from slurm_asrpt.predict.history import History, HistoryError, Run, Sample, Source

RUN = Run(
    job_id="17_3", start_time=1000, submit_time=900, end_time=2000, state="COMPLETED", user="ann", uid=1000,
    group_id="0123456789abcdef", job_name="trä\x1bin", partition="gpu", gpus=6, nodes={"n2": 2, "n1": 4},
    profile="gpt2", predicted_iterations=90, iterations=100, iterations_source=Source.REPORTED, alpha=0.25,
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def test_there_and_back(path: Path) -> None:
    with History(path) as history:
        history.record([RUN])
    with History(path, read_only=True) as history:
        assert history.runs() == [RUN]


def test_repeats_do_no_harm(path: Path) -> None:
    better = replace(RUN, iterations=120)
    requeued = replace(RUN, start_time=3000, end_time=4000)
    with History(path) as history:
        for _ in range(3):
            history.record([RUN, better, requeued])
        assert history.runs() == [requeued, better]
        assert history.runs(since=2001) == [requeued]
        assert history.runs(limit=1) == [requeued]


def test_all_or_none(path: Path) -> None:
    with History(path) as history:
        with pytest.raises(HistoryError):
            history.record([RUN, replace(RUN, job_id="18", gpus=None)])  # type: ignore[arg-type]
        assert history.runs() == []


def test_samples_are_completed_runs_with_iterations(path: Path) -> None:
    runs = [
        RUN,
        replace(RUN, job_id="2", state="FAILED"),
        replace(RUN, job_id="3", iterations=0),
        replace(RUN, job_id="4", group_id=""),
        replace(RUN, job_id="5", uid=7, end_time=2001),
    ]
    with History(path) as history:
        history.record(runs)
        assert history.samples() == [Sample(RUN.group_id, 1000, 100), Sample(RUN.group_id, 7, 100)]


def test_migrations_run_once_each_in_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with History(path) as history:
        history.record([RUN])

    def add_a_table(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE extra (x)")

    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, add_a_table))
    for _ in range(2):
        with History(path) as history:
            assert history.runs() == [RUN]
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (2,)


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
    with pytest.raises(HistoryError, match="schema 99"):
        History(path)


@pytest.mark.parametrize("content", [b"this is no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
@pytest.mark.parametrize("read_only", [True, False])
def test_no_database(path: Path, content: bytes, read_only: bool) -> None:
    path.write_bytes(content)
    with pytest.raises(HistoryError, match=r"history\.sqlite: .*move the file aside"):
        History(path, read_only=read_only)
    assert path.read_bytes() == content


def test_damage_inside(path: Path) -> None:
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
