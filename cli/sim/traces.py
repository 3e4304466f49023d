"""The commands of asrpt-sim that read, describe and make traces."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from slurm_asrpt_cli._app.tables import Column, print_table, safe, terminal_width
from slurm_asrpt_cli.sim.options import Columns, Format, Json, Processors
from slurm_asrpt_cli.sim.options import Trace as TraceName

from slurm_asrpt.core.durations import slurm_time
from slurm_asrpt.core.plurals import counted
from slurm_asrpt.errors import InputError
from slurm_asrpt.traces import AUTO, Trace, write_trace
from slurm_asrpt.traces import formats as known
from slurm_asrpt.traces.describe import size_label, statistics
from slurm_asrpt.traces.generate import DAYS, pai_like
from slurm_asrpt.traces.sources import GENERATED_JOBS, column_titles, load_trace, no_jobs, path_of

Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="What to write; .gz packs it.")]


def add_commands(app: typer.Typer) -> None:
    """Add import, describe, generate and formats."""
    app.command("import", short_help="Write a trace of any known kind as one CSV file.")(import_)
    app.command(short_help="Tell what a trace is like, and draw it.")(describe)
    app.command(short_help="Make a trace like Alibaba's PAI.")(generate)
    app.command()(formats)


def import_(
    trace: TraceName,
    output: Output,
    fmt: Format = AUTO,
    column: Columns = None,
    processors_as_gpus: Processors = False,
    as_json: Json = False,
) -> None:
    """Write a trace of any known kind as the CSV file that is read fastest.

    \b
    Examples:
      asrpt-sim import cluster_job_log -o philly.csv.gz
      asrpt-sim import jobs.csv -o mine.csv.gz \\
        --column submit_s=Submitted --column gpus=Cards
    """
    source = path_of(trace)
    if output.exists() and source.exists() and output.samefile(source):
        raise InputError(f"--output {output}: that is the trace itself; name another file")
    found = _read(trace, fmt, column, processors_as_gpus)
    write_trace(found, output)
    counts = _counts(found)
    if as_json:
        print(json.dumps({"output": str(output), **counts}))
        return
    _print_facts(_rows_in_words(counts))
    print(f"wrote {safe(str(output))}")


def describe(
    trace: TraceName,
    fmt: Format = AUTO,
    column: Columns = None,
    processors_as_gpus: Processors = False,
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: .png, .svg or .pdf.")] = None,
) -> None:
    """Tell what a trace is like: arrivals, sizes, run times, recurrence, tails, and what was left out.

    \b
    Examples:
      asrpt-sim describe philly --plot philly.png
      asrpt-sim describe jobs.txt --format sacct --json
    """
    if plot:
        from slurm_asrpt.reporting import plot_style, trace_plot  # matplotlib takes a second to come

        plot_style.check_path(plot)
    read = _read(trace, fmt, column, processors_as_gpus)
    found = statistics(read)
    if plot:
        trace_plot.draw(read, found, plot)
    if as_json:
        print(json.dumps(found))
        return
    _print_facts([("Trace", safe(found["name"])), *_rows_in_words(found), *_facts(found)])
    print()
    _print_sizes(found)
    if plot:
        print(f"\nwrote {safe(str(plot))}")


def generate(
    output: Output,
    jobs: Annotated[int, typer.Option(min=1, max=10_000_000, metavar="N", help="How many.")] = GENERATED_JOBS,
    days: Annotated[float, typer.Option(min=0.01, max=3650, metavar="DAYS", help="In how many days.")] = DAYS,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Another seed, another trace.")] = 0,
    as_json: Json = False,
) -> None:
    """Make a trace with the sizes, run times, recurrence and arrivals published of Alibaba's PAI cluster.

    \b
    Examples:
      asrpt-sim generate --jobs 20000 --days 30 -o jobs.csv.gz
    """
    made = pai_like(jobs, days, seed)
    write_trace(made, output)
    if as_json:
        print(json.dumps({"output": str(output), "name": made.name, "jobs": len(made)}))
    else:
        print(f"wrote {safe(str(output))}: {counted(len(made), 'job')} in {days:g} days")


def formats(as_json: Json = False) -> None:
    """List the kinds of trace that can be read.

    \b
    Example:
      asrpt-sim formats --json
    """
    if as_json:
        print(json.dumps(known()))
    else:
        _print_facts(list(known().items()))


def _read(trace: str, fmt: str, columns: list[str] | None, processors_as_gpus: bool) -> Trace:
    """Raises InputError for what is no trace, and for one without a single usable job."""
    titles = column_titles(columns or [])
    found = load_trace(trace, fmt=fmt, processors_as_gpus=processors_as_gpus, columns=titles)
    if not len(found):
        raise InputError(no_jobs(trace, found))
    return found


def _counts(trace: Trace) -> dict[str, Any]:
    """What became of the rows; the part of the statistics that an empty trace has too."""
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
    """The largest count first."""
    return sorted(counts.items(), key=lambda pair: -pair[1])


def _facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    recurrence, tail, users = found["recurrence"], found["tail"], found["users"]
    facts = [
        ("Span", _span(found)),
        ("GPU time", f"{found['gpu_hours']:,.0f} GPU hours, {_number(found['busy_gpus'])} GPUs busy on average"),
        ("One GPU", f"{found['single_gpu_share']:.1%} of the jobs"),
        ("Run time", _spread(found["duration_s"])),
        ("Wait", _spread(found["wait_s"]) if found["wait_s"] else "not told"),
        ("Time limit", f"{found['with_time_limit']:.1%} of the jobs have one"),
        ("Recurrence", f"{recurrence['recurrent_share']:.1%} of the jobs in groups of 5 and more runs"),
        ("", f"{recurrence['seen_before']:.1%} after another of their group; {recurrence['groups']:,} groups"),
        ("", f"by {recurrence['key']}"),
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
        facts.append(("Users", "not told"))
    hill = f"; tail index of run times {tail['hill_index']:.2f}" if tail["hill_index"] else ""
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
    """A share an eighth-block; digits where the terminal's encoding has no blocks."""
    signs = "▁▂▃▄▅▆▇█"
    try:
        signs.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        signs = "01234567"
    top = max(shares) or 1.0
    return "".join(signs[min(7, int(8 * share / top))] for share in shares)


def _print_facts(facts: list[tuple[str, str]]) -> None:
    """Label and text, a line each, folded under the text on a terminal."""
    width = max(len(label) for label, _ in facts)
    console = Console(highlight=False)
    for label, text in facts:
        room = console.width - width - 2 if sys.stdout.isatty() else None
        for number, line in enumerate(_folded(text, room)):
            print(f"{label if number == 0 else '':<{width}}  {line}")


def _folded(text: str, room: int | None) -> list[str]:
    return textwrap.wrap(text, max(20, room), drop_whitespace=False) or [""] if room else [text]


def _print_sizes(found: Mapping[str, Any]) -> None:
    sizes = found["sizes"]
    columns = [
        Column("GPUS", [size_label(size) for size in sizes], right=True),
        Column("JOBS", [f"{size['jobs']:,}" for size in sizes], right=True),
        Column("% JOBS", [f"{100 * size['job_share']:.1f}" for size in sizes], right=True),
        Column("% GPU TIME", [f"{100 * size['gpu_time_share']:.1f}" for size in sizes], right=True),
    ]
    print_table(columns, True, terminal_width())
