"""What asrpt-sim sweep does: it runs the cells of a grid here, with Dask or in Slurm, and collects their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from slurm_asrpt_cli._app.tables import safe
from slurm_asrpt_cli.sim.options import (
    print_figures,
    print_json,
    say,
    warn_of_plugins,
)
from slurm_asrpt_cli.sim.simulate import leave, note, print_assumptions, run_cells

from slurm_asrpt.config.settings import load_settings
from slurm_asrpt.errors import EXIT_FAILURE, InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.sim.assumptions import nobody_waits, scattered, scattering
from slurm_asrpt.sim.backends import run_dask, run_local, submit_array
from slurm_asrpt.sim.results import read_meta
from slurm_asrpt.sim.scenario import Scenario, parse_policies, scenario_of
from slurm_asrpt.sim.sweep import (
    CELLS,
    Collected,
    Sweep,
    collect,
    finished,
    make_sweep,
    parse_grid,
    read_sweep,
    to_run,
    write_sweep,
)
from slurm_asrpt.text import UNKNOWN, counted

BACKENDS = ("local", "dask", "slurm")


def simulate_grid(
    scenario: Scenario | None,
    policies: str,
    grid: list[str],
    output: Path | None,
    processes: int,
    where: tuple[str, str, list[str]],
    as_json: bool,
) -> None:
    """where: the backend, the address of the Dask scheduler, and options for sbatch. Raises InputError."""
    backend, scheduler, sbatch = where
    if scenario is None or output is None:
        raise InputError("sweep: give a TRACE and a directory with -o, or a directory with --collect")
    if backend not in BACKENDS or bool(scheduler) != (backend == "dask"):
        raise InputError("--backend: use local, slurm, or dask with --scheduler tcp://HOST:PORT")
    warn_of_plugins()
    place, made = output.resolve(), make_sweep(scenario, parse_policies(policies), parse_grid(grid))
    write_sweep(place, made)
    if backend == "slurm":
        _submit(place, made, sbatch, as_json)
        return
    interrupted = run_cells(place, made, _runner(place, processes, scheduler))
    found = collect(place, made)
    _show(place, made, found, as_json)
    leave(found, interrupted, len(made.cells))


def _runner(place: Path, processes: int, scheduler: str) -> Callable[..., None]:
    """The backend that runs the cells: Dask if a scheduler is given, else this machine."""
    if scheduler:
        return lambda cells, done, within: run_dask(place, cells, scheduler, done)
    return lambda cells, *told: run_local(place, cells, processes, *told)


def _submit(place: Path, made: Sweep, options: Sequence[str], as_json: bool) -> None:
    cells = to_run(place, made)
    job = submit_array(load_settings().slurm, place, cells, options) if cells else None
    if as_json:
        print_json({"job": job, "tasks": len(cells), "cells": len(made.cells), "folder": str(place)})
    elif job:
        print(
            f"Submitted job array {safe(job)}: {counted(len(cells), 'task')} for {counted(len(made.cells), 'cell')}."
            " When it has ended, run:"
        )
        print(f"asrpt-sim sweep --collect {safe(str(place))}")
    else:
        print(f"All {counted(len(made.cells), 'cell')} have results; run: asrpt-sim sweep --collect {safe(str(place))}")


def gather_results(place: Path, as_json: bool) -> None:
    """Show the results of a sweep; exit code 1 while cells are missing."""
    made = read_sweep(place)
    found = collect(place, made)
    _show(place, made, found, as_json)
    if found.missing:
        missing = f"{len(found.missing)} of {counted(len(made.cells), 'cell')}"
        say(f"no results yet for {missing}; the first is {safe(found.missing[0])}")
    leave(found, False, len(made.cells))
    if found.missing:
        raise typer.Exit(EXIT_FAILURE)


def _show(place: Path, made: Sweep, found: Collected, as_json: bool) -> None:
    """Print the table and write it to sweep.csv."""
    replace_file(place / "sweep.csv", pd.DataFrame(found.rows).to_csv(index=False).encode(), mode=None)
    if len(found.versions) > 1:
        say(f"the cells were run by different releases: {safe(', '.join(sorted(found.versions)))}")
    if as_json:
        print_json({"keys": made.keys, "cells": found.rows, "failed": found.failed, "missing": found.missing})
    elif found.rows:
        print_figures({key.upper(): [_text(row[key]) for row in found.rows] for key in made.keys}, found.rows)
        _assumed(place, made)
        note(scattered(scattering(found.rows)))


def _assumed(place: Path, made: Sweep) -> None:
    """Print what all cells assume, and the number of cells in which nobody waits."""
    metas = [read_meta(place / CELLS / cell.name) for cell in made.cells if finished(place, cell)]
    print_assumptions(scenario_of(metas[0]["scenario"]), metas[0]["notes"], made.keys)
    idle = sum(bool(nobody_waits([meta["summary"]], None)) for meta in metas)
    if idle:
        say(f"warning: hardly a job waits in {idle} of {counted(len(metas), 'cell')}; use fewer servers or more load")


def _text(value: Any) -> str:
    return UNKNOWN if value is None else f"{value:g}" if isinstance(value, float) else str(value)
