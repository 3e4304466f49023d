"""The models of Table I for jobs of a trace: by their GPUs, and how fast each is in its best placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import Job, JobId, JobProfile
from slurm_asrpt.core.placement.best_alpha import best_alpha
from slurm_asrpt.profile.schema import library_names, load_profile


def profiles_by_size() -> Mapping[int, list[str]]:
    """The models of Table I by their GPUs."""
    sizes: dict[int, list[str]] = {}
    for name in library_names():
        sizes.setdefault(_load(name).gpus, []).append(name)
    return sizes


def best_alpha_of(name: str, nodes: Sequence[Node], fabric: Fabric) -> float:
    """Seconds per iteration of a model in its best placement on these nodes."""
    profile = _load(name)
    return best_alpha(Job(JobId("0"), "", profile.gpus, profile), nodes, fabric)


def _load(name: str) -> JobProfile:
    return load_profile(name, [])
