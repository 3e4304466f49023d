"""asrpt-admin doctor: find problems of the installation."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.progress import patience
from slurm_asrpt_cli._app.tables import print_prose

from slurm_asrpt.daemon.leader import LOCK_NAME, held
from slurm_asrpt.errors import EXIT_FAILURE, InputError, one_line, printable

if TYPE_CHECKING:
    from slurm_asrpt.config.settings import Settings
    from slurm_asrpt.doctor import Here


def doctor_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Find problems and say how to fix them.

    Checks the hook, leases, clocks, Slurm's settings,
    permissions and predictions. Run it as root on the
    controller. Changes nothing. The exit status is 1 if a
    check fails, 0 if there are only warnings.

    \b
    Examples:
      asrpt-admin doctor
      asrpt-admin doctor --json
    """
    from slurm_asrpt.config.settings import load_settings
    from slurm_asrpt.doctor import State, examine, take_snapshot

    settings = load_settings(config)
    with patience("waiting for Slurm"):
        snapshot = take_snapshot(settings)
    found = examine(settings, time.time(), snapshot, here(settings))
    if as_json:
        print(json.dumps([asdict(finding) for finding in found]))
    else:
        for finding in found:
            print_prose(f"{finding.state:<8} {finding.check}: {finding.text}", indent=9)
            if finding.remedy:
                print(printable(f"{'':<8} -> {finding.remedy}"))
    if any(finding.state is State.FAILURE for finding in found):
        raise typer.Exit(EXIT_FAILURE)


def here(settings: Settings) -> Here:
    """What this machine knows of asrptd: a login node has no lock of it."""
    from slurm_asrpt.daemon.setup import configured_policy
    from slurm_asrpt.doctor import Here

    try:
        configured_policy(settings)
        refuses = ""
    except InputError as error:
        refuses = one_line(error)
    state = settings.paths.state
    try:
        return Here(held(state) if (state / LOCK_NAME).exists() else None, refuses)
    except OSError:
        return Here(None, refuses)
