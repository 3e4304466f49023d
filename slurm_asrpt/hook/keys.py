"""The keys under which a submission's iterations are looked up, from narrow to wide.

A key is of one user: for each uid the lower half of a key allows one upper half and no other. So whatever group ids a
user's scripts are made to have (they are no secret, and their hash no cryptographic one), no run of that user teaches
under a key of somebody else. Only the cluster's key, the last, is everybody's.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_asrpt.hook.features import render_features
from slurm_asrpt.hook.group import digest

LEVELS = ("exact", "group", "program", "user", "cluster")
"""exact: the group with as many GPUs and the same features. program: the user's other jobs of the same program."""

_WORD = 1 << 32
_UID_FACTOR, _MIXER = 40503, 30011
"""The first is odd, so no two uids below 2^32 share a product modulo it; the second spreads keys evenly."""


def owned(uid: int, key: str) -> str:
    """The key of user ``uid`` that is made from these 16 hex digits."""
    lower = int(key[8:], 16)
    return f"{(uid * _UID_FACTOR + lower * _MIXER) % _WORD:08x}{lower:08x}"


CLUSTER_KEY = owned(_WORD - 1, digest(b"asrpt-cluster 1\n"))
"""As if of (uid_t)-1, whom nobody can be."""


def keys_of(
    group: str, program: str, uid: int, gpus: int, features: Mapping[str, float]
) -> tuple[tuple[str, str], ...]:
    """(level, key) of a submission, in the order of the look-up. Without a program ("") there is no such level."""
    exact = digest(f"asrpt-exact 1\n{group}\n{gpus}\n{render_features(features)}".encode())
    user = digest(b"asrpt-user 1\n%d" % uid)
    made = zip(LEVELS, (exact, group, program, user), strict=False)
    return *((level, owned(uid, key)) for level, key in made if key), (LEVELS[-1], CLUSTER_KEY)
