"""Classes and weights: how a site's priorities order jobs (docs/decisions/0026).

Jobs of a higher class go first. Within a class, a job's predicted work is divided by its weight (Smith's rule: the
least work by weight first minimizes the weighted completion time). Two jobs are in different classes if their tiers or
nice values differ, or if the priorities of their QOS, partitions and associations differ by more than the continuous
priorities can make up for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SPAN = 20.0
"""Doublings of the weight from the least continuous priority to the largest: a factor of a million."""
STEPS = 4
"""Steps of the weight per doubling: a coarse weight does not change in each cycle."""
MOST = 400.0
"""Doublings of the largest weight."""
_FRACTION = 2.0**-34
"""Turns a priority of Slurm, which has 32 bits, into a fraction below a half."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The priority of a job.

    tier: jobs of a higher tier go first. level: the parts of its QOS, partition and association. nice: the least first.
    continuous: the rest (fair share, age, size). live: the whole priority. fixed: an admin has set ``live`` itself; +1
    if it is above what the site's rules give, -1 if it is below, else 0. why: what set tier, level and nice, for users;
    "" if nothing did.
    """

    tier: int = 0
    level: int = 0
    nice: int = 0
    continuous: float = 0.0
    live: float = 0.0
    fixed: int = 0
    why: str = ""


DEFAULT = Standing()


def weight_of(share: float) -> float:
    """The weight for a share of the largest continuous priority; above 1 with a higher level of the same class."""
    return float(2.0 ** (round(STEPS * min(MOST, max(0.0, SPAN * share))) / STEPS))


class _Tier:
    """The classes of a tier. Levels that the continuous priorities can make up for count as the lowest of them."""

    def __init__(self, jobs: Iterable[Standing], largest: float) -> None:
        self._bases: list[int] = []  # the lowest levels, ascending
        self._tops: dict[int, float] = {}  # the largest live priority of each class without fixed priorities
        jobs, last = list(jobs), 0
        for level in sorted({job.level for job in jobs}):
            if not self._bases or level - last > largest:
                self._bases.append(level)
            last = level
        for job in jobs:
            own = self._usual(job)
            if not job.fixed:
                self._tops[own] = max(self._tops.get(own, 0.0), job.live)

    def base(self, job: Standing) -> int:
        """The lowest of the levels that count as that of the job."""
        return self._bases[bisect_right(self._bases, job.level) - 1]

    def _usual(self, job: Standing) -> int:
        return self.base(job) - job.nice

    def value(self, job: Standing) -> float:
        """The value by which the class of a job is sorted.

        A job with a fixed priority is just above the highest class of which all jobs have a lower priority; and above,
        or below, the class that it would have.
        """
        own = self._usual(job)
        if not job.fixed:
            return float(own)
        passed = (value for value, top in self._tops.items() if top < job.live)
        above = max(passed, default=min([own, *self._tops]) - 1)
        above = max(above, own) if job.fixed > 0 else min(above, own - 1)
        return above + 0.25 + job.live * _FRACTION


def ranked(jobs: Sequence[Standing], largest: float) -> list[tuple[int, float]]:
    """The class of each job as a number, 0 for the highest among these jobs and so on without gaps; and its weight.

    largest: the largest continuous priority.
    """
    distinct = {id(job): job for job in jobs}  # hashing a standing is slow, and equal jobs often share one
    tiers = {job.tier for job in distinct.values()}
    classes = {tier: _Tier((job for job in distinct.values() if job.tier == tier), largest) for tier in tiers}
    values = {at: (job.tier, classes[job.tier].value(job)) for at, job in distinct.items()}
    number = {each: at for at, each in enumerate(sorted(set(values.values()), reverse=True))}
    found = {
        at: (number[values[at]], _weight(job, classes[job.tier].base(job), largest)) for at, job in distinct.items()
    }
    return [found[id(job)] for job in jobs]


def _weight(job: Standing, base: int, largest: float) -> float:
    return 1.0 if job.fixed or not largest else weight_of((job.level - base + job.continuous) / largest)
