"""asrpt-admin disable and enable: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from slurm_asrpt_cli.admin import app
from typer.testing import CliRunner

from slurm_asrpt import switch
from slurm_asrpt.daemon import disable as daemon_disable
from slurm_asrpt.daemon.disable import Released
from slurm_asrpt.daemon.leader import LeaderLock


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "asrpt.toml"
    path.write_text(f'[paths]\nstate = "{tmp_path}/state"\n[daemon]\nmode = "order"\n')
    (tmp_path / "state").mkdir()
    return path


def run(config: Path, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words, "--config", str(config)])
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.mark.parametrize(("refused", "code"), [([], 0), (["7", "9"], 1)])
def test_disable_reports_released_and_refused_jobs(config, monkeypatch, refused, code) -> None:
    monkeypatch.setattr(daemon_disable, "disable", lambda *_: Released("asrptd", ["5", "6"], refused))
    text = run(config, "disable", code=code)
    assert "asrptd handed 2 waiting jobs back" in text
    assert "until asrpt-admin enable" in text
    assert ("7 9" in text) is bool(refused)
    assert json.loads(run(config, "disable", "--json", code=code))["refused"] == refused


def test_enable_reports_the_mode_and_whether_asrptd_runs(config: Path, tmp_path: Path) -> None:
    switch.turn_off(tmp_path / "state")
    text = run(config, "enable")
    assert "enabled: mode order" in text
    assert "systemctl start asrptd" in text
    assert not switch.is_off(tmp_path / "state")
    lead = LeaderLock(tmp_path / "state")
    assert lead.take()
    found = json.loads(run(config, "enable", "--json"))
    lead.close()
    assert found == {"was_disabled": False, "running": True, "mode": "order"}


def test_release_tells_who_was_handed_back_or_that_asrptd_is_there(config: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(daemon_disable, "release_if_gone", lambda *_: Released("asrpt-admin", ["5"], ["7"]))
    assert "handed 1 waiting job back to Slurm; the next asrptd" in run(config, "release", code=1)
    monkeypatch.undo()
    lead = LeaderLock(tmp_path / "state")
    assert lead.take()
    assert "asrptd is running: no job was handed back" in run(config, "release")
    assert json.loads(run(config, "release", "--json")) is None
    lead.close()
