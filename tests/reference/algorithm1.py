"""A second implementation of Algorithm 1, from the paper's text and DESIGN.md section 3: simple, slow, exact.

Nothing here comes from slurm_asrpt. A job is a pipeline of stages with replicas; all servers have as many GPUs. Times
are fractions of a second. A GPU's share of the NIC is 1 byte/s, a link inside a server has ``INTRA`` bytes/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction as Seconds
from random import Random

HEAVY = Seconds(3, 2)
INTRA = 4


@dataclass(frozen=True)
class Stage:
    """replicas: k_s. compute: p^f + p^b, seconds. link: bytes from all its replicas to the next stage, one way.

    ring: 2 (k_s-1) h_s / k_s, the bytes that each replica all-reduces.
    """

    replicas: int
    compute: int
    link: int = 0
    ring: int = 0


@dataclass
class Job:
    submit: int
    stages: tuple[Stage, ...]
    iterations: int
    predicted: int
    left: Seconds = Seconds(0)  # GPU-seconds on the virtual machine
    deadline: Seconds | None = None
    kappa: Seconds | None = None
    start: Seconds | None = None
    end: Seconds | None = None
    held: list[int] = field(default_factory=list)

    @property
    def gpus(self) -> int:
        return sum(stage.replicas for stage in self.stages)

    def alpha(self, counts: list[int]) -> Seconds:
        """(7) after Heavy-Edge on these GPUs per server."""
        rooms = [count for count in counts if count]
        servers = heavy_edge(self.stages, rooms)
        return slowest(self.stages, servers, len(rooms))

    def best(self, size: int) -> Seconds:
        full, rest = divmod(self.gpus, size)
        return self.alpha([size] * full + [rest] * (rest > 0))

    def heavy(self, size: int) -> bool:
        worst = max(self.best(size), slowest(self.stages, list(range(self.gpus)), self.gpus))
        return worst / self.best(size) >= HEAVY


def stage_of(stages: tuple[Stage, ...]) -> list[int]:
    """The stage of each replica."""
    return [s for s, stage in enumerate(stages) for _ in range(stage.replicas)]


def slowest(stages: tuple[Stage, ...], servers: list[int], count: int) -> Seconds:
    """(4) to (7). servers: the server of each replica."""
    place = list(zip(stage_of(stages), servers, strict=True))
    times = []
    for m in range(count):
        here = [place.count((s, m)) for s in range(len(stages))]
        times += [stage_time(stages, s, here) for s in range(len(stages)) if here[s]]
    return max(times)


def stage_time(stages: tuple[Stage, ...], s: int, here: list[int]) -> Seconds:
    """comp + comm + allreduce of stage s on a server that has ``here`` replicas of each stage."""
    k = stages[s].replicas
    seconds = Seconds(stages[s].compute)
    for neighbor, link in ((s - 1, stages[s - 1].link), (s + 1, stages[s].link)):
        if 0 <= neighbor < len(stages):
            near = Seconds(here[neighbor], stages[neighbor].replicas)
            each = Seconds(2 * link, k)  # d_s of a replica, forward and backward
            seconds += each * (1 - near) + each * near / INTRA
    if k > 1:
        seconds += Seconds(stages[s].ring, INTRA if here[s] == k else here[s])
    return seconds


def edges(stages: tuple[Stage, ...]) -> dict[tuple[int, int], Seconds]:
    """The job graph of section IV-B, with rings: bytes by pair of replicas, the lower number first."""
    found: dict[tuple[int, int], Seconds] = {}
    first = 0
    for s, stage in enumerate(stages):
        mine = range(first, first + stage.replicas)
        if stage.replicas > 1 and stage.ring:
            pairs = {(min(a, b), max(a, b)) for a, b in zip(mine, [*mine[1:], first], strict=True)}
            found.update({pair: Seconds(stage.ring) for pair in pairs})
        if s > 0 and stages[s - 1].link:
            before = stages[s - 1].replicas
            weight = Seconds(2 * stages[s - 1].link, before * stage.replicas)
            found.update({(a, b): weight for a in range(first - before, first) for b in mine})
        first += stage.replicas
    return found


def heavy_edge(stages: tuple[Stage, ...], rooms: list[int]) -> list[int]:
    """The server of each replica (section IV-B). The paper leaves ties open; core/placement/heavy_edge.py says how
    they are broken: by the vertex's bytes into the set, by all of its bytes, by its number."""
    weights, random = edges(stages), Random(0)
    unplaced = set(range(sum(rooms)))
    total = {v: sum(w for pair, w in weights.items() if v in pair) for v in unplaced}
    servers = [0] * len(unplaced)
    for m in sorted(range(len(rooms)), key=lambda m: -rooms[m]):
        for v in node_set(weights, total, unplaced, rooms[m], random):
            servers[v] = m
            unplaced.remove(v)
    return servers


def node_set(weights, total, unplaced, room, random):
    if room == len(unplaced):
        return set(unplaced)
    if room == 1:
        return {min(unplaced, key=lambda v: (total[v], v))}
    chosen: set[int] = set()
    while len(chosen) < room:
        free = unplaced - chosen
        into = {v: [w for pair, w in weights.items() if v in pair and chosen & set(pair)] for v in free}
        joined = [v for v in free if into[v]]
        inside = [pair for pair in weights if free >= set(pair)]
        if joined:
            chosen.add(min(joined, key=lambda v: (-max(into[v]), -sum(into[v]), -total[v], v)))
        elif inside and room - len(chosen) >= 2:
            chosen |= set(min(inside, key=lambda e: (-weights[e], -total[e[0]] - total[e[1]], e)))
        else:
            chosen.add(random.choice(sorted(free)))
    return chosen


def pick(free: list[int], gpus: int, most_free_first: bool) -> list[int]:
    """GPUs per server, lines 9 and 22. The paper does not say which of equally free servers to take: here the first
    one, except for the last server taken in most-free order, which is the last one."""
    order = sorted(range(len(free)), key=lambda m: (-free[m] if most_free_first else free[m], m))
    counts = [0] * len(free)
    for m in (m for m in order if free[m]):
        if most_free_first and free[m] >= gpus:
            m = max(other for other in order if free[other] == free[m] and not counts[other])
        counts[m] = min(gpus, free[m])
        gpus -= counts[m]
        if not gpus:
            break
    return counts


def run(jobs: list[Job], servers: int, size: int, tau: Seconds, aside: bool) -> None:
    """Set start and end of each job; the list is in order of arrival."""
    virtual, fifo = list[Job](), list[Job]()
    now: Seconds | None = Seconds(jobs[0].submit)
    while now is not None:
        for job in jobs:
            if job.submit == now:
                job.left = job.gpus * job.predicted * job.best(size)
                (virtual if job.left else fifo).append(job)
        start_jobs(jobs, fifo, now, servers, size, tau, aside)
        after = next_event(jobs, virtual, now, servers * size)
        if after is not None:
            serve(virtual, fifo, (after - now) * servers * size)
        now = after


def next_event(jobs: list[Job], virtual: list[Job], now: Seconds, total: int) -> Seconds | None:
    """Arrivals, ends, deadlines, and the completion of the job that the virtual machine serves."""
    times = [time for job in jobs for time in (Seconds(job.submit), job.end, job.deadline) if time is not None]
    if virtual:
        times.append(now + shortest(virtual).left / total)
    return min((time for time in times if time > now), default=None)


def shortest(virtual: list[Job]) -> Job:
    return min(virtual, key=lambda job: job.left)  # ties by arrival


def serve(virtual: list[Job], fifo: list[Job], work: Seconds) -> None:
    """No job arrives or completes before this work is done, so the shortest job gets all of it."""
    if virtual:
        job = shortest(virtual)
        job.left -= work
        if not job.left:
            virtual.remove(job)
            fifo.append(job)


def start_jobs(
    jobs: list[Job], fifo: list[Job], now: Seconds, servers: int, size: int, tau: Seconds, aside: bool
) -> None:
    for job in list(fifo):
        running = [other for other in jobs if other.end is not None and other.end > now]
        free = [size - sum(other.held[m] for other in running) for m in range(servers)]
        if sum(free) >= job.gpus:
            counts = pick(free, job.gpus, most_free_first=job.heavy(size))
            alpha = job.alpha(counts)
            if good_enough(job, alpha, now, servers * size, size, tau):
                fifo.remove(job)
                job.held, job.start, job.end = counts, now, now + job.iterations * alpha
                continue
        waits_aside = aside and job.deadline is not None and now < job.deadline
        if not waits_aside:
            return


def good_enough(job: Job, alpha: Seconds, now: Seconds, total: int, size: int, tau: Seconds) -> bool:
    """Lines 8-20."""
    best = job.best(size)
    if not job.heavy(size) or alpha / best <= HEAVY:
        return True
    if job.kappa is None:
        job.kappa, job.deadline = alpha, now + tau * job.gpus * job.predicted * best / total
    return alpha < job.kappa or (job.deadline is not None and now >= job.deadline)
