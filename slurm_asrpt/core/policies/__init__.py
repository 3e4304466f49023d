"""The policies, by name: each is pure, and the simulator and the daemon run the same object."""

from slurm_asrpt.core.policies import asrpt as _asrpt  # these register themselves
from slurm_asrpt.core.policies import baselines as _baselines
from slurm_asrpt.core.policies import easy as _backfill
from slurm_asrpt.core.policies import hlas as _hlas
from slurm_asrpt.core.policies import sjf_bco as _sjf_bco
from slurm_asrpt.core.policies.base import (
    Policy,
    banded_policies,
    key_names,
    make_policy,
    policy_names,
    policy_settings,
)
from slurm_asrpt.core.policies.gated import policy as _gated

__all__ = ["Policy", "banded_policies", "key_names", "make_policy", "policy_names", "policy_settings"]
del _asrpt, _backfill, _baselines, _gated, _hlas, _sjf_bco
