"""asrpt-status: its options, and which of its displays they ask for."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from slurm_asrpt_cli._app.errors import run_app
from slurm_asrpt_cli._app.help import Tool, seldom
from slurm_asrpt_cli._app.users import own_name
from slurm_asrpt_cli.status.selection import (
    Selection,
    check_users,
    ordered,
    read_jobs,
    read_sort,
    read_states,
    select,
    unknown_names,
    words,
)
from slurm_asrpt_cli.status.status_file import ended, of_jobs, of_users, published, status_folder, warn_if_stale

from slurm_asrpt.errors import InputError
from slurm_asrpt.status.document import Status, to_json

app = Tool()

EPILOG = """\b
Examples:
  asrpt-status                       your jobs, then the queue
  asrpt-status --explain 1234        why is it waiting, or was it?
  asrpt-status --what-if train.sh -- --ntasks=8
  asrpt-status --state waiting '123_[1-4]' 130"""


@app.command(epilog=EPILOG)
def status(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="JOB", help="Show only these jobs: 12, 12_3, 12+1, '12_[1-4]'.")
    ] = None,
    me: Annotated[bool, seldom("--me", help="Show only your jobs.")] = False,
    user: Annotated[
        str, typer.Option("--user", "-u", metavar="USERS", help="Only jobs of these users (comma-separated).")
    ] = "",
    partition: Annotated[
        str, seldom("--partition", "-p", metavar="PARTITIONS", help="Only jobs in these partitions.")
    ] = "",
    state: Annotated[
        str,
        typer.Option(
            "--state",
            "-t",
            metavar="STATES",
            help="Only in these states: waiting,delayed; all: also ended.",
        ),
    ] = "",
    job: Annotated[str, seldom("--job", "-j", metavar="JOBS", help="Same as JOB.")] = "",
    everybody: Annotated[bool, seldom("--all", "-a", help="Show all jobs, not just a screenful.")] = False,
    sort: Annotated[
        str, seldom("--sort", "-S", metavar="COLUMNS", help="Sort by these columns; -COLUMN reverses the order.")
    ] = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="Show all columns in full.")] = False,
    parsable: Annotated[bool, seldom("--parsable", "-P", help="Print all columns, separated by |.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/status.schema.json).")] = False,
    html: Annotated[
        Path | None, seldom("--html", metavar="FILE", help="Write a web page with queue and nodes; -: print it.")
    ] = None,
    no_header: Annotated[bool, seldom("--no-header", "-n", help="Omit the column titles.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update the display until you press q.")] = False,
    explain: Annotated[
        str, typer.Option("--explain", metavar="JOB", help="Explain why this job waits, or waited.")
    ] = "",
    what_if: Annotated[
        Path | None,
        typer.Option("--what-if", metavar="JOBSCRIPT", help="Show where and when this script would start."),
    ] = None,
    config: Annotated[Path | None, seldom("--config", metavar="FILE", help="Settings file.")] = None,
) -> None:
    """Show the jobs that asrptd schedules: their order, state and expected start."""
    _check_together(what_if, explain, watch, html, as_json or parsable or long)
    if what_if is not None:
        from slurm_asrpt_cli.status.what_if import what_if_command

        what_if_command(what_if, jobs or [], config, as_json)
        return
    users = frozenset([*words(user), *([own_name()] if me else [])])
    chosen = Selection(users, frozenset(words(partition)), read_states(state), read_jobs([*(jobs or []), job]))
    if explain and chosen.jobs:
        raise InputError(f"--explain {explain}: explains this job only; leave out the other job IDs, or --explain")
    keys, folder = read_sort(sort), status_folder(config)
    formatted = parsable or long or everybody or no_header or as_json or html or not sys.stdout.isatty()
    if watch:
        from slurm_asrpt_cli.status.watch import watch_command

        watch_command(folder, chosen, keys, own_name())
    elif explain:
        from slurm_asrpt_cli.status.explain import show_explanation

        show_explanation(folder, explain, as_json)
    elif not (formatted or chosen or keys):
        from slurm_asrpt_cli.status.overview import show_overview

        show_overview(folder)
    elif html is not None:
        from slurm_asrpt_cli.status.page import write_page

        write_page(_selected(folder, chosen, keys), folder, html)
    elif as_json:
        print(to_json(_selected(folder, chosen, keys)))
    else:
        from slurm_asrpt_cli.status.table import print_jobs

        print_jobs(_selected(folder, chosen, keys), long=long, parsable=parsable, header=not no_header)


def _check_together(what_if: Path | None, explain: str, watch: bool, html: Path | None, formatted: bool) -> None:
    """Raises InputError for options that contradict each other."""
    displays = (("--what-if", what_if), ("--explain", explain), ("--watch", watch), ("--html", html))
    asked = [name for name, given in displays if given]
    if len(asked) > 1:
        raise InputError(f"{' and '.join(asked)} cannot be combined; give one of them")
    for name in ("--watch", "--html"):
        if name in asked and formatted:
            raise InputError(f"{name} cannot be combined with --json, --parsable or --long")


def _selected(folder: Path, chosen: Selection, keys: Sequence[tuple[str, bool]]) -> Status:
    """The status with only the selected jobs, sorted. Raises AsrptError if a named job is missing."""
    now = time.time()
    if chosen.jobs:
        found = of_jobs(folder, now, {wanted.job_id.partition("_")[0] for wanted in chosen.jobs})
    else:
        found = of_users(folder, now, chosen.users) if chosen.users else published(folder, now)
    warn_if_stale(found, now)
    check_users(chosen, found)
    for text in unknown_names(chosen, found):
        print(f"asrpt-status: {text}", file=sys.stderr)
    jobs = [*found.jobs, *ended(folder)] if chosen.asks_for_ended(found.jobs) else found.jobs
    return replace(found, jobs=ordered(select(jobs, chosen), keys))


def main() -> None:
    """Entry point of asrpt-status."""
    gc.disable()  # the process is short-lived, and 10,000 jobs are many objects
    run_app(app)
