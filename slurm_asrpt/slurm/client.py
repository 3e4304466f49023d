"""The seam to Slurm: what the daemon asks of it, whatever the client behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slurm_asrpt.slurm import parse
from slurm_asrpt.slurm.records import JobRecord, NodeRecord, Reservation, Update


@dataclass(frozen=True)
class SlurmConfig:
    """What we need to know of slurm.conf.

    accounts: slurmdbd knows them. preempt_by: "qos", "partition_prio", or "". slurm_uid: of SlurmUser. private_jobs:
    PrivateData has jobs. time: slurmctld's clock when it answered, whole seconds; 0: unknown.
    """

    version: str
    cluster: str
    multifactor: bool
    memory_consumed: bool
    accounts: bool = False
    preempt_by: str = ""
    slurm_uid: int = 0
    private_jobs: bool = False
    time: float = 0.0

    @property
    def tasks_follow_nodes(self) -> bool:
        """From 23.02 on Slurm takes the tasks from the nodes where nobody said how many; to say it binds the job."""
        return parse.release(self.version) >= (23, 2)


class SlurmClient(Protocol):
    """Bulk reads and writes. Every method raises SlurmError when Slurm does not answer sensibly."""

    def config(self) -> SlurmConfig:
        """The controller's configuration."""

    def jobs(self) -> list[JobRecord]:
        """Every job that the controller remembers, finished ones (MinJobAge) too; new ones after ``catch_up``."""

    def catch_up(self) -> None:
        """Between two cycles: whatever takes long and need not hold up the next ``jobs``."""

    def nodes(self) -> list[NodeRecord]:
        """Every node, in node-table order."""

    def reservations(self, nodes: Sequence[NodeRecord]) -> list[Reservation]:
        """Those, now or later, that keep whole nodes of these for others."""

    def fair_shares(self) -> Mapping[tuple[str, str], float]:
        """The fair-share factor, 0 to 1, by user and account."""

    def preempting(self, by: str) -> frozenset[str]:
        """The QOS, or partitions (see ``SlurmConfig.preempt_by``), whose jobs may preempt others."""

    def allocations(self, job_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        """GPUs by node of those of these jobs that run now; quicker than reading all jobs."""

    def update(self, updates: Sequence[Update]) -> list[str]:
        """Write; one error text per update, "" where it went well."""

    def signal(self, job_id: str, name: str, batch: bool) -> None:
        """Send a running job a signal: to its batch shell, else to its steps."""

    def requeue(self, job_id: str, failed: bool = False) -> None:
        """End a job's run and let it wait anew; one that has ended meanwhile stays as it is, which is an error.

        failed: it has ended, and shall wait anew all the same.
        """
