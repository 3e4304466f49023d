"""What asrpt-status answers: where jobs stand, in which order they will start, and why they wait."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slurm_asrpt_cli._app.tables import print_lines, print_parsable, print_table, terminal_width
from slurm_asrpt_cli.status.read import around, of_jobs, of_users, published, screenful, warn_if_stale
from slurm_asrpt_cli.status.select import Selection, one, ordered, select, tasks_of

from slurm_asrpt.status.document import Status, to_json

ALL = Selection()
BATCH = 500
"""Rows of --parsable that are made at a time: 10,000 at once are memory that is touched once, at half the speed."""


def own_name() -> str:
    """Whose jobs are one's own."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container
        return str(os.getuid())


def show_overview(folder: Path) -> None:
    """One's own jobs and the queue, on one screen."""
    from slurm_asrpt_cli.status.overview import overview

    width, height = shutil.get_terminal_size()
    now, user = time.time(), own_name()
    found = screenful(folder, now, user, height)
    warn_if_stale(found, now)
    print_lines(overview(found, user, width, height - 1))  # the last line is the shell's


def show_explanation(folder: Path, job_id: str, as_json: bool = False) -> None:
    """Why one job, or array, stands where it does. Raises AsrptError for one that is not there."""
    from slurm_asrpt_cli.status.array import explain_array
    from slurm_asrpt_cli.status.explain import explain_command

    found = around(folder, time.time(), job_id)
    warn_if_stale(found, time.time())
    tasks = tasks_of(found.jobs, job_id)
    if tasks:
        explain_array(found, tasks, as_json)
    else:
        explain_command(found, one(found.jobs, job_id), as_json)


def show_json(folder: Path, chosen: Selection = ALL, keys: Sequence[tuple[str, bool]] = ()) -> None:
    """The jobs that were asked for, with all that is known of them. Raises AsrptError for one that is not there."""
    print(to_json(_chosen(folder, chosen, keys)))


def show_table(
    folder: Path,
    chosen: Selection = ALL,
    keys: Sequence[tuple[str, bool]] = (),
    *,
    long: bool = False,
    parsable: bool = False,
    header: bool = True,
) -> None:
    """The same as a table. Raises AsrptError for one that is not there."""
    shown = _chosen(folder, chosen, keys)
    _print(shown, long, parsable, header)
    if not shown.jobs and sys.stdout.isatty():  # bare titles look as if something were missing
        print("no such jobs", file=sys.stderr)


def _chosen(folder: Path, chosen: Selection, keys: Sequence[tuple[str, bool]]) -> Status:
    """Only the jobs that were asked for, in that order. Raises AsrptError for one that is not there."""
    now = time.time()
    if chosen.jobs:
        found = of_jobs(folder, now, {wanted.job_id.partition("_")[0] for wanted in chosen.jobs})
    else:
        found = of_users(folder, now, chosen.users) if chosen.users else published(folder, now)
    warn_if_stale(found, now)
    return replace(found, jobs=ordered(select(found.jobs, chosen), keys))


def _print(shown: Status, long: bool, parsable: bool, header: bool) -> None:
    from slurm_asrpt_cli.status.columns import FIELDS, SHORT, columns, fit

    if parsable:
        for first in range(0, len(shown.jobs) or 1, BATCH):
            print_parsable(columns(FIELDS, shown.jobs[first : first + BATCH]), header and not first)
        return
    made = columns(FIELDS if long else SHORT, shown.jobs)
    width = None if long else terminal_width()
    print_table(fit(made, width) if width else made, header, width)
