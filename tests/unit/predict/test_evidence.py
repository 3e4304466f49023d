"""The evidence shown for a prediction is the data that it was made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt.history.store import History, Run
from slurm_asrpt.hook.table import Entry
from slurm_asrpt.predict.conformal import RunConformal, rounded_interval
from slurm_asrpt.predict.evidence import PredictionInput, evidence
from slurm_asrpt.reporting.prediction_plot import draw

GROUP, OTHER, PROGRAM = "a" * 16, "b" * 16, "c" * 16
SUBJECT = PredictionInput(GROUP, PROGRAM, 1000, 4, {"epochs": 90.0})


def run(job: int, group: str = GROUP, **fields: object) -> Run:
    values: dict[str, object] = {
        "end_time": job,
        "state": "COMPLETED",
        "uid": 1000,
        "group_id": group,
        "program": PROGRAM,
        "iterations": 100,
        "gpus": 4,
        "features": {"epochs": 90.0},
    }
    return Run(str(job), job, **(values | fields))  # type: ignore[arg-type]


@pytest.fixture
def history(tmp_path: Path) -> History:
    kept = History(tmp_path / "history.sqlite")
    kept.record(
        [
            run(1),
            run(2, gpus=8),
            run(3, state="CANCELLED"),
            run(4, iterations=0),
            run(5, group=OTHER),
            run(6, group=OTHER, program="", uid=1001),
        ]
    )
    return kept


def ids(subject: PredictionInput, entries: dict[str, Entry], history: History) -> list[str]:
    return [found.job_id for found in evidence(subject, entries, history, RunConformal()).runs]


@pytest.mark.parametrize(
    ("level", "jobs"),
    [
        ("exact", ["1"]),
        ("group", ["2", "1"]),
        ("program", ["5", "2", "1"]),
        ("user", ["5", "2", "1"]),
        ("cluster", ["6", "5", "2", "1"]),
    ],
)
def test_the_evidence_is_the_runs_of_the_key_that_was_used(level: str, jobs: list[str], history: History) -> None:
    key = dict(SUBJECT.keys)[level]
    found = evidence(SUBJECT, {key: Entry(50.0, 40.0, 60.0)}, history, RunConformal())
    assert (found.answer.level, found.answer.iterations) == (level, 50)
    assert [each.job_id for each in found.runs] == jobs
    assert [each.runs for each in found.levels] == [1, 2, 3, 3, 4]
    assert [each.name for each in found.levels if each.answers] == [level]


def test_an_unseen_job_shows_runs_of_its_group_since_the_last_retraining(history: History) -> None:
    assert ids(SUBJECT, {}, history) == ["2", "1"]
    assert ids(PredictionInput("d" * 16, "", 7, 1), {}, history) == []


def test_an_entry_per_epoch_is_skipped_for_jobs_without_epochs(history: History) -> None:
    keys = dict(SUBJECT.keys)
    entries = {keys["group"]: Entry(2.0, 1.0, 3.0, "e"), keys["user"]: Entry.plain(7.0)}
    assert evidence(SUBJECT, entries, history, RunConformal()).answer.iterations == 180
    plain = PredictionInput(GROUP, PROGRAM, 1000, 4)
    assert evidence(plain, entries, history, RunConformal()).answer.level == "user"


def test_the_axis_of_a_single_run_is_in_days(tmp_path: Path, history: History) -> None:
    found = evidence(SUBJECT, {}, history, RunConformal())
    lone = replace(found, runs=(run(1, end_time=1_800_000_000),))  # in January 2027
    draw("one run", lone, None, tmp_path / "run.svg")
    written = (tmp_path / "run.svg").read_text()
    assert "<!-- one run -->" in written
    assert "<!-- 2026-" not in written


def test_the_interval_is_the_one_that_asrptd_uses(history: History) -> None:
    """A user's runs took ten times the table's upper end, so the intervals of new jobs are wider."""
    conformal = RunConformal()
    for _ in range(20):
        conformal.learn(SUBJECT.uid, 40.0, 50.0, 60.0, 600.0)
    entries = {dict(SUBJECT.keys)["user"]: Entry(50.0, 40.0, 60.0)}
    found = evidence(SUBJECT, entries, history, conformal)
    assert (found.answer.low, found.answer.high) == (40, 60)
    assert found.adjusted == rounded_interval(*conformal.adjusted(SUBJECT.uid, 40, 50, 60))
    assert found.adjusted[1] > 500
    assert evidence(SUBJECT, {}, history, conformal).adjusted == (0, 0)
