"""The priorities of a site as slurmctld has them, and the standing of one job under them (docs/priorities.md).

The multifactor plugin adds up parts. QOS, partition, association and nice are set on purpose: they make the class.
Fair share, age, size and TRES are continuous: they make the weight. The live priority of a job shows their sum, and
whether an admin has set the priority itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from slurm_asrpt.core.priorities import Standing, weight_of
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.limits import parse_assoc_mgr
from slurm_asrpt.slurm.records import JobRecord

FIRST_DEFAULT = 4_294_901_760
"""The plugin priority/basic counts down from here."""
LAST_DEFAULT = 2**31
"""No default of priority/basic gets below."""
SHARE_SLACK = 0.1
"""The fair share in a job's priority may be older or newer than the one that was read by this much."""
ROUNDING = 2.0


@dataclass(frozen=True)
class Weights:
    """PriorityWeight*. raw: names of those whose factors are not divided by the largest (PriorityFlags=NO_NORMAL_*).

    max_age_s: PriorityMaxAge. accrues: jobs with a begin time ahead age, too (ACCRUE_ALWAYS). fair_tree: without it,
    slurmctld does not show the fair-share factors that it uses.
    """

    age: float = 0.0
    assoc: float = 0.0
    fair_share: float = 0.0
    job_size: float = 0.0
    partition: float = 0.0
    qos: float = 0.0
    tres: float = 0.0
    max_age_s: float = 7 * 86400.0
    accrues: bool = False
    fair_tree: bool = True
    raw: frozenset[str] = frozenset()

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
        max_age = _seconds(config.get("PriorityMaxAge", "7-00:00:00"))
    except ValueError as error:
        raise SlurmError(f"cannot parse the priorities in scontrol show config ({error!r})") from error
    tres = 0.0 if "tres" in raw else tres
    accrues, fair_tree = "ACCRUE_ALWAYS" in flags, "NO_FAIR_TREE" not in flags
    return Weights(**values, tres=tres, max_age_s=max_age, accrues=accrues, fair_tree=fair_tree, raw=frozenset(raw))


def _seconds(text: str) -> float:
    """``7-00:00:00``. Raises ValueError; infinity for UNLIMITED."""
    if not text[:1].isdigit():
        return float("inf")
    days, dash, clock = text.rpartition("-")
    hours, minutes, seconds = (float(part) for part in clock.split(":"))
    return 86400.0 * float(days if dash else 0) + 3600 * hours + 60 * minutes + seconds


def _listed(text: str) -> list[str]:
    return [part for part in text.split(",") if part and part != "(null)"]


def parse_partition_priorities(text: str) -> dict[str, PartitionPriority]:
    """``scontrol -o show partition``. Partitions whose line cannot be read are left out."""
    lines = re.findall(r"^PartitionName=(\S+) (.*)$", text, re.MULTILINE)
    found = {}
    for name, rest in lines:
        values = dict(re.findall(r"\b(PriorityTier|PriorityJobFactor)=([0-9]+)", rest))
        if len(values) == 2:
            found[name] = PartitionPriority(int(values["PriorityTier"]), float(values["PriorityJobFactor"]))
    return found


def site_priorities(config: Mapping[str, str], partitions: str, assoc_mgr: str) -> SitePriorities:
    """From Slurm's texts. assoc_mgr: with flags=qos,assoc; "" if no part comes from there. Raises SlurmError."""
    qos, associations = parse_assoc_mgr(assoc_mgr)
    return SitePriorities(
        parse_weights(config),
        parse_partition_priorities(partitions),
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
    names = [name for name in job.partition.split(",") if name in site.partitions]
    tier = max((site.partitions[name].tier for name in names), default=1)
    why = [f"partition {job.partition}"] if tier > site.lowest_tier else []
    if site.weights is None:
        return _basic(job, tier, first, why)
    low, high = _levels(job, names, site, site.weights, why)
    return _multifactor(job, tier, (low, high), site, site.weights, factor, why, now)


def _named(nice: int) -> list[str]:
    return [f"nice {nice}"] if nice else []


def _basic(job: JobRecord, tier: int, first: int, why: list[str]) -> Standing:
    """Defaults decrease with each submission. An admin's priority is above them, higher than before, or small."""
    live, why = job.priority, why + _named(job.nice)
    raised, lowered = live > FIRST_DEFAULT or 0 < first < live, 0 < live < LAST_DEFAULT
    fixed = 1 if raised else -1 if lowered and job.nice > -LAST_DEFAULT // 32 else 0  # large nice values overflow
    if fixed:
        why = [f"priority {live} set by an admin"]
    return Standing(tier, -job.nice, float(live) if fixed else 0.0, fixed, why=", ".join(why))


def _levels(
    job: JobRecord, names: list[str], site: SitePriorities, weights: Weights, why: list[str]
) -> tuple[int, int]:
    """The parts set on purpose, summed up: the least and largest of the job's partitions. Adds their names to why."""
    qos, most_qos = site.qos.get(job.qos, 0.0), site.highest_qos
    level = weights.qos * (qos if "qos" in weights.raw else qos / most_qos if most_qos else 0.0)
    if weights.qos and qos:
        why.append(f"QOS {job.qos}")
    if weights.assoc:
        own = _association(job, site)[0]
        most = site.highest_association
        level += weights.assoc * (own if "assoc" in weights.raw else own / most if most else 0.0)
        if own:
            why.append(f"association priority {own:g}")
    factors, (least_factor, most) = [site.partitions[name].factor for name in names] or [0.0], site.factors
    scale = weights.partition * (1.0 if "partition" in weights.raw else 1 / most if most else 0.0)
    if scale and max(factors) > least_factor:
        why.append(f"PriorityJobFactor of {job.partition}")
    why += _named(job.nice)
    return round(level + scale * min(factors) - job.nice), round(level + scale * max(factors) - job.nice)


def _association(job: JobRecord, site: SitePriorities) -> tuple[float, float | None]:
    """Priority and fair-share factor, None if unknown."""
    for key in ((job.account, job.user, job.partition), (job.account, job.user, "")):
        if key in site.associations:
            priority, share = site.associations[key]
            return priority, share if site.weights is not None and site.weights.fair_tree else None
    return 0.0, None


def _multifactor(
    job: JobRecord,
    tier: int,
    levels: tuple[int, int],
    site: SitePriorities,
    weights: Weights,
    factor: int | None,
    why: list[str],
    now: float,
) -> Standing:
    low, level = levels
    share = _association(job, site)[1]
    fair = weights.fair_share * (share if share is not None else 0.5)
    slack = ROUNDING + weights.fair_share * (SHARE_SLACK if share is not None else 0.5)
    added, live = factor or 0, job.priority
    least = low + fair - slack + added
    most = level + fair + slack + weights.continuous - weights.fair_share + added
    if live and factor is not None and not max(1.0, least) <= live <= max(1.0, most):
        own = live if not added or live < added / 2 else live - added  # Slurm adds nothing to an admin's priority
        fixed = 1 if own > most - added else -1
        return Standing(tier, level, float(own), fixed, why=f"priority {own} set by an admin")
    known = live > 1 and factor is not None  # 1 stands for all that is less
    live_sum = live - added if known else level + fair
    sum_ = min(weights.continuous, max(0.0, live_sum - level)) + _age(job, weights, now)
    share_of_all = sum_ / weights.continuous if weights.continuous else 0.0
    return Standing(tier, level, float(live_sum), 0, weight_of(share_of_all), ", ".join(why))


def _age(job: JobRecord, weights: Weights, now: float) -> float:
    """The part for the age of a leased job, which Slurm does not count: its begin time is ahead."""
    if not weights.age or weights.accrues or job.eligible_time <= now:
        return 0.0
    return weights.age * min(1.0, max(0.0, now - job.submit_time) / weights.max_age_s)
