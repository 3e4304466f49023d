"""The servers available to asrpt-gated in one decision, as masks of their positions in the node table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from slurm_asrpt.core.cluster import ClusterView, Placement
from slurm_asrpt.core.free_index import Plan, plain
from slurm_asrpt.core.job import ANYWHERE, Job, JobId
from slurm_asrpt.core.policies.base import PreemptibleRun
from slurm_asrpt.core.policies.running_jobs import RunningJobs
from slurm_asrpt.core.slurm_preemption import Preemptable, PreemptableJob, SlurmPreemptionPlan

_INF = float("inf")


@dataclass(frozen=True)
class Reservation:
    """Servers reserved for a job. mask: their positions in the node table. time: when they are predicted to be free.

    kept: the job goes first, and keeps these servers from decision to decision.
    exclusive: no other job may use them meanwhile, however short.
    able: mask of the servers that the job could use; -1 for all.
    share: GPUs that the job needs of each of these servers, if it asks for parts of several, or of one that has these,
    but lacks CPUs or the like; 0: all of theirs.
    """

    job: Job
    mask: int
    time: float
    kept: bool = False
    exclusive: bool = False
    able: int = field(default=-1, compare=False)
    share: int = field(default=0, compare=False)

    def beside(self, servers: Servers, gpus: int) -> int:
        """Those of them on which a job of one server with so many GPUs leaves the reserved ones free, as a mask."""
        if not self.share or self.exclusive:
            return 0
        return self.mask & servers.with_free(self.share + gpus, len(servers.masks) - 1)


class Servers:
    """The cluster after the starts of one decision.

    all: mask of all servers. masks: servers by free GPUs, as in ClusterView. plan: the starts; read-only.
    preemption: what jobs may preempt after the starts; None if nothing may be preempted.
    fillers: those that jobs may preempt whose turn it is (``fillers``).
    """

    def __init__(self, cluster: ClusterView, running_jobs: RunningJobs, fillers: Sequence[PreemptibleRun] = ()) -> None:
        self.plan = Plan(cluster)
        self.all = (1 << len(cluster.nodes)) - 1
        self.switches = cluster.switches
        self.masks: Sequence[int] = cluster.masks
        self.preemption = SlurmPreemptionPlan(cluster, cluster.preemptable) if cluster.preemptable else None
        self.fillers, self._filled = fillers, _gpus(fillers)
        self._running_jobs = running_jobs
        self._unfilled: Servers | None = None

    @property
    def unfilled(self) -> Servers:
        """The servers without fillers; the same if there are none."""
        if not self.fillers:
            return self
        if self._unfilled is None:
            jobs = tuple([PreemptableJob(run.job_id, "", run.gpus, 0.0, run.held) for run in self.fillers])
            view = Preemptable(jobs).freed(self.view, ("",))
            self._unfilled = Servers(view, self._running_jobs)
        return self._unfilled

    def to_preempt(self, job: Job, placement: Placement) -> list[PreemptibleRun]:
        """The fillers that must end for a placement on ``unfilled``.

        The fewest on each server; all there for a job that needs more than GPUs.
        """
        chosen = dict[JobId, PreemptibleRun]()
        if not self.plain(job):
            return [run for run in self.fillers if not run.gpus.keys().isdisjoint(placement.gpus)]
        for name, count in placement.gpus.items():
            here = [run for run in self.fillers if name in run.gpus]
            lacks = count - self.view.free[name] - sum([run.gpus[name] for run in here if run.job_id in chosen])
            others = [run for run in here if run.job_id not in chosen]
            chosen |= {run.job_id: run for run in enough(others, name, lacks) or ()}
        return list(chosen.values())

    def preempted(self, fillers: Collection[JobId]) -> None:
        """These are being preempted. Their GPUs are not free until they have ended."""
        self.fillers = [run for run in self.fillers if run.job_id not in fillers]
        self._filled = _gpus(self.fillers)
        self._unfilled = None

    def preempting(self, job: Job) -> Servers | None:
        """The servers without the jobs that this job may preempt; None if there are none."""
        if self.preemption is None or not job.preempts:
            return None
        view = self.preemption.view(job.preempts)
        return Servers(view, self._running_jobs) if view.total_free > self.free else None

    @property
    def room(self) -> int:
        """Free GPUs, those of fillers, and those that any job may preempt."""
        free = self.plan.free + self._filled
        return free if self.preemption is None else max(free, self.preemption.most)

    def room_for(self, job: Job) -> int:
        """Free GPUs, and those that the job may preempt."""
        if self.preemption is None or not job.preempts:
            return self.plan.free
        return self.preemption.view(job.preempts).total_free

    @property
    def free(self) -> int:
        """Free GPUs."""
        return self.plan.free

    @property
    def view(self) -> ClusterView:
        """The cluster after the starts; read-only."""
        return self.plan.view()

    def start(self, job: Job, placement: Placement) -> tuple[PreemptableJob, ...]:
        """Plan a start. Returns the jobs that Slurm is expected to preempt for it."""
        victims: tuple[PreemptableJob, ...] = ()
        if self.preemption is None:
            self.plan.add(job, placement)
        elif self._is_free(placement):
            self.plan.add(job, placement)
            self.preemption.add(job, placement.gpus)
        else:
            self.plan.add_preempting(job, placement)
            victims = self.preemption.add_preempting(job, placement.gpus)
        self.masks = self.plan.masks()
        self._unfilled = None
        return victims

    def _is_free(self, placement: Placement) -> bool:
        free = self.view.free
        return all(count <= free[name] for name, count in placement.gpus.items())

    def plain(self, job: Job) -> bool:
        """Whether only free GPUs count (see ``free_index.plain``)."""
        if job.request is not ANYWHERE and job.request != ANYWHERE:
            return False
        return self.plan.counts_only or plain(job, self.view)

    def with_free(self, least: int, most: int) -> int:
        """The servers with ``least`` to ``most`` free GPUs."""
        found = 0
        for mask in self.masks[least : most + 1]:
            found |= mask
        return found

    def free_later(self, among: int, end: float, protected: int) -> int:
        """The servers of ``among`` but those of ``protected`` that are busy and predicted to be free before ``end``."""
        free_at = self._running_jobs.free_at
        for at in bits(among & protected & self._running_jobs.used & ~self.masks[0]):
            if free_at[at] < end:
                among ^= 1 << at
        return among

    def nearest(self, gpus: int, size: int, among: int, end: float, protected: int) -> int | None:
        """A server of ``among``, all of ``size`` GPUs, that has ``gpus`` free; None if there is none.

        Prefers the busy server with the nearest predicted end at or after ``end``, then the nearest before it (never
        one of ``protected``), then an idle server.
        """
        free_at, used = self._running_jobs.free_at, self._running_jobs.used & protected
        after, before, first, last = _INF, _INF, -1, -1  # the nearest ends after and before, and their places
        left = self.with_free(gpus, size - 1) & among
        while left:  # ``bits``, inlined: a decision spends most of its time here
            bit = left & -left
            left ^= bit
            at = bit.bit_length() - 1
            gap = free_at[at] - end
            if gap >= 0:
                if gap < after:
                    after, first = gap, at
            elif not used & bit and (-gap < before or last < 0):
                before, last = -gap, at
        if first >= 0 or last >= 0:
            return first if first >= 0 else last
        idle = self.masks[size] & among
        if protected:
            idle = self.free_later(idle, end, protected)
        if self.switches is not None and idle:
            idle = self.switches.fewest(idle, 1)  # the other switches keep more idle servers together
        return (idle & -idle).bit_length() - 1 if idle else None

    def several(self, whole: int, rest: int, size: int, among: int) -> tuple[list[int], tuple[int, ...]] | None:
        """Servers of ``among`` for a job that needs ``whole`` idle servers of ``size`` GPUs, and ``rest`` more GPUs.

        Returns their positions in the node table, ascending, and the GPUs that Slurm allocates on each; None if there
        are no such servers.
        """
        idle = self.masks[size] & among
        if idle.bit_count() < whole:
            return None
        chosen = list(bits(idle, whole))
        if not rest:
            return chosen, (size,) * whole
        last = self._for_remainder(among, chosen, rest)
        if last is None:
            return None
        counts = {**dict.fromkeys(chosen, size), last: rest}
        places = sorted(counts)
        return places, tuple([counts[at] for at in places])

    def by_switches(self, whole: int, rest: int, size: int, among: int) -> Iterable[int]:
        """Sets of ``among`` in which to look for ``several``: under the fewest switches first, all last."""
        if self.switches is None:
            return (among,)
        idle, others = self.masks[size] & among, self.with_free(rest, size - 1) & among if rest else 0

        def count(mask: int) -> int:
            return (idle & mask).bit_count() + bool(others & mask)

        return self.switches.each(idle | others, whole + bool(rest), count)

    def _for_remainder(self, among: int, chosen: Sequence[int], rest: int) -> int | None:
        """A server with exactly ``rest`` free GPUs, else the last of the least free servers behind the chosen ones.

        Slurm fills nodes in node-table order; an earlier server with more free GPUs would get more than ``rest``.
        """
        others = among & ~sum([1 << at for at in chosen])
        exact = self.masks[rest] & others
        if exact:
            return (exact & -exact).bit_length() - 1
        behind = others >> (chosen[-1] + 1) << (chosen[-1] + 1)
        for mask in self.masks[rest + 1 :]:
            if mask & behind:
                return (mask & behind).bit_length() - 1
        return None


def _gpus(runs: Iterable[PreemptibleRun]) -> int:
    return sum([sum(run.gpus.values()) for run in runs])


def bits(mask: int, most: int = -1) -> Iterator[int]:
    """The positions of the set bits, the lowest first; at most ``most``, or all for -1."""
    while mask and most:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
        most -= 1


def enough(runs: Sequence[PreemptibleRun], name: str, gpus: int) -> list[PreemptibleRun] | None:
    """The fewest of these runs that free as many GPUs on the node, of those with most time left; None if all do not."""
    chosen = list[PreemptibleRun]()
    for run in sorted(runs, key=lambda run: -min(run.gpus[name], gpus)):  # stable: the most time left first
        if gpus <= 0:
            break
        chosen.append(run)
        gpus -= run.gpus[name]
    return chosen if gpus <= 0 else None
