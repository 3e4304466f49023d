"""``table.txt``: predictions by key. The hook looks a key up with a seek and a read.

Records of 83 bytes: a header ``asrpt-table 5 <slots> <records> <a> <b>`` padded with blanks, then
``<16 hex digits> <n> <low> <high> <mean> <unit>\\n`` for each key: 15 digits each, in thousandths. low to
high is the 10-90% interval. mean orders the queue; 0 stands for n. unit is ``-``, or ``e`` or ``s`` if the figures are
per epoch or step.

The file is a hash table with linear probing, and every second slot is blank. So one short read, rarely two, finds a key
or that it is missing; most of the cost are pages that were not read lately. A key's place depends on a and b, too, and
these on all records, so nobody can choose keys that collide.

A submission has a chain of keys (``hook.group.keys_of``). The first one with an entry answers; a job without any is
unseen and has 0 iterations. Entries are seconds of work, which any job can convert (``core.units``). A submission with
a profile first asks for two more keys (``profiled_keys_of``), whose entries are iterations of that profile.

Tables of format 4 look the same, but do not say which of their entries are iterations and which are seconds. The hook
still reads them until the next retraining.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.units import MAX_ITERATIONS, Unit
from slurm_asrpt.hook.lua import call

FILE_NAME = "table.txt"
RECORD, _FORMER = 83, 67
UNIT_FEATURES = {"e": "epochs", "s": "steps"}
_MAX_STORED = 10**15 - 1
_HEADER = re.compile(rb"asrpt-table 5 ([1-9][0-9]{0,11}) ([0-9]{1,12}) ([0-9]{6}) ([0-9]{6}) *\n")
_OTHER = re.compile(rb"asrpt-table ([0-9]{1,3}) ")
_RECORD = re.compile(rb"([0-9a-f]{16}) ([0-9]{15}) ([0-9]{15}) ([0-9]{15}) ([0-9]{15}) ([-es])\n")
_HEX = re.compile(r"[0-9a-f]*")
Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]

_BLANK = np.frombuffer(b" " * (RECORD - 1) + b"\n", dtype=np.uint8)

Chain = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Entry:
    """The prediction under a key. low, high: the 10-90% interval. unit: all figures are per epoch (e) or step (s).

    iterations: of the profile in the key, or seconds of work under a key without one.
    mean: the expected value, which orders the queue, if it differs from ``iterations``; else 0.
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
    """The prediction for a submission, and the level of the key that answered; 0 and "" if none did.

    unit: of all figures. For a job without a profile an iteration is a second.
    """

    iterations: int = 0
    low: int = 0
    high: int = 0
    level: str = ""
    mean: int = 0
    unit: Unit = Unit.ITERATIONS

    @property
    def order(self) -> int:
        """The figure that orders the queue."""
        return self.mean or self.iterations

    def in_seconds(self, alpha: float) -> Answer:
        """The answer in seconds of work. alpha: the job's seconds per iteration."""
        if self.unit is Unit.SECONDS or alpha == 1.0:
            return replace(self, unit=Unit.SECONDS)
        n, low, high, mean = (round(v * alpha) for v in (self.iterations, self.low, self.high, self.mean))
        return Answer(n, low, high, self.level, mean, Unit.SECONDS)


def answer(
    chain: Chain, features: Mapping[str, float], get: Callable[[str], Entry | None], profiled: Chain = ()
) -> Answer:
    """The first entry that can answer, by the hook's rule. ``get`` finds the entry of a key.

    profiled: the keys that come first, with iterations of the submission's profile; () without one.
    """
    for at, (level, key) in enumerate((*profiled, *chain)):
        entry = get(key)
        factor = unit_factor(entry.unit, features) if entry else 0.0
        if entry and factor > 0:
            n, low, high = (_whole(value, factor) for value in (entry.iterations, entry.low, entry.high))
            unit = Unit.ITERATIONS if at < len(profiled) else Unit.SECONDS
            return Answer(n, low, high, level, _whole(entry.mean, factor) if entry.mean > 0 else 0, unit)
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
    header = f"asrpt-table 5 {layout.slots} {len(rows) - 1} {layout.a} {layout.b}".ljust(RECORD - 1) + "\n"
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


def lookup(path: Path, chain: Chain, features: Mapping[str, float], profiled: Chain = ()) -> tuple[Answer, str]:
    """The hook's own answer from a table, and what is wrong with the table ("": nothing).

    profiled: as in ``answer``.
    """
    levels: list[list[Any]] = [[level.encode(), key.encode("ascii"), True] for level, key in profiled]
    levels += [[level.encode(), key.encode("ascii")] for level, key in chain]
    wanted = {name.encode(): value for name, value in features.items()}
    found, trouble = call("lookup", os.fsencode(path), levels, wanted)
    n, low, high, mean = (int(found[name] or 0) for name in (b"n", b"low", b"high", b"mean"))
    unit = Unit.SECONDS if found[b"seconds"] else Unit.ITERATIONS
    return Answer(n, low, high, (found[b"level"] or b"").decode(), mean, unit), os.fsdecode(trouble or b"")


def _layout(file: BinaryIO) -> _Layout:
    file.seek(0)
    line = file.read(RECORD)
    match, other = _HEADER.fullmatch(line), _OTHER.match(line)
    if other and other[1] != b"5":
        raise ValueError(f"format {other[1].decode()}, not 5")
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
    """Convert a table of format 3, which had no mean, to format 4. Raises ValueError for any other format.

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


def in_seconds(data: bytes) -> bytes:
    """A table of format 4 as one of this format, as if all its entries were seconds; other data as they are.

    So its predictions can be compared with those of a new table. For jobs with a profile they may be wrong.
    """
    return data.replace(b"asrpt-table 4 ", b"asrpt-table 5 ", 1) if data.startswith(b"asrpt-table 4 ") else data


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
