"""``table.txt``: predicted iterations by key, as the hook reads them by seek and read.

Fixed-width records of 67 bytes, sorted: a header ``asrpt-table 2 <count>`` padded with blanks, then
``<16 hex digits> <n> <low> <high> <unit>\\n`` for each key: 15 digits each, in thousandths of iterations; low to high
is the 10-90% interval; unit is ``-``, or ``e`` or ``s`` where the figures are per epoch or step that a job asks for.

A submission has a chain of keys (``predict.keys``); the first one with an entry answers. None: unseen, 0 iterations.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self

from slurm_asrpt.files import replace_file

FILE_NAME = "table.txt"
RECORD = 67
MAX_ITERATIONS = 10**12
UNIT_FEATURES = {"e": "epochs", "s": "steps"}
_MAX_STORED = 10**15 - 1
_HEADER = re.compile(rb"asrpt-table 2 ([0-9]{1,12}) *\n")
_RECORD = re.compile(rb"([0-9a-f]{16}) ([0-9]{15}) ([0-9]{15}) ([0-9]{15}) ([-es])\n")
_KEY_FIELD = re.compile(rb"[0-9a-f]{16} ")
_KEY = re.compile(r"[0-9a-f]{16}")

Chain = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Entry:
    """What is predicted under a key. low, high: the 10-90% interval. unit: all three per epoch (e) or step (s)."""

    iterations: float
    low: float
    high: float
    unit: str = "-"

    @classmethod
    def plain(cls, iterations: float, unit: str = "-") -> Self:
        """A figure without an interval."""
        return cls(iterations, iterations, iterations, unit)


@dataclass(frozen=True)
class Answer:
    """What is predicted for a submission, and the level of the key that knew; 0 and "" where none did."""

    iterations: int = 0
    low: int = 0
    high: int = 0
    level: str = ""


def answer(chain: Chain, features: Mapping[str, float], get: Callable[[str], Entry | None]) -> Answer:
    """The first entry of the chain that can answer. ``get`` finds the entry of a key."""
    for level, key in chain:
        entry = get(key)
        factor = unit_factor(entry.unit, features) if entry else 0.0
        if entry and factor > 0:
            n, low, high = (_whole(value, factor) for value in (entry.iterations, entry.low, entry.high))
            return Answer(n, low, high, level)
    return Answer()


def unit_factor(unit: str, features: Mapping[str, float]) -> float:
    """What a figure is multiplied by; 0 where the submission does not say how many epochs or steps it wants."""
    return 1.0 if unit == "-" else features.get(UNIT_FEATURES[unit], 0.0)


def _whole(value: float, factor: float) -> int:
    return math.floor(min(max(value * factor, 1.0), float(MAX_ITERATIONS)) + 0.5)


def render_table(predictions: Mapping[str, Entry]) -> bytes:
    """The bytes of table.txt. Raises ValueError for a key or unit that its format does not know."""
    header = f"asrpt-table 2 {len(predictions)}".ljust(RECORD - 1) + "\n"
    return (header + "".join(_render(key, predictions[key]) for key in sorted(predictions))).encode("ascii")


def _render(key: str, entry: Entry) -> str:
    if not _KEY.fullmatch(key) or entry.unit not in "-es":
        raise ValueError(f"{key!r} is no key of a prediction, or {entry.unit!r} no unit")
    n, low, high = (
        min(max(round(value * 1000), 0), _MAX_STORED) for value in (entry.iterations, entry.low, entry.high)
    )
    return f"{key} {n:015d} {low:015d} {high:015d} {entry.unit}\n"


def write_table(path: Path, predictions: Mapping[str, Entry]) -> None:
    """Replace the table at ``path``. Raises OSError, ValueError."""
    replace_file(path, render_table(predictions))


def lookup(path: Path, chain: Chain, features: Mapping[str, float]) -> tuple[Answer, str]:
    """What the table answers, and what is wrong with it ("": nothing).

    Same steps and same answers as the hook's, so that the tools show what slurmctld does.
    """
    try:
        with path.open("rb") as file:
            return answer(chain, features, partial(_search, file)), ""
    except OSError as error:
        return Answer(), f"cannot read table.txt: {error.strerror}"
    except ValueError as error:
        return Answer(), f"table.txt is damaged: {error}"


def _search(file: BinaryIO, key: str) -> Entry | None:
    wanted = int(key, 16)
    low, high = 1, _count(file)
    least, most, step = -1 << 32, 1 << 64, 0
    while low <= high:
        step += 1
        middle = _probe(wanted, low, high, least, most, step)
        found = _key(file, middle)
        if not least < found < most:
            raise ValueError("order")
        if found == wanted:
            return _record(file, middle)
        if found < wanted:
            low, least = middle + 1, found
        else:
            high, most = middle - 1, found
    return None


def _probe(wanted: int, low: int, high: int, least: int, most: int, step: int) -> int:
    """Where to look next: first by the value's place between its neighbours, later by halving."""
    bottom, top = least >> 32, most >> 32
    if step > 8 or top == bottom:
        return low + (high - low) // 2
    guess = low - 1 + math.floor((high - low + 2) * (((wanted >> 32) - bottom) / (top - bottom)))
    return max(low, min(high, guess))


def _count(file: BinaryIO) -> int:
    file.seek(0)
    line = file.read(RECORD)
    match = _HEADER.fullmatch(line)
    if not match or len(line) != RECORD:
        raise ValueError("header")
    if file.seek(0, os.SEEK_END) != (int(match[1]) + 1) * RECORD:
        raise ValueError("size")
    return int(match[1])


def _key(file: BinaryIO, index: int) -> int:
    """Of a record that is passed by only the key is read, as the hook does."""
    file.seek(index * RECORD)
    field = file.read(17)
    if not _KEY_FIELD.fullmatch(field):
        raise ValueError(f"record {index}")
    return int(field, 16)


def _record(file: BinaryIO, index: int) -> Entry:
    file.seek(index * RECORD)
    match = _RECORD.fullmatch(file.read(RECORD))
    if not match:
        raise ValueError(f"record {index}")
    return _entry(match)


def _entry(match: re.Match[bytes]) -> Entry:
    n, low, high = (int(digits) / 1000 for digits in match.group(2, 3, 4))
    return Entry(n, low, high, match[5].decode("ascii"))


def read_table(path: Path) -> dict[str, Entry]:
    """The whole table. Raises OSError, ValueError where it is damaged."""
    try:
        return parse_table(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def parse_table(data: bytes) -> dict[str, Entry]:
    """The entries in the bytes of a table. Raises ValueError where they are damaged."""
    count = _count(io.BytesIO(data))
    records = [_RECORD.fullmatch(data, at, at + RECORD) for at in range(RECORD, RECORD * (count + 1), RECORD)]
    if not all(records):
        raise ValueError("a record is not readable")
    return {match[1].decode("ascii"): _entry(match) for match in records if match}
