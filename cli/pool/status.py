"""asrpt-pool status: how far a pool is, as a table, as JSON, or as a live view."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from slurm_asrpt_cli._app.options import JsonOption
from slurm_asrpt_cli._app.tables import Column, Line, clip, print_lines, safe, safe_cells, table_lines, terminal_width
from slurm_asrpt_cli.pool.control import SweepArgument

from slurm_asrpt.errors import InputError
from slurm_asrpt.text import UNKNOWN, counted, slurm_time, span

if TYPE_CHECKING:
    from slurm_asrpt.pool.folder import PoolFolder
    from slurm_asrpt.pool.status import PoolStatus, TrainingStatus

EVERY_S = 1.0
STALE_S = 15.0
"""A driver writes its status every second; on a slow file server later."""
FIRST = ("running", "failed", "waiting", "done")
"""The order of states in the live view."""
STYLES = {"done": "green", "failed": "red", "waiting": "dim"}


def status_command(
    path: SweepArgument,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it live, until Ctrl-C.")] = False,
) -> None:
    """Show how far a pool is.

    \b
    Examples:
      asrpt-pool status sweep.toml
      asrpt-pool status sweep.toml --watch
    """
    from slurm_asrpt.pool.folder import PoolFolder
    from slurm_asrpt.pool.status import parse_status
    from slurm_asrpt.pool.sweep import read_sweep

    folder = PoolFolder(read_sweep(path).folder)
    if as_json:
        print(json.dumps(folder.read_status()))
    elif watch:
        _watch(folder)
    else:
        print_lines(page(parse_status(folder.read_status()), time.time(), terminal_width()))


def page(status: PoolStatus, now: float, width: int | None) -> Iterator[Line]:
    """The lines of a table in the order of the sweep. width: of the terminal; None: cut nothing."""
    status = _as_they_are(status)
    for number, text in enumerate(map(safe, head(status, now))):
        yield ((clip(text, width) if width else text, "" if number else "bold"),)
    yield ()
    yield from table_lines(columns(status.trainings), True, width)


def _as_they_are(status: PoolStatus) -> PoolStatus:
    """Without running trainings once the pool has ended: the driver leaves those that it stopped as they were."""
    if status.state == "running":
        return status
    trainings = (replace(each, state="stopped") if each.state == "running" else each for each in status.trainings)
    return replace(status, trainings=tuple(trainings))


def head(status: PoolStatus, now: float) -> Iterator[str]:
    """The lines above the table."""
    return filter(None, [f"{_state(status, now)}: {_trainings(status)}", _figures(status, now), status.note])


def _state(status: PoolStatus, now: float) -> str:
    job = f"job {status.job_id} " if status.job_id else ""
    silent = now - status.written
    if status.state == "running" and silent > STALE_S:
        return f"{job}running, but silent for {span(silent)}"
    return f"{job}{status.state}"


def _trainings(status: PoolStatus) -> str:
    parts = [
        f"{status.count(state)} {state}"
        for state in ("done", "running", "stopped", "waiting", "failed")
        if status.count(state)
    ]
    return f"{counted(len(status.trainings), 'training')}: {', '.join(parts)}" if parts else "no trainings"


def _figures(status: PoolStatus, now: float) -> str:
    """Tasks, slots and time. The time left assumes the speed of this run so far."""
    slots = f"{status.slots_live} of {counted(status.slots, 'slot')}"
    lost = f", {counted(status.lost, 'executor')} lost" * bool(status.lost)
    busy = f", {status.work_s / status.slots_s:.0%} busy" if status.slots_s else ""
    elapsed = slurm_time((now if status.state == "running" else status.written) - status.started)
    return f"{status.tasks_done} of {counted(status.tasks_total, 'task')}; {slots}{busy}{lost}; elapsed {elapsed}"


def columns(trainings: tuple[TrainingStatus, ...]) -> list[Column]:
    """The table of the trainings."""
    rounds = [f"{each.rounds_done}/{each.rounds}" if each.rounds else UNKNOWN for each in trainings]
    losses = [UNKNOWN if each.loss is None else f"{each.loss:.5g}" for each in trainings]
    styles = [STYLES.get(each.state, "") for each in trainings]
    return [
        Column("TRAINING", safe_cells([each.name for each in trainings])),
        Column("STATE", safe_cells([each.state for each in trainings]), styles=styles),
        Column("ROUNDS", rounds, right=True),
        Column("LOSS", losses, right=True),
        Column("WHY", safe_cells([each.why for each in trainings])),
    ]


def _watch(folder: PoolFolder) -> None:
    """Draw the status until Ctrl-C. Raises InputError without a terminal."""
    from slurm_asrpt.pool.status import parse_status

    if not sys.stdout.isatty():
        raise InputError("--watch needs a terminal; in a pipe or script use --json")
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            status, size = parse_status(folder.read_status()), console.size
            lines = live_lines(status, time.time(), size.width, size.height)
            live.update(Text("\n").join(Text.assemble(*line) for line in lines), refresh=True)
            time.sleep(EVERY_S)


def live_lines(status: PoolStatus, now: float, width: int, height: int) -> list[Line]:
    """At most ``height`` lines; trainings that run come first, those that are done last."""
    trainings = sorted(status.trainings, key=lambda each: FIRST.index(each.state))
    return list(page(replace(status, trainings=tuple(trainings)), now, width))[:height]
