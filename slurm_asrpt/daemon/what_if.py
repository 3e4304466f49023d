"""A job that is submitted now, as asrptd would admit and start it: from what asrptd publishes, without Slurm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from slurm_asrpt.config.settings import Mode, Settings
from slurm_asrpt.core.capacity import too_large
from slurm_asrpt.core.cluster import Node, with_reference_gpus
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.placement.best_alpha import BestAlphas, fits
from slurm_asrpt.core.sensitivity import planned
from slurm_asrpt.daemon.forecasts.run_lengths import span_of
from slurm_asrpt.daemon.jobs.managed_job import predicted
from slurm_asrpt.daemon.jobs.policy_job import check_mark, policy_job, queued_marks, with_prediction
from slurm_asrpt.daemon.jobs.request_reader import read_gpu_request
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.forecast.snapshot import Snapshot
from slurm_asrpt.forecast.what_if import WhatIfResult, simulate_submission
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.predict.communication import rate_in
from slurm_asrpt.predict.conformal import rounded_interval
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.slurm.gpu_defaults import as_counted
from slurm_asrpt.slurm.limits import charges_by_name, use_of
from slurm_asrpt.slurm.partitions import before_submission
from slurm_asrpt.slurm.records import JobRecord, NodeRecord
from slurm_asrpt.slurm.request import LeftToSlurm, served_gpus
from slurm_asrpt.status.document import Status


@dataclass(frozen=True)
class Admitted:
    """A job as asrptd would plan it.

    tag: with the prediction in iterations of the job. unused_profile: why asrptd would ignore its profile.
    by_slurm: why Slurm would choose its nodes.
    """

    job: Job
    tag: Tag
    unused_profile: str
    by_slurm: str

    @property
    def communicates(self) -> bool:
        """Whether it has no profile, and asrptd has learned that nodes far apart slow down such jobs."""
        return self.job.communication_known and not self.job.profiled


def with_adjusted_interval(tag: Tag, uid: int, snapshot: Snapshot) -> Tag:
    """The tag with the interval that asrptd would use instead of the table's."""
    if not tag.high:
        return tag
    low, high = rounded_interval(*snapshot.moves.adjusted(uid, tag.low, tag.iterations, tag.high))
    return replace(tag, low=low, high=high)


def as_admitted(settings: Settings, record: JobRecord, tag: Tag, status: Status, snapshot: Snapshot) -> Admitted:
    """The job as asrptd would admit it in its mode. Raises LeftToSlurm."""
    enforcing, nodes = status.mode == Mode.ENFORCE, snapshot.slurm_nodes
    if record.array_tasks and not enforcing:
        raise LeftToSlurm("array")
    profiles = Profiles(lambda name: load_named(name, settings.paths.profiles))
    record = before_submission(as_counted(record, snapshot.gpu_defaults, nodes), snapshot.partitions)
    check_mark(tag, queued_marks(settings) if enforcing else ())
    requested = read_gpu_request([record], tag.left, enforcing, nodes, settings.slurm.partitions)
    job = policy_job(record, tag, requested, nodes, profiles)
    if requested.by_slurm and not fits(job, snapshot.nodes):
        raise LeftToSlurm(requested.by_slurm)
    unused = profiles.problem(tag, job.gpus) if tag.profile and not job.profiled else ""
    job, tag = _predicted(job, tag, record.uid, snapshot)
    charges = charges_by_name(use_of(record, job.gpus, nodes=nodes), snapshot.headroom)
    job = replace(job, charges=charges, weight=_weight(record.user, status, snapshot))
    return Admitted(job, tag, unused, requested.by_slurm)


def is_rejected(job: Job, nodes: Sequence[NodeRecord]) -> bool:
    """Whether no node has the CPUs and the memory for the GPUs that it needs of one, even if it is idle."""
    asked, parts = job.request, [part for node in nodes for part in node.parts]
    least = job.gpus if asked.max_nodes == 1 else asked.per_node or asked.unit
    large = [part for part in parts if part.gpus >= least and part.name in (asked.candidates or {part.name})]
    able = [part for part in large if part.memory >= asked.memory_per_node and served_gpus(part, asked) >= least]
    return bool(large) and not able


def simulated(
    admitted: Admitted,
    status: Status,
    snapshot: Snapshot,
    budget_s: float = math.inf,
    progress: Callable[[int], object] = lambda drawn: None,
) -> WhatIfResult:
    """Where and when the job would start, and why not earlier, as asrptd says it. budget_s: CPU seconds."""
    job, tag = admitted.job, admitted.tag
    found = simulate_submission(
        *(snapshot, job, lambda alpha: span_of(tag.iterations, tag.low, tag.high, alpha, snapshot.unknown)),
        *(budget_s, progress),
    )
    return _with_lacks(found, job, status, snapshot)


def _predicted(job: Job, tag: Tag, uid: int, snapshot: Snapshot) -> tuple[Job, Tag]:
    """The job and its tag with the prediction in iterations; if no profile is named, with what has been learned."""
    best = BestAlphas(with_reference_gpus(snapshot.nodes), snapshot.fabric)
    rate = 0.0 if tag.profile else rate_in(snapshot.rates, tag.group, tag.program, uid)
    job = planned(job, rate, best.alpha)
    alpha = (best.alpha(job) or 0.0) if job.profiled else 1.0
    return with_prediction(job, tag, alpha), predicted(tag, job, alpha)


def _weight(user: str, status: Status, snapshot: Snapshot) -> float:
    """By age, fair share and size, as that of the user's latest waiting job, else of most jobs."""
    waiting = [job for job in status.jobs if job.rank is not None]
    own = [job for job in waiting if job.user == user]
    if own:
        return max(own, key=lambda job: job.submit_time).weight
    weights = [job.weight for job in waiting] or [each.job.weight for each in snapshot.recent]
    return median_low(weights) if weights else 1.0


def _with_lacks(found: WhatIfResult, job: Job, status: Status, snapshot: Snapshot) -> WhatIfResult:
    """The result with what too large a job lacks, which has no place in the queue."""
    if found.reason is None or found.reason.kind != "capacity":
        return found
    usable = {node.name for node in snapshot.nodes}
    others = [Node(node.name, node.gpus, at) for at, node in enumerate(status.nodes) if node.name not in usable]
    facts = too_large(job, snapshot.nodes, [*snapshot.nodes, *others])
    return replace(found, reason=replace(found.reason, facts=facts), rank=None)
