"""NVLink domains smaller than a server: how the GPUs of a job on a server are divided (docs/decisions/0046).

The domains of a server are consecutive GPU indexes, 0 to d-1, d to 2d-1, and so on. Slurm chooses the indexes of a job:
the lowest free ones. Nobody else can choose them, but they can be foreseen. Sets of indexes are masks: bit i is GPU i.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

Layout = tuple[int, ...]
"""The GPUs of a job in each domain of a server that it uses, in the order of their indexes."""
Layouts = tuple[Layout, ...]
"""The layout on each server of a job; () if it uses one domain of each, or domains do not count."""


@lru_cache(maxsize=65536)
def lowest(free: int, gpus: int) -> int:
    """The lowest indexes of ``free``, so many; all, if there are fewer."""
    found = 0
    while free and gpus:
        low = free & -free
        found |= low
        free ^= low
        gpus -= 1
    return found


@lru_cache(maxsize=65536)
def layout_of(indexes: int, domain: int) -> Layout:
    """How these indexes are divided over domains of ``domain`` GPUs."""
    found, whole = [], (1 << domain) - 1
    while indexes:
        here = (indexes & whole).bit_count()
        if here:
            found.append(here)
        indexes >>= domain
    return tuple(found)


def layouts_of(indexes: Iterable[int], domain: int) -> Layouts:
    """The layouts on servers with these indexes."""
    return divided([layout_of(each, domain) for each in indexes])


def packed(counts: Sequence[int], domain: int) -> Layouts:
    """The layouts of so many GPUs on each of some idle servers. domain: 0 if it is the whole server."""
    return layouts_of([(1 << count) - 1 for count in counts], domain) if domain else ()


def divided(layouts: Sequence[Layout]) -> Layouts:
    """The layouts, or () if none has several domains."""
    return tuple(layouts) if any(len(each) > 1 for each in layouts) else ()
