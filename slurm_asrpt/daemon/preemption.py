"""Preemption of running jobs that a policy decides: signal, checkpoint, requeue.

asrptd signals a running job (``ManagedJob.interruption``, saved before the signal is sent). The job reports a
checkpoint, or its time for one runs out. asrptd requeues it, which Slurm shows as a new submit time; then it waits as
any other. If asrptd dies in between, the job runs on, as it must be able to after a checkpoint, and the next daemon
sends the signal again and waits again. Slurm is asked to requeue only what has not ended, and answers that a job which
requeued itself waits already. A slurmctld that was killed before it wrote the requeue down shows the run as going on,
or, once its node reports the end of the killed script, as failed: it is asked again, without a signal.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.policies.base import Policy, Preempt, PreemptivePolicy, Run
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.managed_job import KILLED, ManagedJob, unpinned
from slurm_asrpt.daemon.jobs.saved_state import Interruption, JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.placements import resources_of
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.errors import SlurmError, one_line
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.slurm.records import PENDING
from slurm_asrpt.slurm.request import LeftToSlurm, read_ask
from slurm_asrpt.spool import checkpoint_mark
from slurm_asrpt.switch import OperatingMode

GIVEN_UP = 3
"""After so many times ``interrupt.grace_s`` a Slurm that refuses has refused."""


class Preemption:
    """Tells a policy that preempts running jobs, and carries out what it decides. ``carry_out`` raises nothing."""

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
        self._ours: dict[str, tuple[float, bool]] = {}  # by job id: a run, and whether it is one of asrptd's

    def tell(self, now: float) -> None:
        """Before a decision: the service that jobs have attained, and which of them may be preempted."""
        policy = self._policy
        if not isinstance(policy, PreemptivePolicy):
            return
        jobs = self._jobs.values()
        for job in jobs:
            if job.forgotten and job.interruption is None and self._mode.enforcing:
                job.interruption_resumed(now)
        waiting = {JobId(t.record.job_id): t.service.past for t in jobs if t.service.past and not t.service.began}
        policy.served(waiting, [self._run(t, now) for t in self._may_be_interrupted()], now)

    def _run(self, job: ManagedJob, now: float) -> Run:
        record, service = job.record, job.service
        return Run(
            job_id=JobId(record.job_id),
            gpus=dict(record.gpus_by_node),
            service=service.at(now),
            rate=service.rate,
            since=record.start_time,
            interruptions=service.interruptions,
            ending=job.interruption is not None,
            held=resources_of(record, sum(record.gpus_by_node.values())),
        )

    def _may_be_interrupted(self) -> Iterator[ManagedJob]:
        """Outside of mode enforce none, as no preemption is under way there."""
        running = (t for t in self._jobs.values() if t.state is JobState.RUNNING and t.record.gpus_by_node)
        for job in running:
            if job.interruption is not None or not self.why_never(job):
                yield job

    def why_never(self, job: ManagedJob) -> str:
        """What of its owner, the admin or Slurm keeps a running job from being interrupted; "" where nothing does."""
        record = job.record
        if not self._mode.enforcing:
            return "asrptd is not in mode enforce"
        if job.tag is None:
            return "the hook has not tagged it, so that nobody has read whether its owner agrees"
        if not job.tag.interrupt:
            return "its owner has not agreed (--comment=asrpt:interrupt=USR1)"
        if not record.requeue:
            return "Slurm may not requeue it (--requeue)"
        if record.state != "RUNNING":
            return f"Slurm says {record.state}"
        if not set(record.partition.split(",")) <= self._partitions:
            return "its partition is not among interrupt.partitions"
        return "" if self._begins_again(job) else "it is one of those that are left to Slurm"

    def _begins_again(self, job: ManagedJob) -> bool:
        """Whether asrptd would start it again; looked up once in each run."""
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
            read_ask(unpinned(job.record, job.original), self._cluster.nodes, self._managed)
        except LeftToSlurm:
            return False
        return True

    def intend(self, decision: Preempt, now: float) -> None:
        """Note a preemption, to be saved before anything is sent. It counts from now on, whatever becomes of it."""
        job = self._jobs[decision.job_id]
        job.interruption_decided(now, decision.head.id)
        recorded = {**decision.reason.facts, "gpu_s": job.service.at(now), "nth": job.service.interruptions}
        self._record(job, "interrupt", now, **recorded)

    def intend_requeues(self, now: float) -> None:
        """Note which runs are to end now, to be saved before Slurm is asked: it may take that and forget it."""
        for job in self._jobs.values():
            under_way = job.interruption
            if under_way is None or not under_way.sent or job.record.state != "RUNNING" or not self._mode.enforcing:
                continue
            if self._reported(job, under_way) or now >= under_way.sent + self._grace_s:
                job.to_be_requeued()

    def carry_out(self, now: float) -> None:
        """The next step of each interruption. Outside of mode enforce none goes on."""
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
        """For the first time or again: one interruption all the same.

        Raises SlurmError, also where Slurm says yes and nothing comes of it.
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
            raise SlurmError("a run that is over is shown as going on or failed, whatever is asked")
        job.requeued_again()
        self._record(job, "requeued-again", now)

    def _signal(self, job: ManagedJob, now: float) -> None:
        assert job.tag is not None  # noqa: S101  (only tagged jobs are interrupted)
        mark, name = self._mark(job), job.tag.interrupt
        self._client.signal(job.record.job_id, name.removeprefix("B:"), batch=name.startswith("B:"))
        job.signalled(now, mark)
        self._record(job, "signalled", now, signal=name)

    def _reported(self, job: ManagedJob, under_way: Interruption) -> bool:
        """Whether it has written a checkpoint since it was signalled."""
        return self._mark(job) != under_way.mark

    def _mark(self, job: ManagedJob) -> str:
        return checkpoint_mark(self._spool, str(job.record.number))

    def _record(self, job: ManagedJob, event: str, now: float, **facts: object) -> None:
        self._audit.record(now, event, job.record.job_id, user=job.record.user, **facts)
