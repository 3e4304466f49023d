"""What the commands of asrpt-sim share: the options that describe a workload, and the table of results."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from slurm_asrpt_cli._app.help import seldom
from slurm_asrpt_cli._app.options import with_options
from slurm_asrpt_cli._app.tables import GAP, Column, print_table, safe, terminal_width

from slurm_asrpt.errors import InputError
from slurm_asrpt.sim.description import MODELS, PREDICTORS, Cluster, Options
from slurm_asrpt.text import UNKNOWN, slurm_time

if TYPE_CHECKING:
    from slurm_asrpt.sim.scenario import Scenario
else:
    Scenario = Any  # its import is slow, and typer evaluates annotations

AUTO = "auto"
DEFAULTS = Options()
RETRAIN = "1h"
COSTS = f"{DEFAULTS.checkpoint_s:g},{DEFAULTS.requeue_s:g},{DEFAULTS.restart_s:g}"

_TRACE: Any = typer.Argument(
    metavar="TRACE", help="A file, a directory, pai-like[:jobs[:days]], philly, itp or helios.", show_default=False
)
Trace = Annotated[str, _TRACE]
OptionalTrace = Annotated[str | None, _TRACE]
_READING = (
    {"metavar": "KIND", "help": "Format of the trace, one of those that asrpt-sim formats lists."},
    {"metavar": "NAME=TITLE", "help": "Name of a CSV column, e.g. submit_s=Submitted."},
    {"help": "Count the processors of a CPU trace as GPUs."},
)
Format = Annotated[str, typer.Option("--format", "-f", **_READING[0])]
SeldomFormat = Annotated[str, seldom("--format", "-f", **_READING[0])]
Columns = Annotated[list[str] | None, typer.Option("--column", **_READING[1])]
SeldomColumns = Annotated[list[str] | None, seldom("--column", **_READING[1])]
Processors = Annotated[bool, typer.Option("--processors-as-gpus", **_READING[2])]
SeldomProcessors = Annotated[bool, seldom("--processors-as-gpus", **_READING[2])]
Retrain = Annotated[
    str, seldom("--retrain", metavar="TIME", help="Retraining interval: seconds, or 30min, 1h, 1d; 0: never.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Processes = Annotated[
    int, seldom("--processes", "-j", min=-1, metavar="N", help="Number of processes; -1: one per core.")
]


def _scenario(
    trace: Trace,
    fmt: SeldomFormat = AUTO,
    column: SeldomColumns = None,
    processors_as_gpus: SeldomProcessors = False,
    load: Annotated[
        float | None, typer.Option(metavar="LOAD", help="GPU time submitted per GPU time available.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Simulate the first N jobs after the history.")] = None,
    single_gpu: Annotated[float | None, seldom(metavar="SHARE", help="Share of single-GPU jobs.")] = None,
    nic: Annotated[float, seldom(metavar="GBITS", help="Network bandwidth of each server, Gbit/s.")] = Cluster.nic_gbit,
    intra: Annotated[
        float, seldom(metavar="GBYTES", help="Bandwidth between GPUs of a server, GB/s.")
    ] = Cluster.intra_gbyte,
    switches: Annotated[
        str, seldom(metavar="N,...", help="Servers under each switch, switches under each of the next level ...")
    ] = "",
    beyond: Annotated[
        str, seldom(metavar="GBITS,...", help="Bandwidth of a server beyond its first switch, beyond the next ...")
    ] = "",
    nvlink_domain: Annotated[
        int, seldom(min=0, metavar="N", help="GPUs of each NVLink domain of a server; 0: the whole server.")
    ] = Cluster.domain,
    across: Annotated[
        float, seldom(metavar="GBYTES", help="Bandwidth between GPUs of two NVLink domains of a server, GB/s.")
    ] = Cluster.across_gbyte,
    contention: Annotated[
        float | None, seldom(metavar="A", help="Jobs share NICs: each of k gets 1/(k+A(k-1)).")
    ] = None,
    servers: Annotated[int, typer.Option(metavar="N", help="Number of servers.")] = Cluster.servers,
    gpus: Annotated[int, seldom("--gpus-per-server", metavar="N", help="GPUs per server.")] = Cluster.gpus,
    gpu_types: Annotated[
        str, seldom("--gpu-types", metavar="SPEC", help="Mixed GPU types: SERVERS:TYPE:SPEED,...; replaces --servers.")
    ] = "",
    predictor: Annotated[
        str, seldom(metavar="PREDICTOR", help=f"Predictor: {', '.join(PREDICTORS)}.")
    ] = DEFAULTS.predictor,
    retrain: Retrain = RETRAIN,
    models: Annotated[
        str | None, seldom(metavar="NAME", help=f"Models that the jobs train: {' or '.join(MODELS)}.")
    ] = None,
    communication: Annotated[
        str,
        seldom(metavar="KIND", help="What policies know of the models: known, unknown, or learned: reports, runtimes."),
    ] = DEFAULTS.communication,
    history: Annotated[float, seldom(metavar="SHARE", help="Share of the trace to learn from.")] = DEFAULTS.history,
    seed: Annotated[int, seldom(min=0, metavar="N", help="Random seed.")] = DEFAULTS.seed,
    max_gpus_per_user: Annotated[
        int | None, seldom(min=1, metavar="N", help="GPUs that each user may hold at a time.")
    ] = None,
    consent: Annotated[
        float, seldom(metavar="SHARE", help="Share of jobs that asrpt-gated:interrupts=true and hlas may preempt.")
    ] = DEFAULTS.consent,
    preemption_costs: Annotated[
        str, seldom(metavar="S,S,S", help="Seconds of a preemption: checkpoint, until eligible again, restart.")
    ] = COSTS,
) -> Scenario:
    """The scenario that these options describe, without a policy. Raises InputError."""
    from slurm_asrpt.sim.scenario import default_models, make_scenario, parse_numbers, parse_types

    types = parse_types(gpu_types) if gpu_types else ()
    servers = sum(count for count, _, _ in types) or servers
    cluster = {
        "servers": servers,
        "gpus": gpus,
        "nic_gbit": nic,
        "intra_gbyte": intra,
        "contention": contention,
        "types": types,
        "switches": parse_numbers("--switches", switches, int),
        "beyond_gbit": parse_numbers("--beyond", beyond, float),
        "domain": nvlink_domain,
        "across_gbyte": across,
    }
    options = {
        "models": models or default_models(trace),
        "single_gpu": single_gpu,
        "load": load,
        "jobs": jobs,
        "history": history,
        "predictor": predictor,
        "retrain_s": retrain_seconds(retrain),
        "seed": seed,
        "max_gpus_per_user": max_gpus_per_user,
        "consent": consent,
        "communication": communication,
        **_costs(preemption_costs),
    }
    return make_scenario(trace, None, cluster, options, fmt, processors_as_gpus, column or [])


def _costs(text: str) -> dict[str, float]:
    """The options of --preemption-costs. Raises InputError."""
    try:
        checkpoint, requeue, restart = map(float, text.split(","))
    except ValueError:
        raise InputError(f"--preemption-costs {text!r}: write three numbers of seconds, for example {COSTS}") from None
    return {"checkpoint_s": checkpoint, "requeue_s": requeue, "restart_s": restart}


def retrain_seconds(text: str) -> float:
    """The value of --retrain. Raises InputError."""
    from slurm_asrpt.sim.scenario import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise InputError(f"--retrain: {error}") from None


def _perhaps(**given: Any) -> Scenario | None:
    return None if given["trace"] is None else _scenario(**given)


def _without_trace() -> inspect.Signature:
    signature = inspect.signature(_scenario, eval_str=True)
    shared = dict(signature.parameters)
    shared["trace"] = shared["trace"].replace(default=None, annotation=OptionalTrace)
    return signature.replace(parameters=list(shared.values()))


_perhaps.__signature__ = _without_trace()  # type: ignore[attr-defined]

with_scenario = with_options(_scenario)
"""Decorator: replaces a command's first parameter, the scenario, by a trace and workload options."""
with_perhaps_a_scenario = with_options(_perhaps)
"""The same with an optional TRACE; without one the command gets None."""


def say(text: str) -> None:
    """Print a remark on standard error."""
    print(f"asrpt-sim: {text}", file=sys.stderr)


def warn_of_plugins() -> None:
    """Policies of other packages that are not available."""
    from slurm_asrpt.core.policies.registry import plugin_errors

    for error in plugin_errors():
        say(safe(f"policy {error.name} of {error.source} is not available: {error.why}"))


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


Row = Mapping[str, Any]

FIGURES: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("MEAN_JCT", lambda row: slurm_time(row["mean_jct_s"])),
    ("/SOUND", lambda row: ratio(row["over_sound"])),
    ("/DESIGN", lambda row: ratio(row["over_design"])),
    ("WAIT_P50", lambda row: slurm_time(row["median_wait_s"])),
    ("WAIT_P90", lambda row: slurm_time(row["p90_wait_s"])),
    ("WAIT_P99", lambda row: slurm_time(row["p99_wait_s"])),
    ("SLOW_P50", lambda row: ratio(row["median_slowdown"])),
    ("SLOW_P90", lambda row: ratio(row["p90_slowdown"])),
    ("SLOW_P99", lambda row: ratio(row["p99_slowdown"])),
    ("USED", lambda row: share(row.get("utilisation_arriving"))),
    ("LOST", lambda row: share(row["placement_loss"])),
    ("ENDED", lambda row: f"{row['ended']}/{row['jobs']}" if row["ended"] != row["jobs"] else "all"),
)
"""The columns of the results table: title, and its cell for a summary."""

GIVES_WAY = ("USED", "LOST", "WAIT_P90", "SLOW_P90", "WAIT_P50", "SLOW_P50", "ENDED", "WAIT_P99", "/DESIGN")


def ratio(value: float | None) -> str:
    """A factor with at least three digits; ``-`` for None."""
    if value is None:
        return UNKNOWN
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def share(value: float | None) -> str:
    """A percentage; ``-`` for None."""
    return UNKNOWN if value is None else f"{100 * value:,.0f}%"


def print_figures(names: Mapping[str, Sequence[str]], rows: Sequence[Row]) -> None:
    """Print a line per row: identifying columns, then figures; a narrow terminal shows fewer figures."""
    columns = [Column(title, [safe(cell) for cell in cells]) for title, cells in names.items()]
    columns += [Column(title, [cell(row) for row in rows], right=True) for title, cell in FIGURES]
    width = terminal_width()
    if width:
        columns = fit(columns, width, len(names), GIVES_WAY)
    print_table(columns, True, width)


def fit(columns: Sequence[Column], width: int, names: int, gives_way: Sequence[str]) -> list[Column]:
    """Drop the columns of ``gives_way``, in its order, then narrow the first column, until all fit.

    names: number of leading columns that always stay.
    """
    kept = list(columns)
    for title in gives_way:
        if _width(kept) <= width:
            return kept
        kept = [column for number, column in enumerate(kept) if number < names or column.title != title]
    if _width(kept) > width:
        room = max(12, kept[0].width - (_width(kept) - width))
        kept[0] = Column(kept[0].title, kept[0].cells, cap=room)
    return kept


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)
