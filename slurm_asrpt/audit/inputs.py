"""The inputs of one decision of asrptd as a JSON document, and the replay of that decision."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from slurm_asrpt.config.settings import parse_policy_settings
from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Startup, copy_of
from slurm_asrpt.core.job import Job, JobId, JobProfile, PreemptionClass, Request
from slurm_asrpt.core.limits import Charges
from slurm_asrpt.core.policies import power_saving
from slurm_asrpt.core.policies.base import Decision, Preempt, Reason, Start
from slurm_asrpt.core.policies.snapshot import PolicySnapshot
from slurm_asrpt.core.slurm_preemption import Preemptable

T = TypeVar("T")
MAX_GPUS = 100_000
"""Of a node or a job. A larger number would only fill the memory."""


@dataclass(frozen=True)
class Inputs(PolicySnapshot):
    """The inputs of a decision. jobs: those in the policy's queue.

    startup: nodes that are not up. preemptable: running jobs that they may preempt.
    """

    jobs: tuple[Job, ...]
    startup: Startup | None = None
    preemptable: Preemptable | None = None

    def view(self) -> ClusterView:
        view = super().view()
        view.startup = self.startup
        view.preemptable = self.preemptable
        return view


Count = Annotated[int, Field(ge=0, le=MAX_GPUS)]
Row = tuple[str, str, Count, Count, float, float, str, Count, float, int]
"""A job: id, user, GPUs, profile index, iterations, submit time, group, request index, time limit, band."""


class Document(BaseModel):
    """``Inputs`` as JSON values. Profiles and requests, which many jobs share, are listed once."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    now: float
    policy: str
    settings: dict[str, Any]
    fabric: Fabric
    nodes: tuple[Node, ...]
    free: dict[str, Count]
    free_cpus: dict[str, float] | None
    free_memory: dict[str, float] | None
    state: dict[str, Any]
    profiles: tuple[JobProfile, ...]
    requests: tuple[Request, ...]
    jobs: tuple[Row, ...]
    headroom: dict[str, float] = Field(default_factory=dict)
    charges: dict[str, Charges] = Field(default_factory=dict)
    startup: Startup | None = None
    weights: dict[str, float] = Field(default_factory=dict)
    preemption: dict[str, PreemptionClass] = Field(default_factory=dict)
    preemptable: Preemptable | None = None
    turns: dict[str, float] = Field(default_factory=dict)
    interruptible: frozenset[str] = frozenset()
    indexes: dict[str, int] | None = None
    kept: dict[str, tuple[float, float]] = Field(default_factory=dict)
    free_gres: dict[str, dict[str, float]] | None = None


_PREEMPTABLE = TypeAdapter(Preemptable)
_PROFILES, _REQUESTS = TypeAdapter(tuple[JobProfile, ...]), TypeAdapter(tuple[Request, ...])
_STARTUP = TypeAdapter(Startup)


def to_document(inputs: Inputs) -> dict[str, Any]:
    """The inputs as JSON values; equal inputs give equal values."""
    startup = {} if inputs.startup is None else {"startup": _STARTUP.dump_python(inputs.startup)}
    profiles, profile_at = _numbered(job.profile for job in inputs.jobs)
    requests, request_at = _numbered(job.request for job in inputs.jobs)
    charges = {str(job.id): [list(each) for each in job.charges] for job in inputs.jobs if job.charges}
    limits = {"headroom": dict(inputs.headroom), "charges": charges} if charges else {}  # most sites have none
    weights = {str(job.id): job.weight for job in inputs.jobs if job.weight != 1.0}
    turns = {str(job.id): job.turn for job in inputs.jobs if job.turn is not None}
    interruptible = sorted([job.id for job in inputs.jobs if job.interruptible])
    return {
        **limits,
        **({"weights": weights} if weights else {}),
        **_preemption(inputs),
        **({"turns": turns} if turns else {}),
        **({"interruptible": interruptible} if interruptible else {}),
        **({"indexes": dict(inputs.indexes)} if inputs.indexes is not None else {}),
        **({"kept": {name: list(room) for name, room in inputs.kept.items()}} if inputs.kept else {}),
        **({"free_gres": copy_of(inputs.free_gres)} if inputs.free_gres else {}),
        "now": inputs.now,
        "policy": inputs.policy,
        "settings": dict(inputs.settings),
        "fabric": _fabric(inputs.fabric),
        "nodes": [_node(node) for node in inputs.nodes],
        "free": dict(inputs.free),
        "free_cpus": inputs.free_cpus and dict(inputs.free_cpus),
        "free_memory": inputs.free_memory and dict(inputs.free_memory),
        "state": inputs.state,
        "profiles": _PROFILES.dump_python(profiles),
        "requests": _REQUESTS.dump_python(requests),
        "jobs": [_row(job, profile_at[id(job.profile)], request_at[id(job.request)]) for job in inputs.jobs],
        **startup,
    }


def _preemption(inputs: Inputs) -> dict[str, Any]:
    """Empty where no job may preempt another."""
    classes = {str(job.id): job.preemption for job in inputs.jobs if job.preemption is not None}
    shown = {id_: {"kind": each.kind, "preempts": sorted(each.preempts)} for id_, each in classes.items()}
    running = {"preemptable": _PREEMPTABLE.dump_python(inputs.preemptable)} if inputs.preemptable else {}
    return {**({"preemption": shown} if shown else {}), **running}


def _numbered(values: Iterable[T]) -> tuple[tuple[T, ...], dict[int, int]]:
    """The distinct values, and the index of each by its id(), because hashing a request is slow."""
    distinct, index = dict[T, int](), dict[int, int]()
    for value in values:
        if id(value) not in index:
            index[id(value)] = distinct.setdefault(value, len(distinct))
    return tuple(distinct), index


def _fabric(fabric: Fabric) -> dict[str, Any]:
    """The fabric; the bandwidths beyond the first switches, and NVLink domains, only if it has any, as few have."""
    beyond = {"beyond": list(fabric.beyond)} if fabric.beyond else {}
    domains = {"domain": fabric.domain, "across": fabric.across} if fabric.domain else {}
    return {"inter": fabric.inter, "intra": fabric.intra, **beyond, **domains}


def _node(node: Node) -> dict[str, Any]:
    """A node; its speed and weight only if they are not 1, and its switches only if Slurm has a topology."""
    whole: dict[str, Any] = {"name": node.name, "gpus": node.gpus, "index": node.index, "gpu_type": node.gpu_type}
    if node.speed != 1.0:
        whole["speed"] = node.speed
    if node.weight != 1:
        whole["weight"] = node.weight
    return {**whole, "switches": list(node.switches)} if node.switches else whole


def _row(job: Job, profile: int, request: int) -> list[Any]:
    head = [job.id, job.user, job.gpus, profile, job.predicted_iterations, job.submit_time]
    return [*head, job.group, request, job.time_limit, job.band]


def from_document(raw: Any) -> Inputs:
    """Parse a document. Raises ValueError if it is not valid."""
    found = Document.model_validate(raw)
    if any(node.gpus > MAX_GPUS for node in found.nodes):
        raise ValueError(f"a node with more than {MAX_GPUS} GPUs")
    if found.fabric.domain > MAX_GPUS:
        raise ValueError(f"an NVLink domain of more than {MAX_GPUS} GPUs")
    if not math.isfinite(found.now):
        raise ValueError(f"not a time: {found.now}")
    values = {name: getattr(found, name) for name in PolicySnapshot.__dataclass_fields__}
    checked = parse_policy_settings({**found.settings, "name": found.policy})
    values["settings"] = {name: getattr(checked, name) for name in found.settings}
    jobs = (_job(row, found.profiles, found.requests) for row in found.jobs)
    ruled = (_ruled(job, found) for job in jobs)
    return Inputs(**values, jobs=tuple(ruled), startup=found.startup, preemptable=found.preemptable)


def _ruled(job: Job, found: Document) -> Job:
    """The job with what the site's rules and its owner's consent say of it."""
    charges, weight = found.charges.get(job.id, ()), found.weights.get(job.id, 1.0)
    preemption, turn = found.preemption.get(job.id), found.turns.get(job.id)
    consents = job.id in found.interruptible
    return replace(job, charges=charges, weight=weight, preemption=preemption, turn=turn, interruptible=consents)


def _job(row: Row, profiles: Sequence[JobProfile], requests: Sequence[Request]) -> Job:
    job_id, user, gpus, profile, iterations, submitted, group, request, limit, band = row
    try:
        shared = profiles[profile], requests[request]
    except IndexError:
        raise ValueError(f"the profile or request of job {job_id} is missing") from None
    return Job(JobId(job_id), user, gpus, shared[0], iterations, submitted, group, shared[1], limit, band)


def canonical(document: Any) -> str:
    """JSON text; equal values give equal text."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), default=sorted)  # sets: the candidates


def digest(document: Mapping[str, Any]) -> str:
    """16 hex digits that identify these inputs."""
    return sha256(canonical(document).encode("ascii")).hexdigest()[:16]


def decide(inputs: Inputs) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Replay the decision. Returns the decisions, and why the other jobs wait, in queue order.

    Raises ValueError for inputs that a policy cannot use.
    """
    policy = inputs.policy_with(inputs.jobs)
    decisions = decisions_of(power_saving.decide(policy, inputs.view(), inputs.jobs, inputs.now))
    decided = {each["job"] for each in decisions}
    others = ((job_id, why) for job_id, why in policy.queue(inputs.now) if job_id not in decided)
    return decisions, [{"job": job_id, "wait": _why(why), "until": None} for job_id, why in others]


def decisions_of(decisions: Iterable[Decision]) -> list[dict[str, Any]]:
    """The decisions as JSON values."""
    return [_decision(each) for each in decisions]


def _decision(decision: Decision) -> dict[str, Any]:
    if isinstance(decision, Preempt):
        return {"job": decision.job_id, "interrupt": decision.head.id}
    if isinstance(decision, Start):
        placement = decision.placement
        where = {"gpus": dict(placement.gpus), "ranks": list(placement.ranks), "alpha": placement.alpha}
        preempts = {"preempts": [victim.id for victim in decision.victims]} if decision.victims else {}
        return {"job": decision.job.id, "start": where, "key": list(decision.key), **preempts}
    return {"job": decision.job.id, "wait": _why(decision.reason), "until": decision.until}


def _why(reason: Reason) -> dict[str, Any]:
    return {"phase": str(reason.phase), "reason": reason.kind, "facts": dict(reason.facts)}
