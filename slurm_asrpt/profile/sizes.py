"""How GPUs share a model, as the options in its job script say it: ``g8n2t4p2`` in a tag. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

SIZES = ("procs", "nodes", "tp", "pp")
LETTERS = dict(zip(SIZES, "gntp", strict=True))
PATTERN = re.compile("".join(f"(?:{letter}([1-9][0-9]{{0,4}}))?" for letter in LETTERS.values()))


@dataclass(frozen=True)
class Sizes:
    """procs: processes, one a GPU, on each node. tp: tensor slices. pp: pipeline stages. 0: the script does not say."""

    procs: int = 0
    nodes: int = 0
    tp: int = 0
    pp: int = 0

    def __str__(self) -> str:
        return "".join(f"{LETTERS[f.name]}{getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name))


NO_SIZES = Sizes()


def parse_sizes(text: str) -> Sizes:
    """Raises ValueError for anything that str() does not write."""
    match = PATTERN.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} are no sizes")
    return Sizes(*(int(number or 0) for number in match.groups()))
