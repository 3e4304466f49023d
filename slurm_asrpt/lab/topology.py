"""The network of a lab: switches above its nodes, as topology.conf has them.

``tree:2x4`` has two switches with four nodes each below one switch; ``tree:2x2x4`` has two of these below another one.
``block:4`` has blocks of four nodes.
"""

from __future__ import annotations

import math
import re

from slurm_asrpt.errors import InputError

LEVELS = ("leaf", "spine", "core")
"""Names of the switches of each level, from level 1."""
SHARE = 0.25
"""The bandwidth of a lab's servers through a switch of level 2 is this share of that within level 1, and so on."""

_FORM = re.compile(r"tree:(?P<sizes>[0-9]{1,4}(x[0-9]{1,4}){0,2})|block:(?P<block>[0-9]{1,4})")
_EXAMPLE = "examples: --topology tree:2x4 (2 switches of 4 nodes), tree:2x2x4, block:4"


def check(text: str, nodes: int) -> None:
    """Raises InputError with an example unless ``text`` is a topology of so many nodes."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise InputError(f"--topology: cannot read {text!r}; {_EXAMPLE}")
    sizes = _sizes(text)
    if 0 in sizes:
        raise InputError(f"--topology {text}: a switch with nothing below it; {_EXAMPLE}")
    total = math.prod(sizes)
    if (nodes % total) if found["block"] else (nodes != total):
        needs = f"a multiple of {total}" if found["block"] else str(total)
        raise InputError(f"--topology {text}: needs {needs} nodes, but --nodes has {nodes}")


def plugin(text: str) -> str:
    """Slurm's TopologyPlugin for it."""
    return f"topology/{text.partition(':')[0]}"


def levels(text: str, nodes: int) -> int:
    """The number of levels of switches; of blocks, one more for the network between them."""
    count = len(_sizes(text))
    return count + 1 if text.startswith("block") and nodes > _sizes(text)[0] else count


def topology_conf(text: str, nodes: int) -> str:
    """topology.conf for the nodes n1, n2 ... A checked ``text``."""
    *above, width = _sizes(text)
    count = nodes // width
    if text.startswith("block"):
        lines = [f"BlockName=block{i + 1} Nodes={_span('n', i, width)}" for i in range(count)]
        return "\n".join([*lines, f"BlockSizes={width}"]) + "\n"
    lines = [f"SwitchName={LEVELS[0]}{i + 1} Nodes={_span('n', i, width)}" for i in range(count)]
    for level, size in enumerate(reversed(above), start=1):
        count //= size
        below = LEVELS[level - 1]
        lines += [f"SwitchName={LEVELS[level]}{i + 1} Switches={_span(below, i, size)}" for i in range(count)]
    return "\n".join(lines) + "\n"


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.partition(":")[2].split("x")]


def _span(name: str, group: int, size: int) -> str:
    """The members of a group of so many: ``n[5-8]``."""
    first, last = group * size + 1, (group + 1) * size
    return f"{name}{first}" if size == 1 else f"{name}[{first}-{last}]"
