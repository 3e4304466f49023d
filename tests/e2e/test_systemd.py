"""Our units under a real systemd, as user slurm and with their sandbox."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_asrpt.config.settings import load_settings
from slurm_asrpt.hook.table import read_table
from slurm_asrpt.install.site import UNITS, Site
from tests.trials import systemd as systemd_trial

from .conftest import COMMANDS, LEASE_S, QUICK, Cluster, own_cluster, wait_for
from .test_slurm_user import SLURM_USER, is_user

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not is_user(SLURM_USER), reason="no user slurm on this machine"),
    pytest.mark.skipif(bool(systemd_trial.why_not()), reason=systemd_trial.why_not()),
]


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    """A lab outside of /tmp, because the units have a private /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="asrpt-units-", dir="/srv"))
    folder.chmod(0o755)
    try:
        settings = {"daemon": {**QUICK["daemon"], "forecast_s": 5.0}}
        with own_cluster(80, "2x4", settings, folder=folder / "lab", slurm_user=SLURM_USER) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def systemd(site: Cluster) -> Iterator[systemd_trial.Trial]:
    with systemd_trial.trial([site.lab.directory]) as found:
        settings, etc = site.lab.paths.settings, site.lab.paths.etc
        place = Site(load_settings(settings), settings, etc, Path("/"), COMMANDS, SLURM_USER, Path("/"), {})
        for unit in UNITS:
            to_log = f"[Service]\nStandardOutput=append:{site.log}\nStandardError=inherit\n".encode()
            (found.root / "etc/systemd/system" / unit).write_bytes(place.unit(unit) + to_log)
        assert found.run("systemctl", "daemon-reload").returncode == 0
        yield found


def until_it_schedules(site: Cluster) -> None:
    """From the time of the call on."""
    before = time.time()
    wait_for(lambda: site.status_written() > before, "asrptd has done a cycle", 30)


def test_asrptd_schedules_and_learns_in_its_sandboxed_units(site: Cluster, systemd: systemd_trial.Trial) -> None:
    said = systemd.run("systemctl", "start", "asrptd", "asrpt-retrain.timer")
    assert said.returncode == 0, systemd.run("systemctl", "status", "--no-pager", "asrptd").stdout
    until_it_schedules(site)
    job_id = site.submit("-n4", "--gpus-per-task=1", "--comment=asrpt:profile=vgg19-dp4", script="sleep 1")
    site.recorded(job_id)
    assert site.audit(job_id, "running")[0]["as_planned"]
    first, behind = (site.submit("-n8", "--gpus-per-task=1", script="sleep 20") for _ in range(2))
    wait_for(lambda: site.status().get(behind, {}).get("start_earliest"), "the pending job has an estimate", 60)
    site.cancel(first, behind)
    said = systemd.run("systemctl", "start", "asrpt-retrain")  # waits for its end
    assert said.returncode == 0, (
        systemd.run("systemctl", "status", "--no-pager", "asrpt-retrain").stdout + site.log.read_text()
    )
    assert read_table(site.paths / "hook" / "table.txt")
    assert " ERROR " not in site.log.read_text(encoding="utf-8")


def test_a_killed_asrptd_is_restarted_and_a_stopped_one_leaves_no_lease(
    site: Cluster, systemd: systemd_trial.Trial
) -> None:
    before = systemd.show("asrptd", "MainPID")["MainPID"]
    systemd.run("systemctl", "kill", "--signal=KILL", "asrptd")
    wait_for(lambda: systemd.show("asrptd", "NRestarts")["NRestarts"] == "1", "systemd has started it again", 30)
    assert systemd.show("asrptd", "MainPID")["MainPID"] not in ("0", before)
    until_it_schedules(site)
    systemd.run("systemctl", "stop", "asrptd")
    assert systemd.show("asrptd", "ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    assert "lease_s=0" in (site.paths / "hook" / "hook.conf").read_text(encoding="ascii")


def test_killed_again_and_again_systemd_gives_up_and_the_jobs_go_back_to_slurm(
    site: Cluster, systemd: systemd_trial.Trial
) -> None:
    quick = systemd.root / "etc/systemd/system/asrptd.service.d/quick.conf"
    quick.parent.mkdir(exist_ok=True)
    quick.write_text("[Service]\nRestartSec=0.1\n", encoding="ascii")
    settings = site.lab.paths.settings
    good = settings.read_text(encoding="utf-8")
    settings.write_text(good.replace(f"lease_s = {LEASE_S}", "lease_s = 600"), encoding="utf-8")
    systemd.run("systemctl", "daemon-reload")
    try:
        systemd.run("systemctl", "start", "asrptd")
        until_it_schedules(site)
        running, waiting = (site.submit("-n8", "--gpus-per-task=1", script="sleep 600") for _ in range(2))
        site.wait(running, "RUNNING")
        wait_for(lambda: site.order() == [waiting], "one waits", 30)
        systemd.run("systemctl", "kill", "--signal=KILL", "asrptd")
        until_it_schedules(site)
        assert site.audit(waiting, "handed-back") == [], "it was started again at once"
        deadline = time.monotonic() + 60
        while systemd.show("asrptd", "ActiveState")["ActiveState"] != "failed" and time.monotonic() < deadline:
            systemd.run("systemctl", "kill", "--signal=KILL", "asrptd")
            time.sleep(0.2)
        wait_for(lambda: site.audit(waiting, "handed-back"), "the waiting job goes back to Slurm", 30)
        assert site.job(waiting).eligible_time < time.time() + 5
        assert "lease_s=0" in (site.paths / "hook" / "hook.conf").read_text(encoding="ascii")
        site.cancel(running)
        site.wait(waiting, "RUNNING")
    finally:
        site.idle()
        quick.unlink()
        settings.write_text(good, encoding="utf-8")
        systemd.run("systemctl", "daemon-reload")
        systemd.run("systemctl", "reset-failed", "asrptd")


def test_invalid_settings_cause_no_restart_loop(site: Cluster, systemd: systemd_trial.Trial) -> None:
    settings = site.lab.paths.settings
    good = settings.read_text(encoding="utf-8")
    settings.write_text(good.replace("[daemon]", "[daemon]\nmode_ = 1"), encoding="utf-8")
    try:
        systemd.run("systemctl", "start", "asrptd")
        wait_for(lambda: systemd.show("asrptd", "ActiveState")["ActiveState"] == "failed", "it has ended", 30)
        assert systemd.show("asrptd", "ExecMainStatus", "NRestarts") == {"ExecMainStatus": "2", "NRestarts": "0"}
    finally:
        settings.write_text(good, encoding="utf-8")
