"""Access to the settings, the history and Slurm for the commands of asrpt-admin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_asrpt_cli._app.progress import patience

from slurm_asrpt.errors import AsrptError

if TYPE_CHECKING:
    from slurm_asrpt.config.settings import Settings
    from slurm_asrpt.history.store import History
    from slurm_asrpt.slurm.cli import CliClient


def history_path(settings: Settings) -> Path:
    from slurm_asrpt.history.store import FILE_NAME

    return settings.paths.state / FILE_NAME


@contextmanager
def read_history(settings: Settings) -> Iterator[History]:
    """The history, opened read-only. Raises HistoryError."""
    from slurm_asrpt.history.store import History, HistoryError

    path = history_path(settings)
    if not path.exists():
        raise HistoryError(f"{path}: no history yet; asrptd creates it, or asrpt-admin history import")
    with History(path, read_only=True) as history:
        yield history


def of_asrptd(config: Path | None, trusted: bool = False) -> Settings:
    """The settings, for commands that use asrptd's state directory. Raises AsrptError if the user may not read it."""
    from slurm_asrpt.config.settings import load_settings

    settings = load_settings(config, trusted=trusted)
    state = settings.paths.state
    if os.path.exists(state) and not os.access(state, os.R_OK | os.X_OK):
        raise AsrptError(f"{state} is readable only by root and asrptd's user; use sudo")
    return settings


@contextmanager
def asking_slurm(settings: Settings) -> Iterator[CliClient]:
    """A client of Slurm; on a terminal, a bar shows that the command waits for Slurm."""
    from slurm_asrpt.slurm.cli import CliClient

    with patience("waiting for Slurm"):
        yield CliClient(settings.slurm)
