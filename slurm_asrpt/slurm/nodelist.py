"""GPUs by node as people read them. ClusterShell is imported where it is needed: most commands start without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def fold_gpus(nodes: Mapping[str, int]) -> str:
    """Equal numbers of GPUs folded: ``n1:4 n[2-3]:1``; empty for none."""
    by_gpus: dict[int, list[str]] = {}
    for name, gpus in nodes.items():
        by_gpus.setdefault(gpus, []).append(name)
    return " ".join(f"{_fold(names)}:{gpus}" for gpus, names in sorted(by_gpus.items(), reverse=True))


def _fold(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        # No group resolver: a name with an @ must not run a site's group commands.
        return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return ",".join(names)
