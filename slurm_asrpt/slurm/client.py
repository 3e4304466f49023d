"""The protocol of a Slurm client: what asrptd requires of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slurm_asrpt.slurm import parse
from slurm_asrpt.slurm.preemption import NO_PREEMPTION, PreemptionDefaults, PreemptionRules
from slurm_asrpt.slurm.records import JobRecord, NodeRecord, Reservation, Update
from slurm_asrpt.slurm.site import Site
from slurm_asrpt.slurm.topology import Topology


@dataclass(frozen=True)
class SlurmConfig:
    """The settings of slurm.conf that asrptd uses.

    accounts: accounting uses slurmdbd. preemption: what slurm.conf says of it. slurm_uid: uid of SlurmUser.
    private_jobs: PrivateData contains jobs.
    time: slurmctld's clock when it answered, in whole seconds; 0: unknown.
    resume_timeout_s: seconds within which a node that is powered up must have answered.
    whole_cores: Slurm allocates whole cores, not single threads (CR_CPU).
    start_delay_s: seconds after which its scheduler looks at a released job at the latest.
    """

    version: str
    cluster: str
    multifactor: bool
    memory_consumed: bool
    accounts: bool = False
    preemption: PreemptionDefaults = NO_PREEMPTION
    slurm_uid: int = 0
    private_jobs: bool = False
    time: float = 0.0
    resume_timeout_s: float = 60.0
    whole_cores: bool = True
    start_delay_s: float = 3.0

    @property
    def tasks_follow_nodes(self) -> bool:
        """From 23.02, Slurm derives the task count from the nodes if the job has none; setting it would fix it."""
        return parse.release(self.version) >= (23, 2)

    @property
    def shows_estimated_bounds(self) -> bool:
        """From 23.11, Slurm shows a limit of nodes that a job does not have, as long as it has never tried it."""
        return parse.release(self.version) >= (23, 11)

    @property
    def draws_by_time_limit(self) -> bool:
        """From 25.11, a magnetic reservation draws only jobs that end before it does, by their time limits."""
        return parse.release(self.version) >= (25, 11)

    @property
    def may_give_fewer_gpus(self) -> bool:
        """26.05 may start a job with ``--gpus`` and a limit of one node on fewer GPUs than it requests."""
        return parse.release(self.version) >= (26, 5)


class SlurmClient(Protocol):
    """Bulk reads and writes. Every method raises SlurmError if Slurm does not answer, or not as expected."""

    def config(self) -> SlurmConfig:
        """The controller's configuration."""

    def jobs(self) -> list[JobRecord]:
        """All jobs that slurmctld knows, finished ones (MinJobAge) included; new jobs after ``catch_up``."""

    def catch_up(self) -> None:
        """Called between two cycles: slow reads that should not delay the next ``jobs``."""

    def nodes(self) -> list[NodeRecord]:
        """All nodes, in node-table order."""

    def reservations(self, nodes: Sequence[NodeRecord]) -> list[Reservation]:
        """Current and future reservations of whole nodes among these."""

    def fair_shares(self) -> Mapping[tuple[str, str], float]:
        """The fair-share factor, 0 to 1, by user and account."""

    def preemption(self, defaults: PreemptionDefaults) -> PreemptionRules:
        """Which jobs may preempt which. defaults: ``SlurmConfig.preemption``."""

    def topology(self, partitions: Sequence[str]) -> Topology:
        """The topology of these partitions; where theirs differ, the first one that has a node counts."""

    def site(self) -> Site:
        """The limits that are in force, and what the priorities of jobs are made of."""

    def allocations(self, job_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        """GPUs by node of the jobs among these that are running; faster than reading all jobs."""

    def update(self, updates: Sequence[Update]) -> list[str]:
        """Write. Returns one error text per update, "" on success."""

    def signal(self, job_id: str, name: str, batch: bool) -> None:
        """Signal a running job: its batch shell if ``batch``, else its steps."""

    def notify(self, job_id: str, text: str) -> None:
        """Write a line to the standard error of a running job. Raises SlurmError."""

    def requeue(self, job_id: str, failed: bool = False) -> None:
        """Requeue a running job. Raises SlurmError if it has ended.

        failed: requeue it even though it has ended.
        """
