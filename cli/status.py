"""asrpt-status: where jobs stand, in which order they will start, and why they wait."""

from __future__ import annotations

import gc
import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from slurm_asrpt_cli.common import completing, run_app
from slurm_asrpt_cli.helping import Tool, seldom
from slurm_asrpt_cli.status_read import of_users, published, screenful, status_folder, until, warn_if_stale
from slurm_asrpt_cli.status_select import Selection, one, ordered, read_jobs, read_sort, read_states, select, words
from slurm_asrpt_cli.tables import print_lines, print_parsable, print_table, terminal_width

from slurm_asrpt.errors import InputError
from slurm_asrpt.status import Status, to_json

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
        from slurm_asrpt_cli.status_whatif import what_if_command

        what_if_command(what_if, jobs or [], config, as_json)
        return
    users = frozenset([*words(user), *([own_name()] if me else [])])
    chosen = Selection(users, frozenset(words(partition)), read_states(state), read_jobs([*(jobs or []), job]))
    keys, folder = read_sort(sort), status_folder(config)
    if watch:
        from slurm_asrpt_cli.status_watch import watch_command

        watch_command(folder, chosen, keys, own_name())
        return
    formatted = parsable or long or everybody or no_header or as_json or not sys.stdout.isatty()
    if not (explain or formatted or chosen or keys):
        _print_overview(folder)
        return
    if explain:
        from slurm_asrpt_cli.status_explain import explain_command

        found = until(folder, time.time(), explain)
        warn_if_stale(found, time.time())
        explain_command(found, one(found.jobs, explain), as_json)
        return
    shown = _chosen(folder, chosen, keys)
    if as_json:
        print(to_json(shown))
    else:
        _print(shown, long, parsable, header=not no_header)
        if not shown.jobs and sys.stdout.isatty():  # bare titles look as if something were missing
            print("no such jobs", file=sys.stderr)


def _check_together(what_if: Path | None, explain: str, watch: bool, formatted: bool) -> None:
    """Raises InputError for options that say different things."""
    asked = [name for name, given in (("--what-if", what_if), ("--explain", explain), ("--watch", watch)) if given]
    if len(asked) > 1:
        raise InputError(f"{' and '.join(asked)} do not go together; give one of them")
    if watch and formatted:
        raise InputError("--watch shows a screen: leave out --json, --parsable and --long")


def own_name() -> str:
    """Whose jobs are one's own."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container
        return str(os.getuid())


def _chosen(folder: Path, chosen: Selection, keys: Sequence[tuple[str, bool]]) -> Status:
    """Only the jobs that were asked for, in that order. Raises AsrptError for one that is not there."""
    now, theirs = time.time(), chosen.users and not chosen.jobs
    found = of_users(folder, now, chosen.users) if theirs else published(folder, now)
    warn_if_stale(found, now)
    return replace(found, jobs=ordered(select(found.jobs, chosen), keys))


def _print(shown: Status, long: bool, parsable: bool, header: bool) -> None:
    from slurm_asrpt_cli.status_columns import FIELDS, SHORT, columns, fit

    made = columns(FIELDS if long or parsable else SHORT, shown.jobs)
    if parsable:
        print_parsable(made, header)
        return
    width = None if long else terminal_width()
    print_table(fit(made, width) if width else made, header, width)


def _print_overview(folder: Path) -> None:
    from slurm_asrpt_cli.status_overview import overview

    width, height = shutil.get_terminal_size()
    now, user = time.time(), own_name()
    found = screenful(folder, now, user, height)
    warn_if_stale(found, now)
    print_lines(overview(found, user, width, height - 1))  # the last line is the shell's


def _at_sight(words: Sequence[str]) -> Callable[..., None] | None:
    """What is typed most often: reading options takes Typer longer than the answer takes."""
    if not words:
        return lambda **of_an_app: status()
    if words == ["--me"]:
        return lambda **of_an_app: status(me=True)
    if len(words) == 2 and words[0] == "--explain" and words[1] and not words[1].startswith("-"):
        return lambda **of_an_app: status(explain=words[1])
    return None


def main() -> None:
    """Entry point of asrpt-status."""
    gc.disable()  # a short life, and 10,000 jobs are many objects
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may not fit a terminal's encoding
    run_app((not completing() and _at_sight(sys.argv[1:])) or app)
