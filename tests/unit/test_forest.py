"""The forest and what becomes of it: models, retraining, the table."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestRegressor

from slurm_asrpt.config import PathSettings, PredictSettings, Settings
from slurm_asrpt.predict import retrain as retrain_module
from slurm_asrpt.predict import table
from slurm_asrpt.predict.forest import Cells, fit_columns, fit_rows, fit_table
from slurm_asrpt.predict.history import History, Run, Sample, Source
from slurm_asrpt.predict.model import Model, active_name, load_model
from slurm_asrpt.predict.retrain import RetrainError, retrain
from slurm_asrpt.predict.table import Answer, Entry


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


@pytest.mark.parametrize("iterations", [1, 1000, 33_333, 10**9])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_three_equal_runs_are_enough(iterations: int, seed: int) -> None:
    mine = [Sample(name(9999), 3, iterations)] * 3
    predicted = fit_table(background(seed) + mine, 100, seed)[name(9999)]
    assert abs(predicted - iterations) <= 0.1 * iterations


def test_every_group_is_predicted_and_at_least_one() -> None:
    samples = [*background(5), Sample(name(777), 1, 1)]
    predicted = fit_table(samples, 10, 0)
    assert set(predicted) == {s.group for s in samples}
    assert min(predicted.values()) >= 1
    assert predicted[name(777)] == 1


def test_same_seed_same_table() -> None:
    assert fit_table(background(5), 10, 0) == fit_table(background(5), 10, 0)


def test_no_history_no_table() -> None:
    assert fit_table([], 100, 0) == {}


def rows(seed: int, count: int, groups: int, users: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and whole iterations of random runs; few rows a cell, so that bags miss some."""
    dice = np.random.default_rng(seed)
    features = np.column_stack([dice.integers(0, groups, count), dice.integers(0, users, count)])
    return features, np.rint(dice.lognormal(8, 2, count)) + 1


@settings_(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 400), st.integers(1, 60), st.integers(1, 6))
def test_trees_that_are_not_grown_are_scikit_learns(seed: int, count: int, groups: int, users: int) -> None:
    """The shortcut of forest.py against scikit-learn's forest on the plain rows, bag by bag and cell by cell."""
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


def test_where_every_bag_holds_every_cell_it_is_scikit_learns_own_prediction() -> None:
    features, target = rows(1, 4000, 12, 5)
    plain = RandomForestRegressor(20, random_state=0).fit(features, target)
    cells = Cells(features[:, 0], features[:, 1], target)
    bags = plain.estimators_samples_
    assert not any(np.isnan(cells.tree(bag)).any() for bag in bags)
    assert np.allclose(cells.forest(bags), plain.predict(np.unique(features, axis=0)), rtol=1e-9, atol=0)


def test_the_forest_by_scikit_learn_is_ours_but_for_the_bootstraps() -> None:
    features, _ = rows(2, 4000, 12, 5)
    target = np.random.default_rng(0).integers(50, 150, len(features))
    groups, users = [f"g{group}" for group in features[:, 0]], features[:, 1].tolist()
    ours, theirs = (fit(groups, users, target, 50, 0) for fit in (fit_columns, fit_rows))
    assert ours.keys() == theirs.keys()
    assert max(abs(theirs[group] / ours[group] - 1) for group in ours) < 0.05


def test_a_cell_that_no_tree_has_drawn_takes_the_mean_of_its_rows() -> None:
    cells = Cells(np.array([0, 0, 1]), np.array([0, 0, 0]), np.array([10.0, 30.0, 7.0]))
    assert cells.forest([np.array([2, 2, 2])]).tolist() == [20.0, 7.0]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    paths = PathSettings(state=tmp_path / "state", hook=tmp_path / "hook")
    return Settings(paths=paths, predict=PredictSettings(predictor="forest", trees=5, keep_models=2))


def active(settings: Settings) -> Model:
    models = settings.paths.state / "models"
    return load_model(models, active_name(models))


def answers(settings: Settings) -> set[Entry]:
    """Of the active model."""
    return set(table.parse_table(active(settings).data).values())


def fill(settings: Settings, iterations: int) -> None:
    settings.paths.state.mkdir(exist_ok=True)
    runs = [
        Run(str(i), i, state="COMPLETED", uid=1, group_id=name(i % 4), iterations=iterations,
            iterations_source=Source.REPORTED)
        for i in range(12)
    ]  # fmt: skip
    with History(settings.paths.state / "history.sqlite") as history:
        history.record(runs)


def test_retrain(settings: Settings) -> None:
    fill(settings, 50)
    report = retrain(settings, 1e9)
    assert (report.rows, report.groups) == (12, 4)
    expected = {name(i): Entry.plain(50) for i in range(4)}
    assert table.read_table(settings.paths.hook / "table.txt") == expected
    model = active(settings)
    assert table.parse_table(model.data) == expected
    info = model.info
    assert (info.rows, info.groups, info.trees, info.created[:10]) == (12, 4, 5, "2001-09-09")


def test_empty_history_gives_an_empty_table(settings: Settings) -> None:
    report = retrain(settings, 1e9)
    assert (report.rows, report.groups) == (0, 0)
    assert table.lookup(settings.paths.hook / "table.txt", [("group", name(1))], {}) == (Answer(), "")


def test_crash_between_model_and_table(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(settings, 50)
    retrain(settings, 1e9)
    fill(settings, 70)

    def crash(path: Path, data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(retrain_module, "replace_file", crash)
        with pytest.raises(KeyboardInterrupt):
            retrain(settings, 1e9 + 1)
    assert set(table.read_table(settings.paths.hook / "table.txt").values()) == {Entry.plain(50)}
    assert answers(settings) == {Entry.plain(70)}
    retrain(settings, 1e9 + 2)
    assert set(table.read_table(settings.paths.hook / "table.txt").values()) == {Entry.plain(70)}


def test_crash_while_the_model_is_written(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(settings, 50)
    retrain(settings, 1e9)
    fill(settings, 70)
    with monkeypatch.context() as patch:
        patch.setattr(retrain_module, "point_at", _no_space)
        with pytest.raises(RetrainError):
            retrain(settings, 1e9 + 1)
    assert answers(settings) == {Entry.plain(50)}


def _no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_old_models_go(settings: Settings) -> None:
    for i in range(4):
        retrain(settings, 1e9 + i)
    models = settings.paths.state / "models"
    kept = sorted(p.name for p in models.iterdir() if not p.is_symlink())
    assert len(kept) == 2
    assert (models / "current").resolve().name == kept[-1]


def test_one_retraining_at_a_time(settings: Settings) -> None:
    settings.paths.state.mkdir()
    with retrain_module._alone(settings), pytest.raises(RetrainError, match="under way"):
        retrain(settings, 1e9)
