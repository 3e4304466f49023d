"""Which running jobs asrpt-gated preempts for which waiting job: consent as currency (docs/decisions/0037).

A waiting job w may take the GPUs of running jobs V. Otherwise it would get them when these end, after r seconds at
least; it, or others in its place, would wait for r, if the queue lasts that long. Each of V loses the runtime of w and
what an interruption costs. w preempts V if what it gains, by weight, is ``interruption_gain`` times what V lose. With
one job in V this is preemptive Smith's rule with hysteresis.

w and V are jobs whose owners agree: whoever may be preempted may preempt. None of V has a higher priority of the site
than w (a lower band). Each is preempted at most
``max_interruptions`` times, not in the first ``min_run_s`` of a run, and never once it has started because it had
waited for its patience.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies.base import Phase, Preempt, PreemptibleRun, reason
from slurm_asrpt.core.policies.gated.fillers import Fillers
from slurm_asrpt.core.policies.gated.options import GatedOptions
from slurm_asrpt.core.policies.gated.queue import Waiting
from slurm_asrpt.core.policies.gated.servers import Servers, bits, enough
from slurm_asrpt.core.policies.running_jobs import OVERDUE_SHARE, RunningJobs, expected_end

EVERY_S = 60.0
"""Least time between two decisions that may preempt jobs. In between, the queue hardly changes."""
CONSIDERED = 16
"""Waiting jobs, those with the least work, that may preempt others in one decision."""
FAVOR = 0.5
"""The remaining work of a job that was preempted counts this much in the order: else it would wait for others, too."""
LATE_S = 600.0
"""If preempted jobs have not ended by then, the job for which they were preempted waits like any other."""


@dataclass(frozen=True)
class Claim:
    """Servers, a mask, that a job gets when the jobs that it has preempted have ended; until: else it waits again."""

    entry: Waiting
    mask: int
    victims: frozenset[JobId]
    until: float


class Victims(NamedTuple):
    """The jobs to preempt on some servers, a mask."""

    mask: int
    runs: Sequence[PreemptibleRun]


@dataclass
class Interruptions:
    """The jobs that may be preempted, the claims of jobs that have preempted others, and what interrupted jobs did.

    attained: GPU-seconds of waiting jobs in earlier runs. cleaning: the GPUs of nodes that clean up, by node. ending:
    jobs that are being preempted. weights, bands, since: of running jobs that the policy has started; since: when their
    waits began. spared: those that are not to be preempted. waited: when the waits of jobs began that were preempted.
    next_time: when jobs may be preempted again.
    """

    options: GatedOptions
    runs: Mapping[JobId, PreemptibleRun] = field(default_factory=dict)
    cleaning: Mapping[str, PreemptibleRun] = field(default_factory=dict)
    attained: Mapping[JobId, float] = field(default_factory=dict)
    ending: set[JobId] = field(default_factory=set)
    claims: dict[JobId, Claim] = field(default_factory=dict)
    weights: dict[JobId, float] = field(default_factory=dict)
    bands: dict[JobId, float] = field(default_factory=dict)
    since: dict[JobId, float] = field(default_factory=dict)
    spared: set[JobId] = field(default_factory=set)
    waited: dict[JobId, float] = field(default_factory=dict)
    next_time: float = 0.0
    _by_node: dict[str, list[PreemptibleRun]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fillers = Fillers(self.options)

    def served(self, waiting: Mapping[JobId, float], runs: Sequence[PreemptibleRun]) -> None:
        self.attained, self.runs = waiting, {run.job_id: run for run in runs if not run.cleaning}
        self.cleaning = {run.job_id: run for run in runs if run.cleaning}

    def dump(self, nodes: Sequence[Node]) -> dict[str, Any]:
        """The state as JSON values; the entries of claims are saved with the waiting jobs."""
        return {
            "runs": [asdict(run) for run in [*self.runs.values(), *self.cleaning.values()]],
            "attained": dict(self.attained),
            "ending": sorted(self.ending),
            "claims": {
                job_id: [[nodes[at].name for at in bits(claim.mask)], sorted(claim.victims), claim.until]
                for job_id, claim in self.claims.items()
            },
            "weights": self.weights,
            "bands": self.bands,
            "since": self.since,
            "spared": sorted(self.spared),
            "waited": self.waited,
            "next": self.next_time,
            "fillers": self.fillers.dump(),
        }

    def load(self, raw: Mapping[str, Any]) -> None:
        """All but the claims, into a new object. Raises KeyError, TypeError, ValueError, AttributeError."""
        runs = [PreemptibleRun.read(run) for run in raw["runs"]]
        amounts = {
            name: {JobId(job_id): float(amount) for job_id, amount in raw[name].items()}
            for name in ("attained", "weights", "bands", "since", "waited")
        }
        self.served(amounts["attained"], runs)
        self.weights = amounts["weights"]
        self.bands, self.since, self.waited = amounts["bands"], amounts["since"], amounts["waited"]
        self.ending, self.spared = set(map(JobId, raw["ending"])), set(map(JobId, raw["spared"]))
        self.next_time = float(raw["next"])
        if "fillers" in raw:  # states before 2026-11-25 have none
            self.fillers.load(raw["fillers"])

    def is_time(self, now: float) -> bool:
        """Whether jobs may be preempted, and fillers started, in this decision."""
        if now < self.next_time or not (self.runs or self.options.fills):
            return False
        self.next_time = now + EVERY_S
        return True

    def left_s(self, job: Job, seconds: float, to_reference: float) -> float:
        """The expected remaining runtime of a waiting job, given that of the whole job, both in its best placement."""
        had = self.had_s(job, to_reference)
        if not had:
            return seconds
        return seconds - had if seconds > had else OVERDUE_SHARE * had + 1.0

    def favor(self, job: Job) -> float:
        """How much the remaining work of a waiting job counts."""
        preempted = job.interruptible and self.options.interrupts and job.id in self.attained
        return FAVOR if preempted and job.id not in self.fillers.yielded else 1.0

    def had_s(self, job: Job, to_reference: float) -> float:
        """The runtime of a waiting job in earlier runs from which it continues, in its best placement."""
        return self.attained.get(job.id, 0.0) / (job.gpus * to_reference) if job.interruptible else 0.0

    def started(self, entry: Waiting, late: bool) -> None:
        """A job starts. late: because it had waited for its patience."""
        job = entry.job
        self.weights[job.id], self.bands[job.id], self.since[job.id] = job.weight, job.band, entry.since
        if late:
            self.spared.add(job.id)

    def ended(self, job_id: JobId) -> bool:
        """A running job has ended. Returns whether that was a preemption."""
        self.weights.pop(job_id, None)
        self.bands.pop(job_id, None)
        self.spared.discard(job_id)
        since = self.since.pop(job_id, None)
        run = self.runs.get(job_id)
        preempted = job_id in self.ending or (run is not None and run.ending)  # since before a restart
        self.fillers.ended(job_id, run, preempted)
        if not preempted:
            self.waited.pop(job_id, None)  # cancelled before it waited again
            return False
        self.ending.discard(job_id)
        if since is not None:
            self.waited[job_id] = since
        return True

    def claim(self, entry: Waiting, mask: int, victims: Sequence[PreemptibleRun], now: float) -> list[Preempt]:
        """Preempt jobs for a waiting one, which gets their servers, a mask."""
        job, names = entry.job, frozenset(run.job_id for run in victims)
        self.claims[job.id] = Claim(entry, mask, names, now + LATE_S)
        self.ending |= names
        why = reason(Phase.RUNNING, "interrupting", head=job.id)
        return [Preempt(run.job_id, job, why) for run in victims]

    def to_give_back(self) -> list[PreemptibleRun]:
        """The fillers that may be preempted now."""
        able = (self.runs.get(job_id) for job_id in self.fillers.running if job_id not in self.ending)
        return [run for run in able if run is not None and not run.ending]

    def drop_claims(self) -> list[Waiting]:
        """The nodes have changed: the jobs with claims wait like any other."""
        entries = [claim.entry for claim in self.claims.values()]
        self.claims.clear()
        return entries

    @property
    def claimed(self) -> int:
        """The servers of all claims, as a mask."""
        found = 0
        for claim in self.claims.values():
            found |= claim.mask
        return found

    def due(self, bit_of: Mapping[str, int], now: float) -> Iterator[Claim]:
        """The claims whose GPUs are free, and those that are late; they are claims no longer. bit_of: of each node."""
        dirty = sum([bit_of.get(name, 0) for name in self.cleaning])
        for claim in list(self.claims.values()):
            free = claim.victims.isdisjoint(self.ending) and not claim.mask & dirty
            if free or now >= claim.until:
                self.ending -= claim.victims
                yield self.claims.pop(claim.entry.job.id)

    def choose(
        self, entry: Waiting, wait_s: float, servers: Servers, nodes: Sequence[Node], running: RunningJobs, now: float
    ) -> Victims | None:
        """The jobs to preempt for this one; None if that does not pay. wait_s: the most that it can gain, seconds."""
        loss_s = entry.seconds + self.options.interruption_s
        gain = entry.job.weight * wait_s / self.options.interruption_gain
        if gain <= loss_s * min(self.weights.values(), default=1.0):
            return None
        found = self._cheapest(entry, servers, nodes, running, now)
        if found is None or not found.runs:
            return None
        ends = min(self._left(run, running, now) for run in found.runs)
        gain = entry.job.weight * min(wait_s, ends) / self.options.interruption_gain
        return found if gain > loss_s * sum(self.weights.get(run.job_id, 1.0) for run in found.runs) else None

    def _cheapest(
        self, entry: Waiting, servers: Servers, nodes: Sequence[Node], running: RunningJobs, now: float
    ) -> Victims | None:
        """The fewest jobs whose GPUs, with those that are free, suffice on the fewest servers."""
        group = entry.choices[0].group
        needs = group.free_times.needs(entry.job)
        among, free, by_node = needs.mask & ~self.claimed, servers.view.free, self._by_node
        options = list[tuple[float, float, int, list[PreemptibleRun]]]()
        for at in bits(among):
            name, size = nodes[at].name, nodes[at].gpus
            want = entry.job.gpus if needs.servers == 1 else size
            able = [run for run in by_node.get(name, ()) if self.bands.get(run.job_id, -1) >= entry.job.band]
            soon = self.cleaning[name].gpus[name] if name in self.cleaning else 0
            chosen = enough(able, name, want - free.get(name, 0) - soon)
            if chosen is not None:
                ends = min((self._left(run, running, now) for run in chosen), default=0.0)
                options.append((sum(self.weights.get(run.job_id, 1.0) for run in chosen), -ends, at, chosen))
        if len(options) < needs.servers:
            return None
        best = sorted(options, key=lambda one: one[:3])[: needs.servers]
        victims = {run.job_id: run for one in best for run in one[3]}
        return Victims(sum(1 << one[2] for one in best), list(victims.values()))

    def look(self, running: RunningJobs, now: float) -> None:
        """Find the runs that may be preempted, by node; those with the most time left first."""
        options, found = self.options, dict[str, list[PreemptibleRun]]()
        for run in self.runs.values():
            if run.ending or run.job_id in self.ending or run.job_id in self.spared | self.fillers.running.keys():
                continue
            if run.interruptions >= options.max_interruptions or now < run.since + options.min_run_s:
                continue
            for name in run.gpus:
                found.setdefault(name, []).append(run)
        for runs in found.values():
            runs.sort(key=lambda run: -self._left(run, running, now))
        self._by_node = found

    def _left(self, run: PreemptibleRun, running: RunningJobs, now: float) -> float:
        known = running.runs.get(run.job_id)
        return 0.0 if known is None else expected_end(known, now) - now
