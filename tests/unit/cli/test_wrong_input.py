"""Every command with wrong files: one line that says what is wrong, never a traceback."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from slurm_asrpt.config.location import settings_file
from tests.benches.commands import commands

TOOLS = {
    "asrpt-status": "status.command",
    "asrpt-admin": "admin",
    "asrpt-lab": "lab",
    "asrpt-sim": "sim",
    "asrptd": "asrptd",
    "asrpt-profile": "profile",
    "asrpt-pool": "pool",
}
OUTPUTS = {"output", "keep", "html", "plot", "directory", "root", "folder"}
"""Options that name outputs."""
NEEDED = {"models activate": ["no-such-model"], "history forget": ["no-such-user"]}
OTHER_WORDS = {"asrpt-lab train": "asrpt-train"}


def lines() -> Iterator[tuple[str, str, str]]:
    """(tool, subcommand, option) of everything that names a file to read; an argument has no option."""
    for tool, module in TOOLS.items():
        root: Any = typer.main.get_command(importlib.import_module(f"slurm_asrpt_cli.{module}").app)
        for name, command in commands(root):
            for parameter in command.params:
                kind = repr(
                    getattr(parameter, "type_descriptor", None) or parameter.type
                )  # depends on the release of Typer
                if "Path" in kind and parameter.name not in OUTPUTS:
                    flag = parameter.opts[0] if parameter.param_type_name == "option" else ""
                    yield tool, name, flag


LINES = sorted(set(lines()))


@pytest.fixture(params=["missing", "a folder", "garbage", "below a file", "empty name"])
def wrong(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "folder").mkdir()
    (tmp_path / "garbage").write_bytes(bytes(range(256)) * 16)
    paths = {"missing": "missing", "a folder": "folder", "garbage": "garbage", "below a file": "garbage/x"}
    return str(tmp_path / paths[request.param]) if request.param in paths else ""


def settings(folder: Path) -> Path:
    """Settings of a new site without Slurm."""
    paths = {name: folder / name for name in ("state", "run", "hook", "spool")}
    config = folder / "asrpt.toml"
    config.write_text(
        f'[slurm]\nbin_dir = "{folder}"\n[paths]\n' + "".join(f'{name} = "{path}"\n' for name, path in paths.items())
    )
    return config


def run_command(
    words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Run a command. Returns its exit code and standard error."""
    monkeypatch.setenv("ASRPT_CONFIG", str(settings(folder)))
    monkeypatch.setenv("SLURM_CONF", str(folder / "no-slurm.conf"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{words[0]}", *words[1:]])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"slurm_asrpt_cli.{TOOLS[words[0]]}").main()
    code = ended.value.code
    assert isinstance(code, int)
    return code, capfd.readouterr().err


@pytest.mark.parametrize(("tool", "name", "flag"), LINES, ids=lambda text: text or "-")
def test_wrong_files_are_one_line_errors(tool, name, flag, wrong, tmp_path, monkeypatch, capfd):
    given = [flag, wrong] if flag else [wrong]
    needed = NEEDED.get(name, []) if flag else []
    code, err = run_command([tool, *name.split(), *needed, *given], tmp_path, monkeypatch, capfd)
    assert code in (0, 1, 2), err
    if code:
        said = err.splitlines()
        assert len(said) == 1, err
        assert said[0].startswith(OTHER_WORDS.get(f"{tool} {name}", tool))
        assert said[0].isprintable()
    assert "Traceback" not in err


@pytest.mark.parametrize(("tool", "name", "flag"), [line for line in LINES if line[2] != "--config"])
def test_an_empty_file_is_no_unexpected_error(tool, name, flag, tmp_path, monkeypatch, capfd):
    """An empty script is a valid job. Empty settings would use the paths of this machine: they are left out."""
    (tmp_path / "empty").touch()
    given = [flag, str(tmp_path / "empty")] if flag else [str(tmp_path / "empty")]
    code, err = run_command(
        [tool, *name.split(), *(NEEDED.get(name, []) if flag else []), *given], tmp_path, monkeypatch, capfd
    )
    assert code in (0, 1, 2), err


def test_a_file_for_evaluate_needs_an_option(tmp_path, monkeypatch, capfd):
    code, err = run_command(["asrpt-admin", "evaluate", "jobs.csv"], tmp_path, monkeypatch, capfd)
    assert code == 2
    assert "name a trace by --data (asrpt-admin evaluate --data jobs.csv)" in err


def test_a_file_for_history_import_needs_an_option(tmp_path, monkeypatch, capfd):
    code, err = run_command(["asrpt-admin", "history", "import", "jobs.csv"], tmp_path, monkeypatch, capfd)
    assert code == 2
    assert "say what the file is: --csv FILE, --jsonl FILE" in err


@pytest.mark.parametrize(
    "words",
    [
        ["asrpt-status", "4711"],
        ["asrpt-status", "--explain", "4711"],
        ["asrpt-status", "--watch"],
        ["asrpt-admin", "explain-prediction", "4711"],
        ["asrpt-admin", "models", "activate", "4711"],
        ["asrpt-admin", "calibration"],
        ["asrpt-admin", "history", "stats"],
        ["asrpt-lab", "status", "--dir", "nowhere"],
    ],
    ids=" ".join,
)
def test_missing_things_are_one_line_errors(words, tmp_path, monkeypatch, capfd):
    code, err = run_command(words, tmp_path, monkeypatch, capfd)
    assert code in (1, 2)
    assert len(err.splitlines()) == 1, err
    assert err.startswith(words[0])


@pytest.mark.parametrize(
    "words",
    [
        ["asrpt-status", "--explain", ""],
        ["asrpt-status", "--explain="],
        ["asrpt-status", "-u", ""],
        ["asrpt-status", "12", ""],
        ["asrpt-admin", "audit", "--job", ""],
        ["asrpt-admin", "boost", ""],
        ["asrpt-admin", "explain-prediction", ""],
        ["asrpt-admin", "evaluate", "--data", ""],
        ["asrpt-sim", "compare", ""],
        ["asrpt-lab", "up", "--set", ""],
        ["asrpt-profile", "show", ""],
    ],
    ids=" ".join,
)
def test_an_empty_value_is_refused(words, tmp_path, monkeypatch, capfd):
    """It comes from an unset variable of a script, and must not mean all jobs, or this directory."""
    code, err = run_command(words, tmp_path, monkeypatch, capfd)
    assert code == 2
    assert len(err.splitlines()) == 1, err
    assert " is empty; " in err


def test_arguments_of_a_script_may_be_empty(tmp_path, monkeypatch, capfd):
    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    for words in (["predict", "--comment", "", "train.sh", ""], ["predict", "train.sh", "", "--x="]):
        assert " is empty" not in run_command(["asrpt-admin", *words], tmp_path, monkeypatch, capfd)[1]
    words = ["asrpt-status", "--what-if", "train.sh", "--", ""]
    assert " is empty" not in run_command(words, tmp_path, monkeypatch, capfd)[1]


def test_an_empty_name_of_the_settings_file_is_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASRPT_CONFIG", "")
    assert settings_file(None) is None
    monkeypatch.setenv("ASRPT_CONFIG", str(tmp_path))
    assert settings_file(None) == tmp_path
