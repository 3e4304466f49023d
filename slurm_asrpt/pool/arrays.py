"""Named arrays, and their packed form: one aligned block of bytes that is sent, kept and compared whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Allocate = Callable[[int], Array]
"""Makes a block of so many bytes, as ``aligned_block`` does."""

ALIGNMENT = 64
"""Bytes. Libraries choose their instructions by alignment, so that an unaligned copy could give other last bits."""
KINDS = "biuf"
"""Kinds of dtypes: booleans, integers, floats. No objects: they would need pickle."""
MAX_BYTES = 1 << 40


@dataclass(frozen=True)
class Entry:
    """Name, dtype (as in ``<f4``) and shape of a packed array."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, eq=False)
class Packed:
    """Arrays in one block of bytes; each begins at a multiple of ALIGNMENT. The block is read-only."""

    entries: tuple[Entry, ...]
    block: Array

    @classmethod
    def of(cls, arrays: Arrays, allocate: Allocate | None = None) -> Packed:
        """Copy the arrays. Raises ValueError for dtypes other than KINDS."""
        entries = tuple(Entry(name, _dtype(name, each), each.shape) for name, each in arrays.items())
        block = (allocate or aligned_block)(block_size(entries))
        for (_, part), array in zip(_parts(entries, block), arrays.values(), strict=True):
            part[...] = array
        end = 0
        for entry in entries:  # gaps are equal, too
            block[end + entry.size : end + _padded(entry)] = 0
            end += _padded(entry)
        block.flags.writeable = False
        return cls(entries, block)

    def arrays(self) -> dict[str, Array]:
        """Read-only views of the block."""
        return dict(_parts(self.entries, self.block))

    def same(self, other: Packed) -> bool:
        """Whether both are equal to the bit."""
        return self.entries == other.entries and self.block.tobytes() == other.block.tobytes()


def joined(arrays: Sequence[Array]) -> Array | None:
    """The bytes from the first array to the last, if they follow each other in a block as a packed state has them."""
    found = [each for each in arrays if each.size]
    block = found[0].base if found else None
    if block is None or block.dtype != np.uint8 or block.ndim != 1 or any(each.base is not block for each in found):
        return None
    first = at = _address(found[0])
    for each in found:
        if _address(each) != at or not each.flags.c_contiguous:
            return None
        end = at + each.nbytes
        at += padded(each.nbytes)
    between: Array = block[first - _address(block) :][: end - first]
    return between


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def aligned_block(size: int) -> Array:
    """``size`` bytes that begin at a multiple of ALIGNMENT, with any content."""
    room = np.empty(size + ALIGNMENT, np.uint8)
    skip = -room.ctypes.data % ALIGNMENT
    return room[skip : skip + size]


def block_size(entries: Sequence[Entry]) -> int:
    """Bytes of a block with these arrays."""
    return sum(map(_padded, entries))


def checked_entries(told: object) -> tuple[Entry, ...]:
    """Entries from a message, as [name, dtype, shape]. Raises ValueError for anything else."""
    if not isinstance(told, list):
        raise ValueError("no list of arrays")
    return tuple(_checked(each) for each in told)


def _checked(told: Any) -> Entry:
    try:
        name, dtype, shape = told
        fits = isinstance(name, str) and np.dtype(dtype).kind in KINDS and np.dtype(dtype).fields is None
        fits = fits and isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
        entry = Entry(name, str(dtype), tuple(shape))
        fits = fits and entry.size <= MAX_BYTES
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError("not the description of an array") from error
    if not fits:
        raise ValueError("not the description of an array")
    return entry


def _dtype(name: str, array: Array) -> str:
    if array.dtype.kind not in KINDS:
        raise ValueError(f"array {name!r} has dtype {array.dtype}; use booleans, integers or floats")
    return array.dtype.str


def padded(size: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _padded(entry: Entry) -> int:
    return padded(entry.size)


def _parts(entries: Sequence[Entry], block: Array) -> Iterator[tuple[str, Array]]:
    at = 0
    for entry in entries:
        yield entry.name, block[at : at + entry.size].view(entry.dtype).reshape(entry.shape)
        at += _padded(entry)
