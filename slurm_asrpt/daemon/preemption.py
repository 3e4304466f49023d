"""Interruptions of running jobs that a policy decides: signal, checkpoint, requeue.

A job runs; is told (``Tracked.interruption``, saved before the signal is sent); has reported a checkpoint, or had its
time for one; is requeued, which Slurm shows as a new submit time; waits as any other. Whoever dies in between: the job
runs on, as it must be able to after a checkpoint, and a new daemon sends the signal again and waits again. Slurm is
asked to requeue only what has not ended, and answers that a job which requeued itself waits already. A slurmctld that
was killed before it wrote the requeue down shows the run as going on, or, once its node tells of the killed script's
end, as failed: it is asked again, without a signal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.policies.base import Interrupt, Interrupts, Run
from slurm_asrpt.daemon.jobs.admission import unpinned
from slurm_asrpt.daemon.jobs.managed_job import KILLED, Interruption, Place, Tracked
from slurm_asrpt.daemon.lifecycle import World
from slurm_asrpt.daemon.placements import held
from slurm_asrpt.errors import SlurmError, one_line
from slurm_asrpt.slurm.records import PENDING
from slurm_asrpt.slurm.request import LeftToSlurm, read_ask
from slurm_asrpt.spool import checkpoint_mark

GIVEN_UP = 3
"""After so many times ``interrupt.grace_s`` a Slurm that refuses has refused."""


class Interrupter:
    """Tells a policy that interrupts what runs, and carries out what it decides. ``carry_out`` raises nothing."""

    def __init__(self, world: World) -> None:
        self.world, self.parts, self.settings = world, world.parts, world.settings.interrupt
        self._partitions = frozenset(self.settings.partitions or world.settings.slurm.partitions)
        self._ours: dict[str, tuple[float, bool]] = {}  # by job id: a run, and whether it is one of asrptd's

    def tell(self, now: float) -> None:
        """Before a decision: what jobs have had, and who of them may be interrupted."""
        policy = self.parts.policy
        if not isinstance(policy, Interrupts):
            return
        tracked = self.world.tracked.values()
        for one in tracked:
            if one.forgotten and one.interruption is None and self.world.enforcing:
                one.interruption = Interruption(now, one.service.head)
        waiting = {JobId(t.record.job_id): t.service.past for t in tracked if t.service.past and not t.service.began}
        policy.served(waiting, [self._run(t, now) for t in self._may_be_interrupted()], now)

    def _run(self, tracked: Tracked, now: float) -> Run:
        record, service = tracked.record, tracked.service
        return Run(
            job_id=JobId(record.job_id),
            gpus=dict(record.gpus_by_node),
            service=service.at(now),
            rate=service.rate,
            since=record.start_time,
            interruptions=service.interruptions,
            ending=tracked.interruption is not None,
            held=held(record, sum(record.gpus_by_node.values())),
        )

    def _may_be_interrupted(self) -> Iterator[Tracked]:
        """Only what has been decided is under way in modes shadow and order, and that is nothing."""
        running = (t for t in self.world.tracked.values() if t.place is Place.RUNNING and t.record.gpus_by_node)
        for tracked in running:
            if tracked.interruption is not None or not self.why_never(tracked):
                yield tracked

    def why_never(self, tracked: Tracked) -> str:
        """What of its owner, the admin or Slurm keeps a running job from being interrupted; "" where nothing does."""
        record = tracked.record
        if not self.world.enforcing:
            return "asrptd is not in mode enforce"
        if tracked.tag is None:
            return "the hook has not tagged it, so that nobody has read whether its owner agrees"
        if not tracked.tag.interrupt:
            return "its owner has not agreed (--comment=asrpt:interrupt=USR1)"
        if not record.requeue:
            return "Slurm may not requeue it (--requeue)"
        if record.state != "RUNNING":
            return f"Slurm says {record.state}"
        if not set(record.partition.split(",")) <= self._partitions:
            return "its partition is not among interrupt.partitions"
        return "" if self._begins_again(tracked) else "it is one of those that are left to Slurm"

    def _begins_again(self, tracked: Tracked) -> bool:
        """Whether asrptd would start it again; looked up once in each run."""
        record = tracked.record
        run, ours = self._ours.get(record.job_id, (0.0, False))
        if run != record.start_time:
            ours = self._is_ours(tracked)
            self._ours[record.job_id] = (record.start_time, ours)
        return ours

    def _is_ours(self, tracked: Tracked) -> bool:
        if tracked.tag is None or tracked.tag.left:
            return False
        try:
            read_ask(unpinned(tracked.record, tracked.original), self.world.nodes, self.world.settings.slurm.partitions)
        except LeftToSlurm:
            return False
        return True

    def intend(self, decision: Interrupt, now: float) -> None:
        """Note an interruption, to be saved before anything is sent. It counts from now on, whatever becomes of it."""
        tracked = self.world.tracked[decision.job_id]
        service = replace(tracked.service, interruptions=tracked.service.interruptions + 1)
        tracked.service, tracked.interruption = service, Interruption(now, decision.head.id)
        told = {**decision.reason.facts, "gpu_s": service.at(now), "nth": service.interruptions}
        self._record(tracked, "interrupt", now, **told)

    def intend_requeues(self, now: float) -> None:
        """Note which runs are to end now, to be saved before Slurm is asked: it may take that and forget it."""
        for tracked in self.world.tracked.values():
            under_way = tracked.interruption
            if under_way is None or not under_way.sent or tracked.record.state != "RUNNING" or not self.world.enforcing:
                continue
            if self._reported(tracked, under_way) or now >= under_way.sent + self.settings.grace_s:
                tracked.to_be_requeued()

    def carry_out(self, now: float) -> None:
        """The next step of each interruption. Outside of mode enforce none goes on."""
        self._ours = {job_id: known for job_id, known in self._ours.items() if job_id in self.world.tracked}
        for tracked in self.world.tracked.values():
            if tracked.interruption is None:
                continue
            if not self.world.enforcing or tracked.record.state == PENDING:
                tracked.interruption = None
            elif tracked.record.state == "RUNNING" or tracked.forgotten:
                self._step(tracked, tracked.interruption, now)

    def _step(self, tracked: Tracked, under_way: Interruption, now: float) -> None:
        late = now > (under_way.sent or under_way.at) + GIVEN_UP * self.settings.grace_s
        try:
            if tracked.forgotten:
                self._requeue(tracked, under_way, late, now)
            elif not under_way.sent:
                self._signal(tracked, under_way, now)
        except SlurmError as error:
            if late:
                tracked.interruption = tracked.over = None
                self._record(tracked, "interrupt-refused", now, error=one_line(error))

    def _requeue(self, tracked: Tracked, under_way: Interruption, late: bool, now: float) -> None:
        """For the first time or again: one interruption all the same.

        Raises SlurmError, also where Slurm says yes and nothing comes of it.
        """
        first = under_way.sent > 0 and not under_way.asked
        try:
            self.parts.client.requeue(tracked.record.job_id, failed=tracked.record.state == KILLED)
        except SlurmError:
            tracked.over = None if first else tracked.over
            raise
        if first:
            tracked.interruption = replace(under_way, asked=True)
            self._record(tracked, "requeued", now, reported=self._reported(tracked, under_way))
            return
        if late:
            raise SlurmError("a run that is over is shown as going on or failed, whatever is asked")
        tracked.original = tracked.original or (tracked.over.original if tracked.over else None)
        self._record(tracked, "requeued-again", now)

    def _signal(self, tracked: Tracked, under_way: Interruption, now: float) -> None:
        assert tracked.tag is not None  # noqa: S101  (only tagged jobs are interrupted)
        mark, name = self._mark(tracked), tracked.tag.interrupt
        self.parts.client.signal(tracked.record.job_id, name.removeprefix("B:"), batch=name.startswith("B:"))
        tracked.interruption = replace(under_way, sent=now, mark=mark)
        self._record(tracked, "signalled", now, signal=name)

    def _reported(self, tracked: Tracked, under_way: Interruption) -> bool:
        """Whether it has written a checkpoint since it was told to."""
        return self._mark(tracked) != under_way.mark

    def _mark(self, tracked: Tracked) -> str:
        return checkpoint_mark(self.parts.settings.paths.spool, str(tracked.record.number))

    def _record(self, tracked: Tracked, event: str, now: float, **facts: object) -> None:
        self.parts.audit.record(now, event, tracked.record.job_id, user=tracked.record.user, **facts)
