"""The policies, by name: each is pure, and the simulator and the daemon run the same object."""

from slurm_asrpt.core.policies import easy_backfill as _backfill
from slurm_asrpt.core.policies import priority_queue as _baselines
from slurm_asrpt.core.policies.asrpt import policy as _asrpt  # these register themselves
from slurm_asrpt.core.policies.base import (
    Policy,
    banded_policies,
    key_names,
    make_policy,
    policy_names,
    policy_settings,
)
from slurm_asrpt.core.policies.gated import policy as _gated
from slurm_asrpt.core.policies.hlas import policy as _hlas
from slurm_asrpt.core.policies.sjf_bco import policy as _sjf_bco

__all__ = ["Policy", "banded_policies", "key_names", "make_policy", "policy_names", "policy_settings"]
del _asrpt, _backfill, _baselines, _gated, _hlas, _sjf_bco
