"""asrpt-admin install: check, install and remove slurm-asrpt on the controller."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from slurm_asrpt_cli._app.help import seldom
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.tables import Column, safe, show_table
from slurm_asrpt_cli.admin.access import asking_slurm
from slurm_asrpt_cli.admin.switch import tell_of

from slurm_asrpt.config.location import DEFAULT_PATH, DEFAULT_UNITS, ENVIRONMENT_VARIABLE
from slurm_asrpt.daemon.leader import held
from slurm_asrpt.errors import EXIT_FAILURE, AsrptError, InputError, SlurmError, one_line, printable

if TYPE_CHECKING:
    from slurm_asrpt.config.settings import Settings
    from slurm_asrpt.install import Step
    from slurm_asrpt.install.site import Site
    from slurm_asrpt.install.slurm_conf import Line

SERVICES = "asrptd asrpt-retrain.timer"
GUESSED = (
    "nothing was written: Slurm did not tell its directory and SlurmUser; "
    "start slurmctld, or give both --slurm-dir and --user"
)


def install_command(
    look: Annotated[bool, typer.Option("--check", help="Show what is installed and what is missing.")] = False,
    put: Annotated[bool, typer.Option("--apply", help="Install what is missing or differs.")] = False,
    take: Annotated[bool, typer.Option("--remove", help="Release pending jobs and uninstall.")] = False,
    root: Annotated[
        Path, seldom(metavar="DIR", help="Install into the image in this directory; do not ask Slurm.")
    ] = Path("/"),
    slurm_dir: Annotated[
        Path | None, seldom(metavar="DIR", help="Directory of slurm.conf; default: ask Slurm.")
    ] = None,
    units: Annotated[Path, seldom(metavar="DIR", help="Directory of the systemd units.")] = DEFAULT_UNITS,
    user: Annotated[str, seldom(metavar="USER", help="User of asrptd; default: SlurmUser.")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Install on the controller: hook, prologs, units, directories.

    The site's files stay: job_submit.lua gets a marked block,
    slurm.conf is never written. Running jobs are not touched.
    --check exits with 0 if everything is installed, else 1.

    \b
    Examples:
      asrpt-admin install --check
      asrpt-admin install --apply
      asrpt-admin install --remove
    """
    from slurm_asrpt.install import apply, check, lines, remove

    if look + put + take != 1:
        raise InputError("give one of --check, --apply and --remove")
    site = _site(root, slurm_dir, units, user, config)
    if root == Path("/") and units == DEFAULT_UNITS:
        _refuse_a_lab(site.settings_path)
    if put and root == Path("/") and not site.config and not (slurm_dir and user):
        raise AsrptError(GUESSED)
    if take:
        _hand_back(site, as_json)
    steps = (check if look else apply if put else remove)(site)
    if take:
        _forget_the_switch(site)
    if as_json:
        _print_json(steps, lines(site))
    else:
        _show(steps, lines(site), take, root, site)
    if look and not _complete(steps, lines(site)):
        raise typer.Exit(EXIT_FAILURE)


def _refuse_a_lab(settings: Path) -> None:
    """Raises InputError for the settings of a lab: this machine must not get units that run it."""
    from slurm_asrpt.lab.spec import STATE_FILE

    if (settings.parent.parent / STATE_FILE).exists():
        raise InputError(f"{settings} is of a lab, in which asrpt-lab has installed all there is; unset ASRPT_CONFIG")


def _site(root: Path, slurm_dir: Path | None, units: Path, user: str, config: Path | None) -> Site:
    from slurm_asrpt.config.settings import Settings, load_settings
    from slurm_asrpt.install.site import Site

    root = root.absolute()
    path = config or Path(os.environ.get(ENVIRONMENT_VARIABLE, DEFAULT_PATH))
    there = root / path.absolute().relative_to("/")
    settings = load_settings(there) if there.exists() else Settings()
    answers = _ask(settings) if root == Path("/") else {}
    told = _folder(answers.get("SLURM_CONF", ""), settings.slurm.conf if root == Path("/") else "")
    who = user or answers.get("SlurmUser", "").partition("(")[0] or "slurm"
    programs = Path(sys.argv[0]).absolute().parent
    return Site(settings, path.absolute(), slurm_dir or told, units.absolute(), programs, who, root, answers)


def _folder(*files: str) -> Path:
    """The directory of the first slurm.conf with an absolute path."""
    from slurm_asrpt.install.site import DEFAULT_SLURM

    return next((Path(file).parent for file in files if file.startswith("/")), DEFAULT_SLURM)


def _ask(settings: Settings) -> dict[str, str]:
    """Slurm's configuration; empty, with a warning, if Slurm does not answer."""
    try:
        with asking_slurm(settings) as client:
            client.check_conf()
            return client.settings_of_slurm()
    except SlurmError as error:
        print(f"asrpt-admin: Slurm was not asked: {one_line(error)}", file=sys.stderr)
        return {}


def _hand_back(site: Site, quiet: bool) -> None:
    """Release pending jobs. Raises AsrptError while asrptd runs, because it needs its files."""
    from slurm_asrpt.daemon.disable import disable
    from slurm_asrpt.slurm.cli import CliClient

    settings = site.settings
    if site.root != Path("/") or not settings.paths.state.is_dir():
        return
    with progress("releasing pending jobs") as tell:
        done = disable(settings, CliClient(settings.slurm), tell)
    if not quiet:
        tell_of(done)
    if held(settings.paths.state):
        raise AsrptError(f"asrptd is still running: run systemctl disable --now {SERVICES}, then retry")


def _forget_the_switch(site: Site) -> None:
    """Let a later installation start enabled."""
    from slurm_asrpt import switch

    if site.root == Path("/") and site.settings.paths.state.is_dir():
        switch.turn_on(site.settings.paths.state)


def _complete(steps: Sequence[Step], wanted: Sequence[Line]) -> bool:
    from slurm_asrpt.install.slurm_conf import State

    return {*(step.state for step in steps), *(line.state for line in wanted)} <= {State.PRESENT}


def _print_json(steps: Sequence[Step], wanted: Sequence[Line]) -> None:
    document = {"steps": [asdict(step) for step in steps], "slurm_conf": [asdict(line) for line in wanted]}
    print(json.dumps(document, indent=2))


def _show(steps: Sequence[Step], wanted: Sequence[Line], take: bool, root: Path, site: Site) -> None:
    done = {True: "removed" if take else "written", False: ""}
    show_table(
        [
            Column("WHAT", [step.what for step in steps]),
            Column("STATE", [done[step.changed] or step.state for step in steps]),
            Column("WHERE", [safe(step.where) for step in steps]),
        ]
    )
    for step in steps:
        if step.note:
            print(printable(f"{step.where}: {step.note}"))
    _show_lines(wanted, take, site)
    if not take:
        for trouble in site.troubles():
            print(f"\n{printable(trouble)}")
        if root == Path("/"):
            show_next(steps, wanted, site)


def _show_lines(wanted: Sequence[Line], take: bool, site: Site) -> None:
    from slurm_asrpt.install.slurm_conf import State, wanted_lines

    conf = site.slurm / "slurm.conf"
    scripts = site.settings.paths.scripts
    if not site.config:
        print(f"\nSlurm was not asked. {conf} {'must no longer have' if take else 'needs'} these lines:")
        every = wanted_lines({}, scripts)
        _print_lines([line for line in every if not take or str(scripts) in line.text], take)
        return
    shown = [line for line in wanted if (line.state is State.PRESENT) == take]
    ours = [line for line in shown if not take or str(scripts) in line.text]
    if not ours:
        return
    print(f"\n{'Remove these lines from' if take else 'Add these lines to'} {conf}, which this command never writes:")
    differ = [replace(line, why=f"differs: {line.why}") if line.state is State.DIFFERS else line for line in ours]
    _print_lines(differ, take)


def _print_lines(some: Sequence[Line], take: bool) -> None:
    for line in some:
        print(printable(f"  {line.text}" + ("" if take else f"   # {line.why}")))


def show_next(steps: Sequence[Step], wanted: Sequence[Line], site: Site) -> None:
    """The next manual step. enable --now would leave an asrptd of an older release running."""
    from slurm_asrpt.install.slurm_conf import State

    if any(step.state is not State.PRESENT for step in steps):
        print("\nNext: asrpt-admin install --apply")
    elif not _complete([], wanted):
        print("\nNext: add these lines, copy prolog, epilog and task prolog to all nodes, restart slurmctld,")
        print("run scontrol reconfigure, then asrpt-admin install --check")
    else:
        how = "restart asrptd" if held(site.settings.paths.state) else f"enable --now {SERVICES}"
        print(f"\nNext: systemctl daemon-reload; systemctl {how}; asrpt-admin doctor")
