"""A site's own Slurm in the simulator: policy slurm-backfill with the site's settings, shares and priorities.

What is not known of the site is Slurm's default. The reports say where each setting comes from, and what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.multifactor import ROOT, JobFactors, Leaf, ShareTree, Usage
from slurm_asrpt.core.policies.slurm_backfill.policy import SlurmBackfill
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.slurm.limits import parse_tres
from slurm_asrpt.slurm.priorities import SitePriorities, Weights, fixed_points
from slurm_asrpt.slurm.scheduler import BACKFILL
from slurm_asrpt.slurm.site import Site
from slurm_asrpt.text import counted, span
from slurm_asrpt.traces.trace import LIMIT_COLUMNS

NAME = "slurm-backfill"
DEFAULTS = "Slurm's defaults"
_COLUMNS = ("user", *LIMIT_COLUMNS, "queue", "gpus")
LEAST_UNEXPLAINED = 0.05
"""A smaller share of a user's usage may be rounding and the seconds in which nodes clean up."""
LONGEST_HALF_LIVES = 3.0
"""After so many half-lives, usage today says little of that before the first job."""


@dataclass(frozen=True)
class SimulatedSlurm:
    """settings: of policy slurm-backfill. tree, factors: for its priorities; None, empty without any.

    used: what users had used before the first job, billing units times seconds. facts: what reports say, JSON values.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    tree: ShareTree | None = None
    factors: Mapping[JobId, JobFactors] = field(default_factory=dict)
    used: Mapping[Leaf, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=lambda: _facts(DEFAULTS))

    def prepare(self, policy: object, now: float) -> None:
        """Give the policy what it needs for priorities, before the first job; no other policy needs anything."""
        if self.tree is not None and isinstance(policy, SlurmBackfill):
            policy.use_accounts(self.tree, self.factors, self.used, now)


def _facts(source: str, priority: str = "") -> dict[str, Any]:
    return {"source": source, "priority": priority, "unknown_accounts": 0, "used": 0}


def of_site(site: Site, jobs: pd.DataFrame, gpus: int, source: str, asked_s: float | None = None) -> SimulatedSlurm:
    """The Slurm of a site for these jobs. jobs: columns of a trace, in the order of the simulation.

    gpus: of the cluster. source: where the settings come from, for reports. asked_s: how long after the first
    submission the site was asked; None if that is not known.
    """
    scheduler, priorities = site.scheduler, site.priorities
    settings: dict[str, Any] = {key: value for key, value in asdict(scheduler).items() if key != "type"}
    facts = _facts(source, _priority_text(priorities))
    if scheduler.type != BACKFILL:
        facts["scheduler"] = scheduler.type
    tiers = {each.tier for each in priorities.partitions.values()}
    if priorities.weights is None and len(tiers) < 2:
        return SimulatedSlurm(settings, facts=facts)
    settings |= _weights(priorities.weights or Weights())
    factors, unknown = _factors(jobs, priorities, gpus)
    needed = priorities.weights is not None and priorities.weights.accounts
    used = used_before(site, jobs, factors, asked_s) if asked_s is not None else {}
    facts |= {"unknown_accounts": unknown if needed else 0, "used": len(used)}
    return SimulatedSlurm(settings, _tree(site), factors, used, facts)


def used_before(
    site: Site, jobs: pd.DataFrame, factors: Mapping[JobId, JobFactors], asked_s: float
) -> dict[Leaf, float]:
    """What users had used before the first job: what these jobs do not explain of their usage when the site was asked.

    Usage decays, so it was more by then. Empty if fair share does not count, or all of that was too long ago.
    """
    weights = site.priorities.weights
    half_life = weights.half_life_s if weights is not None and weights.fair_share else 0.0
    if weights is None or not weights.fair_share or (half_life and asked_s > LONGEST_HALF_LIVES * half_life):
        return {}
    explained = _usage_of(jobs, factors, half_life, asked_s)
    grown = 2.0 ** (asked_s / half_life) if half_life else 1.0
    each = dict[Leaf, float]()
    for one in site.associations.values():
        if one.user:
            leaf = Leaf(one.account, one.user)
            each[leaf] = each.get(leaf, 0.0) + one.usage
    rest = {leaf: usage - explained.get(leaf, 0.0) for leaf, usage in each.items()}
    return {leaf: grown * amount for leaf, amount in rest.items() if amount > LEAST_UNEXPLAINED * each[leaf]}


def _usage_of(
    jobs: pd.DataFrame, factors: Mapping[JobId, JobFactors], half_life_s: float, now: float
) -> dict[Leaf, float]:
    """What the jobs have used ``now`` seconds after the first submission, as they ran."""
    usage = Usage(half_life_s)
    started = (jobs["submit_s"] - jobs["submit_s"].iloc[0] + jobs["wait_s"]).tolist()
    for number, (start, lasts) in enumerate(zip(started, jobs["duration_s"].tolist(), strict=True)):
        if start < now:  # not where the wait is unknown
            of_job, end = factors[JobId(str(number))], min(now, start + lasts)
            usage.started(str(number), of_job.leaf, of_job.billing, start)
            usage.ended(str(number), end)
    return usage.at(now)


def _weights(weights: Weights) -> dict[str, Any]:
    """As settings of the policy; what is added to each job (QOS, partition, association, TRES) is in its factors."""
    return {
        "weight_age": weights.age,
        "weight_fair_share": weights.fair_share,
        "weight_job_size": weights.job_size,
        "max_age_s": min(weights.max_age_s, 1e12),  # UNLIMITED
        "half_life_s": weights.half_life_s,
        "calc_period_s": weights.period_s,
        "fair_tree": weights.fair_tree,
        "favor_small": weights.favor_small,
    }


def _tree(site: Site) -> ShareTree:
    """The shares of all accounts and users. A user with an association in a partition counts once."""
    each = site.associations.values()
    accounts = [one for one in each if not one.user and one.account != ROOT]
    users = [one for one in each if one.user and not one.partition]
    return ShareTree(
        {one.account: one.parent or ROOT for one in accounts},
        {one.account: one.shares for one in accounts},
        {Leaf(one.account, one.user): one.shares for one in users},
    )


def _factors(jobs: pd.DataFrame, priorities: SitePriorities, gpus: int) -> tuple[dict[JobId, JobFactors], int]:
    """By job; and the number of jobs without a known account."""
    jobs = jobs.assign(**{name: "" for name in LIMIT_COLUMNS if name not in jobs})
    known: dict[tuple[Any, ...], JobFactors] = {}
    found = {}
    for number, row in enumerate(jobs[list(_COLUMNS)].itertuples(index=False, name=None)):
        if row not in known:
            known[row] = _factors_of(row, priorities, gpus)
        found[JobId(str(number))] = known[row]
    return found, int((jobs["account"] == "").sum())


def _factors_of(row: tuple[Any, ...], priorities: SitePriorities, gpus: int) -> JobFactors:
    user, account, qos, tres, partition, count = row
    points = fixed_points(account, user, qos, partition, priorities)
    if priorities.weights is not None:
        points += priorities.weights.tres * count / gpus
    known = priorities.partitions.get(partition)
    return JobFactors(
        Leaf(account, user), parse_tres(tres).get("billing", float(count)), points, known.tier if known else 1
    )


def _priority_text(priorities: SitePriorities) -> str:
    """``age 1000, fair share 10000 (half-life 7 days)``."""
    weights = priorities.weights
    if weights is None:
        return ""
    half_life = f"half-life {span(weights.half_life_s)}" if weights.half_life_s else "no decay"
    named = {
        "age": weights.age,
        f"fair share ({half_life})": weights.fair_share,
        f"job size ({'small' if weights.favor_small else 'large'} first)": weights.job_size,
        "QOS": weights.qos,
        "partition": weights.partition,
        "association": weights.assoc,
        "TRES": weights.tres,
    }
    return ", ".join(f"{name} {weight:g}" for name, weight in named.items() if weight) or "no weights"


def remarks(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """How the Slurm is simulated, in sentences. settings: of the policy."""
    each = (
        f"bf_interval {span(settings['bf_interval_s'])}, bf_window {span(settings['bf_window_s'])}, "
        f"bf_max_job_test {settings['bf_max_job_test']}"
    )
    if settings["bf_max_job_user"]:
        each += f", bf_max_job_user {settings['bf_max_job_user']}"
    if settings["bf_window_linear_s"]:
        each += f", bf_window_linear {span(settings['bf_window_linear_s'])}"
    priority = f"priorities by {facts['priority']}" if facts["priority"] else "jobs in order of submission"
    lines = [f"{NAME} simulates this Slurm: {each}; {priority} ({facts['source']})."]
    if facts.get("scheduler"):
        lines.append(f"This Slurm runs {facts['scheduler']}; backfill is simulated all the same.")
    if settings["weight_fair_share"]:
        if facts.get("used"):
            lines.append("What users had used before the first job follows from their usage now and from these jobs.")
        lines.append("The shares of users and accounts (fair share) are those of today.")
    if facts["unknown_accounts"]:
        lines.append(
            f"{counted(facts['unknown_accounts'], 'job')} without a known account: fair share counts them by user."
        )
    return lines
