"""Which runs teach how much a job communicates, what a model keeps of it, and what users are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.config.settings import Settings, parse_settings
from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.history.store import History, Run
from slurm_asrpt.predict.communication import (
    Placed,
    from_bytes,
    keys_for,
    learn,
    placed_runs,
    timed_runs,
    to_bytes,
)
from slurm_asrpt.predict.conformal import RunConformal
from slurm_asrpt.predict.evidence import PredictionInput, evidence
from slurm_asrpt.predict.model_store import ModelError, active_name, load_beliefs, load_model
from slurm_asrpt.predict.retrain import models_folder, retrain
from slurm_asrpt.status.learned_texts import communication_text

GROUP, PROGRAM = "a" * 16, "c" * 16
FABRIC = Fabric(1.25e9, 300e9, (0.15625e9,))
NEAR, FAR = 0.8, 6.4


def run(job: int, link_s: float = NEAR, elapsed: int = 1000, **fields: Any) -> Run:
    switches = 2 if link_s == FAR else 1
    usual: dict[str, Any] = {"state": "COMPLETED", "uid": 7, "group_id": GROUP, "gpus": 16, "iterations": elapsed}
    usual |= {"link_s": link_s, "switches": switches, "nodes": {"n1": 8, "n2": 8}, "speed": 1.0, "program": PROGRAM}
    return Run(str(job), job, end_time=job + elapsed, **(usual | fields))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    paths = {"state": str(tmp_path / "state"), "hook": str(tmp_path / "hook")}
    (tmp_path / "state").mkdir(mode=0o700)
    return parse_settings({"paths": paths, "fabric": {"beyond_bytes_per_s": [0.15625e9]}}, "test")


def history_of(folder: Path, *runs: Run) -> History:
    history = History(folder / "history.sqlite")
    history.record(runs)
    return history


def suffering(**fields: Any) -> list[Run]:
    """Ten runs; those across the spine took twice as long."""
    return [run(n, link, 1000 if link == NEAR else 2000, **fields) for n, link in enumerate([NEAR, FAR] * 5)]


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, 1000),
        ({"iteration_s": 0.5}, 0.5),
        ({"iteration_s": 0.5, "state": "FAILED"}, 0.5),
        ({"speed": 2.0}, 2000),
        ({"iteration_s": 0.5, "speed": 2.0}, 1.0),
        ({"speed": 0.0}, 1000),
        ({"iteration_s": 600.0}, 1000),  # hardly an iteration: starting took most of the time
        ({"state": "FAILED"}, None),
        ({"state": "TIMEOUT"}, None),
        ({"elapsed": 59}, None),
        ({"link_s": 0.0}, None),
        ({"profile": "vgg19-dp16", "iterations_of": "vgg19-dp16"}, None),
        ({"profile": "unusable"}, 1000),
        ({"group_id": ""}, None),
    ],
)
def test_which_runs_teach_what(tmp_path: Path, fields: dict[str, Any], seconds: float | None) -> None:
    found = [each.seconds for each in timed_runs(history_of(tmp_path, run(1, **fields)))]
    assert found == ([] if seconds is None else [seconds])


def test_retrain_keeps_it_with_the_model(settings: Settings) -> None:
    history_of(settings.paths.state, *suffering())
    retrain(settings, 1e9)
    models = models_folder(settings)
    found = from_bytes(load_beliefs(models, active_name(models))).of(*keys_for(GROUP, PROGRAM, 7))
    assert found is not None
    assert (found.level, found.runs, found.apart) == ("group", 10, 5)
    assert found.slower == pytest.approx(2, rel=1e-3)
    assert 1 + found.rate * FAR == pytest.approx(2 * (1 + found.rate * NEAR), rel=0.5)
    others = from_bytes(load_beliefs(models, active_name(models))).of(*keys_for(GROUP, PROGRAM, 8))
    assert others is not None
    assert (others.level, others.rate) == ("cluster", 0)


def test_it_can_be_turned_off(settings: Settings) -> None:
    history_of(settings.paths.state, *suffering())
    off = settings.model_copy(update={"predict": settings.predict.model_copy(update={"communication": False})})
    retrain(off, 1e9)
    assert load_beliefs(models_folder(off), active_name(models_folder(off))) == b""


def test_a_model_of_an_earlier_release_knows_nothing(settings: Settings) -> None:
    retrain(settings, 1e9)
    models = models_folder(settings)
    name = active_name(models)
    (models / name / "communication.txt").unlink()
    assert load_beliefs(models, name) == b""
    assert load_model(models, name).info.refused == ""


def test_a_file_that_others_can_write_is_refused(settings: Settings) -> None:
    retrain(settings, 1e9)
    models = models_folder(settings)
    (models / active_name(models) / "communication.txt").chmod(0o666)
    with pytest.raises(ModelError, match="refused"):
        load_beliefs(models, active_name(models))


@pytest.mark.parametrize("data", [b"x", b"\n", b"0" * 64 + b"\n{}\n"])
def test_a_damaged_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="checksum"):
        from_bytes(data)


def test_only_what_makes_a_difference_is_kept(tmp_path: Path) -> None:
    (tmp_path / "quiet").mkdir()
    quiet = history_of(tmp_path / "quiet", *[run(n, link) for n, link in enumerate([NEAR, FAR] * 5)])
    assert from_bytes(to_bytes(learn(quiet, FABRIC))).known == {}
    both = suffering() + [run(n + 100, link, uid=8) for n, link in enumerate([NEAR, FAR] * 5)]
    known = learn(history_of(tmp_path, *both), FABRIC)
    assert {key.split()[1] for key in from_bytes(to_bytes(known)).known if key.startswith("group")} == {"7", "8"}


# what is shown


def test_runs_by_placement(tmp_path: Path) -> None:
    more = [run(50, FAR, 10_000, gpus=32), run(51, NEAR, 100, features={"epochs": 1.0})]
    history = history_of(tmp_path, *suffering(), *more)
    assert placed_runs(history, GROUP, 7, 16) == [
        Placed(2, 1, 6, pytest.approx(1)),
        Placed(2, 2, 5, pytest.approx(2)),
    ]
    assert placed_runs(history, GROUP, 8, 16) == []


def test_it_is_part_of_the_evidence_of_jobs_without_a_profile(tmp_path: Path) -> None:
    history = history_of(tmp_path, *suffering())
    known = learn(history, FABRIC)
    subject = PredictionInput(GROUP, PROGRAM, 7, 16)
    found = evidence(subject, {}, history, RunConformal(), known)
    assert found.communication == known.known[f"group 7 {GROUP}"]
    assert [row.runs for row in found.placed] == [5, 5]
    for other in (PredictionInput(GROUP, PROGRAM, 7, 1), PredictionInput(GROUP, PROGRAM, 7, 16, {}, "bert")):
        found = evidence(other, {}, history, RunConformal(), known)
        assert (found.communication, found.placed) == (None, ())


def test_in_words() -> None:
    told = communication_text("group", 14, 7, 1.84)
    assert told == "7 of 14 earlier runs had nodes farther apart and took 1.8 times as long"
    assert communication_text("user", 0, 0, 0) == "learned from other jobs of the same user"
    assert communication_text("group", 9, 1, 1.01) == "learned from its earlier runs and similar jobs"
