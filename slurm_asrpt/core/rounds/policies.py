"""All round policies by name: importing this makes them known."""

from slurm_asrpt.core.rounds import allox, gangs, hlas, listing  # noqa: F401
from slurm_asrpt.core.rounds.base import clairvoyant, make_round_policy, round_policy_names

__all__ = ["clairvoyant", "make_round_policy", "round_policy_names"]
