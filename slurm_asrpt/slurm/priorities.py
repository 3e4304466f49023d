"""The priorities of a site as slurmctld has them, and the standing of one job under them (docs/priorities.md).

The multifactor plugin adds up parts. QOS, partition, association and nice are set on purpose: they make the class.
Fair share, age, size and TRES are continuous: they make the weight. The live priority of a job shows their sum, and
whether an admin has set the priority itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from slurm_asrpt.core.priorities import Standing
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.limits import Association, Qos
from slurm_asrpt.slurm.notation import parse_limit
from slurm_asrpt.slurm.partitions import Rows
from slurm_asrpt.slurm.records import JobRecord

BOOST = 1_000_000_000
"""Taken from the nice value of a boosted job: more than any weights of a site add up to."""
BOOSTED_PRIORITY = 4_294_966_000
"""That of a boosted job with priority/basic: above the defaults, below pins."""
BOOSTED = "boosted (asrpt-admin boost)"

FIRST_DEFAULT = 4_294_901_760
"""The plugin priority/basic counts down from here."""
LAST_DEFAULT = 2**31
"""No default of priority/basic gets below."""
LEAST_NICE = -60_000
"""With a smaller nice value, priority/basic overflows."""
SHARE_SLACK = 0.1
"""The fair share in a job's priority may be older or newer than the one that was read by this much."""
ROUNDING = 2.0
CALCULATED_S = 300.0
"""The default PriorityCalcPeriod."""
_PRIORITY_FLAGS = re.compile(r"\s*PriorityFlags\s*=\s*(\S+)\s*", re.IGNORECASE)
MOST_PER_POINT_S = 1e6
"""A point of priority counts as so many seconds of age at most."""


@dataclass(frozen=True)
class Weights:
    """PriorityWeight*. raw: names of those whose factors are not divided by the largest (PriorityFlags=NO_NORMAL_*).

    max_age_s: PriorityMaxAge. fair_tree: without it, slurmctld does not show the fair-share factors that it uses.
    half_life_s: PriorityDecayHalfLife, 0 without decay. period_s: PriorityCalcPeriod. favor_small: PriorityFavorSmall.
    """

    age: float = 0.0
    assoc: float = 0.0
    fair_share: float = 0.0
    job_size: float = 0.0
    partition: float = 0.0
    qos: float = 0.0
    tres: float = 0.0
    max_age_s: float = 7 * 86400.0
    fair_tree: bool = True
    raw: frozenset[str] = frozenset()
    half_life_s: float = 7 * 86400.0
    period_s: float = CALCULATED_S
    favor_small: bool = False

    @property
    def continuous(self) -> float:
        return self.age + self.fair_share + self.job_size + self.tres

    @property
    def accounts(self) -> bool:
        """Whether any part comes from a QOS or an association."""
        return bool(self.qos or self.assoc or self.fair_share)


@dataclass(frozen=True)
class PartitionPriority:
    """PriorityTier and PriorityJobFactor."""

    tier: int = 1
    factor: float = 1.0


@dataclass(frozen=True)
class SitePriorities:
    """What priorities are made of. weights: None with priority/basic. known: whether Slurm has been read.

    qos: priority by QOS. associations: priority and fair-share factor by account, user and partition.
    """

    weights: Weights | None = None
    partitions: Mapping[str, PartitionPriority] = field(default_factory=dict)
    qos: Mapping[str, float] = field(default_factory=dict)
    associations: Mapping[tuple[str, str, str], tuple[float, float]] = field(default_factory=dict)
    known: bool = False

    @cached_property
    def lowest_tier(self) -> int:
        return min((each.tier for each in self.partitions.values()), default=1)

    @cached_property
    def factors(self) -> tuple[float, float]:
        """The least and largest PriorityJobFactor."""
        found = [each.factor for each in self.partitions.values()] or [0.0]
        return min(found), max(found)

    @cached_property
    def highest_qos(self) -> float:
        return max(self.qos.values(), default=0.0)

    @cached_property
    def highest_association(self) -> float:
        return max((priority for priority, _ in self.associations.values()), default=0.0)


# reading


def parse_weights(config: Mapping[str, str]) -> Weights | None:
    """From ``scontrol show config``; None without the multifactor plugin. Raises SlurmError."""
    if config.get("PriorityType") != "priority/multifactor":
        return None
    names = {"age": "Age", "assoc": "Assoc", "fair_share": "FairShare", "job_size": "JobSize"}
    names |= {"partition": "Partition", "qos": "QOS"}
    flags = set(config.get("PriorityFlags", "").split(","))
    each = {"NO_NORMAL_ASSOC": "assoc", "NO_NORMAL_PART": "partition", "NO_NORMAL_QOS": "qos", "NO_NORMAL_TRES": "tres"}
    raw = {name for flag, name in each.items() if flag in flags or "NO_NORMAL_ALL" in flags}
    try:
        values = {name: float(config.get(f"PriorityWeight{word}", "0")) for name, word in names.items()}
        tres = sum(float(part.partition("=")[2]) for part in _listed(config.get("PriorityWeightTRES", "")))
        max_age = parse_limit(config.get("PriorityMaxAge", "7-00:00:00"))
        half_life = parse_limit(config.get("PriorityDecayHalfLife", "7-00:00:00"))
        period = parse_limit(config.get("PriorityCalcPeriod", "00:05:00"))
    except ValueError as error:
        raise SlurmError(f"cannot parse the priorities in scontrol show config ({error!r})") from error
    tres = 0.0 if "tres" in raw else tres
    fair_tree = "NO_FAIR_TREE" not in flags
    return Weights(
        **values,
        tres=tres,
        max_age_s=max_age,
        fair_tree=fair_tree,
        raw=frozenset(raw),
        half_life_s=half_life if math.isfinite(half_life) else 0.0,
        period_s=period,
        favor_small=config.get("PriorityFavorSmall", "No").lower() in ("yes", "true"),
    )


def priority_flags(conf: str) -> str:
    """PriorityFlags in the text of slurm.conf, of which the last one counts; "" if it has none."""
    lines = re.sub(r"\\\n", "", re.sub(r"(?<!\\)#.*", "", conf)).splitlines()
    found = [match[1] for line in lines if (match := _PRIORITY_FLAGS.fullmatch(line))]
    return ",".join(_listed(found[-1].upper())) if found else ""


def with_single_flags(shown: str, conf: str) -> str:
    """PriorityFlags of ``scontrol show config``, with those of slurm.conf in place of NO_NORMAL_ALL.

    Before 25.11.1, Slurm shows that for any of the flags NO_NORMAL_*. conf: the text of slurm.conf, "" if
    asrptd cannot read it.
    """
    single = [flag for flag in priority_flags(conf).split(",") if flag.startswith("NO_NORMAL_")]
    if not single or "NO_NORMAL_ALL" not in shown.split(","):
        return shown
    return ",".join([*(flag for flag in shown.split(",") if flag != "NO_NORMAL_ALL"), *single])


def _listed(text: str) -> list[str]:
    return [part for part in text.split(",") if part and part != "(null)"]


def partition_priorities(rows: Rows) -> dict[str, PartitionPriority]:
    """Partitions whose row cannot be read are left out."""
    found = {}
    for name, row in rows.items():
        tier, factor = row.get("PriorityTier", ""), row.get("PriorityJobFactor", "")
        if tier.isdecimal() and factor.isdecimal():
            found[name] = PartitionPriority(int(tier), float(factor))
    return found


def site_priorities(
    config: Mapping[str, str],
    partitions: Rows,
    qos: Mapping[str, Qos],
    associations: Mapping[tuple[str, str, str], Association],
) -> SitePriorities:
    """From ``scontrol show config``, the partitions and ``parse_assoc_mgr``. Raises SlurmError."""
    return SitePriorities(
        parse_weights(config),
        partition_priorities(partitions),
        {name: each.priority for name, each in qos.items()},
        {key: (each.priority, each.share) for key, each in associations.items() if each.user},
        known=True,
    )


# the standing of a job


def standing(job: JobRecord, site: SitePriorities, factor: int | None, first: int, now: float) -> Standing:
    """The standing of a pending job.

    factor: asrptd's SiteFactor in its priority; None if that is unknown. first: its priority when it was first seen.
    """
    if not site.known:
        return Standing(live=float(max(0, job.priority - (factor or 0))))
    tier = max((each.tier for each in _partitions(job, site)), default=1)
    if site.weights is None:
        return _basic(job, site, tier, first)
    return _multifactor(job, site, site.weights, tier, factor, now)


def _partitions(job: JobRecord, site: SitePriorities) -> list[PartitionPriority]:
    return [site.partitions[name] for name in job.partition.split(",") if name in site.partitions]


def _why(job: JobRecord, site: SitePriorities, tier: int, *parts: str) -> str:
    """What sets the tier, the level and the nice value of a job."""
    higher = f"partition {job.partition}" if tier > site.lowest_tier else ""
    boosted = job.nice <= -BOOST // 2
    nice = job.nice + BOOST if boosted else job.nice
    return ", ".join(filter(None, [higher, *parts, BOOSTED if boosted else "", f"nice {nice}" if nice else ""]))


def _by_admin(priority: int) -> str:
    return BOOSTED if priority == BOOSTED_PRIORITY else f"priority {priority} set by an admin"


def _basic(job: JobRecord, site: SitePriorities, tier: int, first: int) -> Standing:
    """Defaults decrease with each submission. An admin's priority is above them, higher than before, or small.

    Large negative nice values overflow.
    """
    live = job.priority
    if live > FIRST_DEFAULT or 0 < first < live:
        return Standing(tier, 0, job.nice, 0.0, float(live), 1, _by_admin(live))
    if 0 < live < LAST_DEFAULT and job.nice > LEAST_NICE:
        return Standing(tier, 0, job.nice, 0.0, float(live), -1, _by_admin(live))
    return Standing(tier, 0, job.nice, why=_why(job, site, tier))


def _multifactor(
    job: JobRecord, site: SitePriorities, weights: Weights, tier: int, factor: int | None, now: float
) -> Standing:
    qos = _part(site.qos.get(job.qos, 0.0), site.highest_qos, weights, "qos")
    priority, share = _association(job, site)
    association = _part(priority, site.highest_association, weights, "assoc")
    factors = [each.factor for each in _partitions(job, site)] or [0.0]
    least, most = (_part(each, site.factors[1], weights, "partition") for each in (min(factors), max(factors)))
    level, added = round(qos + association + most), factor or 0

    fair, slack = weights.fair_share * share, ROUNDING + weights.fair_share * (SHARE_SLACK if weights.fair_tree else 1)
    low = level - round(most - least) - job.nice + fair - slack
    high = level - job.nice + fair + slack + weights.continuous - weights.fair_share
    live = job.priority
    if live and factor is not None and not max(1.0, low + added) <= live <= max(1.0, high + added):
        own = live if live < added / 2 else live - added  # Slurm adds nothing to an admin's priority
        return Standing(tier, level, job.nice, 0.0, float(own), 1 if own > high else -1, _by_admin(own))

    shown = live > 1 and factor is not None  # 1 stands for all that is less
    continuous = live - added + job.nice - level if shown else fair
    all_parts = min(weights.continuous, max(0.0, continuous)) + _age(job, weights, now)
    why = _why(
        job,
        site,
        tier,
        f"QOS {job.qos}" if qos else "",
        f"association priority {priority:g}" if association else "",
        f"PriorityJobFactor of {job.partition}" if weights.partition and max(factors) > site.factors[0] else "",
    )
    return Standing(tier, level, job.nice, all_parts, float(level - job.nice + continuous), 0, why)


def _part(factor: float, largest: float, weights: Weights, name: str) -> float:
    """The part of a priority that comes from a factor, which is divided by the largest one."""
    weight: float = getattr(weights, name)
    if name in weights.raw:
        return weight * factor
    return weight * factor / largest if largest else 0.0


def _association(job: JobRecord, site: SitePriorities) -> tuple[float, float]:
    """Priority and fair-share factor; both 0 if unknown, as in Slurm."""
    return _of_user(job.account, job.user, job.partition, site)


def _of_user(account: str, user: str, partition: str, site: SitePriorities) -> tuple[float, float]:
    for key in ((account, user, partition), (account, user, "")):
        if key in site.associations:
            return site.associations[key]
    return 0.0, 0.0


def fixed_points(account: str, user: str, qos: str, partition: str, site: SitePriorities) -> float:
    """What QOS, association and partition add to the priority of a job, as far as they are known."""
    if site.weights is None:
        return 0.0
    weights = site.weights
    association = _part(_of_user(account, user, partition, site)[0], site.highest_association, weights, "assoc")
    known = site.partitions.get(partition)
    of_partition = _part(known.factor, site.factors[1], weights, "partition") if known else 0.0
    return association + of_partition + _part(site.qos.get(qos, 0.0), site.highest_qos, weights, "qos")


def turn(job: Standing, weights: Weights | None, submitted: float, accrued_from: float, now: float) -> float:
    """The time of submission that would give a job its priority by age alone: the first of them is first in Slurm.

    accrued_from: Slurm counts its age from then on; 0 if it does not count it. A job older than PriorityMaxAge counts
    as if it still aged. Priorities are whole numbers, and an age of less than a point is in none.
    """
    if weights is None:
        return submitted
    aged = math.floor(weights.age * _share_of_age(accrued_from or now, weights, now))
    return submitted - (job.live - aged) * _per_point_s(weights)


def turn_slack_s(weights: Weights | None) -> float:
    """By how much two answers of ``turn`` may differ while nothing changes: slurmctld adds age every few minutes."""
    return 2 * CALCULATED_S + ROUNDING * _per_point_s(weights) if weights is not None and weights.age else 0.0


def _per_point_s(weights: Weights) -> float:
    """Seconds of age that add a point to a priority."""
    return min(MOST_PER_POINT_S, weights.max_age_s / weights.age) if weights.age else MOST_PER_POINT_S


def _age(job: JobRecord, weights: Weights, now: float) -> float:
    """The part for the age of a leased job that Slurm does not count.

    Without limits, Slurm counts it from the end of the first lease; with limits, not while a begin time is ahead; with
    ACCRUE_ALWAYS, from the submission.
    """
    if not weights.age or job.eligible_time <= now:
        return 0.0
    old, counted = (_share_of_age(since, weights, now) for since in (job.submit_time, job.accrue_time or now))
    return weights.age * max(0.0, old - counted)


def _share_of_age(since: float, weights: Weights, now: float) -> float:
    """The factor for the age, 0 to 1."""
    return min(1.0, max(0.0, now - since) / weights.max_age_s)
