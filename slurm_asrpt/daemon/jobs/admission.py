"""From what Slurm says of a job to what the policy gets: tag, request, profile, prediction."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter

from slurm_asrpt.config.settings import Mode
from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.job import Job, JobId, JobProfile, Request, unprofiled
from slurm_asrpt.core.placement.selection import fits, has_room
from slurm_asrpt.core.policies.base import Phase, Reason, reason
from slurm_asrpt.daemon.jobs.managed_job import Place, Tracked
from slurm_asrpt.daemon.lifecycle import World
from slurm_asrpt.daemon.parts import Parts
from slurm_asrpt.errors import InputError
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.profile.blocks import UncutFile
from slurm_asrpt.profile.shape import cut_for
from slurm_asrpt.profile.sizes import NO_SIZES, Sizes
from slurm_asrpt.slurm.records import JobRecord, NodeRecord
from slurm_asrpt.slurm.request import Ask, LeftToSlurm, read_ask
from slurm_asrpt.slurm.writeback import Original

LoadProfile = Callable[[str], JobProfile | UncutFile]
MOST_PROFILES = 4096


class Profiles:
    """Profiles by name, each file read once. A name that cannot be used counts as no profile; ``problems`` says why.

    A model that is not cut yet is cut to what a job's script says of it. Names are what users wrote: of more than
    ``most`` the one that was asked for longest ago is forgotten.
    """

    def __init__(self, load: LoadProfile, most: int = MOST_PROFILES) -> None:
        self._load, self._most = load, most
        self._known: OrderedDict[str, JobProfile | UncutFile | InputError] = OrderedDict()
        self._cut = lru_cache(most)(self._cut_now)
        self.problems: dict[str, str] = {}

    def of(self, tag: Tag | None, gpus: int) -> JobProfile:
        """That which a job's tag names, see ``get``."""
        return self.get(tag.profile, gpus, tag.sizes) if tag else unprofiled(gpus)

    def get(self, name: str, gpus: int, sizes: Sizes = NO_SIZES) -> JobProfile:
        """The profile of that name if it fits the GPUs, else the stand-in for an unprofiled job."""
        try:
            return self._use(name, gpus, sizes) if name else unprofiled(gpus)
        except InputError as error:
            self.problems[name] = str(error)
            return unprofiled(gpus)

    def problem(self, tag: Tag, gpus: int) -> str:
        """Why the profile that a job's tag names does not count; of jobs that name the same each may have its own."""
        try:
            self._use(tag.profile, gpus, tag.sizes)
        except InputError as error:
            return str(error)
        return self.problems.get(tag.profile, "")

    def _use(self, name: str, gpus: int, sizes: Sizes) -> JobProfile:
        """The profile of that name. Raises InputError where it cannot be used for so many GPUs."""
        found = self._named(name)
        try:
            profile = self._cut(name, sizes, gpus) if isinstance(found, UncutFile) else found
        except (ValueError, InputError) as error:
            raise InputError(f"profile {name} is not cut into stages: {error}") from None
        if profile.gpus != gpus:
            raise InputError(f"profile {name} is for {profile.gpus} GPUs, a job asks for {gpus}")
        return profile

    def _cut_now(self, name: str, sizes: Sizes, gpus: int) -> JobProfile:
        """By the name that says its shape: there may be a better file of that name. Raises ValueError, InputError."""
        document = self._known[name]
        assert isinstance(document, UncutFile)  # noqa: S101  (the caller has looked)
        found = self._load(f"{name}-{cut_for(document, sizes, gpus).suffix}")
        assert isinstance(found, JobProfile)  # noqa: S101  (names of shapes are of nothing else)
        return found

    def _named(self, name: str) -> JobProfile | UncutFile:
        """Raises InputError, each time, for one that cannot be read."""
        if name not in self._known:
            try:
                self._known[name] = self._load(name)
            except InputError as error:
                self._known[name] = error
        self._known.move_to_end(name)
        if len(self._known) > self._most:
            oldest, _ = self._known.popitem(last=False)
            self.problems.pop(oldest, None)
        found = self._known[name]
        if isinstance(found, InputError):
            raise InputError(str(found))
        return found


def admit(
    record: JobRecord, tag: Tag | None, nodes: Sequence[NodeRecord], partitions: Sequence[str], profiles: Profiles
) -> tuple[Ask, Job]:
    """The job as the policy gets it; ``record`` as it was before any pin of ours.

    nodes: all of Slurm's. Raises LeftToSlurm.
    """
    if tag is None:
        raise LeftToSlurm("untagged")
    if tag.left:
        raise LeftToSlurm(tag.left)
    ask = read_ask(record, nodes, partitions)
    return ask, _make_job(record, tag, ask, _profile(tag, ask, nodes, profiles))


def elsewhere(job: Job, names: frozenset[str]) -> Job:
    """The job as one that these nodes cannot serve."""
    if not names:
        return job
    candidates = (job.request.candidates or frozenset()) - names
    return dataclasses.replace(job, request=dataclasses.replace(job.request, candidates=candidates))


def _profile(tag: Tag, ask: Ask, nodes: Sequence[NodeRecord], profiles: Profiles) -> JobProfile:
    """The named profile, if request and nodes can keep its tensor slices together."""
    profile = profiles.of(tag, ask.gpus)
    if profile.tensor == 1 or _keeps_slices(profile, ask, nodes):
        return profile
    profiles.problems[tag.profile] = (
        f"profile {tag.profile} has {profile.tensor} GPUs a replica on one server, which a job's request or nodes part"
    )
    return unprofiled(ask.gpus)


def _keeps_slices(profile: JobProfile, ask: Ask, nodes: Sequence[NodeRecord]) -> bool:
    """Whether Slurm would split the GPUs so if all nodes were free; else such a job would wait for ever."""
    allowed = ask.request.candidates or frozenset()
    servers = [Node(n.name, n.gpus, n.index, n.gpu_type) for n in nodes if n.name in allowed]
    try:
        job = Job(JobId(""), "", ask.gpus, profile, request=ask.request)
    except ValueError:  # so many GPUs on each node part them
        return False
    return fits(job, servers)


def _make_job(record: JobRecord, tag: Tag, ask: Ask, profile: JobProfile) -> Job:
    return Job(
        id=JobId(record.job_id),
        user=record.user,
        gpus=ask.gpus,
        profile=profile,
        predicted_iterations=float(tag.order),
        submit_time=max(record.submit_time, float(tag.begin)),
        group=tag.group,
        request=_the_same(ask.request),
        time_limit=record.time_limit or math.inf,
    )


@lru_cache(MOST_PROFILES)
def _the_same(request: Request) -> Request:
    """One object for equal requests: hashing and comparing one is slow, and most jobs have the same few."""
    return request


def unpinned(record: JobRecord, before: Original | None) -> JobRecord:
    """The record as it was before a pin of ours overwrote its node list, node counts, tasks, CPUs and priority."""
    if before is None:
        return record
    return dataclasses.replace(
        record,
        min_nodes=before.min_nodes,
        max_nodes=before.max_nodes,
        tasks=before.tasks,
        cpus=before.cpus or record.cpus,
        priority=before.priority if record.priority else 0,  # 0: held since
        required_nodes=before.required_nodes,
    )


_PASSING = ("reason", "eligible_time", "start_time", "end_time", "priority", "array_tasks")
lasting = attrgetter(*(field.name for field in dataclasses.fields(JobRecord) if field.name not in _PASSING))
"""The values of a record without what changes while a job waits but does not change what it asks for."""


LEASE_SLACK_S = 1.5  # Slurm counts whole seconds


def waits_for_slurm(record: JobRecord) -> Reason | None:
    """What Slurm itself must decide first: a hold or a dependency. Its reason is "None" after each lease."""
    if record.reason.startswith("JobHeld") or record.priority == 0:
        return reason(Phase.WAITING, "held", slurm_reason=record.reason)
    if record.reason.startswith("Dependency") or record.dependency:
        kind = "dependency-never" if record.reason == "DependencyNeverSatisfied" else "dependency"
        return reason(Phase.WAITING, kind, **({"dependency": record.dependency} if record.dependency else {}))
    return None


def follow_begin(tracked: Tracked, now: float, parts: Parts) -> None:
    """Take over a begin time that is no lease of ours: its owner, or Slurm at a requeue, has set it."""
    shown = tracked.record.eligible_time
    if shown <= now:
        if max(tracked.lease_until, tracked.not_before) > now + LEASE_SLACK_S:  # StartTime=now
            tracked.begin = 0.0
    elif is_lease(tracked, shown, now, parts):
        tracked.lease_until = tracked.lease_until or shown
    else:
        tracked.begin = shown


def is_lease(tracked: Tracked, shown: float, now: float, parts: Parts) -> bool:
    """Whether a begin time in the future is the lease that we or the hook have written."""
    if tracked.lease_until:
        late = tracked.lease_spread + LEASE_SLACK_S
        ours = (tracked.lease_before, tracked.lease_until)
        return any(end - LEASE_SLACK_S <= shown <= end + late for end in ours)
    if tracked.record.restarts:  # Slurm itself defers a requeued job, and no hook has leased it
        return False
    record, lease = tracked.record, parts.settings.daemon.lease_s
    if parts.mode is not Mode.ENFORCE:  # there was no daemon to renew it, so it is the hook's to the second, or none
        tagged = tracked.tag is not None and not tracked.tag.left
        hooked = abs(shown - record.submit_time - lease) <= LEASE_SLACK_S
        return tagged and hooked and shown > tracked.not_before + LEASE_SLACK_S
    since = max(now, tracked.not_before, record.submit_time)  # Slurm may have been read after now
    return shown <= since + lease + LEASE_SLACK_S


def explained(world: World, tracked: Tracked, why: Reason, now: float) -> Reason:
    """The policy's reason; or the reservation, where the job could start but for it, or ever."""
    job, open_job = tracked.job, tracked.open
    if tracked.place is not Place.QUEUED or job is None or open_job is None:
        return why
    if world.best_alpha(job) is None:
        kept = world.best_alpha(open_job) is not None
    else:
        kept = why.kind in ("gpus", "shape", "resources") and has_room(world.view, open_job)
    names = open_job.request.candidates or frozenset[str]()
    ahead = next((each for each in tracked.ahead if not names.isdisjoint(each.nodes)), None)
    if not kept or ahead is None:
        return why
    return reason(Phase.WAITING, "ahead", reservation=ahead.name, in_s=ahead.start - now)
