"""Registers all round policies on import."""

from papers.hare import (
    allox,  # noqa: F401
    baselines,  # noqa: F401
    hlas,  # noqa: F401
    offline,  # noqa: F401
)
from papers.hare.round_policy import clairvoyant, make_round_policy, round_policy_names

__all__ = ["clairvoyant", "make_round_policy", "round_policy_names"]
