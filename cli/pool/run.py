"""asrpt-pool run: the driver of a pool, in a job's script or on a machine without Slurm."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from slurm_asrpt_cli._app.tables import safe

from slurm_asrpt.errors import EXIT_FAILURE, EXIT_INTERRUPTED, InputError
from slurm_asrpt.pool.ending import Ending
from slurm_asrpt.text import counted

if TYPE_CHECKING:
    from slurm_asrpt.pool.driver import Driver, Plan
    from slurm_asrpt.pool.slurm_job import SlurmJob
    from slurm_asrpt.pool.sweep import Sweep

EXIT_CODES = {
    Ending.TERMINATED: 128 + signal.SIGTERM,
    Ending.INTERRUPTED: EXIT_INTERRUPTED,
    Ending.LOST: EXIT_FAILURE,
}
ALL_ADDRESSES = ""
REQUEUE_WAIT_S = 60.0
"""How long the script stays alive for Slurm to end it; were it to end by itself, the job could count as completed."""


def run_command(
    path: Annotated[Path, typer.Argument(metavar="SWEEP", help="Sweep file.")],
    slots: Annotated[int | None, typer.Option(min=1, metavar="N", help="Slots outside of a job; default: 1.")] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="ROUND-POLICY", help="Instead of the sweep file's policy, as hlas.")
    ] = None,
) -> None:
    """Run the trainings of a sweep file on this job's slots.

    A slot is a task of the job. Trainings with a checkpoint continue. Near the time limit, the
    pool requeues its job; on SIGTERM and Ctrl-C it writes checkpoints and ends.

    \b
    Examples:
      sbatch -N2 -n8 --gpus-per-task=1 --wrap 'exec asrpt-pool run sweep.toml'
      asrpt-pool run sweep.toml --slots 2
    """
    from slurm_asrpt.pool.board import State
    from slurm_asrpt.pool.driver import Driver
    from slurm_asrpt.pool.slurm_job import this_job
    from slurm_asrpt.pool.sweep import check_policy, read_sweep

    sweep, job = read_sweep(path), this_job()
    if policy:
        check_policy("--policy", policy)
        sweep = replace(sweep, settings=sweep.settings.model_copy(update={"policy": policy}))
    if job and slots:
        raise InputError("--slots: a job has one slot for each of its tasks; use sbatch --ntasks")
    driver = Driver(_plan(sweep, job, slots or 1), _tell)
    ending = asyncio.run(driver.run())
    failed = sum(each.state is State.FAILED for each in driver.board.trainings.values())
    _tell(_summary(driver, ending, failed))
    if ending is Ending.LIMIT and job:
        _requeue(job)
    code = EXIT_CODES.get(ending, EXIT_FAILURE if failed else 0)
    if code:
        raise typer.Exit(code)


def _plan(sweep: Sweep, job: SlurmJob | None, slots: int) -> Plan:
    from slurm_asrpt.pool.driver import Plan
    from slurm_asrpt.pool.folder import PoolFolder
    from slurm_asrpt.pool.slurm_job import local_keepers

    common = (sweep.settings, sweep.trainings, str(sweep.code), PoolFolder(sweep.folder))
    if job is None:
        return Plan(*common, local_keepers(slots))
    ends_s = None if job.ends_s is None else job.ends_s - sweep.settings.before_limit_s
    return Plan(*common, [(job.keepers(), {})], ALL_ADDRESSES, ends_s, job.job_id, job.fleet)


def _tell(line: str) -> None:
    print(safe(line), flush=True)


def _summary(driver: Driver, ending: Ending, failed: int) -> str:
    from slurm_asrpt.pool.board import State

    trainings = driver.board.trainings.values()
    done = sum(each.state is State.DONE for each in trainings)
    left = len(trainings) - done - failed
    parts = [counted(done, "training") + " done", f"{failed} failed" * bool(failed), f"{left} left" * bool(left)]
    return f"{ending.value}: {', '.join(filter(None, parts))}"


def _requeue(job: SlurmJob) -> None:
    """Raises SlurmError if Slurm refuses; then the next job continues from the checkpoints."""
    job.requeue()
    _tell(f"job {job.job_id} is requeued and continues from its checkpoints")
    signal.sigtimedwait([signal.SIGTERM], REQUEUE_WAIT_S)
