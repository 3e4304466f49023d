"""Generic resources in Slurm's texts: GPUs with their types, parts of GPUs, and others."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.notation import or_empty

_COUNT = re.compile("([0-9]{1,18})([KMGTPE]?)", re.IGNORECASE)
_INDEXES = re.compile(r"(?:^|,)(?:gres[:/])?gpu:(?:\(null\):)?[:\w.-]*\(IDX:([0-9,-]*)\)")
_INDEX_RANGE = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")


def parse_gres(text: str) -> dict[tuple[str, str], int]:
    """``gres:gpu:h100:2,gres/shard=4,gres:scratch:100G`` into {(name, type): count}. Raises SlurmError for others."""
    counts: dict[tuple[str, str], int] = {}
    for part in filter(None, text.split(",")):
        words = re.split(r"[:=]", re.sub(r"^gres[:/]", "", re.sub(r"\(.*", "", part)))
        count = _COUNT.fullmatch(words[-1])
        words = words[:-1] if count else words
        if not 1 <= len(words) <= 2 or not words[0]:
            raise SlurmError(f"cannot parse the generic resource {part!r}")
        key = (words[0], words[1] if len(words) == 2 else "")
        amount = int(count[1]) * 1024 ** " KMGTPE".index(count[2].upper() or " ") if count else 1
        counts[key] = counts.get(key, 0) + amount
    return counts


SHARED = frozenset({"shard", "mps"})
"""Generic resources that are parts of GPUs. A MIG instance is a GPU."""


def without_gpus(tres: str) -> str:
    """The parts of ``gres:gpu:1,gres:nvme:1`` that name no GPUs."""
    return ",".join(part for part in tres.split(",") if not re.match(r"(gres[:/])?gpu\b", part))


def others_of(gres: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """Those that have nothing to do with GPUs: each by its name, and by ``name:type`` if it has a type."""
    found: dict[str, int] = {}
    for (name, kind), count in gres.items():
        if name != "gpu" and name not in SHARED:
            for key in dict.fromkeys((name, f"{name}:{kind}" if kind else name)):
                found[key] = found.get(key, 0) + count
    return found


def gpu_types(gres: str) -> dict[str, int]:
    """GPUs by type in a GRES text such as ``gpu:h100:4(S:0-1),shard:8`` or ``gpu:4(IDX:0-3)``; "" without a type."""
    return {kind: count for (name, kind), count in gres_of_node(gres).items() if name == "gpu"}


def gpu_count(gres: str) -> int:
    """GPUs in a GRES text; 0 without any."""
    return sum(gpu_types(gres).values())


def gres_of_node(text: str) -> dict[tuple[str, str], int]:
    """Generic resources of a node, in all or in use, without the lists of sockets and indexes."""
    return parse_gres(or_empty(re.sub(r"\([^)]*\)", "", text)))


def gpu_indexes(gres: str) -> int:
    """The GPU indexes in a GRES text such as ``gpu:h100:3(IDX:0,4-5)``, as a mask. Others, or none, do not count."""
    found = 0
    for text in _INDEXES.findall(gres) if "IDX" in gres else ():
        for part in filter(None, map(_INDEX_RANGE.fullmatch, text.split(","))):
            first, last = int(part[1]), int(part[2] or part[1])
            found |= (1 << last + 1) - (1 << first) if first <= last else 0
    return found
