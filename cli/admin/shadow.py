"""asrpt-admin shadow-report: what mode enforce would have done."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from slurm_asrpt_cli._app.help import seldom
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.tables import Column, print_prose, safe, show_table
from slurm_asrpt_cli.admin.access import asking_slurm, of_asrptd, read_history

from slurm_asrpt.audit.trail import jobs_of
from slurm_asrpt.config.settings import Mode, Settings
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.errors import EXIT_INTERRUPTED, InputError, SlurmError, one_line
from slurm_asrpt.files import replace_file
from slurm_asrpt.history.store import Run
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.reporting import shadow as shadow_page
from slurm_asrpt.reporting.what_if import COLUMNS, cell
from slurm_asrpt.sim import shadow, what_if
from slurm_asrpt.slurm.limits import SiteLimits
from slurm_asrpt.slurm.notation import read_past
from slurm_asrpt.slurm.site import Site
from slurm_asrpt.traces.accounting import parse_limits, parse_site, read_text

MOST_USERS = 20
"""Users in the table: half of them those with the largest gain, half those with the largest loss."""


def add_commands(app: typer.Typer) -> None:
    """Add shadow-report to asrpt-admin."""
    app.command("shadow-report")(shadow_command)


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
    settings = of_asrptd(config)
    if html and not html.resolve().parent.is_dir():
        raise InputError(f"--html {html}: no such directory; name a file in an existing one")
    if limits and no_limits:
        raise InputError("give only one of --limits and --no-limits")
    begin = int(read_past(since, time.time()))
    runs, servers = _runs(settings, begin), _servers(settings)
    site, trouble = _site(settings, slurm)
    held_to = None if no_limits else _limits(site, limits)
    with progress(f"replaying under {settings.policy.name}", 2 * len(runs)) as tell:
        found = shadow.report(runs, servers, settings.policy, lambda done, jobs, clock: tell(done), held_to, site)
    notes = [*_notes(settings, found, begin), *([what_if.unread(trouble)] if trouble else [])]
    if html:
        replace_file(html, shadow_page.page(found, notes).encode("utf-8", "backslashreplace"), mode=None)
    if as_json:
        print(json.dumps(shadow.document(found, notes), indent=2))
    else:
        _show(found, [*notes, *shadow.limitations(found.past)])
    if found.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _runs(settings: Settings, begin: int) -> list[Run]:
    """The runs submitted since ``begin``."""
    with read_history(settings) as history:
        return [run for run in history.runs(since=begin) if run.submit_time >= begin]


def _servers(settings: Settings) -> shadow.Servers:
    """The servers that asrptd manages, in any state. Raises SlurmError, InputError."""
    managed = set(settings.slurm.partitions)
    with asking_slurm(settings) as slurm:
        nodes = [node for node in slurm.nodes() if node.partitions & managed and node.gpus]
    if not nodes:
        raise InputError(f"no node of partition {', '.join(managed)} has GPUs; fix slurm.partitions in asrpt.toml")
    fabric = settings.fabric.to_core()
    profiles = Profiles(lambda name: load_named(name, settings.paths.profiles))
    return shadow.Servers([node.gpus for node in nodes], fabric, profiles.get)


def _site(settings: Settings, file: Path | None) -> tuple[tuple[Site, str] | None, str]:
    """The site in a file, else that of the Slurm that answers, with its source; and why it is unknown. Raises
    InputError."""
    if file:
        return (parse_site(read_text(file), str(file)), str(file)), ""
    try:
        with asking_slurm(settings) as slurm:
            return (slurm.site(), "scontrol show config"), ""
    except SlurmError as error:
        return None, one_line(error)


def _limits(site: tuple[Site, str] | None, file: Path | None) -> SiteLimits | None:
    """The limits in a file, else those of the site, if any. Raises InputError."""
    if file:
        return parse_limits(read_text(file), str(file))
    return site[0].limits if site and site[0].limits.any else None


def _notes(settings: Settings, found: shadow.Report, begin: int) -> list[str]:
    replayed = {job.partition("@")[0] for job in found.past.jobs["job_id"]}
    events = Counter[str]()
    for event, jobs in jobs_of(settings.paths.state, ("left", "vanished"), begin).items():
        events[event] = len(jobs & replayed) if event == "left" else len(jobs)
    notes = shadow.remarks(found, events["left"], events["vanished"])
    if settings.daemon.mode is not Mode.SHADOW:
        notes.append(
            f"asrptd is in mode {settings.daemon.mode}: if it was in that mode then, the real waits result from it."
        )
    return notes


def _show(found: shadow.Report, notes: Sequence[str]) -> None:
    titles = [Column("", list(COLUMNS.values()))]
    show_table([*titles, *(Column(safe(each.name), _figures(each), right=True) for each in found.outcomes)])
    users = found.users
    if len(users) > MOST_USERS:
        users = [*users[: MOST_USERS // 2], *users[-MOST_USERS // 2 :]]
    for what, shares in (("USER", users), ("SIZE", found.sizes)):
        print()
        show_table(_columns(what, shares))
    print()
    for note in notes:
        print_prose(note)


def _figures(outcome: what_if.Outcome) -> list[str]:
    return [cell(name, outcome.figures[name]) for name in COLUMNS]


def _columns(what: str, shares: Sequence[shadow.Share]) -> list[Column]:
    titles = ("JOBS", "GPU_HOURS", "WAIT_SLURM", "WAIT_ENFORCE", "RATIO", "LATER", "VERDICT")
    rows = [shadow_page.cells(share) for share in shares]
    columns = [Column(title, [row[at] for row in rows], right=True) for at, title in enumerate(titles)]
    return [Column(what, [safe(share.name) for share in shares], cap=20), *columns]
