"""A TOML table that knows its position in the file, for errors with line and field. Standard library only."""

from __future__ import annotations

import datetime
import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_asrpt.errors import MOST_ERRORS, Collected, InputError, short

Lines = Mapping[tuple[str, str], int]
"""The line of each key by (place, key), and of each table's header by (place, "")."""

_HEADER = re.compile(r"\s*\[(\[?)\s*([A-Za-z0-9_-]+)\s*\]")
_KEY = re.compile(r"\s*[\"']?([A-Za-z0-9_.-]+)[\"']?\s*=")


def read_toml(text: str, source: str) -> Table:
    """The table of a whole file; ``source`` names it in errors. Raises InputError."""
    try:
        return Table(tomllib.loads(text), source, "", find_lines(text))
    except (ValueError, RecursionError) as error:  # Python raises ValueError for a number with thousands of digits, too
        raise InputError(f"{source}: invalid TOML: {error}; fix that line") from error


def find_lines(text: str) -> Lines:
    """The lines of the keys, which tomllib does not report; keys of nested tables are not found."""
    lines: dict[tuple[str, str], int] = {}
    counts: dict[str, int] = {}
    place = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            counts[header[2]] = counts.get(header[2], 0) + 1
            place = f"{header[2]} {counts[header[2]]}: " if header[1] else f"{header[2]}."
            lines.setdefault((place, ""), number)
        elif key := _KEY.match(line):
            lines.setdefault((place, key[1]), number)
    return lines


class Table:
    """The values of one table. place: prefix of its keys in errors, such as ``stage 2: ``."""

    def __init__(self, values: Mapping[str, Any], source: str, place: str, lines: Lines) -> None:
        self.values = dict(values)
        self.source = source
        self.place = place
        self.lines = lines

    def error(self, key: str, what: str) -> InputError:
        line = self.lines.get((self.place, key)) or self.lines.get((self.place, ""))
        where = f"line {line}: " if line else ""
        return InputError(f"{self.source}: {where}{self.place}{key}: {what}")

    def only(self, known: Sequence[str]) -> None:
        """Raises InputError for each key that is not known. A misspelled one is then read as the key it resembles."""
        errors, unknown = Collected(), [key for key in self.values if key not in known]
        for key in unknown:
            near = difflib.get_close_matches(key, known, n=1) if len(unknown) <= MOST_ERRORS else []
            hint = f"did you mean {near[0]}?" if near else f"valid keys: {', '.join(known)}"
            with errors:
                raise self.error(key[:80], f"unknown key; {hint}")
            if near and near[0] not in self.values:  # else it would be reported a second time, as missing
                self.values[near[0]] = self.values.pop(key)
        errors.check()

    def get(self, key: str) -> Any:
        if key not in self.values:
            raise self.error(key, "missing; add it (man asrpt-profile documents the schema)")
        return self.values[key]

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, f"must be a text and not empty, found {short(value)}")
        return value

    def whole(self, key: str) -> int:
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(key, f"must be a whole number of at least 1, found {short(value)}")
        return value

    def count(self, key: str) -> int:
        """A whole number from 0."""
        value = self.number(key)
        if value != int(value):
            raise self.error(key, f"must be a whole number of at least 0, found {short(value)}")
        return int(value)

    def date(self, key: str) -> datetime.date:
        value = self.get(key)
        try:
            if isinstance(value, datetime.datetime):
                return value.date()
            return value if isinstance(value, datetime.date) else datetime.date.fromisoformat(value)
        except (ValueError, TypeError):
            raise self.error(key, f"must be a date such as 2026-11-21, found {short(value)}") from None

    def texts(self) -> dict[str, str]:
        """The whole table, if every value is a text."""
        errors, found = Collected(), dict[str, str]()
        for key in self.values:
            with errors:
                found[key] = self.text(key)
        errors.check()
        return found

    def numbers(self, keys: Iterable[str], errors: Collected) -> dict[str, float]:
        """Those of these keys that have a number; ``errors`` gets the others."""
        found = dict[str, float]()
        for key in keys:
            with errors:
                found[key] = self.number(key)
        return found

    def number(self, key: str) -> float:
        value = self.get(key)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 <= value < 1e30:
            raise self.error(key, f"must be a finite number of at least 0, found {short(value)}")
        return float(value)

    def shares(self, key: str, count: int) -> tuple[float, ...]:
        """``count`` numbers >= 0 that sum to 1."""
        value = self.get(key)
        numbers = [isinstance(v, (int, float)) and not isinstance(v, bool) and 0 <= v <= 1 for v in _list(value)]
        if len(numbers) != count or not all(numbers) or not math.isclose(sum(value), 1, abs_tol=1e-6):
            raise self.error(key, f"must be {count} numbers from 0 to 1 that sum to 1, one per replica")
        return tuple(float(share) for share in value)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def child(self, key: str) -> Table:
        value = self.get(key)
        if not isinstance(value, dict):
            raise self.error(key, f"must be a table; write [{key}]")
        return Table(value, self.source, f"{key}.", self.lines)

    def children(self, key: str) -> list[Table]:
        value = self.get(key)
        if not isinstance(value, list) or not value or not all(isinstance(entry, dict) for entry in value):
            raise self.error(key, f"must be one or more tables; write [[{key}]]")
        return [Table(entry, self.source, f"{key} {number}: ", self.lines) for number, entry in enumerate(value, 1)]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def quote(text: str) -> str:
    """A TOML basic string."""
    escaped = "".join(f"\\{c}" if c in '"\\' else c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
    return f'"{escaped}"'
