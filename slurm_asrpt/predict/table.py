"""``table.txt``: predicted iterations by group, as the hook reads them by seek and read.

Fixed-width records of 33 bytes, sorted: a header ``asrpt-table 1 <count>`` padded with blanks, then
``<16 hex digits> <15 digits>\\n`` for each group. An unseen group predicts 0.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from slurm_asrpt.files import replace_file

FILE_NAME = "table.txt"
RECORD = 33
MAX_ITERATIONS = 10**15 - 1
_HEADER = re.compile(rb"asrpt-table 1 ([0-9]{1,12}) *\n")
_RECORD = re.compile(rb"([0-9a-f]{16}) ([0-9]{15})\n")
_GROUP = re.compile(r"[0-9a-f]{16}")


def render_table(predictions: Mapping[str, int]) -> bytes:
    """The bytes of table.txt. Raises ValueError for a key that is no group id."""
    for group in predictions:
        if not _GROUP.fullmatch(group):
            raise ValueError(f"{group!r} is no group id")
    header = f"asrpt-table 1 {len(predictions)}".ljust(RECORD - 1) + "\n"
    rows = (f"{g} {min(max(int(predictions[g]), 0), MAX_ITERATIONS):015d}\n" for g in sorted(predictions))
    return (header + "".join(rows)).encode("ascii")


def write_table(path: Path, predictions: Mapping[str, int]) -> None:
    """Replace the table at ``path``. Raises OSError, ValueError."""
    replace_file(path, render_table(predictions))


def lookup(path: Path, group: str) -> tuple[int, str]:
    """Predicted iterations of ``group`` (0: unseen), and what is wrong with the table ("": nothing).

    Same steps and same answers as the hook's, so that the tools show what slurmctld does.
    """
    try:
        with path.open("rb") as file:
            return _search(file, int(group, 16)), ""
    except OSError as error:
        return 0, f"cannot read table.txt: {error.strerror}"
    except ValueError as error:
        return 0, f"table.txt is damaged: {error}"


def _search(file: BinaryIO, wanted: int) -> int:
    low, high = 1, _count(file)
    least, most, step = -1 << 32, 1 << 64, 0
    while low <= high:
        step += 1
        middle = _probe(wanted, low, high, least, most, step)
        key, iterations = _record(file, middle)
        if not least < key < most:
            raise ValueError("order")
        if key == wanted:
            return iterations
        if key < wanted:
            low, least = middle + 1, key
        else:
            high, most = middle - 1, key
    return 0


def _probe(wanted: int, low: int, high: int, least: int, most: int, step: int) -> int:
    """Where to look next: first by the value's place between its neighbours, later by halving."""
    bottom, top = least >> 32, most >> 32
    if step > 8 or top == bottom:
        return low + (high - low) // 2
    guess = low - 1 + math.floor((high - low + 2) * (((wanted >> 32) - bottom) / (top - bottom)))
    return max(low, min(high, guess))


def _count(file: BinaryIO) -> int:
    line = file.read(RECORD)
    match = _HEADER.fullmatch(line)
    if not match or len(line) != RECORD:
        raise ValueError("header")
    if file.seek(0, os.SEEK_END) != (int(match[1]) + 1) * RECORD:
        raise ValueError("size")
    return int(match[1])


def _record(file: BinaryIO, index: int) -> tuple[int, int]:
    file.seek(index * RECORD)
    match = _RECORD.fullmatch(file.read(RECORD))
    if not match:
        raise ValueError(f"record {index}")
    return int(match[1], 16), int(match[2])


def read_table(path: Path) -> dict[str, int]:
    """The whole table. Raises OSError, ValueError where it is damaged."""
    with path.open("rb") as file:
        count = _count(file)
        file.seek(RECORD)
        records = [_RECORD.fullmatch(file.read(RECORD)) for _ in range(count)]
    if not all(records):
        raise ValueError(f"{path} is damaged: a record is not readable")
    return {match[1].decode("ascii"): int(match[2]) for match in records if match}
