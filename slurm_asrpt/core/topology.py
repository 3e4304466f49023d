"""Which switches connect servers: levels of the fabric above the server (docs/decisions/0038)."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_asrpt.core.cluster import Fabric, Node

Blocks = tuple[tuple[int, ...], ...]
"""The switch of each of some servers, numbered from 0 in order of appearance: for level 1, then level 2 ...

Only levels at which the servers are under several switches; all are connected through the next level. So () means that
one switch of level 1 connects them all, or that nothing is known.
"""


def blocks_of(nodes: Sequence[Node]) -> Blocks:
    """The switches of these servers. A server has a switch of its own at each level that it does not name."""
    depth = max((len(node.switches) for node in nodes), default=0)
    found = list[tuple[int, ...]]()
    for level in range(depth):
        names = [_switch(node, level + 1) for node in nodes]
        if len(set(names)) == 1:
            break
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        found.append(tuple([numbers[name] for name in names]))
    return tuple(found)


def blocks_in(fabric: Fabric, nodes: Sequence[Node]) -> Blocks:
    """``blocks_of``, or () if all levels have the same bandwidth: then the switches make no difference."""
    return blocks_of(nodes) if fabric.beyond else ()


def by_switch(nodes: Sequence[Node], level: int) -> list[list[Node]]:
    """The nodes under each switch of a level, from 1, in order of appearance."""
    found: dict[object, list[Node]] = {}
    for node in nodes:
        found.setdefault(_switch(node, level), []).append(node)
    return list(found.values())


def _switch(node: Node, level: int) -> object:
    """A server has a switch of its own at each level that it does not name."""
    return node.switches[level - 1] if level <= len(node.switches) else ("", node.name)
