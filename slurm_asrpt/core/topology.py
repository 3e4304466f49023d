"""Which switches connect servers: levels of the fabric above the server (docs/decisions/0038)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_asrpt.core.cluster import Fabric, Node

Blocks = tuple[tuple[int, ...], ...]
"""The switch of each of some servers, numbered from 0 in order of appearance: for level 1, then level 2 ...

Only levels at which the servers are under several switches; all are connected through the next level. So () means that
one switch of level 1 connects them all, or that nothing is known.
"""
Count = Callable[[int], int]
"""How much of what a job needs the servers of a mask have."""


def blocks_of(nodes: Sequence[Node]) -> Blocks:
    """The switches of these servers. A server has a switch of its own at each level that it does not name."""
    found = list[tuple[int, ...]]()
    for level in range(1, _depth(nodes) + 1):
        names = [_switch(node.switches, level, at) for at, node in enumerate(nodes)]
        if len(set(names)) == 1:
            break
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        found.append(tuple([numbers[name] for name in names]))
    return tuple(found)


def _depth(nodes: Sequence[Node]) -> int:
    return max((len(node.switches) for node in nodes), default=0)


def _switch(path: Sequence[str], level: int, at: int) -> Hashable:
    """The switch of a level, from 1, above the server at this place."""
    return path[level - 1] if level <= len(path) else at


def blocks_in(fabric: Fabric, nodes: Sequence[Node]) -> Blocks:
    """``blocks_of``, or () if all levels have the same bandwidth: then the switches make no difference."""
    return blocks_of(nodes) if fabric.beyond else ()


def by_switch(nodes: Sequence[Node], level: int) -> list[list[Node]]:
    """The nodes under each switch of a level, from 1, in order of appearance."""
    found: dict[Hashable, list[Node]] = {}
    for at, node in enumerate(nodes):
        found.setdefault(_switch(node.switches, level, at), []).append(node)
    return list(found.values())


def most_together(switches: Switches, masks: Sequence[int], gpus: int, servers: int) -> int:
    """The servers under the fewest switches for a job that no server can hold, as a mask.

    masks: servers by the GPUs that the job may use there. servers: on so many with its share of the GPUs, if there are
    enough of these; 0, or too few: any servers with enough GPUs together.
    """
    able = _either(masks[-(-gpus // servers) :]) if servers else 0
    if able and able.bit_count() >= servers:
        return switches.fewest(able, servers)
    return switches.fewest(_either(masks[1:]), gpus, lambda among: _gpus(masks, among))


def _either(masks: Sequence[int]) -> int:
    return reduce(or_, masks, 0)


def _gpus(masks: Sequence[int], among: int) -> int:
    return sum([free * (mask & among).bit_count() for free, mask in enumerate(masks)])


class Switches:
    """The servers under each switch, as masks of their positions in the node table.

    levels: one tuple of masks for each level, level 1 first.
    """

    def __init__(self, levels: Sequence[Sequence[int]]) -> None:
        self.levels = tuple([tuple(masks) for masks in levels])

    @property
    def depth(self) -> int:
        return len(self.levels)

    def fewest(self, among: int, need: int, count: Count = int.bit_count) -> int:
        """Servers of ``among`` under the fewest switches of the lowest level that have what is needed.

        Of several switches that have it, the one that has least, as Slurm's topology/tree and topology/block choose:
        the others stay whole. All of ``among`` if they do not have it together.
        """
        return self._fewest(among, need, count, self.depth)

    def each(self, among: int, need: int, count: Count = int.bit_count) -> Iterator[int]:
        """``fewest``, then what each other switch that has what is needed has of it, then all of ``among``."""
        for level in range(self.depth):
            for part in sorted(self._parts(among, level), key=count):
                if count(part) >= need:
                    yield self._fewest(part, need, count, level)
        if self.depth:
            yield self._most_first(among, need, count, self.depth)
        yield among

    def _fewest(self, among: int, need: int, count: Count, below: int) -> int:
        """The same by the switches of the lowest levels alone, ``below`` of them."""
        for level in range(below):
            parts = self._parts(among, level)
            enough = [part for part in parts if count(part) >= need]
            if enough:
                return self._fewest(min(enough, key=count), need, count, level)
        return self._most_first(among, need, count, below) if below else among

    def _most_first(self, among: int, need: int, count: Count, below: int) -> int:
        """No switch below that level has enough: those that have most, and of the last one only what is missing."""
        parts, found = sorted(self._parts(among, below - 1), key=count, reverse=True), 0
        while parts and count(parts[0]) < need:
            found |= parts[0]
            need -= count(parts.pop(0))
        enough = [part for part in parts if count(part) >= need]
        return found | self._fewest(min(enough, key=count), need, count, below - 1) if enough else found

    def _parts(self, among: int, level: int) -> list[int]:
        return [mask & among for mask in self.levels[level] if mask & among]


def switches_of(nodes: Sequence[Node]) -> Switches | None:
    """The switches of a node table; None if none is known, or one of level 1 connects all servers."""
    return _switches_of(tuple([node.switches for node in nodes])) if _depth(nodes) else None


@lru_cache(maxsize=16)  # a daemon asks in each cycle
def _switches_of(paths: tuple[tuple[str, ...], ...]) -> Switches | None:
    levels = list[list[int]]()
    for level in range(1, max(map(len, paths)) + 1):
        masks: dict[Hashable, int] = {}
        for at, path in enumerate(paths):
            switch = _switch(path, level, at)
            masks[switch] = masks.get(switch, 0) | 1 << at
        if len(masks) == 1:
            break
        levels.append(list(masks.values()))
    return Switches(levels) if levels else None
