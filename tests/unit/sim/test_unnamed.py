"""Jobs whose profile nobody names run as their real profile says, and a policy learns to place them."""

import numpy as np
import pytest

from slurm_asrpt.core.job import UNPROFILED, JobProfile, Stage, unprofiled
from slurm_asrpt.core.sensitivity import slowest_server_s
from slurm_asrpt.errors import InputError
from slurm_asrpt.predict.sensitivity import Sensitivity
from slurm_asrpt.sim.description import Cluster
from slurm_asrpt.sim.engine import Result, simulate_named
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.metrics import bounds, summary
from slurm_asrpt.sim.recorder import Recorder, simulate_recorded
from slurm_asrpt.sim.scenario import make_scenario, parse_policy
from slurm_asrpt.sim.unnamed import Measured, unnamed, without_profiles
from slurm_asrpt.sim.workload import Workload

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


def played(**options: object) -> tuple[Workload, Result]:
    cluster = {"servers": 24, "gpus": 8, "switches": (6,), "beyond_gbit": (0.6,)}
    given = {"load": 1.1, "single_gpu": 0.2, "predictor": "perfect", "history": 0.0, **options}
    scenario = make_scenario("pai-like:1500", cluster=cluster, options=given)
    workload = scenario.workload()
    spec = parse_policy("asrpt-gated")
    return workload, simulate_recorded(spec, workload, Recorder(workload.cluster.nodes))


def test_a_workload_hides_profiles_and_runs_teach_them() -> None:
    mean, lost = {}, {}
    for kind in ("known", "unknown", "reports", "runtimes"):
        workload, result = played(communication=kind)
        assert {profile.name for profile in workload.table.profiles} == {UNPROFILED} or kind == "known"
        mean[kind] = result.completion_times.mean()
        lost[kind] = summary(result, workload.cluster)["placement_loss"]
    assert lost["known"] < lost["reports"] < lost["unknown"]
    assert lost["runtimes"] <= lost["unknown"]
    assert mean["known"] < mean["unknown"]


def test_hidden_jobs_are_the_same_work_as_known_ones() -> None:
    (known, _), (hidden, _) = played(), played(communication="unknown")
    assert hidden.real is not None
    assert hidden.real.profiles == known.table.profiles
    assert bounds(hidden.table, hidden.cluster) == pytest.approx(bounds(known.table, known.cluster))


def test_without_retraining_nothing_is_learned() -> None:
    (_, never), (_, unknown) = (
        played(communication="reports", retrain_s=0),
        played(communication="unknown", retrain_s=0),
    )
    assert never.end.tolist() == unknown.end.tolist()


@pytest.mark.parametrize(
    "options", [{"communication": "often"}, {"communication": "reports", "models": "none"}], ids=["kind", "models"]
)
def test_what_cannot_be_hidden_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(InputError, match="communicat"):
        make_scenario("pai-like:100", options=options)


@pytest.mark.parametrize("cluster", [{"contention": 1.0}, {"domain": 4}], ids=str)
def test_what_cannot_be_simulated_with_hidden_profiles_is_refused(cluster: dict[str, float]) -> None:
    scenario = make_scenario("pai-like:50", cluster=cluster, options={"communication": "reports"})
    workload = scenario.workload()
    with pytest.raises(InputError, match="cannot be simulated together"):
        simulate_recorded(parse_policy("asrpt-gated"), workload, Recorder(workload.cluster.nodes))
