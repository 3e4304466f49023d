"""Preemption of running jobs that a policy decides: signal, checkpoint, requeue.

asrptd signals a running job (``ManagedJob.interruption``, saved before the signal is sent). The job reports a
checkpoint, or its time for one expires. asrptd requeues it, which Slurm shows as a new submit time; then it is pending
like any other job. If asrptd dies in between, the job keeps running, which it must support after a checkpoint, and the
next daemon sends the signal and waits again. Only running jobs are requeued; if a job has requeued itself, Slurm
answers that it is already pending. A slurmctld that was killed before it saved the requeue shows the run as running or,
once its node reports the end of the killed script, as failed: the requeue is repeated, without a signal.

A job that reports no checkpoint in time is requeued nevertheless, because reports are optional. It may have lost its
work, so its owner is told once it runs again, and it is never preempted again.

A job that may be preempted is also preempted before maintenance of its nodes (a reservation with the flag MAINT), under
every policy: else it would lose its work.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.policies.base import Policy, Preempt, PreemptibleRun, may_interrupt
from slurm_asrpt.daemon.checkpoint_times import CheckpointTimes
from slurm_asrpt.daemon.cluster import CLEANING_S, ClusterState
from slurm_asrpt.daemon.jobs.consent import Consent
from slurm_asrpt.daemon.jobs.managed_job import KILLED, ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import Interruption, JobState
from slurm_asrpt.daemon.jobs.site_rules import SiteRules
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.errors import SlurmError, one_line
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.slurm.records import PENDING
from slurm_asrpt.slurm.request import LeftToSlurm, read_request, resources_of
from slurm_asrpt.spool import checkpoint_mark, checkpoint_time
from slurm_asrpt.switch import OperatingMode

MAINTENANCE_S = 120.0
"""A job is preempted at least this long before maintenance, in addition to the time for its checkpoint."""
HANDLER_S = 120.0
"""Before this time of a run no signal is sent: a program that has not set its handler yet would die of it. Or before
``policy.min_run_s``, if that is less. It matters to jobs on GPUs that are kept for others, and before maintenance."""
GIVEN_UP = 2
"""How long a refused requeue is retried after the time for the checkpoint, in multiples of ``interrupt.grace_s``."""
TOLD = (
    "asrpt: this job was preempted. It reported no checkpoint within {seconds:.0f} s of SIG{signal}, so it may have "
    "begun again. It will not be preempted again. See progress.checkpointed, or asrpt-report checkpointed."
)


class Preemption:
    """Informs a policy that preempts running jobs, and executes its decisions. ``carry_out`` does not raise."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        jobs: JobTable,
        cluster: ClusterState,
        rules: SiteRules,
        checkpoints: CheckpointTimes,
        client: SlurmClient,
        audit: AuditWriter,
        mode: OperatingMode,
    ) -> None:
        self._policy, self._jobs, self._cluster, self._client = policy, jobs, cluster, client
        self._audit, self._mode = audit, mode
        self._rules, self._checkpoints, self._spool = rules, checkpoints, settings.paths.spool
        self._handler_s = min(HANDLER_S, settings.policy.min_run_s)
        self._managed, self._consent = settings.slurm.partitions, Consent(settings.interrupt)
        self._partitions = frozenset(settings.interrupt.partitions or self._managed)
        self._since: dict[str, float] = {}  # by node that cleans up: since when
        self._ours: dict[str, tuple[float, bool]] = {}  # by job id: start of a run, and whether asrptd would manage it

    def tell(self, now: float) -> None:
        """Inform the policy before a decision: the attained service of jobs, and which may be preempted."""
        policy, jobs = self._policy, self._jobs.values()
        for job in jobs:
            if job.forgotten and job.interruption is None and self._mode.enforcing:
                job.interruption_resumed(now)
        if not may_interrupt(policy):
            return
        waiting = {JobId(t.record.job_id): t.service.past for t in jobs if t.service.past and not t.service.began}
        policy.served(waiting, [*(run for _, run in self.preemptible()), *self._cleaning(now)], now)

    def preemptible(self) -> Iterator[tuple[ManagedJob, PreemptibleRun]]:
        """The jobs that the policy may preempt; none outside of mode enforce."""
        if not may_interrupt(self._policy):
            return
        running = (t for t in self._jobs.values() if t.state is JobState.RUNNING and t.record.gpus_by_node)
        for job in running:
            if job.interruption is not None or not self.why_never(job):
                yield job, _run(job)

    def _cleaning(self, now: float) -> Iterator[PreemptibleRun]:
        """The GPUs of nodes that clean up after a job, while it does not last unusually long."""
        rooms = self._cluster.cleaning if self._mode.enforcing else {}
        self._since = {name: self._since.get(name, now) for name in rooms}
        for name, (gpus, held) in rooms.items():
            if now < self._since[name] + CLEANING_S:
                yield PreemptibleRun(JobId(name), {name: gpus}, 0.0, 0.0, now, ending=True, held=held, cleaning=True)

    def consents(self, job: ManagedJob) -> bool:
        """Whether its owner, partition or QOS lets the job be preempted."""
        return bool(self._consent.signal(job.record, job.tag))

    def why_never(self, job: ManagedJob) -> str:
        """Why a running job may not be preempted; "" if it may be."""
        record = job.record
        if not self._mode.enforcing:
            return "asrptd is not in mode enforce"
        if job.tag is None:
            return "the hook has not tagged it, so its owner's consent is unknown"
        if not self._consent.signal(record, job.tag):
            return "its owner has not agreed (--comment=asrpt:interrupt=USR1)"
        if job.service.silent_s:
            return "it was preempted before, and reported no checkpoint in time"
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
            read_request(job.unpinned, self._cluster.nodes, self._managed)
        except LeftToSlurm:
            return False
        return True

    def intend(self, decision: Preempt, now: float) -> None:
        """Note a preemption, which must be saved before the signal is sent. It counts, whatever its outcome."""
        job = self._jobs[decision.job_id]
        job.interruption_decided(now, decision.head.id)
        recorded = {**decision.reason.facts, "gpu_s": job.service.at(now), "nth": job.service.interruptions}
        self._record(job, "interrupt", now, **recorded)

    def intend_yields(self, now: float) -> None:
        """Note the jobs that must yield to maintenance now, which must be saved before the signal is sent."""
        for job in self._jobs.in_state(JobState.RUNNING):
            ahead = self._rules.maintenance_of(job.record, now)
            if ahead is None or job.interruption is not None or self.why_never(job):
                continue
            group, reports = job.tag.group if job.tag else "", bool(self._mark(job))
            if now >= ahead.start - self._checkpoints.grace_s(group, reports) - MAINTENANCE_S:
                job.interruption_decided(now, "")
                self._record(job, "yields", now, reservation=ahead.name)

    def intend_requeues(self, now: float) -> None:
        """Note the runs to requeue now, which must be saved before the request: Slurm may accept and forget it."""
        for job in self._jobs.values():
            under_way = job.interruption
            if under_way is None or not under_way.sent or job.record.state != "RUNNING" or not self._mode.enforcing:
                continue
            if self._reported(job, under_way) or now >= under_way.sent + self._grace_of(job, under_way):
                job.to_be_requeued()

    def carry_out(self, now: float) -> None:
        """Execute the next step of each preemption; outside of mode enforce, of none."""
        self._ours = {job_id: known for job_id, known in self._ours.items() if job_id in self._jobs}
        for job in self._jobs.values():
            if job.interruption is None:
                self._tell_owner(job, now)
            elif not self._mode.enforcing or job.record.state == PENDING:
                job.interruption_over()
            elif job.record.state == "RUNNING" or job.forgotten:
                self._step(job, job.interruption, now)

    def _tell_owner(self, job: ManagedJob, now: float) -> None:
        """Tell the owner of a job, once it runs again, that it reported no checkpoint. It is tried once."""
        service = job.service
        if not service.silent_s or service.told or job.state is not JobState.RUNNING or not self._mode.enforcing:
            return
        job.owner_told()
        signal = self._consent.signal(job.record, job.tag).removeprefix("B:") or "USR1"
        text = TOLD.format(seconds=service.silent_s, signal=signal)
        try:
            self._client.notify(job.record.job_id, text)
        except SlurmError as error:
            self._record(job, "owner-told", now, error=one_line(error))
        else:
            self._record(job, "owner-told", now)

    def _step(self, job: ManagedJob, under_way: Interruption, now: float) -> None:
        retried_s = self._grace_of(job, under_way) + GIVEN_UP * self._checkpoints.default_s
        late = now > (under_way.sent or under_way.at) + retried_s
        try:
            if job.forgotten:
                self._requeue(job, under_way, late, now)
            elif not under_way.sent and now >= job.record.start_time + self._handler_s:
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
            reported = self._reported(job, under_way)
            self._record(job, "requeued", now, reported=reported)
            job.requeue_accepted(0.0 if reported else now - under_way.sent)
            if reported and job.tag is not None:
                self._checkpoints.observed(job.tag.group, self._needed_s(job, under_way, now))
            return
        if late:
            raise SlurmError("Slurm accepts the requeue, but still shows the ended run as running or failed")
        job.requeued_again()
        self._record(job, "requeued-again", now)

    def _signal(self, job: ManagedJob, now: float) -> None:
        mark, name = self._mark(job), self._consent.signal(job.record, job.tag)
        if not name:  # the settings have changed
            job.interruption_over()
            return
        self._client.signal(job.record.job_id, name.removeprefix("B:"), batch=name.startswith("B:"))
        job.signalled(now, mark)
        self._record(job, "signalled", now, signal=name)

    def _grace_of(self, job: ManagedJob, under_way: Interruption) -> float:
        """How long the job has for its checkpoint after the signal."""
        return self._checkpoints.grace_s(job.tag.group if job.tag else "", bool(under_way.mark))

    def _needed_s(self, job: ManagedJob, under_way: Interruption, now: float) -> float:
        """Seconds from the signal to the report. If the file server's clock is wrong, until it was seen."""
        written = checkpoint_time(self._mark(job))
        return (written if under_way.sent <= written <= now else now) - under_way.sent

    def _reported(self, job: ManagedJob, under_way: Interruption) -> bool:
        """Whether it has reported a checkpoint since the signal."""
        return self._mark(job) != under_way.mark

    def _mark(self, job: ManagedJob) -> str:
        return checkpoint_mark(self._spool, str(job.record.number))

    def _record(self, job: ManagedJob, event: str, now: float, **facts: object) -> None:
        self._audit.record(now, event, job.record.job_id, user=job.record.user, **facts)


def _run(job: ManagedJob) -> PreemptibleRun:
    record, service = job.record, job.service
    return PreemptibleRun(
        job_id=JobId(record.job_id),
        gpus=dict(record.gpus_by_node),
        service=service.past,
        rate=service.rate,
        since=service.began or record.start_time,
        interruptions=service.interruptions,
        ending=job.interruption is not None,
        held=resources_of(record, sum(record.gpus_by_node.values())),
    )
