"""The policies, by name. Policies are pure, and the simulator and the daemon run the same code."""

from slurm_asrpt.core.policies.registry import (
    banded_policies,
    key_names,
    make_policy,
    policy_names,
    policy_settings,
)

__all__ = ["banded_policies", "key_names", "make_policy", "policy_names", "policy_settings"]
