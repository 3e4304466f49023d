"""Retraining: model and table stay complete after any failure."""

import fcntl
from pathlib import Path

import pytest

from slurm_asrpt.config.settings import PathSettings, PredictSettings, Settings
from slurm_asrpt.history.store import History, Run, Source
from slurm_asrpt.hook import table
from slurm_asrpt.hook.group import owned
from slurm_asrpt.hook.table import Answer, Entry
from slurm_asrpt.predict import retrain as retrain_module
from slurm_asrpt.predict.model_store import Model, active_name, load_model
from slurm_asrpt.predict.retrain import RetrainError, retrain


def name(i: int) -> str:
    return f"{i:016x}"


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
    expected = {owned(1, name(i)): Entry.plain(50) for i in range(4)}
    assert table.read_table(settings.paths.hook / "table.txt") == expected
    model = active(settings)
    assert table.parse_table(model.data) == expected
    info = model.info
    assert (info.rows, info.groups, info.trees, info.created[:10]) == (12, 4, 5, "2001-09-09")


def test_empty_history_gives_an_empty_table(settings: Settings) -> None:
    report = retrain(settings, 1e9)
    assert (report.rows, report.groups) == (0, 0)
    assert table.lookup(settings.paths.hook / "table.txt", [("group", owned(1, name(1)))], {}) == (Answer(), "")


def test_a_crash_between_model_and_table(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_crash_while_the_model_is_written(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_old_models_are_deleted(settings: Settings) -> None:
    for i in range(4):
        retrain(settings, 1e9 + i)
    models = settings.paths.state / "models"
    kept = sorted(p.name for p in models.iterdir() if not p.is_symlink())
    assert len(kept) == 2
    assert (models / "current").resolve().name == kept[-1]


def test_one_retraining_at_a_time(settings: Settings) -> None:
    settings.paths.state.mkdir()
    with (settings.paths.state / "retrain.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RetrainError, match="in progress"):
            retrain(settings, 1e9)
