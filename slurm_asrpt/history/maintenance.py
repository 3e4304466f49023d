"""Care for the history: a damaged file is set aside, old runs go, a user is forgotten, and what it holds in figures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_asrpt.files import sync_folder
from slurm_asrpt.history.store import PARTS, TEACHING, DamagedError, History, HistoryError
from slurm_asrpt.text import counted

DAY_S = 86400
DAMAGED = ".damaged-"
DAEMON_WAIT_S = 1.0
"""For a lock of somebody else's: asrptd schedules meanwhile, and writes later."""


def open_or_set_aside(path: Path, now: float) -> tuple[History, str]:
    """The history, and a line for the log if a damaged file was moved aside for a new one. Raises HistoryError.

    For the daemon, which must go on. Only what SQLite calls damaged is moved: a file that is locked, foreign-owned, on
    a full disk or of a later release stays where it is.
    """
    try:
        history = History(path, wait_s=DAEMON_WAIT_S)
        problems = _checked(history)
    except DamagedError as error:
        problems = [str(error.__cause__ or error)]
    if not problems:
        return history, ""
    aside = _set_aside(path, now)
    return History(path, wait_s=DAEMON_WAIT_S), (
        f"{path} is damaged ({'; '.join(problems[:3])}); it was moved to {aside} and a new one begun; predictions stay "
        f"until the next retrain; sqlite3 {aside} .recover may save runs, asrpt-admin history import takes sacct's"
    )


def _checked(history: History) -> list[str]:
    """What is wrong with it; it is closed unless it is sound."""
    try:
        problems = history.problems()
    except BaseException:
        history.close()
        raise
    if problems:
        history.close()
    return problems


def _set_aside(path: Path, now: float) -> Path:
    """Rename the file and its log, which may hold runs that are not in it yet."""
    aside = path.with_name(f"{path.name}{DAMAGED}{now:.0f}")
    try:
        for part in PARTS:
            source = path.with_name(path.name + part)
            if source.exists():
                os.replace(source, aside.with_name(aside.name + part))
        sync_folder(path.parent)
    except OSError as error:
        raise HistoryError(f"{path}: damaged, and cannot be moved aside ({error.strerror}); move it by hand") from error
    return aside


def oldest_kept(keep_days: int, now: float) -> int:
    """The end of a run, seconds since the epoch, before which it is dropped; 0 where all are kept."""
    return int(now) - keep_days * DAY_S if keep_days else 0


def tend(history: History, keep_days: int, now: float) -> int:
    """Drop runs that ended more than ``keep_days`` ago (0: none) and empty the log; how many were dropped."""
    oldest = oldest_kept(keep_days, now)
    dropped = history.remove("end_time < ?", (oldest,)) if oldest else 0
    history.checkpoint()
    return dropped


def forget(history: History, user: str, uid: int | None) -> int:
    """Drop a user's runs so that nothing of them is left in the file; how many there were. Raises HistoryError.

    user: the name, empty where only the number is known. uid: None where not known; with a name it counts for runs
    that have no name, because numbers are given anew.
    """
    gone = history.remove(*_whose(user, uid))
    if not history.compact():
        raise HistoryError(
            f"{counted(gone, 'run')} dropped, but somebody is reading the history, so traces are left in "
            f"{history.path}-wal; run this once more"
        )
    return gone


def count_of(history: History, user: str, uid: int | None) -> int:
    """How many runs ``forget`` would drop."""
    return history.count(*_whose(user, uid))


def _whose(user: str, uid: int | None) -> tuple[str, tuple[Any, ...]]:
    if user:
        return "user = ? OR (user = '' AND uid = ?)", (user, uid)
    return "uid = ?", (uid,)


@dataclass(frozen=True)
class Statistics:
    """A history in figures. Times: seconds since the epoch, 0 for none.

    learnable: runs that predictions are learnt from now: ended of their own, of a group, with known
    iterations.
    recurrent_share: share of the runs of a group that are not its first. bytes: file and log.
    """

    runs: int
    learnable: int
    groups: int
    users: int
    recurrent_share: float
    first_end: int
    last_end: int
    bytes: int
    states: dict[str, int]
    origins: dict[str, int]
    iterations_sources: dict[str, int]


def statistics(history: History) -> Statistics:
    """Raises HistoryError."""
    runs, grouped, groups, users, first, last = history.select(
        "SELECT count(*), count(nullif(group_id, '')), count(DISTINCT nullif(group_id, '')), "
        "count(DISTINCT CASE WHEN uid >= 0 THEN CAST(uid AS TEXT) ELSE user END), "
        "coalesce(min(end_time), 0), coalesce(max(end_time), 0) FROM runs"
    )[0]
    states = ", ".join("?" * len(TEACHING))
    learnable = history.count(f"state IN ({states}) AND iterations > 0 AND length(group_id) = 16", tuple(TEACHING))
    return Statistics(
        runs=runs,
        learnable=learnable,
        groups=groups,
        users=users,
        recurrent_share=(grouped - groups) / grouped if grouped else 0.0,
        first_end=first,
        last_end=last,
        bytes=size_of(history.path),
        states=_counts(history, "state"),
        origins=_counts(history, "origin"),
        iterations_sources=_counts(history, "iterations_source"),
    )


def size_of(path: Path) -> int:
    """Bytes of the file and its log."""
    parts = (path.with_name(path.name + part) for part in PARTS)
    return sum(part.stat().st_size for part in parts if part.exists())


def _counts(history: History, column: str) -> dict[str, int]:
    """Runs by the values of a column, the commonest first."""
    query = f"SELECT {column}, count(*) FROM runs GROUP BY {column} ORDER BY 2 DESC, 1"  # noqa: S608 a constant
    return dict(history.select(query))
