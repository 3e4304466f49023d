"""What a job is to the scheduler: its profile, its request and its predicted iterations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NewType

JobId = NewType("JobId", str)
"""Slurm's own spelling of a job: ``1234`` or ``1234_5`` for an array task."""


class AllReduce(StrEnum):
    """How the replicas of a stage synchronise their gradients."""

    RING = "ring"
    TREE = "tree"


@dataclass(frozen=True)
class Stage:
    """One pipeline stage of a model (paper, section III-A).

    replicas: k_s, data-parallel replicas, one GPU each.
    forward_s, backward_s: p_s^f, p_s^b, seconds for one mini-batch on one replica.
    bytes_in, bytes_out: d_s^in, d_s^out, activation bytes per iteration and replica (0 at the ends).
    param_bytes: h_s, bytes of trainable parameters.

    Raises ValueError for a replica count below one or a negative figure.
    """

    replicas: int
    forward_s: float
    backward_s: float
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    param_bytes: float = 0.0

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"a stage needs at least one replica, not {self.replicas}")
        for name in ("forward_s", "backward_s", "bytes_in", "bytes_out", "param_bytes"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a finite number >= 0, not {value}")


@dataclass(frozen=True)
class JobProfile:
    """A model cut into stages: what Heavy-Edge and the timing formulas need to know of a job."""

    name: str
    stages: tuple[Stage, ...]
    allreduce: AllReduce = AllReduce.RING

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("a profile needs at least one stage")

    @cached_property
    def gpus(self) -> int:
        """g_i, the GPUs of the whole job."""
        return sum(stage.replicas for stage in self.stages)

    @cached_property
    def stage_of(self) -> tuple[int, ...]:
        """The stage of each replica; replicas are numbered stage by stage, and replica i is rank i."""
        return tuple(s for s, stage in enumerate(self.stages) for _ in range(stage.replicas))

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.stages, self.allreduce))

    def __hash__(self) -> int:  # profiles are memo keys of the placement: hash each once
        return self._hash


def unprofiled(gpus: int) -> JobProfile:
    """The stand-in for a job nobody has profiled: one iteration a second wherever it runs."""
    return JobProfile(UNPROFILED, (Stage(replicas=gpus, forward_s=1.0, backward_s=0.0),))


UNPROFILED = "(none)"


@dataclass(frozen=True)
class Request:
    """Which allocations Slurm could make for a job.

    per_node: None if Slurm may split the GPUs unevenly (``--gpus``, ``--gpus-per-task``), else the
        fixed number of GPUs on every node (``--gres=gpu:k``, ``--gpus-per-node``).
    min_nodes, max_nodes: the user's ``-N`` bounds; max_nodes None means no upper bound.
    unit: GPUs that must share a node, because one task uses them (``--gpus-per-task=k``).
    cpus_per_gpu, memory_per_gpu, memory_per_node: what each GPU, or the job on each node, drags along
        (CPUs, MiB); 0 where the job did not ask.
    candidates: the nodes that may serve the job (partition, GPU type), None for all.
    """

    per_node: int | None = None
    unit: int = 1
    min_nodes: int = 1
    max_nodes: int | None = None
    cpus_per_gpu: float = 0.0
    memory_per_gpu: float = 0.0
    memory_per_node: float = 0.0
    candidates: frozenset[str] | None = None


ANYWHERE = Request()


@dataclass(frozen=True)
class Job:
    """One job as a policy sees it. Times are seconds on the caller's clock.

    predicted_iterations: ñ_i, 0 for a job of an unseen group.
    """

    id: JobId
    user: str
    gpus: int
    profile: JobProfile
    predicted_iterations: float = 0.0
    submit_time: float = 0.0
    group: str = ""
    request: Request = field(default=ANYWHERE)

    def __post_init__(self) -> None:
        if self.gpus != self.profile.gpus:
            raise ValueError(
                f"job {self.id} asks for {self.gpus} GPUs, its profile {self.profile.name} has {self.profile.gpus}"
            )
        if not 0 <= self.predicted_iterations < float("inf"):
            raise ValueError(f"predicted iterations must be finite and >= 0, not {self.predicted_iterations}")

    @property
    def profiled(self) -> bool:
        return self.profile.name != UNPROFILED


def total_gpus(jobs: Iterable[Job]) -> int:
    return sum(job.gpus for job in jobs)
