"""``table.txt``: predicted iterations by key. The hook looks a key up with a seek and a read.

Records of 83 bytes: a header ``asrpt-table 4 <slots> <records> <a> <b>`` padded with blanks, then
``<16 hex digits> <n> <low> <high> <mean> <unit>\\n`` for each key: 15 digits each, in thousandths of iterations. low to
high is the 10-90% interval. mean orders the queue; 0 stands for n. unit is ``-``, or ``e`` or ``s`` if the figures are
per epoch or step.

The file is a hash table with linear probing, and every second slot is blank. So one short read, rarely two, finds a key
or that it is missing; most of the cost are pages that were not read lately. A key's place depends on a and b, too, and
these on all records, so nobody can choose keys that collide.

A submission has a chain of keys (``hook.group.keys_of``). The first one with an entry answers; a job without any is
unseen and has 0 iterations.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.hook.lua import call

FILE_NAME = "table.txt"
RECORD, _FORMER = 83, 67
MAX_ITERATIONS = 10**12
UNIT_FEATURES = {"e": "epochs", "s": "steps"}
_MAX_STORED = 10**15 - 1
_HEADER = re.compile(rb"asrpt-table 4 ([1-9][0-9]{0,11}) ([0-9]{1,12}) ([0-9]{6}) ([0-9]{6}) *\n")
_OTHER = re.compile(rb"asrpt-table ([0-9]{1,3}) ")
_RECORD = re.compile(rb"([0-9a-f]{16}) ([0-9]{15}) ([0-9]{15}) ([0-9]{15}) ([0-9]{15}) ([-es])\n")
_HEX = re.compile(r"[0-9a-f]*")
Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]

_BLANK = np.frombuffer(b" " * (RECORD - 1) + b"\n", dtype=np.uint8)

Chain = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Entry:
    """The prediction under a key. low, high: the 10-90% interval. unit: all figures are per epoch (e) or step (s).

    mean: expected iterations, which order the queue, if they differ from ``iterations``; else 0.
    """

    iterations: float
    low: float
    high: float
    unit: str = "-"
    mean: float = 0.0

    @classmethod
    def plain(cls, iterations: float, unit: str = "-", mean: float = 0.0) -> Self:
        """A figure without an interval."""
        return cls(iterations, iterations, iterations, unit, mean)


@dataclass(frozen=True)
class Answer:
    """The prediction for a submission, and the level of the key that answered; 0 and "" if none did."""

    iterations: int = 0
    low: int = 0
    high: int = 0
    level: str = ""
    mean: int = 0

    @property
    def order(self) -> int:
        """Iterations that order the queue."""
        return self.mean or self.iterations


def answer(chain: Chain, features: Mapping[str, float], get: Callable[[str], Entry | None]) -> Answer:
    """The first entry of the chain that can answer, by the hook's rule. ``get`` finds the entry of a key."""
    for level, key in chain:
        entry = get(key)
        factor = unit_factor(entry.unit, features) if entry else 0.0
        if entry and factor > 0:
            n, low, high = (_whole(value, factor) for value in (entry.iterations, entry.low, entry.high))
            return Answer(n, low, high, level, _whole(entry.mean, factor) if entry.mean > 0 else 0)
    return Answer()


def unit_factor(unit: str, features: Mapping[str, float]) -> float:
    """The factor for a figure with this unit; 0 if the submission does not give its number of epochs or steps."""
    return 1.0 if unit == "-" else features.get(UNIT_FEATURES[unit], 0.0)


def _whole(value: float, factor: float) -> int:
    return math.floor(min(max(value * factor, 1.0), float(MAX_ITERATIONS)) + 0.5)


@dataclass(frozen=True)
class _Layout:
    """The header. a, b: six digits, so that the hook computes homes exactly in doubles."""

    slots: int
    records: int
    a: int
    b: int

    def homes(self, keys: Bytes) -> Integers:
        """The slot of each key, if it is free. Int array of (keys,)."""
        upper, lower = _halves(keys)
        return (upper * self.a + lower * self.b) % 4294967291 % self.slots


def _halves(keys: Bytes) -> tuple[Integers, Integers]:
    """The upper and lower 32 bits of keys. keys: uint8 of (keys, 16), hexadecimal digits."""
    digits = np.where(keys < ord("a"), keys - ord("0"), keys - ord("a") + 10).astype(np.int64)
    powers = 16 ** np.arange(7, -1, -1)
    return digits[:, :8] @ powers, digits[:, 8:] @ powers


def render_table(predictions: Mapping[str, Entry]) -> bytes:
    """The content of table.txt. Raises ValueError for a key, unit or figure that its format cannot hold."""
    records = _records(predictions)
    layout = _layout_for(records)
    homes = layout.homes(records[:, :16])
    order = np.argsort(homes, kind="stable")
    places = _probed(homes[order])
    rows = np.tile(_BLANK, (1 + max(layout.slots, int(places.max(initial=0)) + 2), 1))
    header = f"asrpt-table 4 {layout.slots} {len(rows) - 1} {layout.a} {layout.b}".ljust(RECORD - 1) + "\n"
    rows[0] = np.frombuffer(header.encode("ascii"), dtype=np.uint8)
    rows[1 + places] = records[order]
    return rows.tobytes()


def _layout_for(records: Bytes) -> _Layout:
    slots = 2 * len(records) + 1
    a, b = (500_000 + word % 500_000 for word in struct.unpack("<2I", hashlib.sha256(records.data).digest()[:8]))
    return _Layout(slots, slots, a, b)


def _probed(homes: Integers) -> Integers:
    """The slots of records with these homes, ascending: the home, or the next free slot."""
    index = np.arange(len(homes))
    return index + np.maximum.accumulate(homes - index)


def _records(predictions: Mapping[str, Entry]) -> Bytes:
    """A row of bytes for each key, in order. Built by column, because a million rows one by one take long."""
    entries = predictions.values()
    keys, units = "".join(predictions), "".join([entry.unit for entry in entries])
    if any(len(key) != 16 for key in predictions) or not _HEX.fullmatch(keys):
        raise ValueError("a key in the table must have 16 hex digits")
    if len(units) != len(entries) or units.strip("-es"):
        raise ValueError("a unit in the table must be -, e or s")
    rows = np.full((len(entries), RECORD), ord(" "), dtype=np.uint8)
    rows[:, :16] = _letters(keys).reshape(-1, 16)
    for column, figure in enumerate(("iterations", "low", "high", "mean")):
        values = np.array([getattr(entry, figure) for entry in entries], dtype=np.float64)
        rows[:, 17 + 16 * column : 32 + 16 * column] = _digits(values)
    rows[:, RECORD - 2] = _letters(units)
    rows[:, RECORD - 1] = ord("\n")
    upper, lower = _halves(rows[:, :16])
    return rows[np.lexsort((lower, upper))]


def _letters(text: str) -> Bytes:
    return np.frombuffer(text.encode("ascii"), dtype=np.uint8)


def _digits(values: NDArray[np.float64]) -> Bytes:
    """Thousandths, in 15 digits each. Raises ValueError for NaN."""
    if np.isnan(values).any():
        raise ValueError("a prediction is not a number")
    left = np.rint(np.clip(values * 1000, 0, _MAX_STORED)).astype(np.int64)
    digits = np.empty((len(left), 15), dtype=np.uint8)
    for column in reversed(range(15)):
        left, digit = np.divmod(left, 10)
        digits[:, column] = digit + ord("0")
    return digits


def lookup(path: Path, chain: Chain, features: Mapping[str, float]) -> tuple[Answer, str]:
    """The hook's own answer from a table, and what is wrong with the table ("": nothing)."""
    levels = [[level.encode(), key.encode("ascii")] for level, key in chain]
    wanted = {name.encode(): value for name, value in features.items()}
    found, trouble = call("lookup", os.fsencode(path), levels, wanted)
    n, low, high, mean = (int(found[name] or 0) for name in (b"n", b"low", b"high", b"mean"))
    return Answer(n, low, high, (found[b"level"] or b"").decode(), mean), os.fsdecode(trouble or b"")


def _layout(file: BinaryIO) -> _Layout:
    file.seek(0)
    line = file.read(RECORD)
    match, other = _HEADER.fullmatch(line), _OTHER.match(line)
    if other and other[1] != b"4":
        raise ValueError(f"format {other[1].decode()}, not 4")
    if not match or len(line) != RECORD:
        raise ValueError("header")
    found = _Layout(*map(int, match.groups()))
    if file.seek(0, os.SEEK_END) != (found.records + 1) * RECORD:
        raise ValueError("cut short or too long")
    return found


def _entry(match: re.Match[bytes]) -> Entry:
    n, low, high, mean = (int(digits) / 1000 for digits in match.group(2, 3, 4, 5))
    return Entry(n, low, high, match[6].decode("ascii"), mean)


def renewed(data: bytes) -> bytes:
    """Convert a table of format 3, which had no mean, to this format. Raises ValueError for any other format.

    The home of a key depends only on the figures in the header, so each record keeps its slot.
    """
    if not data.startswith(b"asrpt-table 3 ") or len(data) % _FORMER:
        raise ValueError("not a table of format 3")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, _FORMER)
    means = np.full((len(rows), RECORD - _FORMER), ord(" "), dtype=np.uint8)
    means[rows[:, 0] != ord(" "), 1:] = ord("0")
    new = np.hstack((rows[:, :-3], means, rows[:, -3:]))
    new[0] = np.frombuffer(b"asrpt-table 4" + data[13 : _FORMER - 1].ljust(RECORD - 14) + b"\n", dtype=np.uint8)
    return new.tobytes()


def read_table(path: Path) -> dict[str, Entry]:
    """The whole table. Raises OSError, ValueError if it is damaged."""
    try:
        return parse_table(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def parse_table(data: bytes) -> dict[str, Entry]:
    """The entries in the content of a table. Raises ValueError if it is damaged."""
    _layout(io.BytesIO(data))
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, RECORD)[1:]
    used = rows[(rows != _BLANK).any(axis=1)].tobytes()
    records = [_RECORD.fullmatch(used, at, at + RECORD) for at in range(0, len(used), RECORD)]
    if not all(records):
        raise ValueError("a record is not readable")
    return {match[1].decode("ascii"): _entry(match) for match in records if match}
