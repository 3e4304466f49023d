"""What the commands of asrpt-admin share: options, and how they show tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from slurm_asrpt_cli.tables import Column, print_table

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Settings file; else $ASRPT_CONFIG, else /etc/slurm/asrpt.toml.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def show_table(columns: Sequence[Column]) -> None:
    """A table with titles; the last column gives way on a narrow terminal."""
    console = Console(highlight=False)
    print_table(columns, True, console, console.width if sys.stdout.isatty() else None)
