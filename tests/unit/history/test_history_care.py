"""Maintenance of the history: damage, retention, forgetting, statistics, and file modes."""

from __future__ import annotations

import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt.history.maintenance import DAY_S, count_of, forget, open_or_set_aside, prune, size_of, statistics
from slurm_asrpt.history.store import LARGEST_WAL_BYTES, TRAINING_STATES, History, HistoryError, Origin, Run
from slurm_asrpt.predict.predictors import training_samples

RUN = Run("1", 1000, 900, 2000, "COMPLETED", user="ann", uid=1000, group_id="0" * 16, iterations=5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def write(path: Path, *runs: Run) -> None:
    with History(path) as history:
        history.record(runs)


def test_only_the_owner_may_read_it(path: Path) -> None:
    with History(path) as history:
        history.record([RUN])
        modes = {stat.S_IMODE(part.stat().st_mode) for part in path.parent.iterdir()}
    assert modes == {0o600}


@pytest.mark.parametrize("text", ["a\ud800b", "nul\0here", "\x1b]0;x\x07", "x\r\ny", "=cmd|'/c calc'!A0"])
def test_text_of_users_may_be_any_text(path: Path, text: str) -> None:
    write(path, replace(RUN, job_name=text, user=text))
    with History(path, read_only=True) as history:
        (run,) = history.runs()
    assert run.job_name == text.replace("\ud800", "?")


@pytest.mark.parametrize("damage", ["not a database", "inside", "index"])
def test_a_damaged_file_is_moved_aside_and_a_new_one_is_created(path: Path, damage: str) -> None:
    write(path, *(replace(RUN, job_id=str(i), end_time=i) for i in range(2000)))
    raw = bytearray(path.read_bytes())
    if damage == "not a database":
        raw[:] = b"rubbish" * 1000
    elif damage == "inside":
        raw[3 * 4096 :] = b"\xff" * (len(raw) - 3 * 4096)
    else:
        corrupt_index(path)
        raw = bytearray(path.read_bytes())
    path.write_bytes(raw)
    history, trouble = open_or_set_aside(path, 1234.5)
    with history:
        assert history.runs() == []
        history.record([RUN])
        assert history.problems() == []
    aside = path.with_name("history.sqlite.damaged-1234")
    assert aside.read_bytes() == raw
    assert trouble.startswith(f"{path} is damaged (")
    assert str(aside) in trouble


def corrupt_index(path: Path) -> None:
    """Break the schema entry of an index, which no query notices."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA writable_schema = 1")
        connection.execute("DELETE FROM sqlite_master WHERE name = 'runs_by_end'")


def test_runs_that_are_only_in_the_write_ahead_log_are_not_lost(path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    with History(path) as history:
        history.record(replace(RUN, job_id=str(i)) for i in range(500))
        history.checkpoint()
        history.record([replace(RUN, job_id="2000", job_name="only-in-the-log")])
        kept = log.read_bytes()
    assert b"only-in-the-log" in kept
    path.write_bytes(b"rubbish" * 5000)
    log.write_bytes(kept)
    open_or_set_aside(path, 5)[0].close()
    assert b"only-in-the-log" in b"".join(part.read_bytes() for part in path.parent.iterdir())


def test_a_sound_history_is_kept_and_other_errors_do_not_move_it(path: Path) -> None:
    write(path, RUN)
    history, trouble = open_or_set_aside(path, 5)
    assert (history.runs(), trouble) == ([RUN], "")
    history.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(HistoryError, match="schema 99"):
        open_or_set_aside(path, 5)
    assert [part.name for part in path.parent.glob("*damaged*")] == []


@pytest.mark.parametrize(("days", "left"), [(0, {"old", "new"}), (10, {"new"})])
def test_retention(path: Path, days: int, left: set[str]) -> None:
    now = 100 * DAY_S
    write(path, replace(RUN, job_id="old", end_time=now - 11 * DAY_S), replace(RUN, job_id="new", end_time=now - DAY_S))
    with History(path) as history:
        assert prune(history, days, now) == 2 - len(left)
        assert {run.job_id for run in history.runs()} == left


def test_the_write_ahead_log_stays_small(path: Path) -> None:
    with History(path) as history, History(path) as reader:
        for start in range(0, 60_000, 5000):
            history.record(replace(RUN, job_id=str(i), job_name="x" * 500) for i in range(start, start + 5000))
            assert reader.count("1", ()) == start + 5000
        prune(history, 0, 0)
        log = path.with_name(path.name + "-wal")
        assert log.stat().st_size <= LARGEST_WAL_BYTES < path.stat().st_size


def test_runs_recorded_by_asrptd_are_kept(path: Path) -> None:
    mine, told = replace(RUN, iterations=7), replace(RUN, job_id="2", origin=Origin.SACCT)
    with History(path) as history:
        history.record([mine])
        history.add([replace(RUN, origin=Origin.SACCT), told, replace(told, iterations=9)])
        assert history.find([mine.key, told.key, ("3", 1)]) == {
            mine.key: mine,
            told.key: replace(told, iterations=9),
        }
        assert [history.known(job_id, 1000) for job_id in "123"] == [True, False, False]


def test_import_marks_only_advance(path: Path) -> None:
    with History(path) as history:
        assert history.mark("sacct gpu") == 0
        for time in (5, 9, 7):
            history.set_mark("sacct gpu", time)
        assert history.mark("sacct gpu") == 9


def test_no_data_of_a_forgotten_user_remains(path: Path) -> None:
    other = replace(RUN, job_id="other", user="bob", uid=1001)
    with History(path) as history:
        history.record(replace(RUN, job_id=str(i), user="mallory-7f", job_name="secret-7f") for i in range(50))
        history.record([other, replace(RUN, job_id="nameless", user="", job_name="secret-7f")])
        assert count_of(history, "mallory-7f", 1000) == 51
        assert forget(history, "mallory-7f", 1000) == 51
        everything = b"".join(part.read_bytes() for part in path.parent.iterdir())
        assert history.runs() == [other]
    assert b"bob" in everything
    assert b"-7f" not in everything


def test_forgetting_a_reused_uid_does_not_forget_the_next_user(path: Path) -> None:
    next_user = replace(RUN, job_id="2", user="bob")
    write(path, RUN, next_user)
    with History(path) as history:
        assert forget(history, "ann", 1000) == 1
        assert history.runs() == [next_user]
        assert forget(history, "", 1000) == 1


def test_a_reader_that_blocks_the_cleanup_is_reported(path: Path) -> None:
    write(path, RUN, replace(RUN, job_id="2", user="bob"))
    with History(path, wait_s=0.01) as history, sqlite3.connect(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM runs").fetchone()
        with pytest.raises(HistoryError, match="run this again"):
            forget(history, "ann", None)


def test_statistics(path: Path) -> None:
    runs = [
        RUN,
        replace(RUN, job_id="2", state="FAILED", end_time=3000),
        replace(RUN, job_id="3", group_id="1" * 16, uid=-1, user="eve", origin=Origin.CSV),
        replace(RUN, job_id="4", group_id="", iterations=0, end_time=2500),
    ]
    write(path, *runs)
    with History(path, read_only=True) as history:
        found = statistics(history)
        assert (found.runs, found.learnable, found.groups, found.users) == (4, 3, 2, 2)
        assert found.recurrent_share == pytest.approx(1 / 3)
        assert (found.first_end, found.last_end) == (2000, 3000)
        assert found.states == {"COMPLETED": 3, "FAILED": 1}
        assert found.origins == {"asrptd": 3, "csv": 1}
        assert found.bytes == size_of(path) > 0


def test_the_learnable_runs_in_statistics_are_those_that_retrain_uses(path: Path) -> None:
    states = sorted({*TRAINING_STATES, "CANCELLED", "PREEMPTED", "NODE_FAIL", "REQUEUED"})
    write(path, *(replace(RUN, job_id=state, state=state) for state in states))
    with History(path, read_only=True) as history:
        learnable, samples = statistics(history).learnable, training_samples(history.samples())
    assert learnable == len(samples) == len(TRAINING_STATES)


def test_statistics_of_an_empty_history(path: Path) -> None:
    with History(path) as history:
        assert statistics(history).recurrent_share == 0
