"""asrpt-admin shadow-report: what mode enforce would have done."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from slurm_asrpt_cli._app.help import seldom
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption, check_folder
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.shares import show_shares
from slurm_asrpt_cli._app.tables import Column, print_prose, safe, show_table
from slurm_asrpt_cli.admin.access import asking_slurm, of_asrptd, read_history

from slurm_asrpt.audit.trail import jobs_and_modes
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.errors import EXIT_INTERRUPTED, InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.history.store import Run
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.slurm.notation import read_past

if TYPE_CHECKING:
    from slurm_asrpt.config.settings import Settings
    from slurm_asrpt.sim import shadow, what_if


def shadow_command(
    since: Annotated[str, typer.Option(metavar="WHEN", help="Start: 7d, 2weeks or a date.")] = "7days",
    limits: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the limits of QOS and accounts, of scontrol.")
    ] = None,
    no_limits: Annotated[bool, seldom("--no-limits", help="Simulate no limits of QOS and accounts.")] = False,
    slurm: Annotated[
        Path | None, seldom("--slurm", metavar="FILE", help="A file with Slurm's settings, of scontrol.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report with all users.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what mode enforce would have done last week.

    Replays the jobs that asrptd recorded in mode shadow, with
    the configured policy and their original predictions.
    Compares waits and completion times with the real ones and
    with those of this Slurm in the same simulator, by user and
    by size, and says what it leaves out.

    \b
    Examples:
      asrpt-admin shadow-report
      asrpt-admin shadow-report --since 30days --html w.html
    """
    from slurm_asrpt_cli._app.known_site import known_site, limits_of

    from slurm_asrpt.reporting import shadow as shadow_page
    from slurm_asrpt.sim import shadow
    from slurm_asrpt.sim.what_if_remarks import unread

    settings = of_asrptd(config)
    if html:
        check_folder("--html", html)
    if limits and no_limits:
        raise InputError("give only one of --limits and --no-limits")
    begin = int(read_past(since, time.time()))
    runs, servers = _runs(settings, begin), _servers(settings)
    site, trouble = known_site(slurm, settings.slurm)
    held_to = None if no_limits else limits_of(site, limits)
    with progress(f"replaying under {settings.policy.name}", 2 * len(runs)) as tell:
        found = shadow.report(runs, servers, settings.policy, lambda done, jobs, clock: tell(done), held_to, site)
    notes, modes = _notes(settings, found, begin)
    notes += [unread(trouble)] if trouble else []
    if modes:
        found = replace(found, headline=f"{shadow.not_only_slurm(sorted(modes))} {found.headline}")
    if html:
        replace_file(
            html, shadow_page.page(found, notes).encode("utf-8", "backslashreplace"), mode=0o600
        )  # with user names
    if as_json:
        print(json.dumps(shadow.document(found, notes), indent=2))
    else:
        written = [f"Written to {safe(str(html))}: open it in a browser; it contains user names."] if html else []
        _show(found, [*notes, *shadow.limitations(found.past), *written])
    if found.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _runs(settings: Settings, begin: int) -> list[Run]:
    """The runs submitted since ``begin``."""
    with read_history(settings) as history:
        return [run for run in history.runs(since=begin) if run.submit_time >= begin]


def _servers(settings: Settings) -> shadow.Servers:
    """The servers that asrptd manages, in any state. Raises SlurmError, InputError."""
    from slurm_asrpt.sim import shadow

    managed = set(settings.slurm.partitions)
    with asking_slurm(settings) as slurm:
        nodes = [node for node in slurm.nodes() if node.partitions & managed and node.gpus]
    if not nodes:
        raise InputError(f"no node of partition {', '.join(managed)} has GPUs; fix slurm.partitions in asrpt.toml")
    fabric = settings.fabric.to_core()
    profiles = Profiles(lambda name: load_named(name, settings.paths.profiles))
    return shadow.Servers([node.gpus for node in nodes], fabric, profiles.get)


def _notes(settings: Settings, found: shadow.Report, begin: int) -> tuple[list[str], set[str]]:
    """Remarks on the data, and the modes other than shadow that asrptd was in."""
    from slurm_asrpt.config.settings import Mode
    from slurm_asrpt.sim import shadow

    replayed = {job.partition("@")[0] for job in found.past.jobs["job_id"]}
    events = Counter[str]()
    seen, modes = jobs_and_modes(settings.paths.state, ("left", "vanished"), begin)
    for event, jobs in seen.items():
        events[event] = len(jobs & replayed) if event == "left" else len(jobs)
    return shadow.remarks(found, events["left"], events["vanished"]), modes & {Mode.ENFORCE, Mode.ORDER}


def _show(found: shadow.Report, notes: Sequence[str]) -> None:
    from slurm_asrpt.reporting.what_if import COLUMNS

    print_prose(found.headline)
    print()
    titles = [Column("", list(COLUMNS.values()))]
    show_table([*titles, *(Column(safe(each.name), _figures(each), right=True) for each in found.outcomes)])
    for group, shares in found.shares.items():
        show_shares(group, shares)
    print()
    for note in notes:
        print_prose(note)


def _figures(outcome: what_if.Outcome) -> list[str]:
    from slurm_asrpt.reporting.what_if import COLUMNS, cell

    return [cell(name, outcome.figures[name]) for name in COLUMNS]
