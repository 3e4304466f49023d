"""What one decision of asrptd was made from, as a document, and that decision made again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from slurm_asrpt.config.settings import parse_policy_settings
from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Startup
from slurm_asrpt.core.job import Job, JobId, JobProfile, Request
from slurm_asrpt.core.policies import power_saving
from slurm_asrpt.core.policies.base import Decision, Interrupt, Reason, Start
from slurm_asrpt.core.policies.snapshot import PolicySnapshot

T = TypeVar("T")
MOST_GPUS = 100_000
"""Of a node and of a job: what asks for more is no snapshot of a cluster, but it could fill the memory."""


@dataclass(frozen=True)
class Inputs(PolicySnapshot):
    """jobs: those that wait for the policy. startup: nodes that are not up."""

    jobs: tuple[Job, ...]
    startup: Startup | None = None

    def view(self) -> ClusterView:
        return ClusterView(self.nodes, self.free, self.free_cpus, self.free_memory, self.startup)


Count = Annotated[int, Field(ge=0, le=MOST_GPUS)]
Row = tuple[str, str, Count, Count, float, float, str, Count, float, int]
"""A job: id, user, GPUs, number of its profile, iterations, submit time, group, number of its request, limit, band."""


class Document(BaseModel):
    """``Inputs`` as JSON values: what many jobs share, profiles and requests, stands there once."""

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
    startup: Startup | None = None


_PROFILES, _REQUESTS = TypeAdapter(tuple[JobProfile, ...]), TypeAdapter(tuple[Request, ...])
_STARTUP = TypeAdapter(Startup)


def to_document(inputs: Inputs) -> dict[str, Any]:
    """As JSON values, the same for the same inputs."""
    startup = {} if inputs.startup is None else {"startup": _STARTUP.dump_python(inputs.startup)}
    profiles, profile_at = _numbered(job.profile for job in inputs.jobs)
    requests, request_at = _numbered(job.request for job in inputs.jobs)
    return {
        "now": inputs.now,
        "policy": inputs.policy,
        "settings": dict(inputs.settings),
        "fabric": {"inter": inputs.fabric.inter, "intra": inputs.fabric.intra},
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


def _numbered(values: Iterable[T]) -> tuple[tuple[T, ...], dict[int, int]]:
    """Those that differ, and the place of each among them by its id(): to hash a request is slow."""
    different, places = dict[T, int](), dict[int, int]()
    for value in values:
        if id(value) not in places:
            places[id(value)] = different.setdefault(value, len(different))
    return tuple(different), places


def _node(node: Node) -> dict[str, Any]:
    """Without what most nodes do not have."""
    whole = {"name": node.name, "gpus": node.gpus, "index": node.index, "gpu_type": node.gpu_type}
    return whole if node.speed == 1.0 else {**whole, "speed": node.speed}


def _row(job: Job, profile: int, request: int) -> list[Any]:
    head = [job.id, job.user, job.gpus, profile, job.predicted_iterations, job.submit_time]
    return [*head, job.group, request, job.time_limit, job.band]


def from_document(raw: Any) -> Inputs:
    """Raises ValueError for anything that is none."""
    found = Document.model_validate(raw)
    if any(node.gpus > MOST_GPUS for node in found.nodes):
        raise ValueError(f"a node with more than {MOST_GPUS} GPUs")
    if not math.isfinite(found.now):
        raise ValueError(f"no time: {found.now}")
    values = {name: getattr(found, name) for name in PolicySnapshot.__dataclass_fields__}
    checked = parse_policy_settings({**found.settings, "name": found.policy})
    values["settings"] = {name: getattr(checked, name) for name in found.settings}
    jobs = tuple(_job(row, found.profiles, found.requests) for row in found.jobs)
    return Inputs(**values, jobs=jobs, startup=found.startup)


def _job(row: Row, profiles: Sequence[JobProfile], requests: Sequence[Request]) -> Job:
    job_id, user, gpus, profile, iterations, submitted, group, request, limit, band = row
    try:
        shared = profiles[profile], requests[request]
    except IndexError:
        raise ValueError(f"job {job_id} has a profile or a request that is not there") from None
    return Job(JobId(job_id), user, gpus, shared[0], iterations, submitted, group, shared[1], limit, band)


def canonical(document: Any) -> str:
    """JSON text of which there is one for each value."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), default=sorted)  # sets: the candidates


def digest(document: Mapping[str, Any]) -> str:
    """16 hex digits that name these inputs."""
    return sha256(canonical(document).encode("ascii")).hexdigest()[:16]


def decide(inputs: Inputs) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The decision made again, and why those wait of whom it says nothing, in their order.

    Raises ValueError for inputs that no policy can follow.
    """
    policy = inputs.policy_with(inputs.jobs)
    decisions = decisions_of(power_saving.decide(policy, inputs.view(), inputs.jobs, inputs.now))
    said = {each["job"] for each in decisions}
    line = ((job_id, why) for job_id, why in policy.queue(inputs.now) if job_id not in said)
    return decisions, [{"job": job_id, "wait": _why(why), "until": None} for job_id, why in line]


def decisions_of(decisions: Iterable[Decision]) -> list[dict[str, Any]]:
    """As JSON values."""
    return [_decision(each) for each in decisions]


def _decision(decision: Decision) -> dict[str, Any]:
    if isinstance(decision, Interrupt):
        return {"job": decision.job_id, "interrupt": decision.head.id}
    if isinstance(decision, Start):
        placement = decision.placement
        where = {"gpus": dict(placement.gpus), "ranks": list(placement.ranks), "alpha": placement.alpha}
        return {"job": decision.job.id, "start": where, "key": list(decision.key)}
    return {"job": decision.job.id, "wait": _why(decision.reason), "until": decision.until}


def _why(reason: Reason) -> dict[str, Any]:
    return {"phase": str(reason.phase), "reason": reason.kind, "facts": dict(reason.facts)}
