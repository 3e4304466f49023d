"""asrpt-admin disable and enable: the way back to Slurm at any minute, and forth again."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli.admin.common import ConfigOption, JsonOption, of_asrptd

from slurm_asrpt import switch
from slurm_asrpt.core.plurals import counted
from slurm_asrpt.daemon.disable import Released, disable
from slurm_asrpt.daemon.leader import held
from slurm_asrpt.errors import EXIT_FAILURE
from slurm_asrpt.slurm.cli import CliClient


def add_commands(app: typer.Typer) -> None:
    """Put disable and enable into asrpt-admin."""
    app.command("disable")(disable_command)
    app.command("enable")(enable_command)


def disable_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Hand everything that waits back to Slurm, at once.

    Leases, node lists, priorities and places in the order go;
    holds and begin times stay their owners'. Running jobs are
    not touched. asrptd does it in its next cycle; where none
    runs, this does. asrptd then goes on as in mode shadow,
    restarts included, until asrpt-admin enable.

    \b
    Example:
      asrpt-admin disable
    """
    settings = of_asrptd(config)
    with progress("handing back what waits") as tell:
        done = disable(settings, CliClient(settings.slurm), tell)
    if as_json:
        print(json.dumps(asdict(done)))
    else:
        tell_of(done)
    if done.refused:
        raise typer.Exit(EXIT_FAILURE)


def tell_of(done: Released) -> None:
    """What was handed back, in a line or two."""
    print(
        f"{done.by} has handed {counted(len(done.jobs), 'waiting job')} back to Slurm; nothing more is written to Slurm"
    )
    if done.refused:
        jobs = " ".join(done.refused)
        print(f"Slurm refused {len(done.refused)}, which start by themselves when their leases run out: {jobs}")


def enable_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Let asrptd go on in the mode of its settings.

    Counts from its next cycle on.

    \b
    Example:
      asrpt-admin enable
    """
    settings = of_asrptd(config)
    state = settings.paths.state
    was, running = switch.turn_on(state), held(state)
    if as_json:
        print(json.dumps({"was_disabled": was, "running": running, "mode": settings.daemon.mode}))
        return
    print(f"{'enabled' if was else 'was not disabled'}: mode {settings.daemon.mode}")
    if not running:
        print("asrptd does not run: systemctl start asrptd")
