"""A second implementation of Algorithm 1, from the paper's text and DESIGN.md section 3: simple, slow, exact.

Nothing here comes from slurm_asrpt. Jobs are data-parallel (one stage) on servers of at most two GPUs, so the iteration
time has a short formula and Slurm's splitter and the paper's selection agree. Times are fractions of a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction as Seconds

HEAVY = Seconds(3, 2)


@dataclass
class Job:
    """compute: p^f + p^b; together, apart: all-reduce inside a server, and for one replica on a server, seconds."""

    submit: int
    gpus: int
    iterations: int
    predicted: int
    compute: Seconds
    together: Seconds
    apart: Seconds
    left: Seconds = Seconds(0)  # GPU-seconds on the virtual machine
    deadline: Seconds | None = None
    kappa: Seconds | None = None
    start: Seconds | None = None
    end: Seconds | None = None
    held: list[int] = field(default_factory=list)

    def alpha(self, counts: list[int]) -> Seconds:
        """(4), (6), (7) for one stage; an alone replica is the slowest: two of a server share twice the NIC."""
        if self.gpus == 1:
            return self.compute
        used = [count for count in counts if count]
        return self.compute + (self.together if len(used) == 1 else self.apart / min(used))

    def best(self, size: int) -> Seconds:
        full, rest = divmod(self.gpus, size)
        return self.alpha([size] * full + [rest] * (rest > 0))

    def heavy(self, size: int) -> bool:
        worst = max(self.best(size), self.alpha([1] * self.gpus) if self.gpus > 1 else self.compute)
        return worst / self.best(size) >= HEAVY


def pick(free: list[int], gpus: int, most_free_first: bool) -> list[int]:
    """GPUs per server. The paper does not say which of equally free servers to take: here the first one, except for
    the last server taken in most-free order, which is the last one, as in Slurm's splitter."""
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
