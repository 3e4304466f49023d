"""Slurm's notations: array tasks, nodes with GPUs, times, durations. Few imports, so that asrpt-status starts fast."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from slurm_asrpt.errors import InputError

_COMPONENT = re.compile(r"([0-9]{1,12})\+([0-9]{1,9})")
_TASKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?")

_LENGTHS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_SHORT = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
UNITS = {**_SHORT, **{f"{unit}{plural}": length for unit, length in _LENGTHS.items() for plural in ("", "s")}}
"""Seconds of a unit of time. Slurm has the long ones, the short ones are ours: 7d."""
HOURS = {"midnight": 0, "noon": 12, "fika": 15, "elevenses": 11, "teatime": 16}
_RELATIVE = re.compile(r"now(?:([+-])([0-9]{1,8})([a-z]*))?")
_AGO = re.compile(r"([0-9]{1,8}) ?([a-z]+)")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?(?: ?([ap])m)?")
_ZONED = re.compile(r"[0-9-]{10}t[0-9:.]+(?:z|[+-][0-9]{2}:?[0-9]{2})")
_DATES = (
    re.compile(r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"),
    re.compile(r"(?P<month>[0-9]{2})(?P<sep>[/.]?)(?P<day>[0-9]{2})(?:(?P=sep)(?P<year>[0-9]{2}))?"),
)

_DURATION = re.compile(r"(?:([0-9]{1,7})-)?(?:([0-9]{1,9}):)??([0-9]{1,9}):([0-9]{1,2}(?:\.[0-9]*)?)")


def or_empty(text: str) -> str:
    """The text; empty for Slurm's words for none."""
    return "" if text in ("(null)", "N/A") else text


def read_tasks(text: str) -> tuple[range, ...]:
    """Array tasks such as ``0-3,7`` or ``1-19:3``; empty if any part is invalid."""
    parts = [_TASKS.fullmatch(part) for part in text.split(",")]
    found = [match.groups() for match in parts if match]
    tasks = tuple(range(int(low), int(high or low) + 1, int(step or 1)) for low, high, step in found)
    return tasks if len(tasks) == len(parts) else ()


def job_id_of(text: str) -> str:
    """The ID under which asrptd knows a job: of a component, 12+1, that is 13; as it is for any other text.

    Slurm numbers the components of a heterogeneous job on from its own number.
    """
    found = _COMPONENT.fullmatch(text)
    return str(int(found[1]) + int(found[2])) if found else text


def fold_tasks(tasks: Sequence[int]) -> str:
    """The inverse of ``read_tasks``, as Slurm writes it. tasks: in ascending order, at least one."""
    first, last = tasks[0], tasks[-1]
    step = tasks[1] - first if len(tasks) > 5 and last - first > 10 else 1
    if step > 1 and list(tasks) == list(range(first, last + 1, step)):
        return f"{first}-{last}:{step}"
    runs: list[list[int]] = []
    for task in tasks:
        if runs and task == runs[-1][1] + 1:
            runs[-1][1] = task
        else:
            runs.append([task, task])
    return ",".join(f"{low}-{high}" if low < high else str(low) for low, high in runs)


def fold_gpus(nodes: Mapping[str, int]) -> str:
    """Nodes grouped by their number of GPUs: ``n1:4 n[2-3]:1``; those of a job without GPUs by name: ``n1``."""
    by_gpus: dict[int, list[str]] = {}
    for name, gpus in nodes.items():
        by_gpus.setdefault(gpus, []).append(name)
    return " ".join(
        f"{_fold(names)}:{gpus}" if gpus else _fold(names) for gpus, names in sorted(by_gpus.items(), reverse=True)
    )


def _fold(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        # No group resolver: a name with an @ must not run the site's group commands.
        return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return ",".join(names)


def parse_duration(text: str) -> float:
    """Seconds of ``[D-][HH:]MM:SS``, as Slurm prints them. Raises ValueError for anything else."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"not a duration: {text}")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return 86400.0 * days + 3600.0 * hours + 60.0 * minutes + seconds


def parse_limit(text: str) -> float:
    """As ``parse_duration``; infinity for UNLIMITED, NONE and the like. Raises ValueError."""
    return parse_duration(text) if text[:1].isdigit() else math.inf


def read_time(text: str, now: float) -> float:
    """Seconds since the epoch of ``now-2hours``, ``today``, ``noon``, ``14:30``, ``2026-11-21T14:30``, ``11/21`` ...

    ``2hours`` or ``2h`` alone means 2 hours ago. Otherwise ``sacct --starttime`` and ``sbatch --begin`` have the same
    syntax. All commands read times by this function. Raises InputError.
    """
    word = text.strip().lower()
    try:
        found = _span(word)
        if found is not None:
            return datetime.fromtimestamp(now + found).timestamp()  # raises for times outside of the calendar
        return _date(word, datetime.fromtimestamp(now)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InputError(
            f"{text[:60]!r} is not a time; write 7d, 12hours, now-2hours, today, 14:30, 2026-11-21 or 2026-11-21T14:30"
        ) from None


def read_past(text: str, now: float) -> float:
    """``read_time`` of ``--since``. Raises InputError, also if it is not in the past."""
    found = read_time(text, now)
    if found > now - 1.0:
        raise InputError(f"--since {text[:60]}: not in the past")
    return found


def _span(word: str) -> float | None:
    """Seconds from now; None for a date. Raises ValueError for an unknown unit."""
    found = _RELATIVE.fullmatch(word)
    if found is not None:
        sign = -1 if found[1] == "-" else 1
        return float(sign * int(found[2] or 0) * _unit(found[3] or "seconds"))
    found = _AGO.fullmatch(word)
    return float(-int(found[1]) * UNITS[found[2]]) if found is not None and found[2] in UNITS else None


def _unit(word: str) -> int:
    """Raises ValueError."""
    if word not in UNITS:
        raise ValueError(word)
    return UNITS[word]


def _date(word: str, now: datetime) -> datetime:
    """Raises ValueError."""
    if _ZONED.fullmatch(word):
        return datetime.fromisoformat(word.upper()).astimezone().replace(tzinfo=None)
    day, _, clock = word.replace(" ", "t", 1).partition("t") if "-" in word or "/" in word else (word, "", "")
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if day == "today":
        return midnight
    if day in ("tomorrow", "yesterday"):
        return midnight + timedelta(days=1 if day == "tomorrow" else -1)
    if day in HOURS:
        return midnight.replace(hour=HOURS[day])
    if _CLOCK.fullmatch(day):
        return _at(midnight, day)
    found = next((match for pattern in _DATES if (match := pattern.fullmatch(day))), None)
    if found is None:
        raise ValueError(word)
    year = int(found["year"] or now.year)
    year = year if year > 99 else 2000 + year
    midnight = midnight.replace(year=year, month=int(found["month"]), day=int(found["day"]))
    return _at(midnight, clock) if clock else midnight


def _at(midnight: datetime, clock: str) -> datetime:
    """Raises ValueError."""
    found = _CLOCK.fullmatch(clock)
    if found is None:
        raise ValueError(clock)
    hour = int(found[1])
    if found[4]:
        hour = hour % 12 + (12 if found[4] == "p" else 0)
    return midnight.replace(hour=hour, minute=int(found[2]), second=int(found[3] or 0))
