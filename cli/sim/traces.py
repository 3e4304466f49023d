"""asrpt-sim import, describe, generate and formats: convert, summarize and create traces."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from slurm_asrpt_cli._app.tables import Column, print_facts, safe, show_table
from slurm_asrpt_cli.sim.options import AUTO, Columns, Format, Json, Processors
from slurm_asrpt_cli.sim.options import Trace as TraceName

from slurm_asrpt.errors import InputError
from slurm_asrpt.text import can_show, counted, slurm_time

if TYPE_CHECKING:
    from slurm_asrpt.traces import Trace

Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Output file; .gz compresses it.")]


BLOCKS = "▁▂▃▄▅▆▇█"
LABEL = 11
"""Width of the labels."""
GENERATED_JOBS, DAYS = 100_000, 60.0
"""Those of the trace pai-like."""


def import_(
    trace: TraceName,
    output: Output,
    fmt: Format = AUTO,
    column: Columns = None,
    processors_as_gpus: Processors = False,
    as_json: Json = False,
) -> None:
    """Convert a trace to the CSV format that is read fastest.

    \b
    Examples:
      asrpt-sim import cluster_job_log -o philly.csv.gz
      asrpt-sim import jobs.csv -o mine.csv.gz \\
        --column submit_s=Submitted --column gpus=Cards
    """
    from slurm_asrpt.traces import write_trace
    from slurm_asrpt.traces.sources import path_of

    source = path_of(trace)
    if output.exists() and source.exists() and output.samefile(source):
        raise InputError(f"--output {output}: this is the trace itself; name another file")
    found = _read(trace, fmt, column, processors_as_gpus)
    write_trace(found, output)
    counts = _counts(found)
    if as_json:
        print(json.dumps({"output": str(output), **counts}))
        return
    print_facts(_rows_in_words(counts), LABEL)
    print(f"wrote {safe(str(output))}")


def describe(
    trace: TraceName,
    fmt: Format = AUTO,
    column: Columns = None,
    processors_as_gpus: Processors = False,
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Plot it: .png, .svg or .pdf.")] = None,
) -> None:
    """Summarize a trace: arrivals, sizes, runtimes, recurrence, tails, and the rows that were left out.

    \b
    Examples:
      asrpt-sim describe philly --plot philly.png
      asrpt-sim describe jobs.txt --format sacct --json
    """
    from slurm_asrpt.traces.statistics import statistics

    if plot:
        from slurm_asrpt.reporting import plot_style, trace_plot  # matplotlib takes a second to import

        plot_style.check_path(plot)
    read = _read(trace, fmt, column, processors_as_gpus)
    found = statistics(read)
    if plot:
        trace_plot.draw(read, found, plot)
    if as_json:
        print(json.dumps(found))
        return
    print_facts([("Trace", safe(found["name"])), *_rows_in_words(found), *_facts(found)], LABEL)
    print()
    _print_sizes(found)
    if plot:
        print(f"\nwrote {safe(str(plot))}")


def generate(
    output: Output,
    jobs: Annotated[int, typer.Option(min=1, max=10_000_000, metavar="N", help="Number of jobs.")] = GENERATED_JOBS,
    days: Annotated[float, typer.Option(min=0.01, max=3650, metavar="DAYS", help="Length of the trace.")] = DAYS,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Random seed.")] = 0,
    as_json: Json = False,
) -> None:
    """Generate a trace with the published sizes, runtimes, recurrence and arrivals of Alibaba's PAI cluster.

    \b
    Examples:
      asrpt-sim generate --jobs 20000 --days 30 -o jobs.csv.gz
    """
    from slurm_asrpt.traces import write_trace
    from slurm_asrpt.traces.synthetic import pai_like

    made = pai_like(jobs, days, seed)
    write_trace(made, output)
    if as_json:
        print(json.dumps({"output": str(output), "name": made.name, "jobs": len(made)}))
    else:
        print(f"wrote {safe(str(output))}: {counted(len(made), 'job')} in {days:g} days")


def formats(as_json: Json = False) -> None:
    """List the trace formats that can be read.

    \b
    Example:
      asrpt-sim formats --json
    """
    from slurm_asrpt import traces

    known = traces.formats()
    if as_json:
        print(json.dumps(known))
    else:
        print_facts(known.items(), max(map(len, known)) + 1)


def _read(trace: str, fmt: str, columns: list[str] | None, processors_as_gpus: bool) -> Trace:
    """Raises InputError if it is not a trace, or has no usable job."""
    from slurm_asrpt.traces.sources import column_titles, load_trace, no_jobs

    titles = column_titles(columns or [])
    found = load_trace(trace, fmt=fmt, processors_as_gpus=processors_as_gpus, columns=titles)
    if not len(found):
        raise InputError(no_jobs(trace, found))
    return found


def _counts(trace: Trace) -> dict[str, Any]:
    """How many rows became jobs, were left out, merged or changed."""
    return {
        "name": trace.name,
        "rows": trace.rows,
        "jobs": len(trace),
        "left_out": dict(trace.left_out),
        "merged": dict(trace.merged),
        "changed": dict(trace.changed),
    }


def _rows_in_words(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("Rows", f"{found['rows']:,}"), ("Jobs", f"{found['jobs']:,}")]
    for key, label in (("left_out", "Left out"), ("merged", "Merged"), ("changed", "Changed")):
        lines = [f"{count:>9,}  {safe(what)}" for what, count in _most(found[key])] or ["none"]
        facts += [(label if number == 0 else "", line) for number, line in enumerate(lines)]
    return facts


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Counts in descending order."""
    return sorted(counts.items(), key=lambda pair: -pair[1])


def _facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    recurrence, tail, users = found["recurrence"], found["tail"], found["users"]
    facts = [
        ("Span", _span(found)),
        ("GPU time", f"{found['gpu_hours']:,.0f} GPU hours, {_number(found['busy_gpus'])} GPUs busy on average"),
        ("One GPU", f"{found['single_gpu_share']:.1%} of the jobs"),
        ("Runtime", _spread(found["duration_s"])),
        ("Wait", _spread(found["wait_s"]) if found["wait_s"] else "unknown"),
        ("Time limit", f"{found['with_time_limit']:.1%} of the jobs have one"),
        ("Recurrence", f"{recurrence['recurrent_share']:.1%} of the jobs are in groups of 5 or more runs"),
        ("", f"{recurrence['seen_before']:.1%} follow another run of their group; {recurrence['groups']:,} groups"),
        ("", f"grouped by {recurrence['key']}"),
    ]
    if users:
        facts.append(
            (
                "Users",
                f"{users['users']:,}; the busiest {users['busiest']:,}: {users['busiest_job_share']:.1%} of the jobs, "
                f"{users['busiest_gpu_time_share']:.1%} of the GPU time",
            )
        )
    else:
        facts.append(("Users", "unknown"))
    hill = f"; tail index of runtimes {tail['hill_index']:.2f}" if tail["hill_index"] else ""
    facts.append(
        (
            "Tail",
            f"largest 1% of the jobs: {tail['top_1_percent']:.1%} of the GPU time, "
            f"10%: {tail['top_10_percent']:.1%}{hill}",
        )
    )
    facts.append(("Arrivals", f"by hour {found['arrivals']['hour']}: {_bars(found['arrivals']['by_hour'])}"))
    return facts


def _span(found: Mapping[str, Any]) -> str:
    if found["span_days"] < 1:
        return slurm_time(found["span_days"] * 86400)
    return f"{found['span_days']:.3g} days, {_number(found['jobs_per_day'])} jobs a day"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _spread(found: Mapping[str, float]) -> str:
    parts = {"median": "p50", "90%": "p90", "99%": "p99", "mean": "mean"}
    return ", ".join(f"{label} {slurm_time(found[key])}" for label, key in parts.items())


def _bars(shares: list[float]) -> str:
    """A bar chart of one character per share; digits if the terminal's encoding has no blocks."""
    signs = BLOCKS if can_show(BLOCKS, sys.stdout.encoding) else "01234567"
    top = max(shares) or 1.0
    return "".join(signs[min(7, int(8 * share / top))] for share in shares)


def _print_sizes(found: Mapping[str, Any]) -> None:
    from slurm_asrpt.traces.statistics import size_label

    sizes = found["sizes"]
    columns = [
        Column("GPUS", [size_label(size) for size in sizes], right=True),
        Column("JOBS", [f"{size['jobs']:,}" for size in sizes], right=True),
        Column("% JOBS", [f"{100 * size['job_share']:.1f}" for size in sizes], right=True),
        Column("% GPU TIME", [f"{100 * size['gpu_time_share']:.1f}" for size in sizes], right=True),
    ]
    show_table(columns)
