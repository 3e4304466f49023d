"""--version of every installed tool."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from slurm_asrpt_cli import asrptd

from slurm_asrpt import __version__

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("option", ["--version", "-V"])
@pytest.mark.parametrize("tool", PROJECT["scripts"])
def test_each_tool_prints_its_version(tool: str, option: str, monkeypatch, capsys):
    module, _, main = PROJECT["scripts"][tool].partition(":")
    monkeypatch.setattr(sys, "argv", [tool, option])
    with pytest.raises(SystemExit) as ended:
        sys.exit(getattr(importlib.import_module(module), main)())
    assert not ended.value.code
    assert capsys.readouterr().out == f"slurm-asrpt {PROJECT['version']}\n"


@pytest.mark.parametrize("tool", PROJECT["scripts"])
def test_ctrl_c_during_startup_prints_no_traceback(tool: str) -> None:
    module, _, main = PROJECT["scripts"][tool].partition(":")
    code = f"""
import builtins, sys
from {module} import {main}
begin = builtins.__import__
def stop(name, *rest, **more):
    if name == "slurm_asrpt.errors":
        raise KeyboardInterrupt
    return begin(name, *rest, **more)
builtins.__import__ = stop
sys.exit({main}())
"""
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_asrptd_logs_its_release_first(tmp_path, monkeypatch, caplog):
    config = tmp_path / "asrpt.toml"
    folders = ("state", "run", "hook", "spool")
    config.write_text("[paths]\n" + "".join(f'{key} = "{tmp_path}/{key}"\n' for key in folders))
    config.chmod(0o600)
    monkeypatch.setattr(asrptd, "wait_to_lead", lambda *_: None)
    monkeypatch.setattr("slurm_asrpt.daemon.main.stop_on_signals", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["asrptd", "--config", str(config)])
    caplog.set_level("INFO", "asrptd")
    with pytest.raises(SystemExit) as ended:
        asrptd.main()
    assert not ended.value.code
    assert [record.message for record in caplog.records] == [f"release {PROJECT['version']}"]


def test_the_package_has_one_version():
    assert __version__ == PROJECT["version"]
