"""A job as the scheduler sees it: its profile, its request and its predicted iterations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, NewType

from slurm_asrpt.core.limits import Charges

JobId = NewType("JobId", str)
"""A job ID in Slurm's format: ``1234``, or ``1234_5`` for an array task."""


def id_key(job_id: str) -> tuple[int, ...]:
    """Sort key that compares job IDs as numbers: 9 before 10, 7_2 before 7_10."""
    if job_id.isdecimal():
        return (int(job_id),)
    return tuple(int(part) if part.isdecimal() else -1 for part in job_id.split("_"))


class AllReduce(StrEnum):
    """How the replicas of a stage synchronize their gradients."""

    RING = "ring"
    TREE = "tree"


class Pipeline(StrEnum):
    """When a stage may continue with the next mini-batch."""

    ASYNCHRONOUS = "asynchronous"  # at once: an iteration takes as long as the slowest stage
    SYNCHRONOUS = "synchronous"  # when all stages have finished: the pipeline fills and drains in every iteration


@dataclass(frozen=True)
class Overlap:
    """The share of a time that remains when backward computation and all-reduce overlap (paper, section III-B).

    backward, allreduce: factors of p_s^b and of (6), per model; 1 without overlap, 0 for a fully hidden time.
    """

    backward: float = 1.0
    allreduce: float = 1.0

    def __post_init__(self) -> None:
        for name in ("backward", "allreduce"):
            _check_amount(name, getattr(self, name))


@dataclass(frozen=True)
class Stage:
    """One pipeline stage of a model (paper, section III-A; the last three: section VI).

    replicas: k_s, data-parallel replicas, one GPU each.
    forward_s, backward_s: p_s^f, p_s^b, seconds for one mini-batch on one replica.
    bytes_in, bytes_out: d_s^in, d_s^out, activation bytes per iteration and replica (0 at the ends).
    param_bytes: h_s, bytes of trainable parameters.
    tensor_bytes: bytes that each tensor slice of a replica all-reduces with the others per iteration.
    routed_bytes: bytes of tokens that one replica sends to the experts of the stage per iteration, one way.
    routing: average share of all tokens that go to the expert group on replica 1..k_s; empty without experts.

    Raises ValueError for a replica count below one, a negative figure, or shares that are not k_s summing to 1.
    """

    replicas: int
    forward_s: float
    backward_s: float
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    param_bytes: float = 0.0
    tensor_bytes: float = 0.0
    routed_bytes: float = 0.0
    routing: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"a stage needs at least one replica, not {self.replicas}")
        for name in _AMOUNTS:
            _check_amount(name, getattr(self, name))
        if self.routing:
            self._check_routing()

    def _check_routing(self) -> None:
        if len(self.routing) != self.replicas:
            raise ValueError(f"{len(self.routing)} routing shares for {self.replicas} replicas")
        if min(self.routing) < 0 or not math.isclose(sum(self.routing), 1, abs_tol=1e-6):
            raise ValueError(f"routing shares must be >= 0 and sum to 1, not {self.routing}")


_AMOUNTS = ("forward_s", "backward_s", "bytes_in", "bytes_out", "param_bytes", "tensor_bytes", "routed_bytes")


def _check_amount(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a finite number >= 0, not {value}")


@dataclass(frozen=True)
class JobProfile:
    """A model and its stages: what Heavy-Edge and the timing formulas need to know about a job.

    tensor: GPUs per replica (tensor-parallel slices, the same number in every stage, as in Megatron-LM); they must be
        on one server.
    micro_batches: micro-batches per mini-batch in a synchronous pipeline.
    speeds: (GPU type, its speed relative to the GPU on which the stages were measured).
    """

    name: str
    stages: tuple[Stage, ...]
    allreduce: AllReduce = AllReduce.RING
    tensor: int = 1
    pipeline: Pipeline = Pipeline.ASYNCHRONOUS
    micro_batches: int = 1
    overlap: Overlap = Overlap()
    speeds: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if not all(0 < speed < float("inf") for _, speed in self.speeds):
            raise ValueError(f"the speed of a GPU is a finite number above 0, not {dict(self.speeds)}")
        if not self.stages:
            raise ValueError("a profile needs at least one stage")
        if self.tensor < 1 or self.micro_batches < 1:
            raise ValueError(f"tensor and micro_batches must be at least 1, not {self.tensor} and {self.micro_batches}")

    @cached_property
    def gpus(self) -> int:
        """g_i, the GPUs of the whole job."""
        return self.tensor * self.replicas

    @cached_property
    def replicas(self) -> int:
        """Total replicas of all stages."""
        return sum(stage.replicas for stage in self.stages)

    @cached_property
    def stage_of(self) -> tuple[int, ...]:
        """The stage of each GPU. GPUs are ranked stage by stage, replica by replica, slice by slice."""
        return tuple(s for s in self.stage_of_replica for _ in range(self.tensor))

    @cached_property
    def stage_of_replica(self) -> tuple[int, ...]:
        """The stage of each replica; replicas are numbered stage by stage."""
        return tuple(s for s, stage in enumerate(self.stages) for _ in range(stage.replicas))

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.stages, self.allreduce))

    def __hash__(self) -> int:  # profiles are keys of the placement caches: hash each only once
        return self._hash


def unprofiled(gpus: int) -> JobProfile:
    """The default for a job without a profile: one iteration per second on any placement."""
    return JobProfile(UNPROFILED, (Stage(replicas=gpus, forward_s=1.0, backward_s=0.0),))


UNPROFILED, LEARNED = "(none)", "(learned)"


def is_named(profile: JobProfile) -> bool:
    """Whether the owner or an admin has named it; else iterations are seconds in the job's best placement."""
    return profile.name not in (UNPROFILED, LEARNED)


GresAmounts = tuple[tuple[str, int], ...]
"""Amounts of generic resources other than GPUs, by name, and by ``name:type`` if a type is asked for."""


def gres_text(amounts: GresAmounts) -> str:
    """As users write them: ``nvme:1,scratch:100G``."""
    with_type = {name.partition(":")[0] for name, _ in amounts if ":" in name}
    return ",".join([f"{name}:{_in_units(count)}" for name, count in amounts if name not in with_type])


def _in_units(count: int) -> str:
    """A count in the largest of Slurm's units, powers of 1024, in which it is a whole number."""
    power = max([power for power in range(6) if count and not count % 1024**power], default=0)
    return f"{count // 1024**power}{' KMGTP'[power]}".strip()


@dataclass(frozen=True)
class Request:
    """The allocations that Slurm could make for a job.

    per_node: None if Slurm may split the GPUs unevenly (``--gpus``, ``--gpus-per-task``), else the
        fixed number of GPUs on every node (``--gres=gpu:k``, ``--gpus-per-node``).
    min_nodes, max_nodes: the user's ``-N`` bounds; max_nodes None means no upper bound.
    unit: GPUs that must share a node, because a task uses them (``--gpus-per-task=k``) or they are tensor slices.
    step: the multiple in which Slurm itself allocates GPUs if that is less than unit, else 0.
    cpus_per_gpu, memory_per_gpu, memory_per_node: CPUs and memory (MiB) that Slurm allocates with each GPU, or for the
        job on each node; 0 if not requested.
    gres_per_node: other generic resources that the job takes on each node.
    candidates: the nodes that may run the job (partition, GPU type), None for all.
    within: sets of nodes, one of which must hold the whole job (several partitions, ``-C [a|b]``, a magnetic
        reservation); () for no such rule.
    brief: the job ends before the room is needed that is kept for a job without GPUs (``ClusterView.kept``).
    shares_per_gpu: of shares of the nodes' CPUs, the CPUs that count with each GPU, by share.
    """

    per_node: int | None = None
    unit: int = 1
    min_nodes: int = 1
    max_nodes: int | None = None
    cpus_per_gpu: float = 0.0
    memory_per_gpu: float = 0.0
    memory_per_node: float = 0.0
    candidates: frozenset[str] | None = None
    step: int = 0
    within: tuple[frozenset[str], ...] = ()
    brief: bool = False
    gres_per_node: GresAmounts = ()
    shares_per_gpu: tuple[tuple[str, float], ...] = ()

    def shape(self, gpus: int) -> str:
        """The layout that ``gpus`` GPUs must have, as text; "" if any layout will do."""
        low, high = self.min_nodes, self.max_nodes
        if gpus in (self.per_node, self.unit) or high == 1:
            return "all on one node"
        one_set = "on nodes of one partition, feature, block or reservation, or contiguous ones" if self.within else ""
        if self.per_node:
            return ", ".join(filter(None, (f"{self.per_node} on each of {gpus // self.per_node} nodes", one_set)))
        groups = f"in groups of {self.unit} that share a node" if self.unit > 1 else ""
        nodes = f"{low}" if low == high else f"{low} to {high}" if high else f"at least {low}" if low > 1 else ""
        return ", ".join(filter(None, (groups, nodes and f"on {nodes} nodes", one_set)))

    @property
    def bare(self) -> Request:
        """The same request without CPUs, memory and other generic resources."""
        return replace(
            self, cpus_per_gpu=0.0, memory_per_gpu=0.0, memory_per_node=0.0, gres_per_node=(), shares_per_gpu=()
        )

    def in_groups(self, size: int) -> Request:
        """The same request in groups of ``size`` GPUs that share a node. Raises ValueError if it splits groups."""
        if self.per_node is not None:
            if self.per_node % size:
                raise ValueError(f"{self.per_node} GPUs per node part groups of {size}")
            return self
        unit = math.lcm(self.unit, size)
        return self if unit == self.unit else replace(self, unit=unit, step=self.step or self.unit)


ANYWHERE = Request()
NOTHING: frozenset[str] = frozenset()


class PreemptionClass(NamedTuple):
    """What the site's rules on preemption say of a job.

    kind: the QOS or partition as whose job others may preempt it. preempts: the kinds of jobs that it may preempt.
    """

    kind: str
    preempts: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Job:
    """One job as a policy sees it. Times are seconds on the caller's clock.

    predicted_iterations: ñ_i, 0 for a job of an unseen group.
    time_limit: the job's time limit, seconds; inf for none.
    request: always stored in whole groups of the profile's tensor slices.
    band: jobs of a lower band go first, before the policy's own order (the site's priorities); 0 without priorities.
    weight: how much the site favors the job within its band: its work counts divided by this.
    charges: what it counts against the site's limits while it runs.
    preemption: which jobs it may preempt, and which may preempt it; None where no job may.
    turn: its place, in Slurm's own order, before the jobs of its band that have none or a later one; for policies with
    a limit on waiting. None while no job whose nodes Slurm must choose is behind it in that order, and it is none.
    interruptible: whether its owner lets the policy preempt it (signal, checkpoint, requeue).

    Raises ValueError if the GPUs differ from the profile's, the request splits its slices, or a number is invalid.
    """

    id: JobId
    user: str
    gpus: int
    profile: JobProfile
    predicted_iterations: float = 0.0
    submit_time: float = 0.0
    group: str = ""
    request: Request = field(default=ANYWHERE)
    time_limit: float = math.inf
    band: int = 0
    charges: Charges = ()
    weight: float = 1.0
    preemption: PreemptionClass | None = None
    turn: float | None = None
    interruptible: bool = False

    def __post_init__(self) -> None:
        if self.gpus != self.profile.gpus:
            raise ValueError(
                f"job {self.id} asks for {self.gpus} GPUs, its profile {self.profile.name} has {self.profile.gpus}"
            )
        if not 0 <= self.predicted_iterations < float("inf"):
            raise ValueError(f"predicted iterations must be finite and >= 0, not {self.predicted_iterations}")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"a weight must be finite and above 0, not {self.weight}")
        if not self.time_limit > 0:
            raise ValueError(f"a time limit must be above 0 s, not {self.time_limit}")
        if self.profile.tensor > 1:  # slices share a server (paper, section VI)
            object.__setattr__(self, "request", self.request.in_groups(self.profile.tensor))

    @property
    def preempts(self) -> frozenset[str]:
        """The kinds of jobs that it may preempt."""
        return self.preemption.preempts if self.preemption else NOTHING

    @property
    def confined(self) -> bool:
        """Whether its request keeps Slurm from scattering it, if it fits on one server."""
        return self.request.max_nodes == 1 or self.undivided

    @property
    def undivided(self) -> bool:
        """Whether its request is for all its GPUs of one server, whatever its number of servers."""
        return self.gpus in (1, self.request.per_node, self.request.unit)

    @property
    def anyhow(self) -> bool:
        """Whether its request allows any number of servers, and any share of its several GPUs on each of them."""
        request = self.request
        split = request.per_node is None and request.unit == 1 and not request.step and not request.within
        return split and 1 < self.gpus <= (request.max_nodes or self.gpus) and request.min_nodes == 1

    @property
    def profiled(self) -> bool:
        """Whether a profile is named for it (``is_named``)."""
        return is_named(self.profile)

    @property
    def communication_known(self) -> bool:
        """Whether its profile says how much its GPUs communicate: named, or learned from runs."""
        return self.profile.name != UNPROFILED


class _Draft:
    """A mutable job. Its slots are those of Job, so that it can become one."""

    __slots__ = Job.__slots__


def trusted_job(
    job_id: JobId,
    user: str,
    gpus: int,
    profile: JobProfile,
    request: Request,
    predicted_iterations: float,
    submit_time: float,
    group: str,
    time_limit: float,
) -> Job:
    """A job from validated fields; six times faster than ``Job(...)``.

    request: in whole groups of the profile's tensor slices.

    The constructor of a frozen dataclass is slow because it sets each field with object.__setattr__.
    """
    draft: Any = _Draft()
    draft.id, draft.user, draft.gpus, draft.profile, draft.request = job_id, user, gpus, profile, request
    draft.predicted_iterations, draft.submit_time = predicted_iterations, submit_time
    draft.group, draft.time_limit, draft.band, draft.charges, draft.weight = group, time_limit, 0, (), 1.0
    draft.preemption, draft.turn, draft.interruptible = None, None, False
    draft.__class__ = Job
    job: Job = draft
    return job


def total_gpus(jobs: Iterable[Job]) -> int:
    return sum(job.gpus for job in jobs)


ARRAY_TASKS_AHEAD = 100
"""The maximum number of pending tasks of an array that are admitted as jobs of their own."""


def admissible_tasks(waiting: int, known: int, most: int) -> int:
    """How many tasks of an array may become jobs now.

    waiting: its admitted tasks that are pending. known: all its admitted tasks, including running ones. most: how many
    may run at once; 0 for no limit.
    """
    return max(0, min(most - known if most else ARRAY_TASKS_AHEAD, ARRAY_TASKS_AHEAD - waiting))
