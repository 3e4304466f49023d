"""Writes the completion scripts for bash, zsh and fish: ``python -m slurm_asrpt_cli._app.completion``.

The scripts are Typer's; they ask the command for the words, so they stay the same when its options change.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import typer.main
from slurm_asrpt_cli import report
from slurm_asrpt_cli._app.mandoc import TOOLS, Entry, of_argparse
from typer.completion import get_completion_inspect_parameters, shell_complete

REPORT = "asrpt-report"
"""It uses argparse, as Typer would take longer to import than the work takes; its scripts list the options."""
NAMES = (*TOOLS, REPORT)
FILES = {"bash": "{}", "zsh": "_{}", "fish": "{}.fish"}
"""File names under which the shells look for a command's script."""

# zsh loads the file when it completes the first word; Typer's script alone would complete only the next one
_ZSH_AT_ONCE = '\n[[ $funcstack[1] = _{0} ]] && {1} "$@"\n'


def script(tool: str, shell: str) -> str:
    """Typer's completion script for one command."""
    command, variable = typer.main.get_command(TOOLS[tool].app), f"_{tool}_COMPLETE".replace("-", "_").upper()
    get_completion_inspect_parameters()  # registers the shells with Typer
    with contextlib.redirect_stdout(io.StringIO()) as found:
        shell_complete(command, {}, tool, variable, f"source_{shell}")
    text = found.getvalue().strip() + "\n"
    return text + _ZSH_AT_ONCE.format(tool, f"_{tool.replace('-', '_')}_completion") if shell == "zsh" else text


def report_script(shell: str) -> str:
    """Completes only the options; their values are numbers."""
    options = [entry for entry in of_argparse("", report.parser()).entries if entry.flags]
    if shell == "bash":
        return f"complete -W '{' '.join(entry.name for entry in options)}' {REPORT}\n"
    if shell == "zsh":
        return f"#compdef {REPORT}\n_arguments {' '.join(map(_zsh, options))} '1:iterations:'\n"
    lines = [f"complete --command {REPORT} --no-files"]
    return "\n".join([*lines, *(f"{lines[0]} {_fish(entry)}" for entry in options)]) + "\n"


def _zsh(entry: Entry) -> str:
    value = f":{entry.value}:" if entry.value else ""
    return f"'{entry.name}[{entry.text}]{value}'"


def _fish(entry: Entry) -> str:
    value = " --exclusive" if entry.value else ""
    return f"--long-option {entry.name.removeprefix('--')}{value} --description '{entry.text}'"


def write(root: Path) -> None:
    """Write the scripts into the source tree at ``root``."""
    for shell, name in FILES.items():
        folder = root / "completion" / shell
        folder.mkdir(parents=True, exist_ok=True)
        for tool in NAMES:
            text = report_script(shell) if tool == REPORT else script(tool, shell)
            (folder / name.format(tool)).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2])
