"""How much the jobs of a group communicate, learned from how long their runs took in different placements.

Per group there is a posterior of r (``core.sensitivity``) on a grid:

1. Runs that would take equally long in the same placement are compared: those of a group with as many GPUs and the same
   hyper-parameters. log of their time = log of an unknown base + log(1 + r t) + noise. The base has a flat prior, and
   the variance of the noise an inverse-gamma prior around what is usual of iteration times, or of runtimes. Both are
   integrated out, which leaves Student's t of the residuals: the runs themselves say how noisy they are.
2. No value of r is believed because of a single run: each is as likely as without the run that speaks most against it.
3. The prior of a group is drawn from the posteriors of the other groups of its user and program, these from those of
   its user, and these from those of all users, each in proportion to how many of them there are and how much their own
   runs say (a hierarchy of Dirichlet priors, solved by fixed-point iteration). Among all users, each counts as one, and
   the one whose jobs communicate most does not count, so that no single user can talk others into anything.
4. A job is planned with the expected r, because times are linear in r. At first nothing is expected to communicate, so
   that nothing changes until some groups have shown that they do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GRID: Array = np.concatenate([[0.0], 0.05 * 2 ** (np.arange(17) / 2)])
"""Values of r, in units of the reciprocal of ``slowest_server_s``: between whole servers through the slowest switches,
an iteration takes 1 to 13.8 times as long as its computation."""
PRIOR: Array = np.concatenate([[0.99], np.full(len(GRID) - 1, 0.01 / (len(GRID) - 1))])
"""Before any run is known. The mean is too small to keep a job from any placement."""
DRAWN = 2.0
"""Weight, in groups, of the wider key in the prior of a narrower one."""
FREEDOM = 3.0
"""Weight, in runs, of what noise is usual."""
KEPT = 200
"""Runs that are remembered for each comparison, the latest."""
ROUNDS = 12
ITERATION_NOISE, RUNTIME_NOISE = 0.1, 0.3
"""Usual standard deviation of the logarithm of reported iteration times, and of runtimes."""
APART = 1.1
"""Runs that are at least by this factor slower than in the best placement seen, as far as r says, count as apart."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A run as evidence. group, program, user: keys; program "" for none.

    alike: what else runs must share to be compared. seconds: per iteration if reported, else of the whole run, on
    reference GPUs. link_s: t of its placement, s/GB.
    """

    group: str
    program: str
    user: str
    alike: Hashable
    seconds: float
    link_s: float
    reported: bool


@dataclass(frozen=True, slots=True)
class Belief:
    """rate: r that a job is planned with, GB/s; 0 if it is below the grid. level: of the key that it is from.

    runs, apart, slower: of a group's own runs: how many there are, how many of them were apart, and how many times as
    long these took; 0 for none.
    """

    rate: float = 0.0
    level: str = "cluster"
    runs: int = 0
    apart: int = 0
    slower: float = 0.0


@dataclass
class _Group:
    """The runs of a group that can be compared, and what they say."""

    program: str
    user: str
    cells: dict[tuple[bool, Hashable], deque[tuple[float, float]]] = field(default_factory=dict)
    likelihood: Array | None = None  # relative to the most likely r
    weight: float = 0.0  # how much it says, 0 to 1


class Sensitivity:
    """Learns run by run. unit_s: ``slowest_server_s`` of the fabric."""

    def __init__(self, unit_s: float) -> None:
        self.rates = GRID / unit_s
        self._groups: dict[str, _Group] = {}

    def learn(self, run: Timed) -> None:
        group = self._groups.setdefault(run.group, _Group(run.program, run.user))
        cell = group.cells.setdefault((run.reported, run.alike), deque(maxlen=KEPT))
        cell.append((np.log(run.seconds), run.link_s))
        group.likelihood = None

    def beliefs(self) -> Beliefs:
        """What is believed of each group that has evidence, and of the programs, users and the cluster around them."""
        known = {name: group for name, group in self._groups.items() if self._says(group) > 0}
        hierarchy = _Hierarchy(list(known.values()))
        found = {
            _key("group", name): self._belief("group", posterior, group)
            for (name, group), posterior in zip(known.items(), hierarchy.groups, strict=True)
        }
        for level, posteriors in hierarchy.wider.items():
            found |= {_key(level, name): self._belief(level, each) for name, each in posteriors.items()}
        return Beliefs(found)

    def _says(self, group: _Group) -> float:
        if group.likelihood is None:
            logs = np.zeros(len(GRID))
            for (reported, _), runs in group.cells.items():
                logs += log_likelihood(runs, self.rates, ITERATION_NOISE if reported else RUNTIME_NOISE)
            group.likelihood = np.exp(logs - logs.max())
            group.weight = 1.0 - float(group.likelihood.min())
        return group.weight

    def _belief(self, level: str, posterior: Array, group: _Group | None = None) -> Belief:
        rate = float(posterior @ self.rates)
        return Belief(rate if rate >= self.rates[1] else 0.0, level, *(_observed(group, rate) if group else ()))


class Beliefs:
    """Beliefs by key, for jobs."""

    def __init__(self, known: dict[str, Belief]) -> None:
        self.known = known

    def of(self, group: str, program: str, user: str) -> Belief | None:
        """The belief of the narrowest key that there is one of."""
        return next((found for key in keys_of(group, program, user) if (found := self.known.get(key))), None)


NOTHING = Beliefs({})


def keys_of(group: str, program: str, user: str) -> tuple[str, ...]:
    """The keys of ``Beliefs`` that hold for a job, from narrow to wide."""
    return _key("group", group), _key("program", program), _key("user", user), _key("cluster", "")


def _key(level: str, name: str) -> str:
    return f"{level} {name}"


def log_likelihood(runs: Iterable[tuple[float, float]], rates: Array, noise: float) -> Array:
    """log p(runs | r) for each r, up to a constant. runs: (log of the time, t); noise: its usual standard deviation.

    Of each r, without the run that speaks most against it.
    """
    times, links = np.array(list(runs)).T
    many = len(times)
    if many < 3 or np.ptp(links) == 0:
        return np.zeros(len(rates))
    off = times - np.log1p(np.outer(rates, links))
    off -= off.mean(axis=1, keepdims=True)
    # the sum of squares around their mean of all residuals but one
    squares = (off**2).sum(axis=1, keepdims=True) - off**2 * many / (many - 1)
    logs = -(FREEDOM + many - 2) / 2 * np.log1p(squares.clip(min=0) / (FREEDOM * noise**2))
    best: Array = (logs - logs.max(axis=0)).max(axis=1)
    return best


def _observed(group: _Group, rate: float) -> tuple[int, int, float]:
    """Runs, those apart, and how many times as long these took, over all runs that are compared."""
    runs = apart = 0
    slower = list[float]()
    for cell in group.cells.values():
        times, links = np.array(cell).T
        costs = np.log1p(rate * links)
        far = costs - costs.min() >= np.log(APART)
        if not 0 < far.sum() < len(far):
            continue
        runs, apart = runs + len(far), apart + int(far.sum())
        slower += (times[far] - times[~far].mean()).tolist()
    return runs, apart, float(np.exp(np.mean(slower))) if slower else 0.0


class _Hierarchy:
    """The posteriors of groups, whose priors are drawn from each other's.

    groups: shape (n, len(GRID)). wider: what is expected of a new group, by level and name.
    """

    def __init__(self, members: Sequence[_Group]) -> None:
        shape = (len(members), len(GRID))
        self._likelihood = np.array([group.likelihood for group in members]).reshape(shape)
        weight = np.array([group.weight for group in members]).reshape(-1, 1)
        users, programs = _Level([group.user for group in members]), _Level([group.program for group in members])
        self._weight, self._users, self._programs = weight, users, programs
        self._everybody, self._share = _Level([""] * len(members)), weight / np.maximum(1.0, users.total(weight))
        self.groups = _normal(PRIOR * self._likelihood)
        for _ in range(ROUNDS):
            self.groups = _normal(self._priors() * self._likelihood)
        self.wider = self._expected()

    def _priors(self) -> Array:
        """Of each group, without what it says itself."""
        prior = np.broadcast_to(PRIOR, self.groups.shape)
        for _, level, weight in self._levels():
            prior = level.mixed(prior, self.groups, weight, alone=False)
        return prior

    def _levels(self) -> Sequence[tuple[str, _Level, Array]]:
        """The keys from wide to narrow, and the weight of each group there."""
        told = self._users.total(self._share * (self.groups @ GRID)[:, None])
        share = np.where(self._users.shares_with(told.argmax()), 0.0, self._share) if len(told) else self._share
        return (
            ("cluster", self._everybody, share),
            ("user", self._users, self._weight),
            ("program", self._programs, self._weight),
        )

    def _expected(self) -> dict[str, dict[str, Array]]:
        found, prior = dict[str, dict[str, Array]](), np.broadcast_to(PRIOR, self.groups.shape)
        for name, level, weight in self._levels():
            prior = level.mixed(prior, self.groups, weight, alone=True)
            found[name] = {key: prior[row] for key, row in level.rows.items() if key or name == "cluster"}
        return found


class _Level:
    """Which groups share a key."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.rows = {key: row for row, key in enumerate(keys)}
        self._of = np.array([self.rows[key] for key in keys], dtype=np.int64)

    def shares_with(self, row: np.intp) -> NDArray[np.bool_]:
        """Which groups share the key of this one, shape (n, 1)."""
        return np.asarray(self._of == self._of[row])[:, None]

    def total(self, rows: Array) -> Array:
        """The sum over the groups that share the key, for each group."""
        sums = np.zeros_like(rows)
        np.add.at(sums, self._of, rows)
        return np.asarray(sums[self._of])

    def mixed(self, prior: Array, groups: Array, weight: Array, *, alone: bool) -> Array:
        """The prior of the key, of each group: that of the wider key, and the groups that share it.

        alone: for a new group; else for each of these, without itself.
        """
        own, none = weight * groups, 0.0 if alone else 1.0
        return np.asarray((DRAWN * prior + self.total(own) - none * own) / (DRAWN + self.total(weight) - none * weight))


def _normal(rows: Array) -> Array:
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))
