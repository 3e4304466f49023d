"""Checks of Slurm's topology against the bandwidths in the settings."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.doctor.checks import Finding, Snapshot, ok, warning
from slurm_asrpt.errors import printable
from slurm_asrpt.text import counted

CHECK = "topology"


def levels(settings: Settings, now: float, snapshot: Snapshot) -> Iterator[Finding]:
    """Slurm's topology has all nodes, and the settings have a bandwidth for each of its levels."""
    found = [*_missing_nodes(settings, snapshot), *_bandwidths(settings, snapshot)]
    yield from found or [ok(CHECK, _summary(snapshot))]


def _missing_nodes(settings: Settings, snapshot: Snapshot) -> Iterator[Finding]:
    switches, managed = snapshot.topology.switches, set(settings.slurm.partitions)
    ours = [node.name for node in snapshot.nodes if node.gpus and node.partitions & managed]
    missing = [name for name in ours if name not in switches]
    if switches and missing:
        text = f"{counted(len(missing), 'node')} missing from Slurm's topology, e.g. {printable(missing[0])}"
        yield warning(CHECK, text, "add all nodes to topology.conf or topology.yaml: Slurm starts no job across")


def _bandwidths(settings: Settings, snapshot: Snapshot) -> Iterator[Finding]:
    beyond, above = len(settings.fabric.beyond_bytes_per_s), _levels_above(snapshot)
    if beyond and not snapshot.topology.switches:
        text = "fabric.beyond_bytes_per_s is set, but Slurm has no topology: all placements are equally fast"
        yield warning(CHECK, text, "define TopologyPlugin and topology.conf, or remove the setting")
    elif beyond > above:
        text = f"fabric.beyond_bytes_per_s has {counted(beyond, 'bandwidth')}, but Slurm's topology"
        yield warning(CHECK, f"{text} has {counted(above, 'level')} above the first", "remove those of higher levels")
    elif above and not beyond:
        text = "asrptd keeps jobs under one switch, but counts all placements as equally fast"
        yield warning(CHECK, f"{_summary(snapshot)}: {text}", "set fabric.beyond_bytes_per_s in asrpt.toml")


def _levels_above(snapshot: Snapshot) -> int:
    """Levels at which nodes under several switches of level 1 are connected; what connects the topmost is one, too."""
    paths = set(snapshot.topology.switches.values())
    depth = max(map(len, paths), default=0)
    tops = {path[-1] for path in paths if path}
    return depth if len(tops) > 1 else max(0, depth - 1)


def _summary(snapshot: Snapshot) -> str:
    topology = snapshot.topology
    plugin = printable(snapshot.config.get("TopologyPlugin", "no plugin"))
    if not topology.switches:
        return f"Slurm has none ({plugin}): all nodes count as under one switch"
    first = {path[0] for path in topology.switches.values()}
    of = "block" if topology.blocks else "switch of level 1"
    many = counted(len(first), of) if topology.blocks or len(first) == 1 else f"{len(first)} switches of level 1"
    depth = max(map(len, topology.switches.values()))
    return f"{plugin}: {many}, {counted(depth, 'level')} in all, above {counted(len(topology.switches), 'node')}"
