"""Maintenance of the history: set a damaged file aside, prune old runs, forget a user, and count what it holds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_asrpt.files import sync_folder
from slurm_asrpt.history.store import PARTS, TRAINING_STATES, DamagedError, History, HistoryError
from slurm_asrpt.text import counted

DAY_S = 86400
DAMAGED = ".damaged-"
DAEMON_WAIT_S = 1.0
"""How long to wait for a lock: asrptd must schedule meanwhile, and can write later."""


def open_or_set_aside(path: Path, now: float) -> tuple[History, str]:
    """Open the history. Also returns a line for the log if a damaged file was replaced by a new one. Raises
    HistoryError.

    For the daemon, which must go on. Only files that SQLite reports as damaged are moved: a file that is locked,
    owned by another user, on a full disk or of a later release stays where it is.
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
        f"{path} is damaged ({'; '.join(problems[:3])}); it was moved to {aside} and a new one was created; "
        f"predictions stay until the next retrain; sqlite3 {aside} .recover may save runs, asrpt-admin history "
        "import reads them from sacct"
    )


def _checked(history: History) -> list[str]:
    """The problems of a history; closes it if there are any."""
    try:
        problems = history.problems()
    except BaseException:
        history.close()
        raise
    if problems:
        history.close()
    return problems


def _set_aside(path: Path, now: float) -> Path:
    """Rename the file and its log; the log may hold runs that are not in the file yet."""
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
    """The end of the oldest run to keep, seconds since the epoch; 0 if all are kept."""
    return int(now) - keep_days * DAY_S if keep_days else 0


def prune(history: History, keep_days: int, now: float) -> int:
    """Delete runs that ended more than ``keep_days`` days ago (0: none) and empty the log. Returns the number
    deleted."""
    oldest = oldest_kept(keep_days, now)
    dropped = history.remove("end_time < ?", (oldest,)) if oldest else 0
    history.checkpoint()
    return dropped


def forget(history: History, user: str, uid: int | None) -> int:
    """Delete a user's runs so that nothing of them stays in the file. Returns the number deleted. Raises
    HistoryError.

    user: the name; empty if only the number is known. uid: None if unknown; together with a name it only selects
    runs without a name, since numbers are reused.
    """
    gone = history.remove(*_whose(user, uid))
    if not history.compact():
        raise HistoryError(
            f"{counted(gone, 'run')} deleted, but a process is reading the history, so copies are left in "
            f"{history.path}-wal; run this again"
        )
    return gone


def count_of(history: History, user: str, uid: int | None) -> int:
    """How many runs ``forget`` would delete."""
    return history.count(*_whose(user, uid))


def _whose(user: str, uid: int | None) -> tuple[str, tuple[Any, ...]]:
    if user:
        return "user = ? OR (user = '' AND uid = ?)", (user, uid)
    return "uid = ?", (uid,)


@dataclass(frozen=True)
class Statistics:
    """Figures of a history. Times: seconds since the epoch, 0 for none.

    learnable: runs that predictors learn from: they ended by themselves, and have a group and known iterations.
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
    states = ", ".join("?" * len(TRAINING_STATES))
    learnable = history.count(
        f"state IN ({states}) AND iterations > 0 AND length(group_id) = 16", tuple(TRAINING_STATES)
    )
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
    """Runs by the values of a column, most frequent first."""
    query = f"SELECT {column}, count(*) FROM runs GROUP BY {column} ORDER BY 2 DESC, 1"  # noqa: S608 a constant
    return dict(history.select(query))
