"""Fit bandwidths and overlap coefficients to the iteration times that jobs have reported.

The fit is least squares of the logarithm of predicted over measured seconds. Predicted is core/timing's alpha of the
run's real placement. All fitted values are factors, so their logarithms are fitted, within bounds and with a soft loss,
under which outliers count less. A wide prior around the configured values keeps what the runs do not determine: two
values that only occur as a quotient, or one on which no run depends. Values that stay uncertain are then held at their
former value, and the others are fitted again. Bandwidths are fitted first; overlap coefficients only if bandwidths
alone leave much larger errors.

Values are keys of a mapping: ``inter``, ``intra``, ``beyond 2`` (through a switch of level 2) and so on, and for each
profile ``backward NAME`` and ``allreduce NAME``.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import UNPROFILED, JobProfile, Overlap
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.topology import Blocks, blocks_in
from slurm_asrpt.history.store import Run
from slurm_asrpt.slurm.records import NodeRecord

Array = NDArray[np.float64]
Figures = Mapping[str, float]

INTER, INTRA, BEYOND = "inter", "intra", "beyond "
FACTOR = 1000.0
"""Bounds of a bandwidth: the configured value divided and multiplied by this factor."""
OVERLAPS = (0.01, 10.0)
SPREAD, LEAST_SPREAD = 0.05, 0.005
"""Relative error of measured times: assumed before any fit, and the smallest assumed after one."""
ROUNDS = 3
"""Number of fits; each uses the spread that the previous one left."""
DEMANDED = 0.7
"""Overlap coefficients must reduce the median error below this share: more parameters always fit better."""
PRIOR, PRIOR_OVERLAP = 2.0, 0.7
"""Prior standard deviations of the logarithms: of bandwidths, of coefficients."""
CERTAIN = 0.25
"""A value counts as determined if at most this share of its prior standard deviation is left."""
STEP = 1e-4
LIKE_RUNS = 10
"""More runs of a profile in the same placement add no certainty: their errors are alike."""


@dataclass(frozen=True)
class Placed:
    """A profile on servers. ranks: server of each GPU. server_gpus: number of GPUs of each server. blocks: as for
    ``iteration_time``."""

    profile: JobProfile
    ranks: tuple[int, ...]
    server_gpus: tuple[int, ...]
    blocks: Blocks = ()


@dataclass(frozen=True)
class Observed:
    """Median seconds per iteration of ``runs`` runs in the same placement."""

    placed: Placed
    seconds: float
    runs: int = 1


@dataclass(frozen=True)
class Fitted:
    """figures: all values, fitted or unchanged. spread: relative standard deviation of the fitted ones."""

    figures: dict[str, float]
    spread: dict[str, float]


def figures_of(observed: Sequence[Observed], fabric: Fabric) -> dict[str, float]:
    """The values that settings and profiles give."""
    beyond = {f"{BEYOND}{level}": speed for level, speed in enumerate(fabric.beyond, start=2)}
    found = {INTER: fabric.inter, INTRA: fabric.intra, **beyond}
    for profile in (one.placed.profile for one in observed):
        found |= {f"backward {profile.name}": profile.overlap.backward}
        found |= {f"allreduce {profile.name}": profile.overlap.allreduce}
    return found


def is_bandwidth(name: str) -> bool:
    return name in (INTER, INTRA) or name.startswith(BEYOND)


def _prior(name: str) -> float:
    return PRIOR if is_bandwidth(name) else PRIOR_OVERLAP


def with_levels(fabric: Fabric, levels: int) -> Fabric:
    """The fabric with a bandwidth for each of so many levels of switches: the same, only written out."""
    return replace(fabric, beyond=tuple([fabric.through(level) for level in range(2, levels + 1)]))


def seconds_of(placed: Placed, figures: Figures) -> float:
    """alpha (7) under these values."""
    name = placed.profile.name
    overlap = Overlap(figures[f"backward {name}"], figures[f"allreduce {name}"])
    beyond = tuple([value for key, value in figures.items() if key.startswith(BEYOND)])
    fabric, profile = Fabric(figures[INTER], figures[INTRA], beyond), replace(placed.profile, overlap=overlap)
    return iteration_time(profile, placed.ranks, placed.server_gpus, fabric, placed.blocks)


def errors(observed: Sequence[Observed], figures: Figures) -> Array:
    """predicted / measured - 1, one entry per run."""
    off = [seconds_of(one.placed, figures) / one.seconds - 1 for one in observed]
    return np.repeat(np.array(off), [one.runs for one in observed])


def fit(observed: Sequence[Observed], before: Figures) -> Fitted:
    """The values that explain the runs best, where the runs determine them."""
    few = _fit(observed, before, before, [name for name in before if is_bandwidth(name)])
    names = [name for name in before if before[name]]  # a coefficient of 0 (fully hidden) stays 0
    more = _fit(observed, before, few.figures, names)
    return more if _off(observed, more) < DEMANDED * _off(observed, few) else few


def _off(observed: Sequence[Observed], fitted: Fitted) -> float:
    return max(float(np.median(np.abs(errors(observed, fitted.figures)))), LEAST_SPREAD)


def _fit(observed: Sequence[Observed], before: Figures, start: Figures, names: Sequence[str]) -> Fitted:
    """Fit ``names``; keep only the values that are certain."""
    fitted, spread = _Problem(observed, before, names).solve(start)
    certain = [name for name in names if spread[name] <= CERTAIN * _prior(name)]
    if not certain:
        return Fitted(dict(before), {})
    fitted, spread = _Problem(observed, before, certain).solve(fitted)
    return Fitted({**before, **fitted}, spread)


def _bounds(name: str, before: Figures) -> tuple[float, float]:
    if is_bandwidth(name):
        return before[name] / FACTOR, before[name] * FACTOR
    return min(OVERLAPS[0], before[name] / 2), OVERLAPS[1] + before[name]


class _Problem:
    """The sum of squares over ``names``; all other values are constant."""

    def __init__(self, observed: Sequence[Observed], before: Figures, names: Sequence[str]) -> None:
        self.observed, self.before, self.names = observed, before, names
        self.centre = np.log([before[name] for name in names])
        self.widths = np.array([_prior(name) for name in names])
        self.weights = np.sqrt([min(one.runs, LIKE_RUNS) for one in observed])
        self.spread = SPREAD
        self.measured = np.log([one.seconds for one in observed])

    def solve(self, start: Figures) -> tuple[dict[str, float], dict[str, float]]:
        """Values, and the standard deviations of their logarithms."""
        low, high = np.log([_bounds(name, self.before) for name in self.names]).T
        logs, loss = np.log([start[name] for name in self.names]), _loss(len(self.observed))
        for _ in range(ROUNDS):
            logs = least_squares(self.residuals, logs, self.slopes, (low, high), loss=loss).x
            off = self.residuals(logs)[: len(self.observed)] * self.spread
            self.spread = max(1.4826 * float(np.median(np.abs(off))), LEAST_SPREAD)
        slopes = self.slopes(logs)
        deviations = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes)))
        return (
            dict(zip(self.names, np.exp(logs).tolist(), strict=True)),
            dict(zip(self.names, deviations.tolist(), strict=True)),
        )

    def residuals(self, logs: Array) -> Array:
        figures = self._figures(logs)
        off = [np.log(seconds_of(one.placed, figures)) for one in self.observed]
        prior = (logs - self.centre) / self.widths
        return np.concatenate([(np.array(off) - self.measured) * self.weights / self.spread, prior])

    def slopes(self, logs: Array) -> Array:
        """Jacobian by finite differences; coefficients of a profile only affect its own runs."""
        base = self._figures(logs)
        found = np.zeros((len(self.observed), len(self.names)))
        plain = [np.log(seconds_of(one.placed, base)) for one in self.observed]
        for column, name in enumerate(self.names):
            moved = {**base, name: base[name] * np.exp(STEP)}
            for row, one in enumerate(self.observed):
                if is_bandwidth(name) or name.endswith(f" {one.placed.profile.name}"):
                    found[row, column] = (np.log(seconds_of(one.placed, moved)) - plain[row]) / STEP
        return np.vstack([found * self.weights[:, None] / self.spread, np.diag(1 / self.widths)])

    def _figures(self, logs: Array) -> dict[str, float]:
        return {**self.before, **dict(zip(self.names, np.exp(logs).tolist(), strict=True))}


def _loss(runs: int) -> object:
    """scipy's soft_l1 for the squares z of the runs; the prior's squares stay linear."""

    def rho(z: Array) -> Array:
        soft = np.sqrt(1 + z[:runs])
        head = np.stack([2 * (soft - 1), 1 / soft, -0.5 / soft**3])
        rest = z[runs:]
        return np.hstack([head, np.stack([rest, np.ones_like(rest), np.zeros_like(rest)])])

    return rho


def held_out(observed: Sequence[Observed], before: Figures) -> Array:
    """Errors of cross-validation: each half of the runs, predicted from a fit to the other half."""
    halves = observed[::2], observed[1::2]
    found = [errors(other, fit(one, before).figures) for one, other in (halves, halves[::-1]) if one and other]
    return np.concatenate(found) if found else np.array([])


SAME = 1e-3
"""Two values of alpha closer than this share are equal: the history keeps all digits."""

CONDITION = "iterations_source = 'reported' AND iterations > 0 AND end_time >= ? AND end_time - start_time >= ?"
"""Selects the usable runs of the history; values: the earliest end, the shortest elapsed seconds."""


class UnusableError(Exception):
    """Why a run cannot be used."""


def observe(
    runs: Iterable[Run],
    nodes: Sequence[NodeRecord],
    profile_of: Callable[[str, int], JobProfile],
    fabric: Fabric,
    switches: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> tuple[list[Observed], Counter[str]]:
    """Iteration times, and the number of unused runs by reason. fabric: from the settings. switches: above each node,
    from level 1."""
    servers = [Node(node.name, node.gpus, node.index, switches=switches.get(node.name, ())) for node in nodes]
    found: dict[Placed, list[float]] = {}
    left: Counter[str] = Counter()
    for run in runs:
        try:
            placed = _placed(run, servers, profile_of(run.profile, run.gpus), fabric)
        except UnusableError as why:
            left[str(why)] += 1
        else:
            found.setdefault(placed, []).append((run.end_time - run.start_time) / run.iterations)
    return [Observed(placed, statistics.median(times), len(times)) for placed, times in found.items()], left


def _placed(run: Run, nodes: Sequence[Node], profile: JobProfile, fabric: Fabric) -> Placed:
    """Ranks in Slurm's order; or in Heavy-Edge's order, if that explains the alpha that asrptd recorded.

    Raises UnusableError.
    """
    if profile.name == UNPROFILED:
        raise UnusableError("no usable profile")
    servers = [node for node in nodes if node.name in run.nodes]
    if len(servers) != len(run.nodes) or any(node.gpus < run.nodes[node.name] for node in servers):
        raise UnusableError("nodes that are no longer there")
    counts, sizes = tuple(run.nodes[node.name] for node in servers), tuple(node.gpus for node in servers)
    if any(count % profile.tensor for count in counts):
        raise UnusableError("tensor slices apart")
    block = tuple(server for server, count in enumerate(counts) for _ in range(count))
    blocks = blocks_in(fabric, servers)
    mapped = tuple(heavy_edge(profile, counts, blocks=blocks))
    alphas = [iteration_time(profile, ranks, sizes, fabric, blocks) for ranks in (block, mapped)]
    for ranks, alpha in zip((block, mapped), alphas, strict=True):
        if _same(alpha, run.alpha) or _same(*alphas):
            return Placed(profile, ranks, sizes, blocks)
    raise UnusableError("ranks unknown: settings or profile have changed since")


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= SAME * max(one, other)
