"""asrpt-admin doctor and the daemon's metrics: predictions, hook files, releases."""

from __future__ import annotations

import os
import socket
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import Gauge
from slurm_asrpt_cli.admin.doctor import here

from slurm_asrpt import __version__
from slurm_asrpt.config.settings import GroupSettings, Mode, Settings, parse_settings
from slurm_asrpt.daemon.leader import LeaderLock
from slurm_asrpt.daemon.metrics import HISTORY_INTERVAL_S, Metrics
from slurm_asrpt.doctor import Here, State, examine, predictions
from slurm_asrpt.doctor.predictions import STALE_TABLE_S, recent_drift
from slurm_asrpt.errors import InputError
from slurm_asrpt.history.store import History, Run
from slurm_asrpt.hook.hook_conf import write_hook_conf
from slurm_asrpt.predict.model_store import active_name
from slurm_asrpt.predict.retrain import models_folder, retrain
from slurm_asrpt.predict.validation import Drift, drift
from slurm_asrpt.status.document import Status, read_status, write_status

GROUP, NOW = "0123456789abcdef", 1_800_000_000.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    paths = {"state": str(tmp_path / "state"), "hook": str(tmp_path / "hook"), "run": str(tmp_path / "run")}
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "hook").mkdir()
    return parse_settings({"paths": paths, "predict": {"trees": 3}}, "test")


def record_runs(settings: Settings, first: int, iterations: list[int], predicted: int) -> None:
    with History(settings.paths.state / "history.sqlite") as history:
        history.record(
            Run(
                *(str(at), at),
                end_time=at,
                state="COMPLETED",
                group_id=GROUP,
                iterations=found,
                predicted_iterations=predicted,
            )
            for at, found in enumerate(iterations, first)
        )


def publish_status(settings: Settings, age: float = 0.0, release: str = __version__) -> None:
    """Write a status as asrptd does."""
    settings.paths.run.mkdir(exist_ok=True)
    write_status(settings.paths.run, Status(NOW - age, settings.daemon.mode, "asrpt-gated", 5.0, 8, 8, release=release))


@pytest.fixture
def healthy(settings: Settings) -> Settings:
    """Two models, the second one validated; a fresh heartbeat and status."""
    record_runs(settings, 1, [90, 110] * 15, 0)
    retrain(settings, NOW - 100)
    record_runs(settings, 101, [90, 110] * 15, 100)
    retrain(settings, NOW - 50)
    write_hook_conf(settings.paths.hook, ["gpu"], 600, NOW + 60, GroupSettings())
    os.utime(settings.paths.hook / "table.txt", (NOW, NOW))
    publish_status(settings)
    return settings


def states(settings: Settings) -> dict[str, State]:
    return {finding.check: finding.state for finding in examine(settings, NOW, None)}


def remedies(settings: Settings) -> str:
    return " ".join(finding.remedy for finding in examine(settings, NOW, None))


def test_a_healthy_installation_has_no_warnings(healthy: Settings) -> None:
    assert set(states(healthy).values()) == {State.OK}
    assert remedies(healthy).strip() == ""


def test_a_mode_that_asrptd_does_not_run_in_yet_needs_a_restart(healthy: Settings) -> None:
    changed = healthy.model_copy(update={"daemon": healthy.daemon.model_copy(update={"mode": Mode.ORDER})})
    assert read_status(healthy.paths.run).mode != Mode.ORDER
    assert states(changed)["switch"] is State.WARNING
    assert "systemctl restart asrptd" in remedies(changed)


@pytest.mark.parametrize(
    ("why", "what"), [("read-only", "hands the waiting jobs to Slurm"), ("full", "its audit trail waits for room")]
)
def test_a_state_directory_that_cannot_be_written_is_a_failure(
    healthy: Settings, monkeypatch: pytest.MonkeyPatch, why: str, what: str
) -> None:
    system = (
        SimpleNamespace(f_bavail=9, f_flag=os.ST_RDONLY)
        if why == "read-only"
        else SimpleNamespace(f_bavail=0, f_flag=0)
    )
    monkeypatch.setattr(os, "statvfs", lambda _: system)
    (finding,) = (finding for finding in examine(healthy, NOW, None) if finding.check == "state")
    assert finding.state is State.FAILURE
    assert f" is {why}: " in finding.text
    assert what in finding.text


def test_a_full_disk_on_which_the_state_cannot_be_saved_leaves_jobs_to_slurm(
    healthy: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_flag=0))
    status = read_status(healthy.paths.run)
    write_status(healthy.paths.run, replace(status, mode="unsaved"))
    (finding,) = (finding for finding in examine(healthy, NOW, None) if finding.check == "state")
    assert "is full: asrptd hands the waiting jobs to Slurm" in finding.text


def test_a_state_that_cannot_be_saved_for_another_reason_is_a_failure(healthy: Settings) -> None:
    status = read_status(healthy.paths.run)
    write_status(healthy.paths.run, replace(status, mode="unsaved"))
    assert states(healthy)["state"] is State.FAILURE
    assert "make it writable for asrptd" in remedies(healthy)


def test_a_new_installation_gets_remedies(settings: Settings) -> None:
    assert states(settings) == {
        "switch": State.OK,
        "asrptd": State.WARNING,
        "hook": State.FAILURE,
        "table": State.WARNING,
        "model": State.WARNING,
        "drift": State.OK,
    }
    assert "start asrptd" in remedies(settings)
    assert "asrpt-admin retrain" in remedies(settings)


@pytest.mark.parametrize(("error", "state"), [(0.4, State.OK), (0.83, State.WARNING)])
def test_predictions_as_bad_as_expected_are_not_ok_if_that_is_bad(
    healthy: Settings, monkeypatch: pytest.MonkeyPatch, error: float, state: State
) -> None:
    monkeypatch.setattr(predictions, "recent_drift", lambda settings: Drift(500, error, error, 0.0))
    assert states(healthy)["drift"] is state
    assert ("asrpt-admin evaluate" in remedies(healthy)) == (state is State.WARNING)


def test_predictions_much_worse_than_at_validation_have_drifted(healthy: Settings) -> None:
    assert recent_drift(healthy).warning == ""
    record_runs(healthy, 201, [500] * 500, 100)
    assert states(healthy)["drift"] is State.WARNING
    assert "80%" in recent_drift(healthy).warning


def test_damaged_files_are_found(healthy: Settings) -> None:
    models, hook = models_folder(healthy), healthy.paths.hook
    table = (hook / "table.txt").read_bytes()
    (hook / "table.txt").write_bytes(table.replace(b"1", b"2", 3))
    assert State.WARNING in [
        f.state for f in examine(healthy, NOW, None) if f.check == "model"
    ]  # not the table of the active model
    (hook / "table.txt").write_bytes(table[:-1])
    assert states(healthy)["table"] is State.FAILURE
    (hook / "hook.conf").write_bytes((hook / "hook.conf").read_bytes().replace(b"600", b"700"))
    assert states(healthy)["hook"] is State.FAILURE
    (models / active_name(models) / "predictions.txt").write_bytes(b"")
    assert states(healthy)["model"] is State.FAILURE


def test_an_old_table_is_found(healthy: Settings) -> None:
    long_ago = NOW - 2 * STALE_TABLE_S
    os.utime(healthy.paths.hook / "table.txt", (long_ago, long_ago))
    assert states(healthy)["table"] is State.WARNING
    assert "asrpt-retrain.timer" in remedies(healthy)


def test_a_dead_daemon_is_found(healthy: Settings) -> None:
    write_hook_conf(healthy.paths.hook, ["gpu"], 600, NOW - 30, GroupSettings())
    assert states(healthy)["hook"] is State.FAILURE
    assert "systemctl status asrptd" in remedies(healthy)


@pytest.mark.parametrize(("age", "state"), [(5.0, State.OK), (29.0, State.OK), (31.0, State.FAILURE)])
def test_a_hanging_asrptd_is_found_before_its_heartbeat_expires(healthy: Settings, age, state) -> None:
    publish_status(healthy, age=age)
    assert (states(healthy)["hook"], states(healthy)["asrptd"]) == (State.OK, state)
    assert ("restart asrptd" in remedies(healthy)) is (state is State.FAILURE)


def test_a_model_that_others_can_write_needs_other_permissions(healthy: Settings) -> None:
    models_folder(healthy).chmod(0o777)
    [found] = [finding for finding in examine(healthy, NOW, None) if finding.check == "model"]
    assert (found.state, found.remedy) == (State.FAILURE, "fix its owner and mode")
    assert "others can write" in found.text
    models_folder(healthy).chmod(0o700)
    assert states(healthy)["model"] is State.OK


def test_a_damaged_model_is_reported_with_its_remedy(healthy: Settings) -> None:
    models = models_folder(healthy)
    (models / active_name(models) / "model.json").write_bytes(b"{")
    [found] = [finding for finding in examine(healthy, NOW, None) if finding.check == "model"]
    assert "description cannot be read" in found.text
    assert found.remedy.startswith("asrpt-admin retrain")


@pytest.mark.parametrize(
    ("runs", "state", "told"),
    [
        (__version__, State.OK, f"installed release, {__version__}"),
        ("0.0.9", State.WARNING, f"0.0.9, but {__version__} is"),
        ("", State.WARNING, "an older release"),
    ],
)
def test_an_asrptd_of_another_release_must_be_restarted(healthy: Settings, runs, state, told) -> None:
    publish_status(healthy, release=runs)
    [found] = [finding for finding in examine(healthy, NOW, None) if finding.check == "release"]
    assert (found.state, told in found.text) == (state, True)
    assert found.remedy == ("" if state is State.OK else "systemctl restart asrptd")


def test_drift_is_computed_from_errors_and_unseen_jobs() -> None:
    runs = [Run(str(i), i, iterations=100, predicted_iterations=[150, 0][i % 2]) for i in range(40)]
    found = drift(runs, 0.25)
    assert (found.runs, found.error, found.unseen) == (20, 0.5, 0.5)
    assert found.warning
    assert not drift(runs, 0.4).warning
    assert not drift(runs, None).warning
    assert drift(runs[:38], 0.1).error is None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    values = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in values}


def test_metrics_are_served() -> None:
    port = free_port()
    metrics = Metrics(f"127.0.0.1:{port}")
    try:
        assert metrics.history_due(NOW)
        metrics.drift(Drift(200, 0.75, 0.25, 0.5))
        assert not metrics.history_due(NOW + HISTORY_INTERVAL_S - 1)
        assert metrics.history_due(NOW - 3600), "the clock was set back"
        assert not metrics.history_due(NOW - 3599)
        metrics.cycle(NOW, 0.5, {"read": 0.375, "write": 0.125})
        metrics.cycle(NOW, 0.25, {"read": 0.125})
        metrics.state("shadow", 8, 4, ["running", "waiting", "waiting"])
        metrics.state("shadow", 8, 4, ["waiting"])
        found = scraped(port)
    finally:
        metrics.close()
    assert found["asrpt_prediction_drifted"] == 1.0
    assert found["asrpt_prediction_error_ratio"] == 0.75
    assert found['asrpt_jobs{state="waiting"}'] == 1.0
    assert 'asrpt_jobs{state="running"}' not in found
    assert found["asrpt_cycle_duration_seconds_sum"] == 0.75
    assert found['asrpt_cycle_phase_duration_seconds_sum{phase="read"}'] == 0.5
    assert found['asrpt_mode{mode="shadow"}'] == 1.0
    assert found['asrpt_mode{mode="enforce"}'] == 0.0


def test_a_scrape_while_the_jobs_are_set_finds_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, found = Metrics(""), list[float | None]()
    metrics.state("shadow", 8, 4, ["running", "waiting"])
    labels = Gauge.labels

    def scraping(gauge: Gauge, *values: str) -> Gauge:
        found.append(metrics.registry.get_sample_value("asrpt_jobs", {"state": "waiting"}))
        return labels(gauge, *values)

    monkeypatch.setattr(Gauge, "labels", scraping)
    metrics.state("shadow", 8, 4, ["waiting", "waiting"])
    assert found
    assert None not in found
    assert metrics.registry.get_sample_value("asrpt_jobs", {"state": "running"}) is None


@pytest.mark.parametrize("listen", ["127.0.0.1:99999", "not-an-address.invalid:9000"])
def test_an_invalid_metrics_address_is_an_input_error(listen: str) -> None:
    with pytest.raises(InputError, match=r"daemon\.metrics"):
        Metrics(listen)


def test_without_an_address_no_metrics_are_served() -> None:
    metrics = Metrics("")
    assert not metrics.history_due(NOW)
    metrics.close()


def test_an_asrptd_that_has_just_died_is_found_while_its_status_is_fresh(healthy: Settings) -> None:
    findings = {leads: examine(healthy, NOW, None, Here(leads)) for leads in (None, True, False)}
    assert findings[None] == findings[True] == examine(healthy, NOW, None)
    (dead,) = (found for found in findings[False] if found.check == "asrptd")
    assert (dead.state, dead.text.startswith("it is not running")) == (State.FAILURE, True)


def test_the_last_status_of_an_asrptd_that_has_ended_is_no_mismatch(healthy: Settings) -> None:
    """The next asrptd is the installed one, and reads the settings."""
    publish_status(healthy, release="0.0.9")
    status = read_status(healthy.paths.run)
    write_status(healthy.paths.run, replace(status, mode="enforce"))
    found = {leads: examine(healthy, NOW, None, Here(leads)) for leads in (True, False)}
    checks = {leads: {finding.check: finding.state for finding in findings} for leads, findings in found.items()}
    assert (checks[True]["switch"], checks[True]["release"]) == (State.WARNING, State.WARNING)
    assert checks[False]["switch"] is State.OK
    assert "release" not in checks[False]


def test_settings_with_which_asrptd_would_not_start_are_found(healthy: Settings, tmp_path: Path) -> None:
    wrong = healthy.model_copy(update={"policy": healthy.policy.model_copy(update={"name": "foo"})})
    assert "foo" in here(wrong).refuses
    (found,) = (found for found in examine(wrong, NOW, None, here(wrong)) if found.check == "settings")
    assert (found.state, "asrptd would not start: policy.name" in found.text) == (State.FAILURE, True)


def test_the_lock_tells_whether_asrptd_runs_here(healthy: Settings) -> None:
    assert here(healthy) == Here(None, "")  # no lock: a login node
    leader = LeaderLock(healthy.paths.state)
    assert leader.take()
    assert here(healthy).leads is True
    leader.close()
    assert here(healthy).leads is False
