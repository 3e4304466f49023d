"""Lists of nodes such as ``n[1-3,7]``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

from slurm_asrpt.errors import SlurmError

MOST_NODES = 1 << 16
"""In a list: Slurm's own bound. Users can write a longer one into the name of a job."""
_NODE_PART = r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*"


def expand(nodes: str) -> list[str]:
    """The names in ``n[1-3,7]``, in order. Raises SlurmError."""
    parts = re.findall(_NODE_PART, nodes)
    if ",".join(parts) != nodes or sum(map(_size, parts)) > MOST_NODES:
        raise SlurmError(f"cannot parse the node list {nodes!r}")
    try:
        # No group resolver: users write such lists (a job's name can look like one), and to resolve an @ runs a shell.
        return [str(name) for part in parts for name in NodeSet(part, resolver=RESOLVER_NOGROUP)]
    except Exception as error:  # ClusterShell has its own exceptions
        raise SlurmError(f"cannot parse the node list {nodes!r}") from error


def _size(part: str) -> int:
    """How many names ``n[1-3,7]`` stands for, or more; each name of a huge range would take memory."""
    return math.prod(sum(map(_width, inside.split(","))) for inside in re.findall(r"\[([^\]]*)\]", part))


def _width(text: str) -> int:
    ends = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})(?:/[0-9]{1,9})?", text)
    if ends is None:
        return MOST_NODES + 1 if "-" in text else 1
    return max(0, int(ends[2]) - int(ends[1])) + 1


def fold(names: Iterable[str]) -> str:
    """The inverse of ``expand``."""
    return str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))
