"""Registers all round policies on import."""

from slurm_asrpt.core.rounds import (
    allox,  # noqa: F401
    arrival,  # noqa: F401
    baselines,  # noqa: F401
    hlas,  # noqa: F401
    offline,  # noqa: F401
)
from slurm_asrpt.core.rounds.policy import clairvoyant, make_round_policy, round_policy_names

__all__ = ["clairvoyant", "make_round_policy", "round_policy_names"]
