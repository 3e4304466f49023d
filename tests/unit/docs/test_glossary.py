"""docs/glossary.md explains the terms of the program; help texts fit a screen and have examples."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from slurm_asrpt.config.settings import Mode
from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.status.reason_texts import LEFT_CHANGES, LEFT_WORDS, WORDS
from tests.benches.commands import commands

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "glossary.md").read_text()
ROWS = re.findall(r"^\| \*\*(.+)\*\* \| (.{8,}) \|$", TEXT, re.M)
TOOLS = {
    "asrptd": "asrptd",
    "asrpt-status": "status.command",
    "asrpt-admin": "admin",
    "asrpt-lab": "lab",
    "asrpt-sim": "sim",
    "asrpt-profile": "profile",
    "asrpt-pool": "pool",
}
MOST_LINES = 23
"""On a terminal of 80x24, the last line is for the prompt."""


def every_command() -> list[tuple[str, str, Any]]:
    """(tool, subcommand words, command), including the tools and command groups themselves."""
    found = []
    for tool, module in TOOLS.items():
        root: Any = typer.main.get_command(importlib.import_module(f"slurm_asrpt_cli.{module}").app)
        found.append((tool, "", root))
        found += [(tool, name, root.commands[name]) for name in getattr(root, "commands", {})]
        found += [(tool, name, command) for name, command in commands(root) if " " in name]
    return found


@cache
def help_of(tool: str, name: str, flag: str = "--help") -> str:
    app = importlib.import_module(f"slurm_asrpt_cli.{TOOLS[tool]}").app
    return CliRunner().invoke(app, [*name.split(), flag], env={"COLUMNS": "80"}).output


COMMANDS = every_command()


def test_all_rows_of_the_glossary_are_parsed() -> None:
    assert len(ROWS) == len(re.findall(r"^\|", TEXT, re.M)) - 2 > 30


@pytest.mark.parametrize("word", [*Phase, *(str(mode) for mode in Mode)])
def test_states_and_modes_are_explained(word: str) -> None:
    assert any(word == row[0] for row in ROWS)


@pytest.mark.parametrize("kind", WORDS)
def test_each_reason_has_a_rule_and_a_remedy(kind: str) -> None:
    assert kind == "running" or (WORDS[kind].rule and WORDS[kind].change)


def test_remedies_exist_only_for_known_reasons() -> None:
    assert LEFT_CHANGES.keys() <= LEFT_WORDS.keys()


@pytest.mark.parametrize(("tool", "name", "command"), COMMANDS, ids=lambda part: part if isinstance(part, str) else "")
def test_help_has_an_example(tool: str, name: str, command: Any) -> None:
    text = help_of(tool, name)
    assert max(map(len, text.splitlines())) <= 80
    if (tool, name) == ("asrpt-lab", "train"):  # has its own help
        return
    assert "Example" in text
    assert f"{tool} " in text.partition("Example")[2] or name == ""


@pytest.mark.parametrize(("tool", "name", "command"), COMMANDS, ids=lambda part: part if isinstance(part, str) else "")
def test_every_command_and_group_knows_help_all(tool: str, name: str, command: Any) -> None:
    if not command.context_settings.get("ignore_unknown_options"):  # else its arguments are for another program
        assert help_of(tool, name, "--help-all").startswith("Usage: ")


@pytest.mark.parametrize(("tool", "name", "command"), COMMANDS, ids=lambda part: part if isinstance(part, str) else "")
def test_help_fits_a_screen(tool: str, name: str, command: Any) -> None:
    text = help_of(tool, name)
    assert not re.search(r"[a-z,]\.\.\.$", text, re.M), "a sentence is truncated"
    assert len(text.splitlines()) <= MOST_LINES
    assert not re.search(r"<(str|int|float|path|list|file)", text), "an option without a metavar"


@pytest.mark.parametrize(("tool", "name", "command"), COMMANDS, ids=lambda part: part if isinstance(part, str) else "")
def test_every_option_is_in_help_or_help_all(tool: str, name: str, command: Any) -> None:
    short, more = help_of(tool, name), "--help-all"
    flags = {parameter.opts[0] for parameter in command.params if parameter.param_type_name == "option"}
    words = {*flags, *getattr(command, "commands", ())}
    hidden = {word for word in words if not re.search(rf"^ +(-\w, )?{word}\b", short, re.M)}
    assert bool(hidden) == (more in flags)
    everything = help_of(tool, name, more) if hidden else ""
    assert [word for word in hidden if not re.search(rf"{word}\b", everything)] == []
