"""Predictors that keep learning during a simulation, and never from the future."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from slurm_asrpt.config.settings import PredictSettings
from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import JobProfile, Stage, unprofiled
from slurm_asrpt.predict.predictors import Chain, make_predictor, predictor_names
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.predictors import JobKeys, Learner, Learning, chains_of, keys_of_jobs, predictions, trained
from slurm_asrpt.sim.workload import build
from slurm_asrpt.traces.synthetic import pai_like
from slurm_asrpt.traces.trace import clean

FABRIC = Fabric(inter=1e9, intra=1e11)


def chain(group: str, user: str = "u", gpus: int = 1) -> Chain:
    return chains_of([group], [user], [gpus])[0]


def keys(group: str, user: str = "u", gpus: int = 1, profile: str = "", alpha: float = 1.0) -> JobKeys:
    return keys_of_jobs([chain(group, user, gpus)], [profile], [alpha])[0]


def learner(name: str, past: dict[str, list[float]], jobs: list[str], retrain_s: float) -> Learner:
    known = trained(name, [keys(group).example(work) for group, values in past.items() for work in values])
    return Learner(Learning([keys(group) for group in jobs], known, retrain_s), begin=0.0)


def test_ended_jobs_are_known_only_after_the_next_retraining() -> None:
    mine = learner("forest", {}, ["a", "b"], 100)
    mine.ended(0, 40.0, now=10.0)
    assert mine.predict(0, now=99.0) == 0.0
    assert mine.predict(0, now=100.0) == 40.0
    assert mine.predict(1, now=100.0) == 0.0


def test_runs_from_before_the_simulation_count() -> None:
    mine = learner("mean", {"a": [10.0, 20.0]}, ["a"], 1)
    assert mine.predict(0, now=0.0) == 15.0
    mine.ended(0, 60.0, now=0.5)
    assert mine.predict(0, now=2.0) == 30.0


@pytest.mark.parametrize(("name", "expected"), [("mean", 30), ("median", 20), ("last", 60)])
def test_simple_predictors_return_their_statistic(name: str, expected: int) -> None:
    mine = learner(name, {"a": [10.0, 20.0]}, ["a"], 1)
    mine.ended(0, 60.0, now=0.5)
    assert mine.predict(0, now=2.0) == expected


@pytest.mark.parametrize("name", predictor_names())
def test_what_one_simulation_learns_no_other_knows(name: str) -> None:
    known = trained(name, [keys("a").example(10.0)])
    first, second = (Learner(Learning([keys("a")], known, 1), begin=0.0) for _ in range(2))
    first.ended(0, 1000.0, now=0.5)
    assert first.predict(0, now=2.0) > 10
    assert second.predict(0, now=2.0) == 10
    assert predictions(known, [keys("a")]).tolist() == [10]


def test_a_simulation_predicts_the_second_run_of_a_group_from_its_first() -> None:
    table = JobTable(
        (unprofiled(1),),
        np.array([0.0, 10.0, 200.0]),
        np.zeros(3, dtype=np.int64),
        np.array([50.0, 50.0, 50.0]),
        np.zeros(3),
        groups=["g", "g", "g"],
        learning=Learning([keys("g")] * 3, make_predictor("forest"), retrain_s=60),
    )
    result = simulate_named("fifo", [Node("n0", 4)], table, FABRIC)
    assert result.table.predicted.tolist() == [0.0, 0.0, 50.0]


def test_jobs_of_other_models_are_predicted_by_their_seconds() -> None:
    """The user's two jobs took 100 s each; a third one of 0.5 s per iteration probably takes 200 iterations."""
    past = [
        keys("fast", profile="small", alpha=0.01).example(10_000),
        keys("slow", profile="big", alpha=10).example(10),
    ]
    known = trained("typical", past)
    assert keys("new", profile="other", alpha=0.5).predicted(known) == 200
    assert keys("new").predicted(known) == 100
    assert keys("new", user="v", profile="other", alpha=0.5).predicted(known) == 200


@pytest.mark.parametrize("name", [name for name in predictor_names() if name != "forest-sklearn"])
def test_runs_of_a_group_with_one_model_are_predicted_by_their_iterations(name: str) -> None:
    """The group also runs another model, with other GPUs: its runs count only where no run has the same model."""
    past = [
        keys("a", profile="small", alpha=0.01).example(10_000),
        keys("a", gpus=8, profile="big", alpha=10).example(10),
    ]
    past += [keys("a", gpus=8, profile="big", alpha=10).example(10)]
    known = trained(name, past)
    assert keys("a", profile="small", alpha=0.01).predicted(known) == 10_000
    assert keys("a", gpus=8, profile="big", alpha=10).predicted(known) == 10
    assert keys("a", gpus=2, profile="other", alpha=0.5).predicted(known) == 200
    assert keys("a").predicted(known) == 100


def test_a_simulation_learns_seconds_from_jobs_of_other_models() -> None:
    fast, slow = (JobProfile(name, (Stage(1, alpha, 0.0),)) for name, alpha in (("fast", 0.5), ("slow", 2.0)))
    known = make_predictor("typical")
    table = JobTable(
        (fast, slow),
        np.array([0.0, 200.0]),
        np.array([0, 1]),
        np.array([200.0, 50.0]),
        np.zeros(2),
        learning=Learning([keys("a", profile="fast", alpha=0.5), keys("b", profile="slow", alpha=2.0)], known, 60),
    )
    result = simulate_named("fifo", [Node("n0", 1)], table, FABRIC)
    assert result.table.predicted.tolist() == [0.0, 50.0]


def test_a_workload_with_models_predicts_new_groups_by_the_seconds_of_others() -> None:
    """Every job takes 100 s, whatever its model and GPUs, so every prediction should say so."""
    rows = {
        "job_id": range(200),
        "submit_s": np.arange(200) * 200.0,
        "user": "u",
        "group": map("g{}".format, range(200)),
    }
    frame = pd.DataFrame({**rows, "gpus": np.tile([1, 2, 4, 8], 50), "duration_s": 100.0})
    made = build(clean("even", frame), Cluster(4), Options(predictor="typical"))
    alphas = made.table.best_alphas(made.cluster.nodes, made.cluster.fabric)
    assert len(set(alphas.tolist())) > 4
    result = simulate_named("fifo", made.cluster.nodes, made.table, made.cluster.fabric)
    for table in (made.table, result.table):
        assert table.predicted * alphas == pytest.approx(100, abs=float(alphas.max()) / 2)


def test_perfect_knows_everything_and_learns_nothing() -> None:
    table = build(pai_like(200, 1, 0), Cluster(20), Options(models="none", predictor="perfect")).table
    assert table.predicted.tolist() == table.iterations.tolist()
    assert table.learning is None


def test_an_unknown_predictor_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="expected, forest, forest-sklearn, last, mean, median, typical"):
        make_predictor("oracle")


def test_the_settings_accept_every_predictor() -> None:
    for name in predictor_names():
        assert PredictSettings(predictor=name).predictor == name
    with pytest.raises(ValidationError):
        PredictSettings(predictor="oracle")


@pytest.mark.parametrize("name", predictor_names())
def test_users_of_a_group_have_predictions_of_their_own(name: str) -> None:
    """As under the hook, whose groups and keys belong to a user."""
    past = [keys("a", user=user).example(n) for user, n in (("u", 10.0), ("v", 1000.0)) for _ in range(30)]
    known = trained(name, past)
    assert [keys("a", user=user).predicted(known) for user in "uv"] == [10, 1000]
