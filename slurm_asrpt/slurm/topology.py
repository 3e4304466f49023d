"""The switches above each node, from ``scontrol show topology``. Standard library only: jobs of a lab use it, too.

Slurm prints one line per switch of topology/tree, or per block of topology/block, whether topology.conf or
topology.yaml defines them; nothing for topology/flat, /none and /default; other plugins' lines are ignored:

    SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-4]
    SwitchName=spine1 Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]

    BlockName=block1 BlockIndex=0 Nodes=n[1-4] BlockSize=4
    AggregatedBlock=block[1-2] BlockIndex=2 Nodes=n[1-8] BlockSize=8
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

_UNIT = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*")
_NAMES = ("SwitchName", "BlockName", "AggregatedBlock")


@dataclass(frozen=True)
class Topology:
    """switches: by node, the switches or blocks above it, from level 1; empty if Slurm has no topology.

    blocks: whether those of level 1 are blocks of topology/block.
    """

    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    blocks: bool = False

    def __or__(self, other: Topology) -> Topology:
        """Both; of a node in both, the switches of the second."""
        return Topology({**self.switches, **other.switches}, self.blocks or other.blocks)

    def islands(self, names: Iterable[str]) -> tuple[frozenset[str], ...]:
        """The blocks among these nodes, or the trees that no switch connects; () if a job may run on any of them.

        Slurm starts no job with a node list across them, and holds it for good (docs/slurm-notes.md).
        """
        if not self.switches:
            return ()
        found: dict[tuple[str, ...], set[str]] = {}
        for name in names:
            path = self.switches.get(name, ())
            found.setdefault((path[0 if self.blocks else -1],) if path else ("", name), set()).add(name)
        return tuple(map(frozenset, found.values())) if self.blocks or len(found) > 1 else ()


def parse_topology(text: str, expand: Callable[[str], Iterable[str]]) -> Topology:
    """The switches above each node, equally many for all nodes. expand: the names in ``n[1-3,7]``.

    Where an uneven tree has no switch of a level above a node, the one below it takes its place. Where several switches
    of a level have a node, the first counts. Raises what ``expand`` raises.
    """
    found: dict[str, dict[int, str]] = {}
    for level, name, nodes in _rows(text):
        for node in expand(nodes):
            found.setdefault(node, {}).setdefault(level, name)
    levels = sorted({level for each in found.values() for level in each})
    return Topology({node: _filled(each, levels) for node, each in found.items()}, "BlockName=" in text)


def _rows(text: str) -> Iterator[tuple[int, str, str]]:
    """Level, name and node list of each switch; of aggregated blocks, the size is the level."""
    for line in text.splitlines():
        words = dict(word.partition("=")[::2] for word in line.split())
        name = next((words[key] for key in _NAMES if words.get(key)), "")
        level = words.get("Level", "0" if "BlockName" in words else words.get("BlockSize", ""))
        nodes = words.get("Nodes", "")
        if name and nodes and level.isascii() and level.isdigit() and len(level) < 10:
            yield int(level), name, nodes


def _filled(switches: Mapping[int, str], levels: Iterable[int]) -> tuple[str, ...]:
    """The switch of each level; the next lower one at levels without one, at the lowest levels the next higher one."""
    below = switches[min(switches)]
    filled = []
    for level in levels:
        below = switches.get(level, below)
        filled.append(below)
    return tuple(filled)


def topologies_of(rows: Mapping[str, Mapping[str, str]], partitions: Iterable[str]) -> list[str]:
    """The topologies (topology.yaml) of these partitions; "" for the cluster's default one.

    rows: the fields of each partition, which name a topology from Slurm 25.05 on.
    """
    names = [rows.get(partition, {}).get("Topology", "") for partition in partitions]
    return list(dict.fromkeys(name if _UNIT.fullmatch(name) else "" for name in names))
