"""The forest and what becomes of it: models, retraining, the table."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from slurm_asrpt.config import PathSettings, PredictSettings, Settings
from slurm_asrpt.predict import retrain as retrain_module
from slurm_asrpt.predict import table
from slurm_asrpt.predict.forest import fit_table
from slurm_asrpt.predict.history import History, Run, Sample, Source
from slurm_asrpt.predict.model import ModelError, load_model
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


def test_a_tree_of_cells_is_the_tree_of_the_rows() -> None:
    """The shortcut of forest.py, checked against scikit-learn on the plain rows."""
    dice = np.random.default_rng(3)
    rows = dice.integers(0, 8, (400, 2)).astype(float)
    target = rows[:, 0] * 100 + rows[:, 1] + dice.normal(0, 30, 400)
    cells, cell = np.unique(rows, axis=0, return_inverse=True)
    weight = np.bincount(cell.ravel())
    means = np.bincount(cell.ravel(), weights=target) / weight
    plain = DecisionTreeRegressor(random_state=0).fit(rows, target)
    quick = DecisionTreeRegressor(random_state=0).fit(cells, means, sample_weight=weight)
    assert np.allclose(plain.predict(cells), quick.predict(cells))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    paths = PathSettings(state=tmp_path / "state", hook=tmp_path / "hook")
    return Settings(paths=paths, predict=PredictSettings(trees=5, keep_models=2))


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
    info, predictions = load_model(settings.paths.state / "models" / "current")
    assert predictions == expected
    assert (info.rows, info.groups, info.trees, info.created[:10]) == (12, 4, 5, "2001-09-09")


def test_empty_history_gives_an_empty_table(settings: Settings) -> None:
    report = retrain(settings, 1e9)
    assert (report.rows, report.groups) == (0, 0)
    assert table.lookup(settings.paths.hook / "table.txt", [("group", name(1))], {}) == (Answer(), "")


def test_crash_between_model_and_table(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(settings, 50)
    retrain(settings, 1e9)
    fill(settings, 70)

    def crash(path: Path, predictions: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(retrain_module.table, "write_table", crash)
        with pytest.raises(KeyboardInterrupt):
            retrain(settings, 1e9 + 1)
    assert set(table.read_table(settings.paths.hook / "table.txt").values()) == {Entry.plain(50)}
    assert set(load_model(settings.paths.state / "models" / "current")[1].values()) == {Entry.plain(70)}
    retrain(settings, 1e9 + 2)
    assert set(table.read_table(settings.paths.hook / "table.txt").values()) == {Entry.plain(70)}


def test_crash_while_the_model_is_written(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(settings, 50)
    retrain(settings, 1e9)
    fill(settings, 70)
    with monkeypatch.context() as patch:
        patch.setattr("slurm_asrpt.predict.model._point", _no_space)
        with pytest.raises(RetrainError):
            retrain(settings, 1e9 + 1)
    assert set(load_model(settings.paths.state / "models" / "current")[1].values()) == {Entry.plain(50)}


def _no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_old_models_go(settings: Settings) -> None:
    for i in range(4):
        retrain(settings, 1e9 + i)
    models = settings.paths.state / "models"
    kept = sorted(p.name for p in models.iterdir() if not p.is_symlink())
    assert len(kept) == 2
    assert (models / "current").resolve().name == kept[-1]


@pytest.mark.parametrize("damage", ["data", "meta", "gone"])
def test_a_damaged_model_is_refused(settings: Settings, damage: str) -> None:
    fill(settings, 50)
    folder = retrain(settings, 1e9).model
    if damage == "data":
        whole = (folder / "predictions.txt").read_bytes()
        (folder / "predictions.txt").write_bytes(whole.replace(b"50", b"51", 1))
    elif damage == "meta":
        (folder / "model.json").write_text(json.dumps({"x": 1}))
    else:
        (folder / "predictions.txt").unlink()
    with pytest.raises(ModelError, match="retrain"):
        load_model(folder)


def test_one_retraining_at_a_time(settings: Settings) -> None:
    settings.paths.state.mkdir()
    with (
        retrain_module._alone(settings.paths.state / "retrain.lock"),
        pytest.raises(RetrainError, match="under way"),
    ):
        retrain(settings, 1e9)
