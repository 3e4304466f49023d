"""Backends that run the cells of a sweep: the cores of this machine, a Dask cluster, or a Slurm job array."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.errors import AsrptError, InputError, SlurmError
from slurm_asrpt.files import replace_file
from slurm_asrpt.sim.engine import Progress
from slurm_asrpt.sim.scenario import Scenario
from slurm_asrpt.sim.sweep import run_cell
from slurm_asrpt.slurm.commands import run_slurm

Done = Callable[[Scenario, str], None]
"""Called when a cell ends, with "" or the reason why it failed."""

SCRIPT = """\
#!/bin/sh
# A cell of a sweep of asrpt-sim; the command line comes as arguments.
exec "$@" "$SLURM_ARRAY_TASK_ID"
"""
SBATCH_LIMIT_S = 60.0
RETRY_HINT = "run the same command again to go on"


def run_local(
    folder: Path, cells: Sequence[Scenario], processes: int, done: Done, progress: Progress | None = None
) -> None:
    """Run in this process, with progress, or in several. Raises KeyboardInterrupt; finished cells are kept."""
    if processes == 1 or len(cells) < 2:
        for cell in cells:
            done(cell, run_cell(folder, cell, progress=progress))
        return
    import joblib  # an eighth of a command's start-up time, and only needed for several processes

    pool = joblib.Parallel(n_jobs=processes, batch_size=1, return_as="generator_unordered")
    _parallel(folder, cells, pool, done, f"a worker was lost; {RETRY_HINT}, perhaps with a lower -j")


def run_dask(folder: Path, cells: Sequence[Scenario], scheduler: str, done: Done) -> None:
    """Run on a Dask cluster whose workers have the directory and the trace at the same paths. Raises InputError."""
    import logging

    import joblib

    try:
        from distributed import Client
    except ImportError as error:
        raise InputError("--backend dask needs the package distributed: pip install 'slurm-asrpt[dask]'") from error
    try:
        client: Any = Client(scheduler, timeout=10, set_as_default=True)  # type: ignore[no-untyped-call,unused-ignore]
    except (OSError, ValueError, TimeoutError):
        raise AsrptError(f"no Dask scheduler answers at {scheduler}; is it running?") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # no tracebacks next to the one-line error
    with client, joblib.parallel_config(backend="dask"):
        pool = joblib.Parallel(batch_size=1, return_as="generator_unordered")
        _parallel(folder, cells, pool, done, f"Dask's scheduler or a worker was lost; {RETRY_HINT}")


def _parallel(folder: Path, cells: Sequence[Scenario], pool: Any, done: Done, lost: str) -> None:
    from joblib import delayed

    by_name = {cell.name: cell for cell in cells}
    calls = (delayed(_named)(str(folder), cell, os.getpid()) for cell in cells)
    with contextlib.closing(_outcomes(pool, calls, lost)) as outcomes:
        for name, error in outcomes:
            done(by_name[name], error)


def _outcomes(pool: Any, calls: Iterator[object], lost: str) -> Generator[tuple[str, str], None, None]:
    try:
        yield from pool(calls)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except Exception as error:  # a killed worker (for example, out of memory); joblib raises various types
        raise AsrptError(lost) from error


def _named(folder: str, cell: Scenario, launcher: int) -> tuple[str, str]:
    return cell.name, run_cell(Path(folder), cell, launcher)


def submit_array(settings: SlurmSettings, folder: Path, cells: Sequence[Scenario], options: Sequence[str] = ()) -> str:
    """Submit a Slurm job array with one task per cell. Returns its job ID.

    options: more options for sbatch, one argument each. The nodes must have the directory, the trace and this Python at
    the same paths. No shell parses them: the script is constant and gets its command line as arguments.
    Raises SlurmError with Slurm's message.
    """
    number = 1 + max((int(path.stem) for path in folder.glob("arrays/*.json") if path.stem.isdigit()), default=0)
    listed, script, logs = folder / "arrays" / f"{number}.json", folder / "task.sh", folder / "logs"
    for place in (listed.parent, logs):
        place.mkdir(parents=True, exist_ok=True)
    replace_file(listed, json.dumps([cell.name for cell in cells]).encode(), mode=None)
    replace_file(script, SCRIPT.encode(), mode=None)
    arguments = [
        "--parsable",
        "--job-name=asrpt-sweep",
        f"--array=0-{len(cells) - 1}",
        f"--output={str(logs).replace('%', '%%')}/%A_%a.log",
        *options,
        str(script),
        *(sys.executable, "-P", "-m", "slurm_asrpt.sim.sweep", str(folder), str(listed)),
    ]
    return _sbatch(settings, arguments, folder).partition(";")[0].strip()


def _sbatch(settings: SlurmSettings, arguments: Sequence[str], folder: Path) -> str:
    try:
        answer = run_slurm(settings, "sbatch", *arguments, timeout_s=SBATCH_LIMIT_S, folder=folder)
    except SlurmError as error:
        hint = "; MaxArraySize in slurm.conf limits a sweep's cells" if "array" in str(error).lower() else ""
        raise SlurmError(f"{error}{hint}") from error
    return answer.decode(errors="replace")
