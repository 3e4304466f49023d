"""asrpt-admin disable and enable: hand all jobs back to Slurm, and let asrptd schedule again."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli.admin.access import of_asrptd

from slurm_asrpt import switch
from slurm_asrpt.daemon.disable import Released, disable
from slurm_asrpt.daemon.leader import held
from slurm_asrpt.errors import EXIT_FAILURE
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.text import counted


def add_commands(app: typer.Typer) -> None:
    """Add disable and enable to asrpt-admin."""
    app.command("disable")(disable_command)
    app.command("enable")(enable_command)


def disable_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Hand all waiting jobs back to Slurm now.

    Removes asrptd's leases, node lists, priorities and queue
    positions. Users' holds and begin times stay; running jobs
    are not touched. asrptd does this in its next cycle; if it
    is not running, this command does. asrptd then works as in
    mode shadow, even after a restart, until asrpt-admin enable.

    \b
    Example:
      asrpt-admin disable
    """
    settings = of_asrptd(config)
    with progress("handing back waiting jobs") as tell:
        done = disable(settings, CliClient(settings.slurm), tell)
    if as_json:
        print(json.dumps(asdict(done)))
    else:
        tell_of(done)
    if done.refused:
        raise typer.Exit(EXIT_FAILURE)


def tell_of(done: Released) -> None:
    """Print what was handed back."""
    print(
        f"{done.by} handed {counted(len(done.jobs), 'waiting job')} back to Slurm; asrptd writes nothing more to Slurm"
    )
    if done.refused:
        jobs = " ".join(done.refused)
        print(f"Slurm refused {len(done.refused)}; they start by themselves when their leases expire: {jobs}")


def enable_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Let asrptd schedule again, in its configured mode.

    Takes effect in its next cycle.

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
        print("asrptd is not running: systemctl start asrptd")
