"""The forest, compared with scikit-learn's on the plain rows."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestRegressor

from slurm_asrpt.history.store import Sample
from slurm_asrpt.predict.forest import Cells, fit_columns, fit_rows


def name(i: int) -> str:
    return f"{i:016x}"


def background(seed: int, groups: int = 200) -> list[Sample]:
    """Log-normal groups, users with several groups each, between one and eight runs a group."""
    dice = random.Random(seed)
    samples = []
    for i in range(groups):
        mean = dice.lognormvariate(9, 2)
        samples += [Sample(name(i), i % 17, 1 + int(mean * dice.uniform(0.9, 1.1))) for _ in range(dice.randint(1, 8))]
    return samples


def fit_samples(samples: list[Sample], trees: int, seed: int) -> dict[str, int]:
    groups, users, iterations = ([getattr(s, name) for s in samples] for name in ("group", "user", "iterations"))
    return fit_columns(groups, users, iterations, trees, seed)


@pytest.mark.parametrize("iterations", [1, 1000, 33_333, 10**9])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_three_equal_runs_suffice(iterations: int, seed: int) -> None:
    mine = [Sample(name(9999), 3, iterations)] * 3
    predicted = fit_samples(background(seed) + mine, 100, seed)[name(9999)]
    assert abs(predicted - iterations) <= 0.1 * iterations


def test_every_group_is_predicted_and_at_least_one() -> None:
    samples = [*background(5), Sample(name(777), 1, 1)]
    predicted = fit_samples(samples, 10, 0)
    assert set(predicted) == {s.group for s in samples}
    assert min(predicted.values()) >= 1
    assert predicted[name(777)] == 1


def test_same_seed_same_table() -> None:
    assert fit_samples(background(5), 10, 0) == fit_samples(background(5), 10, 0)


def test_no_history_no_table() -> None:
    assert fit_samples([], 100, 0) == {}


def rows(seed: int, count: int, groups: int, users: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and whole iterations of random runs, with few rows per cell, so that bags miss some."""
    dice = np.random.default_rng(seed)
    features = np.column_stack([dice.integers(0, groups, count), dice.integers(0, users, count)])
    return features, np.rint(dice.lognormal(8, 2, count)) + 1


@settings_(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 400), st.integers(1, 60), st.integers(1, 6))
def test_the_shortcut_equals_scikit_learns_trees(seed: int, count: int, groups: int, users: int) -> None:
    """The shortcut of forest.py equals scikit-learn's forest on the plain rows, per bag and cell."""
    features, target = rows(seed, count, groups, users)
    plain = RandomForestRegressor(8, random_state=seed).fit(features, target)
    cells = Cells(features[:, 0], features[:, 1], target)
    _, first = np.unique(features, axis=0, return_index=True)
    answers = np.array([tree.predict(features[first]) for tree in plain.estimators_])
    ours = np.array([cells.tree(bag) for bag in plain.estimators_samples_])
    seen = ~np.isnan(ours)
    assert np.allclose(ours[seen], answers[seen], rtol=1e-9, atol=0)
    once = seen.any(axis=0)
    expected = [column[knows].mean() for column, knows in zip(answers.T[once], seen.T[once], strict=True)]
    assert np.allclose(cells.forest(plain.estimators_samples_)[once], expected, rtol=1e-9, atol=0)


def test_with_every_cell_in_every_bag_predictions_equal_scikit_learns() -> None:
    features, target = rows(1, 4000, 12, 5)
    plain = RandomForestRegressor(20, random_state=0).fit(features, target)
    cells = Cells(features[:, 0], features[:, 1], target)
    bags = plain.estimators_samples_
    assert not any(np.isnan(cells.tree(bag)).any() for bag in bags)
    assert np.allclose(cells.forest(bags), plain.predict(np.unique(features, axis=0)), rtol=1e-9, atol=0)


def test_scikit_learns_forest_equals_ours_except_for_bootstraps() -> None:
    features, _ = rows(2, 4000, 12, 5)
    target = np.random.default_rng(0).integers(50, 150, len(features))
    groups, users = [f"g{group}" for group in features[:, 0]], features[:, 1].tolist()
    ours, theirs = (fit(groups, users, target, 50, 0) for fit in (fit_columns, fit_rows))
    assert ours.keys() == theirs.keys()
    assert max(abs(theirs[group] / ours[group] - 1) for group in ours) < 0.05


def test_a_cell_in_no_bag_gets_the_mean_of_its_rows() -> None:
    cells = Cells(np.array([0, 0, 1]), np.array([0, 0, 0]), np.array([10.0, 30.0, 7.0]))
    assert cells.forest([np.array([2, 2, 2])]).tolist() == [20.0, 7.0]
