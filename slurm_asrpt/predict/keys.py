"""The keys under which a submission's iterations are looked up, from narrow to wide."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_asrpt.predict.features import render_features
from slurm_asrpt.predict.group import digest

LEVELS = ("exact", "group", "program", "user", "cluster")
"""exact: the group with as many GPUs and the same features. program: the user's other jobs of the same program."""

CLUSTER_KEY = digest(b"asrpt-cluster 1\n")


def keys_of(
    group: str, program: str, uid: int, gpus: int, features: Mapping[str, float]
) -> tuple[tuple[str, str], ...]:
    """(level, key) of a submission, in the order of the look-up. Without a program ("") there is no such level."""
    exact = digest(f"asrpt-exact 1\n{group}\n{gpus}\n{render_features(features)}".encode())
    user = digest(b"asrpt-user 1\n%d" % uid)
    chain = zip(LEVELS, (exact, group, program, user, CLUSTER_KEY), strict=True)
    return tuple((level, key) for level, key in chain if key)
