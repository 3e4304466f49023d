"""The kinds of GPU that could run a job of asrpt-gated, the best first (docs/decisions/0017)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from slurm_asrpt.core.cluster import Node, kinds_of, with_reference_gpus
from slurm_asrpt.core.job import ANYWHERE, Job
from slurm_asrpt.core.placement.best_alpha import fits
from slurm_asrpt.core.policies.gated.free_times import FreeTimes
from slurm_asrpt.core.policies.gated.reach import Reach
from slurm_asrpt.core.policies.gated.servers import bits
from slurm_asrpt.core.policies.running_jobs import RunningJobs

Alpha = Callable[[Job, Sequence[Node]], float]
"""Seconds per iteration on the fewest of these nodes, at the speed of the slowest."""

_KINDS = 65536


@dataclass(frozen=True, slots=True)
class Group:
    """Servers of one kind, or all servers that may run a job. mask: their positions in the node table.

    size: GPUs of each server, 0 if they differ. name: the GPU type, empty if there are several. mixed: whether there
    are several kinds.
    """

    mask: int
    nodes: Sequence[Node]
    size: int
    name: str
    mixed: bool
    free_times: FreeTimes


@dataclass(frozen=True, slots=True)
class Choice:
    """A group that could run a job. best: α̃_min of the job on these servers, seconds per iteration."""

    group: Group
    best: float


class Choices:
    """The groups that could hold each job, the best first; with equal GPUs, one group or none.

    Groups with an α̃_min within the gate are good enough. The slowest of them comes first and leaves the faster GPUs to
    jobs that gain more from them. The others follow by α̃_min.

    A job that needs several servers may use several kinds, at the speed of the slowest, as a last resort. A job whose
    request names several sets of nodes (``within``) has the groups of each set.
    """

    def __init__(
        self, nodes: Sequence[Node], running_jobs: RunningJobs, alpha: Alpha, gate: float, reach: Reach | None = None
    ) -> None:
        self._nodes, self._running_jobs, self._reach = nodes, running_jobs, reach
        self._alpha, self._reference_nodes, self._gate = alpha, with_reference_gpus(nodes), gate
        self._kinds = kinds_of(nodes)
        self._groups: dict[int, Group] = {}
        self._known: dict[Hashable, tuple[tuple[Choice, ...], float]] = {}

    def of(self, job: Job) -> tuple[tuple[Choice, ...], float]:
        """The choices, and the ratio of α̃_min on reference GPUs to α̃_min of the first choice."""
        # hashing a request is slow, and nearly all simulated jobs have this one
        key: Hashable = job.profile if job.request is ANYWHERE else (job.profile, job.request)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KINDS:  # a daemon runs for years
                self._known.clear()
                self._groups.clear()
            found = self._known[key] = self._look_up(job)
        return found

    def _look_up(self, job: Job) -> tuple[tuple[Choice, ...], float]:
        everywhere = (1 << len(self._nodes)) - 1
        sets = [self._mask(names) for names in job.request.within] or [everywhere]
        groups = {group.mask: group for mask in sets for group in self._groups_of(job, mask)}
        if not groups:
            return (), 1.0
        choices = self._ordered([Choice(group, self._alpha(job, group.nodes)) for group in groups.values()])
        best = choices[0].best  # 0 for a profile that takes no time
        return tuple(choices), self._alpha(job, self._reference_nodes) / best if best else 1.0

    def _groups_of(self, job: Job, mask: int) -> list[Group]:
        """The groups of these servers that can hold the job: each kind, and all kinds if it needs several servers."""
        job = replace(job, request=replace(job.request, within=())) if job.request.within else job
        whole = self._group(mask)
        if not fits(job, whole.nodes):
            return []
        kinds = [self._group(mask & kind) for kind in self._kinds if mask & kind] if whole.mixed else []
        groups = [group for group in kinds if fits(job, group.nodes)]
        if not groups or whole.free_times.needs(job).servers > 1:
            groups.append(whole)
        return groups

    def _mask(self, names: AbstractSet[str]) -> int:
        return sum(1 << at for at, node in enumerate(self._nodes) if node.name in names)

    def _group(self, mask: int) -> Group:
        found = self._groups.get(mask)
        if found is None:
            found = self._groups[mask] = _group(self._nodes, mask, self._kinds, self._running_jobs, self._reach)
        return found

    def _ordered(self, choices: Sequence[Choice]) -> list[Choice]:
        enough = self._gate * min([choice.best for choice in choices])

        def key(choice: Choice) -> tuple[bool, bool, float]:
            good = choice.best <= enough
            return not good, choice.group.mixed, -choice.best if good else choice.best

        return sorted(choices, key=key)


def within_limit(choices: Sequence[Choice], job: Job) -> tuple[Choice, ...]:
    """The choices with which the job is predicted to end within its time limit; the first choice if there is none."""
    found = [choice for choice in choices if job.predicted_iterations * choice.best <= job.time_limit]
    return tuple(found) or (choices[0],)


def covering(choices: Sequence[Choice], mask: int) -> Choice:
    """The first choice that includes all these servers; the last choice if there is none."""
    return next((choice for choice in choices if not mask & ~choice.group.mask), choices[-1])


def able_mask(choices: Sequence[Choice], job: Job) -> int:
    """The servers that a job could use, as a mask."""
    able = 0
    for choice in choices:
        able |= choice.group.free_times.needs(job).mask
    return able


def _group(
    nodes: Sequence[Node], mask: int, kinds: Sequence[int], running_jobs: RunningJobs, reach: Reach | None
) -> Group:
    own = [nodes[at] for at in bits(mask)]
    sizes, names = {node.gpus for node in own}, {node.gpu_type for node in own}
    name = names.pop() if len(names) == 1 else ""
    size, mixed = sizes.pop() if len(sizes) == 1 else 0, sum(bool(mask & kind) for kind in kinds) > 1
    return Group(mask, own, size, name, mixed, FreeTimes(nodes, running_jobs, mask, reach))
