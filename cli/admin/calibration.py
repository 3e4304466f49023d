"""asrpt-admin calibration: whether jobs have started when it was said."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Annotated

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.tables import print_prose
from slurm_asrpt_cli.admin.access import of_asrptd, read_history

from slurm_asrpt.core.plurals import counted
from slurm_asrpt.forecast.calibration import Calibration, calibration
from slurm_asrpt.history.maintenance import DAY_S

FEW = 30
"""Of fewer starts a share says little."""


def add_commands(app: typer.Typer) -> None:
    """Put calibration into asrpt-admin."""
    app.command("calibration")(calibration_command)


def calibration_command(
    days: Annotated[int, typer.Option(min=1, max=36500, metavar="N", help="Of how many days.")] = 30,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """How often jobs have started when asrpt-status said.

    The first estimate of each job that has ended counts: 80%
    of the starts should lie inside, 10% on either side.

    \b
    Example:
      asrpt-admin calibration --days 7
    """
    with read_history(of_asrptd(config)) as history:
        found = calibration(history, int(time.time()) - days * DAY_S)
    if as_json:
        print(json.dumps({**asdict(found), "closed_late": found.closed_late}))
    else:
        print_prose(_words(found, days))


def _words(found: Calibration, days: int) -> str:
    if not found.jobs:
        return f"no job that ended in the last {counted(days, 'day')} had been given a start time"
    late = f"; of {found.closed} with a latest time {found.closed_late:.0%} began after it" if found.closed else ""
    few = f"; of fewer than {FEW} jobs that says little" if found.jobs < FEW else ""
    return (
        f"{counted(found.jobs, 'job')} of the last {counted(days, 'day')}: {found.inside:.0%} started inside their "
        f"10-90% interval, {found.early:.0%} before, {found.late:.0%} after{late}{few}"
    )
