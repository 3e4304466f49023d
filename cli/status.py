"""asrpt-status: where jobs stand, in which order they will start, and why they wait."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from slurm_asrpt_cli.common import run_app
from slurm_asrpt_cli.tables import GAP, UNKNOWN, Column, fold_nodes, print_parsable, print_table, safe, slurm_time

from slurm_asrpt.config import load_settings
from slurm_asrpt.core.policies.base import Phase
from slurm_asrpt.errors import AsrptError, InputError
from slurm_asrpt.status import JobStatus, Status, read_status

STALE_CYCLES = 3
STALE_AT_LEAST_S = 30.0

# What the last column needs on a terminal before other columns make room for it.
REASON_WIDTH = 28

# With less than this a reason says nothing: rather no name.
LEAST_REASON = 12

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@dataclass(frozen=True)
class Field:
    """A column of the table. long: only with --long or --parsable."""

    title: str
    cell: Callable[[JobStatus], str]
    right: bool = False
    long: bool = False


def _iterations(job: JobStatus) -> str:
    """Predicted iterations, ``-`` where the group is unseen; ``done/total`` once the job reports."""
    if job.iterations_done is None:
        return str(job.predicted_iterations) if job.predicted_iterations > 0 else UNKNOWN
    return f"{job.iterations_done}/{job.iterations_total or UNKNOWN}"


def _share(job: JobStatus) -> str:
    """Share of the iterations that is done, in whole percent; never 100% before the end."""
    if job.iterations_done is None or not job.iterations_total:
        return UNKNOWN
    return f"{min(100, 100 * job.iterations_done // job.iterations_total)}%"


def _alpha(job: JobStatus) -> str:
    return UNKNOWN if job.alpha is None else f"{job.alpha:.4g}"


def _where_or_why(job: JobStatus) -> str:
    """Nodes of a job that has some, else the reason; both for one that is delayed for a better placement."""
    nodes = fold_nodes(job.nodes)
    if job.state in (Phase.RUNNING, Phase.STARTING) and job.nodes:
        return nodes
    return safe(job.text) + (f" [{nodes}]" if job.nodes else "")


def _date(seconds: float | None) -> str:
    """Local time as Slurm writes it, YYYY-MM-DDTHH:MM:SS."""
    try:
        return UNKNOWN if seconds is None else datetime.fromtimestamp(seconds).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


FIELDS = (
    Field("RANK", lambda job: UNKNOWN if job.rank is None else str(job.rank), right=True),
    Field("JOBID", lambda job: safe(job.job_id), right=True),
    Field("NAME", lambda job: safe(job.name)),
    Field("USER", lambda job: safe(job.user)),
    Field("PARTITION", lambda job: safe(job.partition), long=True),
    Field("GPUS", lambda job: str(job.gpus), right=True),
    Field("GROUP", lambda job: safe(job.group)),
    Field("PROFILE", lambda job: safe(job.profile), long=True),
    Field("ITERATIONS", _iterations, right=True),
    Field("DONE", _share, right=True),
    Field("RUN_TIME", lambda job: slurm_time(job.predicted_run_s), right=True),
    Field("TIME_LEFT", lambda job: slurm_time(job.remaining_s), right=True),
    Field("SUBMITTED", lambda job: _date(job.submit_time), long=True),
    Field("STARTED", lambda job: _date(job.start_time), long=True),
    Field("ALPHA", _alpha, right=True, long=True),
    Field("STATE", lambda job: safe(job.state)),
    Field("REASON", lambda job: safe(job.reason), long=True),
    Field("NODES", lambda job: fold_nodes(job.nodes), long=True),
    Field("TEXT", lambda job: safe(job.text), long=True),
)
SHORT = (*(field for field in FIELDS if not field.long), Field("NODES/REASON", _where_or_why))

# On a narrow terminal these make room, in this order, until the reason has REASON_WIDTH.
GIVES_WAY = ("GROUP", "STATE", "NAME", "ITERATIONS", "RUN_TIME", "DONE", "TIME_LEFT", "USER")
NARROW_NAME = 12


@app.command(help="Show the jobs that asrptd schedules: order, predictions, and why each one waits.")
def status(
    user: Annotated[str, typer.Option("--user", "-u", help="Only jobs of these users (comma-separated).")] = "",
    state: Annotated[str, typer.Option("--state", "-t", help="Only these states, e.g. waiting,delayed.")] = "",
    job: Annotated[str, typer.Option("--job", "-j", help="Only these jobs; 12 is all tasks of array 12.")] = "",
    explain: Annotated[str, typer.Option("--explain", metavar="JOB", help="All that is known of one job.")] = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="All columns, nothing cut.")] = False,
    parsable: Annotated[bool, typer.Option("--parsable", "-P", help="All columns, separated by |.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The status as JSON (schema: man 1 asrpt-status).")] = False,
    no_header: Annotated[bool, typer.Option("--no-header", "-n", help="No line of titles.")] = False,
    config: Annotated[Path | None, typer.Option("--config", help="Settings file.")] = None,
) -> None:
    wanted = _states(state)
    found = read_status(load_settings(config).paths.run)
    _warn_if_stale(found, time.time())
    if explain:
        _explain(_one(found, explain))
        return
    shown = replace(found, jobs=_select(found.jobs, _split(user), wanted, _split(job)))
    if as_json:
        print(json.dumps(asdict(shown), indent=2))
    elif parsable:
        print_parsable(_columns(FIELDS, shown.jobs), header=not no_header)
    else:
        _print(shown, long, header=not no_header)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _states(text: str) -> set[str]:
    """States by name (``delayed``) or in full (``delayed for placement``). Raises InputError that lists them."""
    known = {key: phase.value for phase in Phase for key in (phase.value.lower(), phase.name.lower())}
    for word in _split(text):
        if word.lower() not in known:
            names = ", ".join(phase.name.lower() for phase in Phase)
            raise InputError(f"--state: no state is called {word!r}; known: {names}")
    return {known[word.lower()] for word in _split(text)}


def _select(
    jobs: Sequence[JobStatus], users: Sequence[str], states: set[str], wanted: Sequence[str]
) -> list[JobStatus]:
    """The jobs that pass every filter, in asrptd's order. Raises AsrptError for a wanted one that is not there."""
    chosen = [
        job
        for job in jobs
        if (not users or job.user in users)
        and (not states or job.state in states)
        and (not wanted or any(_is(job, name) for name in wanted))
    ]
    missing = [name for name in wanted if not any(_is(job, name) for job in jobs)]
    if missing:
        raise _unknown(missing[0])
    return chosen


def _is(job: JobStatus, name: str) -> bool:
    """Whether ``name`` is that job, or the array that it is a task of."""
    return name in (job.job_id, job.job_id.partition("_")[0])


def _one(found: Status, name: str) -> JobStatus:
    for job in found.jobs:
        if job.job_id == name:
            return job
    raise _unknown(name)


def _unknown(name: str) -> AsrptError:
    return AsrptError(
        f"asrptd does not know a job {name[:40]!r}: it has ended, or its partition is not managed; try squeue or sacct"
    )


def _warn_if_stale(found: Status, now: float) -> None:
    age = now - found.written
    if age > max(STALE_CYCLES * found.interval_s, STALE_AT_LEAST_S):
        print(
            f"asrpt-status: this is {slurm_time(age)} old, and asrptd writes it every {found.interval_s:g} s: "
            "it may be down (systemctl status asrptd)",
            file=sys.stderr,
        )


def _columns(fields: Iterable[Field], jobs: Sequence[JobStatus]) -> list[Column]:
    return [Column(field.title, [field.cell(job) for job in jobs], field.right) for field in fields]


def _print(shown: Status, long: bool, header: bool) -> None:
    console = Console(highlight=False)
    terminal = sys.stdout.isatty()
    if terminal and header:
        console.print(_summary(shown), soft_wrap=True)
    columns = _columns(FIELDS if long else SHORT, shown.jobs)
    width = console.width if terminal and not long else None
    print_table(_fit(columns, width) if width else columns, header, console, width)


def _summary(shown: Status) -> Text:
    """One line above the table on a terminal."""
    free = f"{shown.gpus_free} of {shown.gpus_total} GPUs free"
    note = ": nothing is written to Slurm, this is what asrptd would do" if shown.mode == "shadow" else ""
    return Text(f"{free}, policy {safe(shown.policy)}, mode {safe(shown.mode)}{note}", style="dim")


def _fit(columns: Sequence[Column], width: int) -> list[Column]:
    """Narrow or drop columns, least needed first, until the last one has room."""
    kept = list(columns)
    for title in GIVES_WAY:
        if _before(kept) + min(REASON_WIDTH, kept[-1].width) <= width:
            break
        place = next(number for number, column in enumerate(kept) if column.title == title)
        if title == "STATE":  # "delayed" for "delayed for placement": the first words differ
            kept[place] = replace(kept[place], cells=[cell.partition(" ")[0] for cell in kept[place].cells])
        elif title == "NAME":
            kept[place] = replace(kept[place], cap=NARROW_NAME)
        else:
            del kept[place]
    if width - _before(kept) < min(LEAST_REASON, kept[-1].width):
        kept = [column for column in kept if column.title != "NAME"]
    return kept


def _before(columns: Sequence[Column]) -> int:
    """Where the last column begins."""
    return sum(column.width + len(GAP) for column in columns[:-1])


def _explain(job: JobStatus) -> None:
    """Everything known of one job, a fact a line, in plain words."""
    for label, text in _facts_in_words(job):
        print(f"{label:<16} {text}")


def _facts_in_words(job: JobStatus) -> list[tuple[str, str]]:
    lines = [
        ("Job", f"{safe(job.job_id)} ({safe(job.name)}) of {safe(job.user)}, partition {safe(job.partition)}"),
        ("State", safe(job.state) + (f", number {job.rank} in line" if job.rank is not None else "")),
        ("Why", safe(job.text)) if job.text else ("Why", "it runs" if job.state == Phase.RUNNING else UNKNOWN),
        ("GPUs", f"{job.gpus}, profile {safe(job.profile)}"),
        ("Nodes", fold_nodes(job.nodes)),
        ("Submitted", _date(job.submit_time)),
        ("Started", _date(job.start_time) if job.start_time is not None else "not yet"),
        ("Prediction", _prediction(job)),
        ("Iteration", _iteration(job)),
    ]
    if job.band is not None:
        lines.append(("Fair-share", f"band {job.band} (1 goes first)"))
    if job.iterations_done is not None:
        lines.append(("Progress", _progress(job)))
    if job.remaining_s is not None:
        lines.append(("Time left", f"{slurm_time(job.remaining_s)}, {_basis(job)}"))
    return lines + [(f"  {safe(key)}", _value(value)) for key, value in sorted(job.facts.items())]


def _prediction(job: JobStatus) -> str:
    if job.predicted_iterations <= 0:
        return f"none: no finished job of its group ({safe(job.group)}) is known"
    run = slurm_time(job.predicted_run_s)
    return f"{job.predicted_iterations} iterations, run time {run}, from group {safe(job.group)}"


def _progress(job: JobStatus) -> str:
    total = f" of {job.iterations_total}" if job.iterations_total else ""
    share = f" ({_share(job)})" if total else ""
    pace = f", {job.alpha_observed:.4g} s each" if job.alpha_observed else ""
    return f"{job.iterations_done}{total} iterations done{share}{pace}"


def _basis(job: JobStatus) -> str:
    """What the remaining time rests on."""
    if job.iterations_done is None or not job.iterations_total:
        return "by the predicted run time"
    return "at its present speed" if job.alpha_observed else "at the speed computed for these nodes"


def _iteration(job: JobStatus) -> str:
    """Seconds per iteration in the placement of ``nodes`` against the best one."""
    if job.alpha is None or not job.alpha_min:
        return UNKNOWN
    times = job.alpha / job.alpha_min
    return f"{job.alpha:.4g} s on these nodes, {job.alpha_min:.4g} s at best ({times:.2f} times)"


def _value(value: Any) -> str:
    return safe(value if isinstance(value, str) else json.dumps(value))


def main() -> None:
    """Entry point of asrpt-status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may not fit a terminal's encoding
    run_app(app)
