"""Jobs whose profile nobody names run as their real profile says, and a policy learns to place them."""

import numpy as np
import pytest

from slurm_asrpt.core.job import UNPROFILED, JobProfile, Stage, unprofiled
from slurm_asrpt.core.sensitivity import slowest_server_s
from slurm_asrpt.predict.sensitivity import Sensitivity
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.unnamed import Measured, unnamed, without_profiles
from slurm_asrpt.sim.workload import Cluster

CLUSTER = Cluster(6, 4, switches=(2,), beyond_gbit=(1.0,))
NODES, FABRIC = CLUSTER.nodes, CLUSTER.fabric
SENSITIVE = JobProfile("real", (Stage(8, 0.5, 0.5, param_bytes=0.5e9),))
"""It needs two servers: one rack."""


def jobs(count: int = 120) -> JobTable:
    """Every third job is sensitive; the others take a server each, for different times."""
    rng = np.random.default_rng(0)
    kind = np.arange(count) % 3 == 0
    seconds = np.where(kind, 100.0, rng.uniform(50, 400, count))
    submit = np.cumsum(rng.exponential(60, count))
    groups = ["hungry" if each else "flat" for each in kind]
    profiles = (unprofiled(4), SENSITIVE)
    return JobTable(profiles, submit, kind.astype(np.int64), seconds, seconds, users=["u"] * count, groups=groups)


def test_jobs_are_told_without_profiles_in_seconds_of_their_best_placement() -> None:
    real = jobs()
    hidden = without_profiles(real, NODES, FABRIC)
    assert {profile.name for profile in hidden.profiles} == {UNPROFILED}
    best = real.best_alphas(NODES, FABRIC)
    assert hidden.iterations == pytest.approx(real.iterations * best)
    assert hidden.predicted == pytest.approx(real.predicted * best)


@pytest.mark.parametrize("reported", [True, False])
def test_sensitive_jobs_are_placed_within_a_rack_once_they_have_been_seen_elsewhere(reported: bool) -> None:
    real = jobs()
    hidden, hungry = without_profiles(real, NODES, FABRIC), np.flatnonzero(real.profile == 1)
    known = Sensitivity(slowest_server_s(FABRIC))
    shadow = unnamed(real, NODES, FABRIC, Measured(reported, tell=False), known)
    blind = simulate_named("asrpt-gated", NODES, hidden, FABRIC, runner=shadow)
    assert blind.alpha[hungry].max() > 2
    assert (np.delete(blind.alpha, hungry) == 1).all()
    plain = simulate_named("asrpt-gated", NODES, hidden, FABRIC, runner=unnamed(real, NODES, FABRIC))
    assert plain.alpha.tolist() == blind.alpha.tolist()  # learning alone changes nothing
    runner = unnamed(real, NODES, FABRIC, Measured(reported), known)
    told = simulate_named("asrpt-gated", NODES, hidden, FABRIC, runner=runner)
    assert told.alpha[hungry] == pytest.approx(1)
