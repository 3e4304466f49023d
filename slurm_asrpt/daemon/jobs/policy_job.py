"""The policy's job, made from Slurm's record and the hook's tag alone: without what asrptd did with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.job import Job, JobId, JobProfile, Request, unprofiled
from slurm_asrpt.core.placement.best_alpha import fits
from slurm_asrpt.daemon.jobs.managed_job import predicted
from slurm_asrpt.daemon.profiles import MAX_PROFILES, Profiles
from slurm_asrpt.hook.tag import LEASED, Tag
from slurm_asrpt.slurm.records import JobRecord, NodeRecord
from slurm_asrpt.slurm.request import (
    JobRequest,
    LeftToSlurm,
    asks_for_no_gpus,
)

QUEUED_MARKS = ("interactive", "het", *LEASED)
"""Marks of the hook with which a job is in the queue."""


def queued_marks(settings: Settings) -> tuple[str, ...]:
    """These, and that of opting out unless owners may."""
    return QUEUED_MARKS if settings.slurm.allow_opt_out else (*QUEUED_MARKS, "off")


def is_without_gpus(record: JobRecord, tag: Tag | None, components: Sequence[JobRecord]) -> bool:
    """Whether a job is in the queue of those without GPUs, given all components of a heterogeneous one."""
    in_queue = tag is not None and (not tag.left or (tag.left == "het" and bool(components)))
    return in_queue and all(map(asks_for_no_gpus, components or [record]))


def check_mark(tag: Tag | None, marked: Sequence[str]) -> Tag:
    """The tag of a job that is in the queue. marked: the marks with which it is all the same. Raises LeftToSlurm."""
    if tag is None:
        raise LeftToSlurm("untagged")
    if tag.left and tag.left not in marked:
        raise LeftToSlurm(tag.left)
    return tag


def policy_job(
    record: JobRecord, tag: Tag, requested: JobRequest, nodes: Sequence[NodeRecord], profiles: Profiles
) -> Job:
    """The job as the policy gets it, without its prediction. record: without any pin. nodes: all nodes of Slurm."""
    return _make_job(record, tag, requested, _profile(tag, requested, nodes, profiles))


def anywhere(record: JobRecord, reservation: str = "") -> JobRecord:
    """The record as if it named no reservation. Raises LeftToSlurm if it names another one than this."""
    if reservation and record.reservation != reservation:
        raise LeftToSlurm("reservation")
    return replace(record, reservation="")


def with_prediction(job: Job, tag: Tag | None, alpha: float) -> Job:
    """The job with the prediction in its tag. alpha: seconds per iteration in its best placement on reference GPUs."""
    return replace(job, predicted_iterations=float(predicted(tag, job, alpha).order)) if tag else job


def without_nodes(job: Job, names: frozenset[str]) -> Job:
    """The job with these nodes excluded."""
    if not names:
        return job
    candidates = (job.request.candidates or frozenset()) - names
    return replace(job, request=replace(job.request, candidates=candidates))


def within_reservations(job: Job, reserved: Sequence[frozenset[str]]) -> Job:
    """The job as one that runs either within one of these sets of nodes, rather there, or on none of them."""
    if not reserved:
        return job
    request = job.request
    sets = request.within or (request.candidates or frozenset(),)
    inside = [names & each for each in reserved for names in sets]
    outside = [names.difference(*reserved) for names in sets]
    within = tuple(names for names in [*inside, *outside] if names)
    bound = bool(request.within) or len(within) > 1
    return replace(job, request=replace(request, within=within if bound else ()))


def _profile(tag: Tag, requested: JobRequest, nodes: Sequence[NodeRecord], profiles: Profiles) -> JobProfile:
    """The named profile, if the request and the nodes keep its tensor slices together."""
    profile = profiles.of(tag, requested.gpus)
    if profile.tensor == 1 or _keeps_slices(profile, requested, nodes):
        return profile
    profiles.problems[tag.profile] = [
        f"profile {tag.profile} has {profile.tensor} GPUs a replica on one server, which a job's request or nodes part"
    ]
    return unprofiled(requested.gpus)


def _keeps_slices(profile: JobProfile, requested: JobRequest, nodes: Sequence[NodeRecord]) -> bool:
    """Whether Slurm would keep slices together if all nodes were free; else the job would wait forever."""
    allowed = requested.request.candidates or frozenset()
    parts = (part for n in nodes for part in n.parts)
    servers = [Node(n.name, n.gpus, n.index, n.gpu_type) for n in parts if n.name in allowed]
    try:
        job = Job(JobId(""), "", requested.gpus, profile, request=requested.request)
    except ValueError:  # this number of GPUs per node splits slices
        return False
    return fits(job, servers)


def _make_job(record: JobRecord, tag: Tag, requested: JobRequest, profile: JobProfile) -> Job:
    return Job(
        id=JobId(record.job_id),
        user=record.user,
        gpus=requested.gpus,
        profile=profile,
        submit_time=max(record.submit_time, float(tag.begin)),
        group=tag.group,
        request=_the_same(requested.request),
        time_limit=record.time_limit or math.inf,
    )


@lru_cache(MAX_PROFILES)
def _the_same(request: Request) -> Request:
    """One object for equal requests: hashing and comparing them is slow, and most jobs share a few requests."""
    return request
