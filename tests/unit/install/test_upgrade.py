"""An upgrade from the release without means in its table: its own code has written the history, model and table."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt.config.settings import Settings, parse_settings
from slurm_asrpt.doctor import State
from slurm_asrpt.doctor.predictions import CHECKS
from slurm_asrpt.history.store import History, HistoryError, Run
from slurm_asrpt.hook.group import keys_of, owned
from slurm_asrpt.hook.table import Answer, in_seconds, lookup, parse_table, renewed
from slurm_asrpt.predict.model_store import ModelError, active_name, load_model, save_model
from slurm_asrpt.predict.retrain import activate, models_folder, retrain

RECORDED = Path(__file__).parents[2] / "recorded" / "upgrade"
GROUP, PER_EPOCH, MODEL = "0123456789abcdef", "fedcba9876543210", "20261122T090836.695549Z"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The files that the previous release left."""
    state, hook = tmp_path / "state", tmp_path / "hook"
    model = state / "models" / MODEL
    state.mkdir(mode=0o700)
    hook.mkdir()
    model.mkdir(mode=0o700, parents=True)
    (state / "models" / "current").symlink_to(MODEL)
    for path in (model / "model.json", model / "predictions.txt", hook / "table.txt"):
        shutil.copyfile(RECORDED / path.name.replace("table", "predictions"), path)
    with closing(sqlite3.connect(state / "history.sqlite")) as connection:
        connection.executescript((RECORDED / "history.sql").read_text())
    return parse_settings({"paths": {"state": str(state), "hook": str(hook)}, "predict": {"trees": 3}}, "test")


def predicted(settings: Settings) -> Answer:
    """The hook's prediction for a job of three epochs."""
    features = {"epochs": 3.0}
    chain = keys_of(PER_EPOCH, PER_EPOCH, 1000, 8, features)
    found, trouble = lookup(settings.paths.hook / "table.txt", chain, features)
    return Answer(level=trouble) if trouble else found


def test_the_doctor_reports_an_old_table_and_its_remedy(settings: Settings) -> None:
    found = [finding for check in CHECKS for finding in check(settings, 0.0) if finding.check == "table"]
    assert [(f.state, f.remedy) for f in found] == [(State.FAILURE, "asrpt-admin retrain")]
    assert found[0].text.endswith("format 3, not 5: every job counts as unseen")
    assert predicted(settings).level == "table.txt is damaged: format 3, not 5"


def test_retraining_migrates_the_history_and_writes_a_new_table(settings: Settings) -> None:
    with pytest.raises(HistoryError, match="schema 4"):
        History(settings.paths.state / "history.sqlite", read_only=True)
    report = retrain(settings, 2e9)
    assert (report.rows, report.refused, report.unjudged) == (7, "", "")
    assert predicted(settings).iterations == 30
    with History(settings.paths.state / "history.sqlite", read_only=True) as history:
        runs = history.runs()
    assert [run.predicted_mean for run in runs] == [0] * 7
    assert [run.iterations for run in runs if run.features] == [70, 60, 50, 40]


def test_the_previous_releases_model_can_be_activated(settings: Settings) -> None:
    assert activate(settings, MODEL).info.rows == 7
    assert predicted(settings) == Answer(30, 30, 30, "group", 0)


def test_a_new_model_is_compared_with_the_one_of_the_previous_release(
    settings: Settings,
) -> None:
    with History(settings.paths.state / "history.sqlite") as history:
        for first, end, iterations in ((100, 50, 100), (200, 5, 9000)):  # the latter like imported nonsense
            history.record(
                Run(str(job), 5, end_time=end, state="COMPLETED", group_id=GROUP, iterations=iterations)
                for job in range(first, first + 30)
            )
    report = retrain(settings, 2e9)
    assert (report.verdict.reference, report.verdict.old) == (MODEL, 0.0)
    assert "30 runs" in report.refused
    assert active_name(models_folder(settings)) == MODEL
    assert predicted(settings).iterations == 30


def test_converting_an_old_table_keeps_its_values() -> None:
    new = parse_table(in_seconds(renewed((RECORDED / "predictions.txt").read_bytes())))
    assert len(new) == 9
    assert not any(entry.mean for entry in new.values())
    one = new[owned(-1, GROUP)]
    assert (one.iterations, one.low, one.high, one.unit) == (100, 100, 100, "-")


@pytest.mark.parametrize("data", [b"", b"asrpt-table 5 1 2 686595 943992", b"asrpt-table 3 1 2 686595 943992\n"])
def test_only_tables_of_the_previous_format_are_converted(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a table of format 3"):
        renewed(data)


def test_a_model_of_a_later_release_is_refused(settings: Settings) -> None:
    models = models_folder(settings)
    old = load_model(models, MODEL)
    later = save_model(models, old.data, replace(old.info, format=7), 2e9)
    with pytest.raises(ModelError, match=r"format 7, this release reads 4 to 6.*; asrpt-admin retrain"):
        load_model(models, later.name)
