"""The demo's jobs: sizes, arrivals and recurrence of a Philly trace with the models of Table I, scaled to a minute.

Kept from the trace: the order and relative times of submission, the GPUs of each job, recurrence (same virtual cluster,
size and order of magnitude of runtime), and the order of the runtimes. The time axis is scaled linearly, the runtimes,
which span five orders of magnitude, by a power law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import Job, JobId, JobProfile
from slurm_asrpt.core.placement.selection import best_alpha
from slurm_asrpt.profile.schema import library_names, load_profile
from slurm_asrpt.traces.trace import Trace

RUNTIME_EXPONENT = 0.35
"""Exponent of the power law: a factor of 1000 between runtimes becomes a factor of 11."""
SHORTEST_S, LONGEST_S = 2.0, 40.0
MOST_LOAD = 5.0
JITTER = 0.05
"""Two runs of a recurrent job differ by up to this share of their iterations."""


@dataclass(frozen=True)
class DemoJob:
    """submit_s: seconds after the round's start. ideal_s: runtime in the best placement, iterations x alpha_min."""

    name: str
    user: str
    gpus: int
    profile: str
    iterations: int
    submit_s: float
    ideal_s: float


@dataclass(frozen=True)
class Shape:
    """Amount of work and time. load: requested GPU-seconds over the cluster's GPU-seconds while jobs arrive."""

    jobs: int = 80
    span_s: float = 50.0
    load: float = 1.2
    seed: int = 1

    def check(self) -> None:
        """Raises ValueError, with a text for the command line, for invalid values."""
        if self.jobs < 1:
            raise ValueError(f"--jobs {self.jobs}: must be at least 1")
        if not 0 < self.load <= MOST_LOAD:
            raise ValueError(f"--load {self.load:g}: must be above 0 and at most {MOST_LOAD:g}")
        if not 0 < self.span_s < math.inf:
            raise ValueError(f"--span {self.span_s:g}: must be above 0 seconds")


class _TraceJob(NamedTuple):
    """A job of the trace. vc: its virtual cluster (tenant)."""

    submit_s: float
    gpus: int
    duration_s: float
    vc: str


def make_workload(
    trace: Trace, nodes: Sequence[Node], fabric: Fabric, users: Sequence[str], shape: Shape
) -> list[DemoJob]:
    """``shape.jobs`` consecutive jobs of a Philly trace as demo jobs, in order of submission.

    Raises ValueError if the trace has too few jobs that fit into half the cluster.
    """
    capacity = sum(node.gpus for node in nodes)
    chosen = [job for job in _jobs(trace) if job.gpus <= capacity // 2][: shape.jobs]
    if len(chosen) < shape.jobs:
        raise ValueError(f"the trace has only {len(chosen)} jobs that fit; ask for fewer")
    random = Random(shape.seed)  # noqa: S311  (a demo, not a secret)
    groups = {key: random.random() for key in sorted({_group(job) for job in chosen})}
    by_size = profiles_by_size()
    seconds = _scaled_runtimes(chosen, shape.load * capacity * shape.span_s)
    first, last = chosen[0].submit_s, chosen[-1].submit_s
    jobs = []
    for number, (job, ideal) in enumerate(zip(chosen, seconds, strict=True)):
        draw = groups[_group(job)]
        name = _pick(by_size[job.gpus], draw)
        alpha = best_alpha_of(name, nodes, fabric)
        iterations = max(1, round(ideal / alpha * (1 + JITTER * (2 * random.random() - 1))))
        jobs.append(
            DemoJob(
                name=f"{name}-{number}",
                user=users[int(job.vc, 16) % len(users)],
                gpus=job.gpus,
                profile=name,
                iterations=iterations,
                submit_s=(job.submit_s - first) / max(1.0, last - first) * shape.span_s,
                ideal_s=iterations * alpha,
            )
        )
    return jobs


def _jobs(trace: Trace) -> list[_TraceJob]:
    columns = (trace.jobs[name].tolist() for name in ("submit_s", "gpus", "duration_s", "queue"))
    return [_TraceJob(*row) for row in zip(*columns, strict=True)]


def _group(job: _TraceJob) -> tuple[str, int, int]:
    return job.vc, job.gpus, round(math.log2(max(1.0, job.duration_s)))


def _scaled_runtimes(jobs: Sequence[_TraceJob], work: float) -> list[float]:
    """Ideal runtimes in seconds that sum up to ``work`` GPU-seconds, within the bounds."""
    typical = {key: 2.0 ** key[2] for key in map(_group, jobs)}
    raw = [typical[_group(job)] ** RUNTIME_EXPONENT for job in jobs]
    scale = 1.0
    for _ in range(20):  # jobs at a bound cannot scale further: a few iterations distribute the rest
        bounded = [min(LONGEST_S, max(SHORTEST_S, scale * value)) for value in raw]
        scale *= work / sum(job.gpus * value for job, value in zip(jobs, bounded, strict=True))
    return bounded


def profiles_by_size() -> Mapping[int, list[str]]:
    """The models of Table I by their GPUs."""
    sizes: dict[int, list[str]] = {}
    for name in library_names():
        sizes.setdefault(_load(name).gpus, []).append(name)
    return sizes


def _pick(names: Sequence[str], draw: float) -> str:
    return names[int(draw * len(names))]


def _load(name: str) -> JobProfile:
    return load_profile(name, [])


def best_alpha_of(name: str, nodes: Sequence[Node], fabric: Fabric) -> float:
    """Seconds per iteration of a model in its best placement on these nodes."""
    profile = _load(name)
    return best_alpha(Job(JobId("0"), "", profile.gpus, profile), nodes, fabric)
