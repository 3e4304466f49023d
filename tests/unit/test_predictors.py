"""Predictions that go on learning while a simulation runs, and never from the future."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import unprofiled
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.jobtable import JobTable
from slurm_asrpt.sim.predictors import Learner, Learning, learning, predict

FABRIC = Fabric(inter=1e9, intra=1e11)


def past(**runs: list[float]) -> pd.DataFrame:
    rows = [(group, "u", iterations) for group, values in runs.items() for iterations in values]
    return pd.DataFrame(rows, columns=["group", "user", "iterations"])


def test_what_has_ended_is_known_after_the_next_retraining_and_not_before() -> None:
    learner = Learner(Learning(["a", "b"], {}, retrain_s=100), [0.0, 0.0], begin=0.0)
    learner.ended(0, 40.0, now=10.0)
    assert learner.predict(0, now=99.0) == 0.0
    assert learner.predict(0, now=100.0) == 40.0
    assert learner.predict(1, now=100.0) == 0.0


def test_runs_from_before_the_simulation_count() -> None:
    learner = Learner(Learning(["a"], {"a": [10.0, 20.0]}, retrain_s=1), [15.0], begin=0.0)
    learner.ended(0, 60.0, now=0.5)
    assert learner.predict(0, now=2.0) == 30.0


def test_the_median_is_learned_where_the_median_is_asked_for() -> None:
    learner = Learner(Learning(["a"], {"a": [10.0, 20.0]}, by_median=True, retrain_s=1), [15.0], begin=0.0)
    learner.ended(0, 600.0, now=0.5)
    assert learner.predict(0, now=2.0) == 20.0


def test_a_simulation_predicts_the_second_run_of_a_group_from_its_first() -> None:
    table = JobTable(
        (unprofiled(1),),
        np.array([0.0, 10.0, 200.0]),
        np.zeros(3, dtype=np.int64),
        np.array([50.0, 50.0, 50.0]),
        np.zeros(3),
        groups=["g", "g", "g"],
        learning=Learning(["g", "g", "g"], {}, retrain_s=60),
    )
    result = simulate_named("fifo", [Node("n0", 4)], table, FABRIC)
    assert result.table.predicted.tolist() == [0.0, 0.0, 50.0]


def test_perfect_knows_everything_and_learns_nothing() -> None:
    truth = np.array([3.0, 4.0])
    assert predict("perfect", past(), ["a", "b"], truth).tolist() == [3.0, 4.0]
    assert learning("perfect", past(), ["a", "b"], 60.0) is None


def test_an_unknown_predictor_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="perfect, forest, mean, median"):
        predict("oracle", past(), [], np.empty(0))


@settings(max_examples=15, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.integers(1, 10_000), min_size=4, max_size=30), min_size=2)
)
def test_a_forest_of_many_trees_says_what_a_retraining_says(runs: dict[str, list[int]]) -> None:
    """What spares a simulation its forests: a group's prediction is the mean of its runs, as the trees tend to it."""
    groups = list(runs)
    forest = predict(
        "forest", past(**{g: [float(v) for v in values] for g, values in runs.items()}), groups, np.empty(0)
    )
    for group, predicted in zip(groups, forest, strict=True):
        values = np.array(runs[group], dtype=float)
        # the mean of 100 bootstrap means: standard error sd/sqrt(100 n), and whole iterations
        assert abs(predicted - values.mean()) <= 6 * values.std() / np.sqrt(100 * len(values)) + 1
