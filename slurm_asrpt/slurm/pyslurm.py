"""The Slurm client that uses pyslurm for jobs, allocations and leases, and scontrol for everything else.

pyslurm cannot change a node count, clear a node list or write a factor of 0 (it reports success and does nothing), so
updates of nodes use scontrol. It does not report the GPUs in use on nodes. Each of its releases matches exactly one
release of Slurm. Its ``Job`` lacks the requests of ``--gpus`` and ``--gres``, in 25.11 too; the older ``job().get()``,
removed in 25.11, has them. Without it, jobs are read by squeue.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import itertools
import os
import pwd
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.errors import SlurmError, printable
from slurm_asrpt.slurm import parse
from slurm_asrpt.slurm.cli import WHOLE_ARRAYS, CliClient
from slurm_asrpt.slurm.commands import environment_of
from slurm_asrpt.slurm.records import JobRecord, Update

JOB_NTASKS_SET = 1 << 14
_ASKED = (
    *("name", "array_job_id", "array_task_id", "dependency"),
    *("tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket"),
)
_COUNTED = ("licenses", "tres_alloc_str", "tres_req_str", "nice")
"""What limits and priorities go by. Not every release has them."""
_SHARING = {"NO": "none", "USER": "user", "MCS": "mcs", "TOPO": "topo"}
_PROBE = "import pyslurm; pyslurm.Jobs.load()"


class PyslurmClient(CliClient):
    """Created by ``load`` only: importing a pyslurm that does not match ends the process."""

    def __init__(self, settings: SlurmSettings) -> None:
        super().__init__(settings)
        if settings.conf:
            os.environ["SLURM_CONF"] = settings.conf  # libslurm reads it when it is loaded
        os.environ.update(WHOLE_ARRAYS)
        self.library: Any = importlib.import_module("pyslurm")

    def jobs(self) -> list[JobRecord]:
        if not hasattr(self.library, "job"):
            return super().jobs()
        try:
            jobs = self.library.Jobs.load().values()
            asked = self.library.job().get()
            # Slurm has just forgotten jobs that are only in the first answer
            return [parse.job_record(_raw(job, asked[job.id])) for job in jobs if job.id in asked]
        except Exception as error:  # pyslurm raises its own exceptions, ValueError, UnicodeDecodeError
            raise SlurmError("pyslurm cannot read the jobs") from error

    def catch_up(self) -> None:
        if not hasattr(self.library, "job"):
            super().catch_up()

    def allocations(self, job_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        found = {job_id: self._allocation(int(job_id)) for job_id in job_ids}
        return {job_id: counts for job_id, counts in found.items() if counts}

    def _allocation(self, number: int) -> dict[str, int]:
        try:
            job = self.library.Job.load(number)
        except self.library.RPCError:
            return {}  # Slurm has forgotten the job
        layout = _layout(job) if job.state == "RUNNING" else {}
        counts = {node: sum([int(facts["count"]) for facts in gpus.values()]) for node, gpus in layout.items()}
        return {node: count for node, count in counts.items() if count}

    def update(self, updates: Sequence[Update]) -> list[str]:
        """Write in order: updates of one job must not overtake each other."""
        errors: list[str] = []
        for simple, group in itertools.groupby(updates, _is_simple):
            together = list(group)
            errors += [self._modify(u) for u in together] if simple else super().update(together)
        return errors

    def _modify(self, update: Update) -> str:
        changes = self.library.JobSubmitDescription(begin_time=update.fields["StartTime"])
        try:
            self.library.Job(int(update.job_id)).modify(changes)
        except self.library.RPCError as error:
            return printable(str(error)) or "refused"
        return ""


def _is_simple(update: Update) -> bool:
    """Whether pyslurm can write it: leases of jobs other than array tasks."""
    return update.job_id.isdigit() and update.fields.keys() == {"StartTime"}


def _raw(job: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A job as in squeue's JSON. ``asked``: the same job from pyslurm's older interface."""
    return (
        {key: asked[key] for key in _ASKED}
        | {key: asked.get(key) for key in _COUNTED}
        | {
            "job_id": job.id,
            "array_task_string": job.array_tasks_waiting,
            "array_max_tasks": job.array_tasks_parallel,
            "het_job_id": job.heterogeneous_id,
            "user_id": job.user_id,
            "user_name": _user(job.user_id),
            "partition": job.partition,
            "job_state": job.state,
            "state_reason": job.state_reason or "None",
            "submit_time": job.submit_time,
            "eligible_time": job.eligible_time,
            "accrue_time": job.accrue_time,
            "start_time": job.start_time,
            "end_time": job.end_time,
            "time_limit": job.time_limit,
            "deadline": job.deadline,
            "priority": job.priority,
            "exit_code": {"return_code": job.exit_code, "signal": {"id": job.exit_code_signal}},
            "restart_cnt": job.requeue_count,
            "requeue": bool(job.is_requeueable),
            "node_count": job.num_nodes,
            "max_nodes": job.max_nodes,
            "tasks": job.ntasks,
            "tasks_per_node": job.ntasks_per_node,
            "tasks_per_socket": job.ntasks_per_socket,
            "tasks_per_core": job.ntasks_per_core,
            "threads_per_core": job.threads_per_core,
            "cpus": job.cpus,
            "cpus_per_tres": asked["cpus_per_tres"],
            "minimum_cpus_per_node": asked.get("pn_min_cpus"),
            "minimum_tmp_disk_per_node": asked.get("pn_min_tmp_disk"),
            "memory_per_cpu": job.memory_per_cpu,
            "memory_per_node": job.memory_per_node,
            "memory_per_tres": asked["mem_per_tres"],
            "required_nodes": job.required_nodes,
            "excluded_nodes": job.excluded_nodes,
            "features": ",".join(job.constraints or ()),
            "resv_name": job.reservation,
            "account": job.account,
            "qos": job.qos,
            "shared": _SHARING.get(job.resource_sharing, ""),
            "contiguous": job.requires_contiguous_nodes,
            "admin_comment": job.admin_comment,
            "nodes": job.allocated_nodes,
            "gres_detail": details_of(job),
            "flags": ["EXACT_TASK_COUNT_REQUESTED"] * bool(asked["bitflags"] & JOB_NTASKS_SET)
            + ["CRON_JOB"] * bool(job.is_cronjob),
        }
    )


def details_of(job: Any) -> list[str]:
    """``gres_detail`` of squeue's JSON: the GPUs on each node."""
    return [",".join(map(_detail, gpus, gpus.values())) for gpus in _layout(job).values()]


def _detail(name: str, facts: Mapping[str, Any]) -> str:
    indexes = facts.get("indexes")
    return f"{name}:{facts['count']}(IDX:{indexes})" if indexes else f"{name}:{facts['count']}"


def _layout(job: Any) -> dict[str, dict[str, Mapping[str, Any]]]:
    """By node, in the order of the node list: count and indexes of its GPUs by name, ``gpu`` or ``gpu:h100``."""
    found = {}
    for node, given in job.get_resource_layout_per_node().items():
        gres = given["gres"] or {}
        found[node] = {name: facts for name, facts in gres.items() if name.split(":")[0] == "gpu"}
    return found


@functools.lru_cache(maxsize=4096)
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def load(settings: SlurmSettings, version: str) -> PyslurmClient:
    """The client, if pyslurm is installed and matches this Slurm. Raises SlurmError with the reason if not."""
    try:
        own = importlib.metadata.version("pyslurm")
    except importlib.metadata.PackageNotFoundError:
        raise SlurmError("pyslurm is not installed") from None
    if parse.release(own) != parse.release(version):
        raise SlurmError(f"pyslurm {own} does not match Slurm {version}")
    _try_in_a_child(settings)
    return PyslurmClient(settings)


def _try_in_a_child(settings: SlurmSettings) -> None:
    """Errors inside libslurm end the process, so try it in a child process first. Raises SlurmError."""
    environment = environment_of(settings)
    command = [sys.executable, "-P", "-c", _PROBE]
    try:
        subprocess.run(command, env=environment, capture_output=True, check=True, timeout=settings.timeout_s)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), f"exit status {error.returncode}")
        raise SlurmError(f"pyslurm does not work: {printable(last)}") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"pyslurm did not answer within {settings.timeout_s:g} s") from None
