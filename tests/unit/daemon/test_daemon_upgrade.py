"""asrptd starts on the files of the previous release: state, history, models and table, with jobs in every state."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from slurm_asrpt.daemon import main, setup
from slurm_asrpt.daemon.jobs.saved_state import JobState, Service
from slurm_asrpt.daemon.leader import wait_to_lead
from slurm_asrpt.daemon.main import Daemon
from slurm_asrpt.daemon.state import SCHEMA
from slurm_asrpt.history.store import History, Source
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.predict.model_store import active_name
from slurm_asrpt.predict.retrain import models_folder, retrain
from tests.benches.daemon import make_settings
from tests.benches.fake_slurm import GROUP, FakeSlurm

RECORDED = Path(__file__).parents[2] / "recorded" / "upgrade"
MODEL = "20261122T090836.695549Z"
TAG = Tag(GROUP, 100, low=80, high=120).format()


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Slurm when the previous asrptd stopped: one job runs, one is pinned, one waits in the policy's queue."""
    slurm = FakeSlurm(starts_jobs=False)
    slurm.submit(8, admin_comment=TAG)
    slurm.change(
        "1", state="RUNNING", reason="None", start_time=slurm.now, eligible_time=slurm.now, required_nodes="n[1-2]",
        min_nodes=2, max_nodes=2, priority=4294000000, nodes="n1,n2", gpus_by_node={"n1": 4, "n2": 4},
    )  # fmt: skip
    slurm.tick(4)
    slurm.submit(4, admin_comment=TAG)
    slurm.change("2", eligible_time=slurm.now, reason="None", required_nodes="n3", max_nodes=1, priority=4294000000)
    slurm.submit(12, admin_comment=TAG)
    slurm.tick(2)
    monkeypatch.setattr("time.time", lambda: slurm.now)
    monkeypatch.setattr(main, "CliClient", lambda settings: slurm)
    return slurm


@pytest.fixture
def daemon(slurm: FakeSlurm, tmp_path: Path) -> Iterator[Daemon]:
    settings = make_settings(tmp_path, policy="asrpt-gated", tables={"predict": {"trees": 3}})
    state, model = settings.paths.state, models_folder(settings) / MODEL
    state.chmod(0o700)
    model.mkdir(mode=0o700, parents=True)
    model.parent.chmod(0o700)
    (model.parent / "current").symlink_to(MODEL)
    shutil.copyfile(RECORDED / "state.json", state / "state.json")
    for path in (model / "model.json", model / "predictions.txt", settings.paths.hook / "table.txt"):
        shutil.copyfile(RECORDED / path.name.replace("table", "predictions"), path)
    with closing(sqlite3.connect(state / "history.sqlite")) as connection:
        connection.executescript((RECORDED / "history.sql").read_text())
    (state / "history.sqlite").chmod(0o600)
    setup.prepare(settings)
    stopping = Event()
    made = Daemon(settings, wait_to_lead(state, stopping), stopping)
    yield made
    made.close()


def job_states(daemon: Daemon) -> dict[str, JobState]:
    assert daemon.scheduling.scheduler is not None
    return {job_id: tracked.state for job_id, tracked in daemon.scheduling.jobs.items()}


def test_an_upgrade_keeps_jobs_in_place_and_writes_nothing_to_slurm(daemon: Daemon, slurm: FakeSlurm) -> None:
    daemon.run(once=True)
    assert job_states(daemon) == {"1": JobState.RUNNING, "2": JobState.PINNED, "3": JobState.QUEUED}
    assert slurm.writes == []
    assert daemon.scheduling.scheduler is not None
    tracked, recorded = daemon.scheduling.jobs, json.loads((RECORDED / "state.json").read_text())
    pin = tracked["2"].pin
    assert pin is not None
    assert (pin.gpus, pin.at) == ({"n3": 4}, recorded["jobs"]["2"]["pin"]["at"])
    assert tracked["1"].service == Service(0.0, 1_000_000.0, 8.0)
    assert daemon.scheduling.scheduler.decider.policy.dump()["runs"] == recorded["policy"]["runs"]
    audit = "".join(path.read_text() for path in daemon.settings.paths.state.glob("audit*"))
    assert "lost" not in audit


def test_after_an_upgrade_files_are_written_in_the_new_format(daemon: Daemon, slurm: FakeSlurm) -> None:
    daemon.run(once=True)
    state = json.loads((daemon.settings.paths.state / "state.json").read_text())
    assert (state["schema"], set(state["jobs"])) == (SCHEMA, {"1", "2", "3"})
    with History(daemon.settings.paths.state / "history.sqlite", read_only=True) as history:
        assert [run.predicted_mean for run in history.runs()] == [0] * 7


def test_jobs_from_before_an_upgrade_end_normally_and_are_recorded(daemon: Daemon, slurm: FakeSlurm) -> None:
    daemon.run(once=True)
    slurm.starts_jobs = True
    slurm.tick(100)
    slurm.end("1")
    for _ in range(3):
        daemon.run(once=True)
        slurm.tick(1)
    assert job_states(daemon) == {"2": JobState.RUNNING, "3": JobState.QUEUED}
    slurm.end("2")
    for _ in range(3):
        daemon.run(once=True)
        slurm.tick(1)
    assert job_states(daemon) == {"3": JobState.RUNNING}
    with History(daemon.settings.paths.state / "history.sqlite", read_only=True) as history:
        runs = {run.job_id: run for run in history.runs() if run.group_id == GROUP and run.uid == 1001}
    said = {
        (run.predicted_low, run.predicted_iterations, run.predicted_high, run.predicted_mean) for run in runs.values()
    }
    assert said == {(80, 100, 120, 0)}
    assert {job_id: (run.iterations, run.iterations_source) for job_id, run in runs.items()} == {
        "1": (106, Source.ELAPSED),
        "2": (3, Source.ELAPSED),
    }


def test_retraining_after_an_upgrade_writes_the_new_table_format(daemon: Daemon) -> None:
    daemon.run(once=True)
    assert active_name(models_folder(daemon.settings)) == MODEL
    table = daemon.settings.paths.hook / "table.txt"
    assert table.read_bytes().startswith(b"asrpt-table 3 ")
    report = retrain(daemon.settings, 2e9)
    assert (report.rows, report.refused) == (7, "")
    assert table.read_bytes().startswith(b"asrpt-table 5 ")
    daemon.run(once=True)
