"""The options of asrpt-status."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from slurm_asrpt_cli._app.help import Tool, seldom
from slurm_asrpt_cli._app.options import run_app
from slurm_asrpt_cli.status.answers import own_name, show_explanation, show_json, show_overview, show_table
from slurm_asrpt_cli.status.read import status_folder
from slurm_asrpt_cli.status.select import Selection, read_jobs, read_sort, read_states, words

from slurm_asrpt.errors import InputError

app = Tool()

EPILOG = """\b
Examples:
  asrpt-status                       your jobs, then the queue
  asrpt-status --explain 1234        why does it not start?
  asrpt-status --what-if train.sh -- --gpus=8
  asrpt-status --state waiting '123_[1-4]' 130"""


@app.command(epilog=EPILOG)
def status(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="Only these: 12, 12_3, '12_[1-4]'.")] = None,
    me: Annotated[bool, seldom("--me", help="Only your own jobs.")] = False,
    user: Annotated[
        str, typer.Option("--user", "-u", metavar="USERS", help="Only of these users (comma-separated).")
    ] = "",
    partition: Annotated[str, seldom("--partition", "-p", metavar="PARTITIONS", help="Only in these partitions.")] = "",
    state: Annotated[
        str, typer.Option("--state", "-t", metavar="STATES", help="Only in these states: waiting,delayed.")
    ] = "",
    job: Annotated[str, seldom("--job", "-j", metavar="JOBS", help="As JOB.")] = "",
    everybody: Annotated[bool, seldom("--all", "-a", help="All jobs, not just a screenful.")] = False,
    sort: Annotated[
        str, seldom("--sort", "-S", metavar="COLUMNS", help="By these columns, -COLUMN turned round.")
    ] = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="All columns, nothing cut.")] = False,
    parsable: Annotated[bool, seldom("--parsable", "-P", help="All columns, separated by |.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON (docs/status.schema.json).")] = False,
    no_header: Annotated[bool, seldom("--no-header", "-n", help="No line of titles.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Live, until q is pressed.")] = False,
    explain: Annotated[str, typer.Option("--explain", metavar="JOB", help="Why one job stands where it does.")] = "",
    what_if: Annotated[
        Path | None,
        typer.Option("--what-if", metavar="JOBSCRIPT", help="What would come of it, submitted now."),
    ] = None,
    config: Annotated[Path | None, seldom("--config", metavar="FILE", help="Settings file.")] = None,
) -> None:
    """Show where the jobs that asrptd schedules stand, and why they wait."""
    _check_together(what_if, explain, watch, as_json or parsable or long)
    if what_if is not None:
        from slurm_asrpt_cli.status.what_if import what_if_command

        what_if_command(what_if, jobs or [], config, as_json)
        return
    users = frozenset([*words(user), *([own_name()] if me else [])])
    chosen = Selection(users, frozenset(words(partition)), read_states(state), read_jobs([*(jobs or []), job]))
    keys, folder = read_sort(sort), status_folder(config)
    formatted = parsable or long or everybody or no_header or as_json or not sys.stdout.isatty()
    if watch:
        from slurm_asrpt_cli.status.watch import watch_command

        watch_command(folder, chosen, keys, own_name())
    elif explain:
        show_explanation(folder, explain, as_json)
    elif not (formatted or chosen or keys):
        show_overview(folder)
    elif as_json:
        show_json(folder, chosen, keys)
    else:
        show_table(folder, chosen, keys, long=long, parsable=parsable, header=not no_header)


def _check_together(what_if: Path | None, explain: str, watch: bool, formatted: bool) -> None:
    """Raises InputError for options that say different things."""
    asked = [name for name, given in (("--what-if", what_if), ("--explain", explain), ("--watch", watch)) if given]
    if len(asked) > 1:
        raise InputError(f"{' and '.join(asked)} do not go together; give one of them")
    if watch and formatted:
        raise InputError("--watch shows a screen: leave out --json, --parsable and --long")


def main() -> None:
    """asrpt-status with whatever options."""
    run_app(app)
