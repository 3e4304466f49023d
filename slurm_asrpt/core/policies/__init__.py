"""The policies, by name: each is pure, and the simulator and the daemon run the same object."""

from slurm_asrpt.core.policies.registry import (
    banded_policies,
    key_names,
    make_policy,
    policy_names,
    policy_settings,
)

__all__ = ["banded_policies", "key_names", "make_policy", "policy_names", "policy_settings"]
