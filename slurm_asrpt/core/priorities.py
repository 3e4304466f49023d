"""Classes and weights: how a site's priorities order jobs (docs/decisions/0026).

Jobs of a higher class go first. A class is a tier and, within it, what an admin or owner has set on purpose. Within a
class, a job's predicted work is divided by its weight (Smith's rule: the least work by weight first minimizes the
weighted completion time).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SPAN = 20.0
"""Doublings of the weight from the least continuous priority to the largest: a factor of a million."""
STEPS = 4
"""Steps of the weight per doubling: a coarse weight does not change in each cycle."""
_FRACTION = 2.0**-34
"""Turns a priority of Slurm, which has 32 bits, into a fraction below a half."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The priority of a job.

    tier: jobs of a higher tier go first. level: what was set on purpose (QOS, partition, nice ...), as a priority.
    live: its whole priority. fixed: an admin has set ``live`` itself; +1 if it is above what the site's rules give, -1
    if it is below, else 0. weight: 1 or more. why: what gave the job its class, for users; "" if nothing did.
    """

    tier: int = 0
    level: int = 0
    live: float = 0.0
    fixed: int = 0
    weight: float = 1.0
    why: str = ""


DEFAULT = Standing()


def weight_of(share: float) -> float:
    """The weight for a share, 0 to 1, of the largest continuous priority."""
    return float(2.0 ** (round(STEPS * SPAN * min(1.0, max(0.0, share))) / STEPS))


Class = tuple[int, float]
"""Tier and value; the larger goes first."""


def class_of(job: Standing, levels: Mapping[tuple[int, int], float]) -> Class:
    """The class of a job. levels: the largest live priority of each tier and level without fixed priorities.

    A job with a fixed priority is just above the highest level of which all jobs have a lower priority; and above, or
    below, its own level.
    """
    if not job.fixed:
        return job.tier, float(job.level)
    passed = [level for (tier, level), top in levels.items() if tier == job.tier and top < job.live]
    others = [level for tier, level in levels if tier == job.tier]
    above = max(passed, default=min([job.level, *others]) - 1)
    above = max(above, job.level) if job.fixed > 0 else min(above, job.level - 1)
    return job.tier, above + 0.25 + job.live * _FRACTION


def ranked(jobs: Sequence[Standing]) -> list[int]:
    """The class of each job as a number: 0 for the highest class among these jobs, and so on without gaps."""
    levels: dict[tuple[int, int], float] = {}
    for job in jobs:
        if not job.fixed and job.live > levels.get((job.tier, job.level), -1.0):
            levels[job.tier, job.level] = job.live
    known: dict[Standing, Class] = {}
    for job in jobs:
        if job not in known:
            known[job] = class_of(job, levels)
    number = {each: at for at, each in enumerate(sorted(set(known.values()), reverse=True))}
    return [number[known[job]] for job in jobs]
