"""asrpt-sim sweep and report: simulate policies over a grid of workloads, and plot results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from slurm_asrpt_cli._app.help import seldom
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.tables import safe
from slurm_asrpt_cli.sim.options import Json, Processes, print_json, with_perhaps_a_scenario
from slurm_asrpt_cli.sim.runs import Policies

from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.text import counted

if TYPE_CHECKING:
    from slurm_asrpt.sim.scenario import Scenario
else:
    Scenario = Any  # its import is slow, and typer evaluates annotations


@with_perhaps_a_scenario
def sweep(
    scenario: Scenario | None,
    policies: Policies = DEFAULT_POLICY,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="KEY=VALUES", help="load=0.8,1.1 or seed=0..4; may be repeated."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Directory of the sweep.")
    ] = None,
    processes: Processes = -1,
    backend: Annotated[str, seldom(metavar="NAME", help="Where to run: local, dask or slurm.")] = "local",
    scheduler: Annotated[str, seldom(metavar="ADDRESS", help="Dask scheduler: tcp://HOST:PORT.")] = "",
    sbatch: Annotated[
        list[str] | None, seldom("--sbatch", metavar="OPTION", help="An option for sbatch; may be repeated.")
    ] = None,
    gather: Annotated[
        Path | None, typer.Option("--collect", metavar="DIR", help="Only collect the results of this sweep.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate policies over a grid of workloads.

    \b
    Examples:
      asrpt-sim sweep philly -p all --grid servers=16,20 -o d
      asrpt-sim sweep jobs.csv --backend slurm -o d
      asrpt-sim sweep --collect d
    """
    from slurm_asrpt_cli.sim.grid import gather_results, simulate_grid

    if gather:
        gather_results(gather.resolve(), as_json)
    else:
        where = (backend, scheduler, sbatch or [])
        simulate_grid(scenario, policies, grid or [], output, processes, where, as_json)


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Results of run, compare or sweep.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="HTML file to write.")] = Path(
        "report.html"
    ),
    as_json: Json = False,
) -> None:
    """Plot results into an HTML file, with PNG files beside it.

    Simulates nothing. The HTML file needs no network and no
    other file.

    \b
    Examples:
      asrpt-sim report out -o report.html
      asrpt-sim report out/fifo out/asrpt
    """
    from slurm_asrpt.reporting.simulation.report import write_report  # matplotlib takes a second to import
    from slurm_asrpt.sim.results import find_results

    found = list(dict.fromkeys(result for folder in folders for result in find_results(folder)))
    with progress("reading", len(found)) as bar:
        pictures = write_report(found, output, lambda done: bar(done, f"{done} of {len(found)}"))
    if as_json:
        print_json({"report": str(output), "pictures": [str(path) for path in pictures], "results": len(found)})
    else:
        print(f"{safe(str(output))}: {counted(len(found), 'result')}, {counted(len(pictures), 'picture')} beside it")
