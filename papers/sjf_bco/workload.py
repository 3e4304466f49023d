"""The batches of the SJF-BCO paper (section 7): random jobs and servers of its sizes.

The paper gives ranges only. Here tau without neighbors is rho/F, with F in [1000, 6000],
rho in [50, 300] and tau in [0.01, 0.05], in slots. Contention adds up to ``EXTRA``/2 of the time in the worst case,
where all GPUs of the largest server are in different rings: each neighbor costs one more exchange of gradients.
Overhead adds up to ``EXTRA``/2 on the largest possible number of servers. (xi1 = xi2, as printed, cannot be meant as
numbers: for overhead to stay within 15% of 0.05 slots, xi2 must be below 0.0005, and then k = xi1 p < 1.)
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from slurm_asrpt.core.policies.sjf_bco.evaluation import BatchJob, Servers
from slurm_asrpt.core.timing.ring import Linear, Links, Ring, iteration_time

MIX = {1: 80, 2: 14, 4: 26, 8: 30, 16: 8, 32: 2}
"""Number of jobs by GPUs: 160 jobs."""
SIZES = (4, 8, 16, 32)
EXTRA = 0.15
INTER = 1.0
"""b^e in gradient units per slot; the size of a ring's gradient follows from its exchange time."""


@dataclass(frozen=True)
class Batch:
    """A batch to plan. rings, links: what the jobs' times are computed from."""

    jobs: tuple[BatchJob, ...]
    servers: Servers
    rings: tuple[Ring, ...]
    links: tuple[Links, ...]

    @cached_property
    def gpus(self) -> int:
        return sum(job.gpus for job in self.jobs)


class RingTime:
    """``iteration_time`` of one ring as ``IterationTime``; caches each pair of servers and neighbors."""

    def __init__(self, ring: Ring, links: Links) -> None:
        self.ring, self.links = ring, links
        self._known: dict[tuple[int, int], float] = {}

    def __call__(self, counts: tuple[int, ...], rings: tuple[int, ...]) -> float:
        key = len(counts), max(rings, default=0)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = iteration_time(self.ring, *key, self.links)
        return found


def server_sizes(servers: int, seed: int) -> tuple[int, ...]:
    """GPUs of each server, drawn from SIZES. With more servers, the first ones stay the same."""
    rng = random.Random(f"servers {seed}")  # noqa: S311 (nothing secret)
    return tuple(rng.choice(SIZES) for _ in range(servers))


def paper_batch(seed: int, servers: int = 20, extra: float = EXTRA, jobs: int = 160) -> Batch:
    """The paper's 160 jobs in random order, and its servers.

    extra: largest share of the time that contention and overhead may add. jobs: another number of jobs of the same mix.
    Raises ValueError if a job is larger than the cluster.
    """
    rng = random.Random(f"jobs {seed}")  # noqa: S311
    sizes = server_sizes(servers, seed)
    gpus = _mixed(rng, jobs)
    made = [_ring(rng, number, sizes, extra) for number in gpus]
    batch = tuple(_job(ring, links, iterations, sizes) for ring, links, iterations in made)
    return Batch(batch, Servers.of_sizes(sizes), tuple(m[0] for m in made), tuple(m[1] for m in made))


def _mixed(rng: random.Random, jobs: int) -> list[int]:
    """The mix in random order, repeated up to ``jobs`` jobs."""
    found: list[int] = []
    while len(found) < jobs:
        mix = [size for size, number in MIX.items() for _ in range(number)]
        rng.shuffle(mix)
        found += mix
    return found[:jobs]


def _ring(rng: random.Random, gpus: int, sizes: Sequence[int], extra: float) -> tuple[Ring, Links, int]:
    """A ring, its links and F. Its tau without neighbors and overhead is rho/F."""
    iterations, alone = _length(rng)
    exchange = worst = 0.0
    spread = min(gpus, len(sizes))
    if spread > 1:
        worst = extra / (1 - extra) * alone / 2  # of contention, and the same of overhead
        exchange = worst / (max(sizes) - 1)
    piece = (gpus - 1) / gpus
    gradient = exchange * INTER / (2 * piece) if gpus > 1 else 0.0
    ring = Ring(gpus, gradient, forward=0.0, samples=1, backward=alone - exchange)
    links = Links(INTER, INTER * 100, xi1=1.0, xi2=worst / spread, degradation=Linear())
    return ring, links, iterations


def _length(rng: random.Random) -> tuple[int, float]:
    """F and tau: rho = F tau uniform in [50, 300] among the pairs in range."""
    while True:
        iterations, rho = rng.randint(1000, 6000), rng.uniform(50, 300)
        if 0.01 <= rho / iterations <= 0.05:
            return iterations, rho / iterations


def _job(ring: Ring, links: Links, iterations: int, sizes: Sequence[int]) -> BatchJob:
    least, _ = time_range(ring, sizes, links)
    return BatchJob(ring.gpus, iterations, iterations * least, RingTime(ring, links))


def time_range(ring: Ring, sizes: Sequence[int], links: Links) -> tuple[float, float]:
    """The minimum and maximum of tau_j on servers of these sizes (section 5.1).

    Minimum: on the fewest servers, without other rings. Maximum: one GPU on each of as many servers as possible, with a
    ring on each GPU of the largest server.
    """
    fewest = _fewest(ring.gpus, sizes)
    least = iteration_time(ring, fewest, int(fewest > 1), links)
    spread = min(ring.gpus, len(sizes))
    most = iteration_time(ring, spread, max(sizes) if spread > 1 else 0, links)
    return min(least, most), max(least, most)


def _fewest(gpus: int, sizes: Sequence[int]) -> int:
    held = 0
    for number, size in enumerate(sorted(sizes, reverse=True), start=1):
        held += size
        if held >= gpus:
            return number
    raise ValueError(f"{gpus} GPUs do not fit on servers with {sum(sizes)}")
