"""The Slurm job that a pool is: what its environment says, the command that starts its keepers, and its requeue."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_asrpt.core.rounds.jobs import Fleet
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.pool.keeper import SLOT

KEEPER = [sys.executable, "-m", "slurm_asrpt.pool.keeper"]
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class SlurmJob:
    """A job's number, its number of tasks, and when its time limit ends it, in seconds since 1970 (None: never).

    job_id: ``17``, or ``17_2`` for a task of an array. cpus_per_task, tasks_per_node: as in SLURM_CPUS_PER_TASK and
    SLURM_TASKS_PER_NODE.
    """

    job_id: str
    tasks: int
    ends_s: float | None = None
    cpus_per_task: str = ""
    tasks_per_node: str = ""

    @property
    def fleet(self) -> Fleet:
        """The slots. Those of a node are alike, as far as is known; srun numbers them node by node."""
        kind = [node for node, tasks in enumerate(_expanded(self.tasks_per_node)) for _ in range(tasks)]
        if len(kind) != self.tasks:
            kind = [0] * self.tasks
        return Fleet(tuple(f"node {node}" for node in range(max(kind) + 1)), tuple(kind))

    def keepers(self) -> list[str]:
        """The command that starts a keeper for each task, on all nodes."""
        cpus = [f"--cpus-per-task={self.cpus_per_task}"] if self.cpus_per_task else []  # srun does not inherit it
        options = [f"--ntasks={self.tasks}", *cpus, "--overlap", "--kill-on-bad-exit=0", "--no-kill", "--mpi=none"]
        return ["srun", *options, *KEEPER]

    def requeue(self) -> None:
        """Requeue the job: the same script with the same options runs again. Raises SlurmError."""
        _slurm(["scontrol", "requeue", self.job_id])


def this_job(environment: Mapping[str, str] = os.environ) -> SlurmJob | None:
    """The job that this process is in, as its batch script; None outside of a job. Raises SlurmError."""
    job_id = _address(environment)
    if not job_id:
        return None
    tasks = environment.get("SLURM_NTASKS") or environment.get("SLURM_JOB_NUM_NODES") or "1"
    cpus, nodes = environment.get("SLURM_CPUS_PER_TASK", ""), environment.get("SLURM_TASKS_PER_NODE", "")
    return SlurmJob(job_id, int(tasks), _end(job_id, environment), cpus, nodes)


def _address(environment: Mapping[str, str]) -> str:
    """The job as commands name it. The last task of an array has the array's number, which would name all its tasks."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")


def _expanded(told: str) -> list[int]:
    """The numbers of ``4(x2),3``: 4, 4 and 3. Empty for anything else."""
    words = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", word) for word in told.split(",")]
    if not all(words):
        return []
    return [int(word[1]) for word in words if word for _ in range(int(word[2] or 1))]


def _end(job_id: str, environment: Mapping[str, str]) -> float | None:
    """Slurm before 23.02 does not tell a job when it ends."""
    told = environment.get("SLURM_JOB_END_TIME") or _slurm(["squeue", "-h", "-j", job_id, "-O", "EndTime:40"]).strip()
    if told.isdigit():
        return float(told)
    return _local_seconds(told)


def _local_seconds(told: str) -> float | None:
    """``2026-11-24T17:00:00`` in this machine's time zone; None for N/A."""
    import datetime

    try:
        return datetime.datetime.fromisoformat(told).timestamp()
    except ValueError:
        return None


def _slurm(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise SlurmError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def local_keepers(slots: int) -> list[tuple[list[str], dict[str, str]]]:
    """The commands and variables of keepers on this machine, without Slurm."""
    return [(KEEPER, {SLOT: str(number)}) for number in range(slots)]
