"""asrpt-admin disable, release and enable: hand all jobs back to Slurm, and let asrptd schedule again."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli.admin.access import of_asrptd

from slurm_asrpt.daemon.leader import held
from slurm_asrpt.errors import EXIT_FAILURE
from slurm_asrpt.text import counted

if TYPE_CHECKING:
    from slurm_asrpt.daemon.disable import Released

DISABLED = "asrptd writes nothing more to Slurm"


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
    from slurm_asrpt.daemon.disable import disable
    from slurm_asrpt.slurm.cli import CliClient

    settings = of_asrptd(config)
    with progress("handing back waiting jobs") as tell:
        done = disable(settings, CliClient(settings.slurm), tell)
    _show(done, as_json, f"{DISABLED} until asrpt-admin enable")


def release_command(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Hand all waiting jobs back to Slurm if asrptd is gone.

    Like disable, but only if no asrptd is running, and the
    next asrptd schedules as before. If asrptd is killed,
    asrpt-release.service or asrptd's guard runs this, so that
    no GPU idles until the leases expire.

    \b
    Example:
      asrpt-admin release
    """
    from slurm_asrpt.daemon.disable import release_if_gone
    from slurm_asrpt.slurm.cli import CliClient

    settings = of_asrptd(config)
    done = release_if_gone(settings, CliClient(settings.slurm))
    if done is not None:
        _show(done, as_json, "the next asrptd takes them over")
    elif as_json:
        print(json.dumps(None))
    else:
        print("asrptd is running: no job was handed back (asrpt-admin disable does that)")


def _show(done: Released, as_json: bool, outlook: str) -> None:
    if as_json:
        print(json.dumps(asdict(done)))
    else:
        tell_of(done, outlook)
    if done.refused:
        raise typer.Exit(EXIT_FAILURE)


def tell_of(done: Released, outlook: str = DISABLED) -> None:
    """Print what was handed back. outlook: what follows."""
    print(f"{done.by} handed {counted(len(done.jobs), 'waiting job')} back to Slurm; {outlook}")
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
    from slurm_asrpt import switch

    settings = of_asrptd(config)
    state = settings.paths.state
    was, running = switch.turn_on(state), held(state)
    if as_json:
        print(json.dumps({"was_disabled": was, "running": running, "mode": settings.daemon.mode}))
        return
    print(f"{'enabled' if was else 'was not disabled'}: mode {settings.daemon.mode}")
    if not running:
        print("asrptd is not running: systemctl start asrptd")
