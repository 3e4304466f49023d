"""Slurm's plugin priority/multifactor: decayed usage, fair share, age and size, as its source (22.05) computes them.

Usage is what ``sshare`` shows as RawUsage: billing units times seconds, halved every PriorityDecayHalfLife. Fair share
is that of Fair Tree (``fair_tree.c``), or of the older formula (PriorityFlags=NO_FAIR_TREE). Priorities change every
PriorityCalcPeriod; a new job gets its own at once, from the fair share of the last calculation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from slurm_asrpt.core.job import Job, JobId

ROOT = "root"
"""The account above all others."""


class Leaf(NamedTuple):
    """A user in an account: where usage is counted. account: "" if it is not known."""

    account: str
    user: str


@dataclass(frozen=True)
class ShareTree:
    """Who has which shares (sacctmgr's Fairshare). An unknown account or user has one share.

    parents: the account above each account. accounts, users: shares; None for Fairshare=parent, which makes an
    account's children those of the account above it, and puts a user before all others of the account.
    """

    parents: Mapping[str, str] = field(default_factory=dict)
    accounts: Mapping[str, float | None] = field(default_factory=dict)
    users: Mapping[Leaf, float | None] = field(default_factory=dict)

    def with_users(self, leaves: Iterable[Leaf]) -> ShareTree:
        """The same tree and these users, if they are missing."""
        new = [leaf for leaf in leaves if leaf not in self.users]
        return replace(self, users={**self.users, **dict.fromkeys(new, 1.0)}) if new else self

    def above(self, account: str) -> str:
        """The account that counts as the one above: accounts with Fairshare=parent are skipped."""
        seen = {account}
        up = self.parents.get(account, ROOT)
        while up not in ("", ROOT) and self.accounts.get(up, 1.0) is None and up not in seen:
            seen.add(up)
            up = self.parents.get(up, ROOT)
        return ROOT if up in seen or not up else up

    def of_user(self, leaf: Leaf) -> str:
        """The account whose children the user competes with."""
        own = leaf.account or ROOT
        return self.above(own) if own != ROOT and self.accounts.get(own, 1.0) is None else own


@dataclass(eq=False)
class _Node:
    """An account, or a user. share: of the shares of its siblings. used: of the usage of the account above."""

    leaf: Leaf | None
    shares: float | None
    usage: float = 0.0
    children: list[_Node] = field(default_factory=list)
    share: float = 0.0
    used: float = 0.0

    @property
    def level(self) -> float:
        """LevelFS of sshare."""
        if self.shares is None:
            return math.inf
        if not self.share:
            return 0.0
        return self.share / self.used if self.used else math.inf

    def divide(self) -> None:
        """Set share and used of all below."""
        total = sum(child.shares or 0.0 for child in self.children)
        for child in self.children:
            child.share = (child.shares or 0.0) / total if total else 0.0
            child.used = child.usage / self.usage if self.usage else 0.0
            child.divide()


def _grown(tree: ShareTree, usage: Mapping[Leaf, float]) -> _Node:
    """The root of the tree, with usage summed up to it."""
    nodes = {ROOT: _Node(None, 1.0)}
    children = {**tree.parents, **{leaf.account: ROOT for leaf in tree.users if leaf.account not in tree.parents}}
    names = [name for name in children if name not in ("", ROOT) and tree.accounts.get(name, 1.0) is not None]
    nodes |= {name: _Node(None, tree.accounts.get(name, 1.0)) for name in names}
    for name in names:
        nodes.get(tree.above(name), nodes[ROOT]).children.append(nodes[name])
    for leaf, shares in tree.users.items():
        nodes.get(tree.of_user(leaf), nodes[ROOT]).children.append(_Node(leaf, shares, usage.get(leaf, 0.0)))
    _sum(nodes[ROOT])
    nodes[ROOT].divide()
    return nodes[ROOT]


def _sum(node: _Node) -> float:
    if node.leaf is None:
        node.usage = math.fsum(_sum(child) for child in node.children)
    return node.usage


class _Ranks:
    """Fair Tree: the users in the order of their branches' LevelFS; users that tie share a rank.

    Accounts that tie do not merge, although Slurm's manual says so: ``_count_tied_accounts`` finds none (22.05).
    """

    def __init__(self, users: int) -> None:
        self.users = self._left = self._rank = users
        self.found: dict[Leaf, float] = {}

    def descend(self, siblings: Sequence[_Node], tied: bool = False) -> None:
        """tied: the first sibling is as good as the user that was ranked last."""
        last = math.nan
        for node in sorted(siblings, key=lambda node: (-node.level, node.leaf is None)):
            tied = tied or node.level == last
            if node.leaf is None:
                self.descend(node.children, tied)
            else:
                self._rank = self._rank if tied else self._left
                self.found[node.leaf] = self._rank / self.users
                self._left -= 1
            tied, last = False, node.level


def fair_tree(tree: ShareTree, usage: Mapping[Leaf, float]) -> dict[Leaf, float]:
    """The fair-share factor of each user, 0 to 1, by Fair Tree. usage: in any unit."""
    tree = tree.with_users(usage)
    ranks = _Ranks(len(tree.users))
    ranks.descend(_grown(tree, usage).children)
    return ranks.found


def classic_fair_share(tree: ShareTree, usage: Mapping[Leaf, float]) -> dict[Leaf, float]:
    """The factor by the older formula: 2 ** -(effective usage / normalized shares)."""
    root = _grown(tree.with_users(usage), usage)
    return dict(_classic(root, root.usage, 1.0, None))


def _classic(node: _Node, total: float, shares: float, effective: float | None) -> Iterator[tuple[Leaf, float]]:
    """shares, effective: normalized shares and effective usage of the node; None for the root."""
    for child in node.children:
        used = child.usage / total if total else 0.0
        used = used if effective is None else used + (effective - used) * child.share
        share = shares * child.share
        if child.shares is None:
            used, share = effective or 0.0, shares
        if child.leaf is not None:
            yield child.leaf, 2.0 ** -(used / share) if share else 0.0
        yield from _classic(child, total, share, used)


class Usage:
    """The decayed usage of each user. half_life_s: 0 for no decay."""

    def __init__(self, half_life_s: float) -> None:
        self.half_life_s = half_life_s
        self._past: dict[Leaf, tuple[float, float]] = {}  # of ended jobs: the amount, and at which time
        self._runs: dict[str, tuple[Leaf, float, float]] = {}  # user, billing units, start

    def started(self, key: str, leaf: Leaf, rate: float, now: float) -> None:
        """A job starts, which uses ``rate`` billing units."""
        self._runs[key] = (leaf, rate, now)

    def ended(self, key: str, now: float) -> None:
        """Unknown jobs are ignored."""
        run = self._runs.pop(key, None)
        if run is not None:
            leaf, rate, start = run
            self.add(leaf, rate * self._seconds(now - start), now)

    def add(self, leaf: Leaf, amount: float, now: float) -> None:
        """Usage of a user, as of ``now``."""
        known, at = self._past.get(leaf, (0.0, now))
        latest = max(at, now)
        self._past[leaf] = (known * self._left(latest - at) + amount * self._left(latest - now), latest)

    def at(self, now: float) -> dict[Leaf, float]:
        """Billing units times seconds, decayed until now."""
        found = {leaf: amount * self._left(now - at) for leaf, (amount, at) in self._past.items()}
        for leaf, rate, start in self._runs.values():
            found[leaf] = found.get(leaf, 0.0) + rate * self._seconds(now - start)
        return found

    def _left(self, seconds: float) -> float:
        """What is left of usage after a time."""
        return 2.0 ** -(max(0.0, seconds) / self.half_life_s) if self.half_life_s else 1.0

    def _seconds(self, seconds: float) -> float:
        """The decayed length of a run that lasts until now: the integral of what is left of each second."""
        ran = max(0.0, seconds)
        return (1.0 - self._left(ran)) * self.half_life_s / math.log(2.0) if self.half_life_s else ran

    def dump(self) -> dict[str, Any]:
        return {
            "past": [[*leaf, amount, at] for leaf, (amount, at) in self._past.items()],
            "runs": [[key, *leaf, rate, start] for key, (leaf, rate, start) in self._runs.items()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError, ValueError."""
        self._past = {Leaf(account, user): (float(amount), float(at)) for account, user, amount, at in state["past"]}
        self._runs = {
            str(key): (Leaf(account, user), float(rate), float(start))
            for key, account, user, rate, start in state["runs"]
        }


@dataclass(frozen=True)
class Weights:
    """PriorityWeight* of Slurm's names, and what belongs to them. Times in seconds.

    half_life_s: PriorityDecayHalfLife, 0 for none. period_s: PriorityCalcPeriod. fair_tree: not NO_FAIR_TREE.
    """

    age: float = 0.0
    fair_share: float = 0.0
    job_size: float = 0.0
    max_age_s: float = 7 * 86400.0
    half_life_s: float = 7 * 86400.0
    period_s: float = 300.0
    fair_tree: bool = True
    favor_small: bool = False


class JobFactors(NamedTuple):
    """What a priority depends on besides the job itself.

    billing: units that the job's usage counts. points: what QOS, partition, association and TRES add. tier: the
    partition's PriorityTier.
    """

    leaf: Leaf
    billing: float
    points: float = 0.0
    tier: int = 1


class Multifactor:
    """The priorities of waiting jobs. factors: by job; without one, a job counts its GPUs for its user."""

    def __init__(
        self, weights: Weights, tree: ShareTree | None = None, factors: Mapping[JobId, JobFactors] | None = None
    ) -> None:
        self.weights, self.tree = weights, tree or ShareTree()
        self.factors: Mapping[JobId, JobFactors] = factors or {}
        self.usage = Usage(weights.half_life_s)
        self._calculated = -math.inf
        self._shares: Mapping[Leaf, float] = {}
        self._priority: dict[JobId, tuple[int, int]] = {}

    def factors_of(self, job: Job) -> JobFactors:
        return self.factors.get(job.id) or JobFactors(Leaf("", job.user), float(job.gpus))

    def started(self, job: Job, now: float) -> None:
        factors = self.factors_of(job)
        self._priority.pop(job.id, None)
        self.usage.started(job.id, factors.leaf, factors.billing, now)

    def ended(self, job_id: JobId, now: float) -> None:
        self._priority.pop(job_id, None)
        self.usage.ended(job_id, now)

    def order(self, jobs: Collection[Job], nodes: int, gpus: int, now: float) -> list[Job]:
        """The jobs, the highest priority first; of equal ones the first of ``jobs``. nodes, gpus: of the cluster."""
        self._recalculate(jobs, now)
        known = self._priority
        for job in jobs:
            if job.id not in known:
                factors = self.factors_of(job)
                known[job.id] = factors.tier, self.priority(job, factors, nodes, gpus, now)
        return sorted(jobs, key=lambda job: known[job.id], reverse=True)

    def due(self, now: float) -> bool:
        """Whether priorities will be calculated anew at the next ``order``."""
        return now >= self._calculated + self.weights.period_s

    def _recalculate(self, jobs: Collection[Job], now: float) -> None:
        if not self.due(now):
            return
        self._calculated, self._priority = now, {}
        if self.weights.fair_share:
            leaves = {self.factors_of(job).leaf for job in jobs}
            factors = fair_tree if self.weights.fair_tree else classic_fair_share
            self._shares = factors(self.tree.with_users(leaves), self.usage.at(now))

    def priority(self, job: Job, factors: JobFactors, nodes: int, gpus: int, now: float) -> int:
        """A job's priority, as sprio shows it. An unknown user has not used anything."""
        weights = self.weights
        age = min(1.0, max(0.0, now - job.submit_time) / weights.max_age_s) if weights.max_age_s else 1.0
        share = self._shares.get(factors.leaf, 1.0)
        points = weights.age * age + weights.fair_share * share + factors.points
        return int(points + weights.job_size * size_factor(job, nodes, gpus, weights.favor_small))

    def dump(self) -> dict[str, Any]:
        return self.usage.dump()

    def load(self, state: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError, ValueError."""
        self.usage.load(state)
        self._calculated, self._priority = -math.inf, {}


def size_factor(job: Job, nodes: int, gpus: int, favor_small: bool) -> float:
    """The job's share of the cluster: the mean of those of its nodes and its GPUs (Slurm: of its nodes and CPUs)."""
    of_nodes = min(1.0, job.request.min_nodes / nodes) if nodes else 0.0
    of_gpus = min(1.0, job.gpus / gpus) if gpus else 0.0
    share = (of_nodes + of_gpus) / 2
    return 1.0 - share if favor_small else share
