"""Preemption of running jobs that a policy decides: signal, checkpoint, requeue.

asrptd signals a running job (``ManagedJob.interruption``, saved before the signal is sent). The job reports a
checkpoint, or its time for one expires. asrptd requeues it, which Slurm shows as a new submit time; then it is pending
like any other job. If asrptd dies in between, the job keeps running, which it must support after a checkpoint, and the
next daemon sends the signal and waits again. Only running jobs are requeued; if a job has requeued itself, Slurm
answers that it is already pending. A slurmctld that was killed before it saved the requeue shows the run as running or,
once its node reports the end of the killed script, as failed: the requeue is repeated, without a signal.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.policies.base import Policy, Preempt, Run, may_interrupt
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.managed_job import KILLED, ManagedJob, unpinned
from slurm_asrpt.daemon.jobs.saved_state import Interruption, JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.errors import SlurmError, one_line
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.slurm.records import PENDING
from slurm_asrpt.slurm.request import LeftToSlurm, read_request, resources_of
from slurm_asrpt.spool import checkpoint_mark
from slurm_asrpt.switch import OperatingMode

GIVEN_UP = 3
"""How long a refused requeue is retried, in multiples of ``interrupt.grace_s``."""


class Preemption:
    """Informs a policy that preempts running jobs, and executes its decisions. ``carry_out`` does not raise."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        jobs: JobTable,
        cluster: ClusterState,
        client: SlurmClient,
        audit: AuditWriter,
        mode: OperatingMode,
    ) -> None:
        self._policy, self._jobs, self._cluster, self._client = policy, jobs, cluster, client
        self._audit, self._mode = audit, mode
        self._grace_s, self._spool = settings.interrupt.grace_s, settings.paths.spool
        self._managed = settings.slurm.partitions
        self._partitions = frozenset(settings.interrupt.partitions or self._managed)
        self._ours: dict[str, tuple[float, bool]] = {}  # by job id: start of a run, and whether asrptd would manage it

    def tell(self, now: float) -> None:
        """Inform the policy before a decision: the attained service of jobs, and which may be preempted."""
        policy = self._policy
        if not may_interrupt(policy):
            return
        jobs = self._jobs.values()
        for job in jobs:
            if job.forgotten and job.interruption is None and self._mode.enforcing:
                job.interruption_resumed(now)
        waiting = {JobId(t.record.job_id): t.service.past for t in jobs if t.service.past and not t.service.began}
        policy.served(waiting, [_run(t) for t in self._may_be_interrupted()], now)

    def _may_be_interrupted(self) -> Iterator[ManagedJob]:
        """Jobs that may be preempted; none outside of mode enforce."""
        running = (t for t in self._jobs.values() if t.state is JobState.RUNNING and t.record.gpus_by_node)
        for job in running:
            if job.interruption is not None or not self.why_never(job):
                yield job

    def why_never(self, job: ManagedJob) -> str:
        """Why a running job may not be preempted; "" if it may be."""
        record = job.record
        if not self._mode.enforcing:
            return "asrptd is not in mode enforce"
        if job.tag is None:
            return "the hook has not tagged it, so its owner's consent is unknown"
        if not job.tag.interrupt:
            return "its owner has not agreed (--comment=asrpt:interrupt=USR1)"
        if not record.requeue:
            return "Slurm may not requeue it (--requeue)"
        if record.state != "RUNNING":
            return f"its state is {record.state}"
        if not set(record.partition.split(",")) <= self._partitions:
            return "its partition is not among interrupt.partitions"
        return "" if self._begins_again(job) else "asrptd leaves such jobs to Slurm"

    def _begins_again(self, job: ManagedJob) -> bool:
        """Whether asrptd would start it again; determined once per run."""
        record = job.record
        run, ours = self._ours.get(record.job_id, (0.0, False))
        if run != record.start_time:
            ours = self._is_ours(job)
            self._ours[record.job_id] = (record.start_time, ours)
        return ours

    def _is_ours(self, job: ManagedJob) -> bool:
        if job.tag is None or job.tag.left:
            return False
        try:
            read_request(unpinned(job.record, job.original), self._cluster.nodes, self._managed)
        except LeftToSlurm:
            return False
        return True

    def intend(self, decision: Preempt, now: float) -> None:
        """Note a preemption, which must be saved before the signal is sent. It counts, whatever its outcome."""
        job = self._jobs[decision.job_id]
        job.interruption_decided(now, decision.head.id)
        recorded = {**decision.reason.facts, "gpu_s": job.service.at(now), "nth": job.service.interruptions}
        self._record(job, "interrupt", now, **recorded)

    def intend_requeues(self, now: float) -> None:
        """Note the runs to requeue now, which must be saved before the request: Slurm may accept and forget it."""
        for job in self._jobs.values():
            under_way = job.interruption
            if under_way is None or not under_way.sent or job.record.state != "RUNNING" or not self._mode.enforcing:
                continue
            if self._reported(job, under_way) or now >= under_way.sent + self._grace_s:
                job.to_be_requeued()

    def carry_out(self, now: float) -> None:
        """Execute the next step of each preemption; outside of mode enforce, of none."""
        self._ours = {job_id: known for job_id, known in self._ours.items() if job_id in self._jobs}
        for job in self._jobs.values():
            if job.interruption is None:
                continue
            if not self._mode.enforcing or job.record.state == PENDING:
                job.interruption_over()
            elif job.record.state == "RUNNING" or job.forgotten:
                self._step(job, job.interruption, now)

    def _step(self, job: ManagedJob, under_way: Interruption, now: float) -> None:
        late = now > (under_way.sent or under_way.at) + GIVEN_UP * self._grace_s
        try:
            if job.forgotten:
                self._requeue(job, under_way, late, now)
            elif not under_way.sent:
                self._signal(job, now)
        except SlurmError as error:
            if late:
                job.interruption_over()
                job.requeue_refused()
                self._record(job, "interrupt-refused", now, error=one_line(error))

    def _requeue(self, job: ManagedJob, under_way: Interruption, late: bool, now: float) -> None:
        """Requeue a job, for the first time or again; it counts as one preemption.

        Raises SlurmError, also if Slurm accepts the requeue without any effect.
        """
        first = under_way.sent > 0 and not under_way.asked
        try:
            self._client.requeue(job.record.job_id, failed=job.record.state == KILLED)
        except SlurmError:
            if first:
                job.requeue_refused()
            raise
        if first:
            job.requeue_accepted()
            self._record(job, "requeued", now, reported=self._reported(job, under_way))
            return
        if late:
            raise SlurmError("Slurm accepts the requeue, but still shows the ended run as running or failed")
        job.requeued_again()
        self._record(job, "requeued-again", now)

    def _signal(self, job: ManagedJob, now: float) -> None:
        assert job.tag is not None  # noqa: S101  (only tagged jobs are interrupted)
        mark, name = self._mark(job), job.tag.interrupt
        self._client.signal(job.record.job_id, name.removeprefix("B:"), batch=name.startswith("B:"))
        job.signalled(now, mark)
        self._record(job, "signalled", now, signal=name)

    def _reported(self, job: ManagedJob, under_way: Interruption) -> bool:
        """Whether it has reported a checkpoint since the signal."""
        return self._mark(job) != under_way.mark

    def _mark(self, job: ManagedJob) -> str:
        return checkpoint_mark(self._spool, str(job.record.number))

    def _record(self, job: ManagedJob, event: str, now: float, **facts: object) -> None:
        self._audit.record(now, event, job.record.job_id, user=job.record.user, **facts)


def _run(job: ManagedJob) -> Run:
    record, service = job.record, job.service
    return Run(
        job_id=JobId(record.job_id),
        gpus=dict(record.gpus_by_node),
        service=service.past,
        rate=service.rate,
        since=service.began or record.start_time,
        interruptions=service.interruptions,
        ending=job.interruption is not None,
        held=resources_of(record, sum(record.gpus_by_node.values())),
    )
