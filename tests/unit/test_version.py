"""--version, of every tool that is installed."""

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from slurm_asrpt import __version__

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("option", ["--version", "-V"])
@pytest.mark.parametrize("tool", PROJECT["scripts"])
def test_each_tool_says_its_version(tool: str, option: str, monkeypatch, capsys):
    module, _, main = PROJECT["scripts"][tool].partition(":")
    monkeypatch.setattr(sys, "argv", [tool, option])
    with pytest.raises(SystemExit) as ended:
        sys.exit(getattr(importlib.import_module(module), main)())
    assert not ended.value.code
    assert capsys.readouterr().out == f"slurm-asrpt {PROJECT['version']}\n"


def test_the_package_has_one_version():
    assert __version__ == PROJECT["version"]
