"""asrpt-status as it is typed most often.

Typer takes longer to read options than the answer takes, so these are known at sight, and all others are left to it.
"""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Callable, Sequence

from slurm_asrpt_cli._app.errors import completing, leave, typed_name
from slurm_asrpt_cli.status.answers import own_name, show_explanation, show_json, show_overview, show_table
from slurm_asrpt_cli.status.read import status_folder
from slurm_asrpt_cli.status.select import Selection, read_jobs, words


def _at_sight(typed: Sequence[str]) -> Callable[[], None] | None:
    """What answers these words; None: Typer has to read them."""
    match typed:
        case []:
            return _overview
        case ["--me"]:
            return lambda: show_table(status_folder(None), Selection(users=frozenset([own_name()])))
        case ["--all" | "-a"]:
            return lambda: show_table(status_folder(None))
        case ["--long" | "-l"]:
            return lambda: show_table(status_folder(None), long=True)
        case ["--parsable" | "-P"]:
            return lambda: show_table(status_folder(None), parsable=True)
        case ["--json"]:
            return lambda: show_json(status_folder(None))
        case ["--user" | "-u", users] if words(users) and not users.startswith("-"):
            return lambda: show_table(status_folder(None), Selection(users=frozenset(words(users))))
        case ["--explain", job_id] if job_id and not job_id.startswith("-"):
            return lambda: show_explanation(status_folder(None), job_id)
        case [job] if words(job) and not job.startswith("-"):
            return lambda: show_table(status_folder(None), Selection(jobs=read_jobs([job])))
    return None


def _overview() -> None:
    """All jobs where nobody looks at a screen."""
    show = show_overview if sys.stdout.isatty() else show_table
    show(status_folder(None))


def main() -> None:
    """Entry point of asrpt-status."""
    gc.disable()  # a short life, and 10,000 jobs are many objects
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may not fit a terminal's encoding
    answer = None if completing() else _at_sight(sys.argv[1:])
    if answer is not None:
        leave(typed_name(), answer)
    from slurm_asrpt_cli.status import command

    command.main()
