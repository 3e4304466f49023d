"""Rings without reserved bandwidth: seconds per iteration under contention (SJF-BCO paper, section 4.1, (6)-(9)).

Time is in the caller's unit, seconds or the paper's slots; bandwidths and speeds must use the same unit.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

Degradation = Callable[[float], float]
"""f(alpha, k): each of k contending rings has 1/f of a link; f(1) = 1, and f increases with k."""


@dataclass(frozen=True, slots=True)
class Linear:
    """f = k + alpha (k-1): each further ring takes one share and wastes alpha shares. ValueError for alpha < 0."""

    alpha: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha must be a finite number >= 0, not {self.alpha}")

    def __call__(self, contending: float) -> float:
        return contending + self.alpha * (contending - 1)


@dataclass(frozen=True, slots=True)
class Table:
    """f as measured: increasing points (k, f) from (1, 1), with linear interpolation and extrapolation.

    Raises ValueError for other points.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        rising = all(a[0] < b[0] and a[1] < b[1] for a, b in zip(self.points, self.points[1:], strict=False))
        if len(self.points) < 2 or self.points[0] != (1, 1) or not rising:
            raise ValueError(f"a table of f begins with (1, 1) and rises, not {self.points}")

    def __call__(self, contending: float) -> float:
        at = min(max(1, bisect_right(self.points, (contending, math.inf))), len(self.points) - 1)
        (k0, f0), (k1, f1) = self.points[at - 1], self.points[at]
        return f0 + (f1 - f0) * (contending - k0) / (k1 - k0)


@dataclass(frozen=True, slots=True)
class Links:
    """The constants of all rings.

    inter, intra: b^e, b^i, bytes per unit of time between and within servers. reduce: C, bytes that a GPU sums per unit
    of time. xi1: contending rings per concurrent ring. xi2: latency per server in use. degradation: f.
    """

    inter: float
    intra: float
    reduce: float = math.inf
    xi1: float = 1.0
    xi2: float = 0.0
    degradation: Degradation = Linear()

    def __post_init__(self) -> None:
        if not (self.inter > 0 and self.intra > 0 and self.reduce > 0):
            raise ValueError(f"speeds must be above 0, not {self.inter}, {self.intra} and {self.reduce}")
        if not (0 < self.xi1 <= 1 and self.xi2 >= 0):
            raise ValueError(f"xi1 must be in (0, 1] and xi2 at least 0, not {self.xi1} and {self.xi2}")


@dataclass(frozen=True, slots=True)
class Ring:
    """A job in the paper's model.

    gpus: w_j = G_j. gradient: m_j, bytes. forward: Delta^f, time per sample. samples: M_j, per mini-batch.
    backward: Delta^b, time per mini-batch.
    """

    gpus: int
    gradient: float
    forward: float
    samples: float
    backward: float

    def __post_init__(self) -> None:
        if self.gpus < 1 or not all(0 <= part < math.inf for part in (self.gradient, self.computation)):
            raise ValueError(f"a ring has at least one GPU and finite figures >= 0, not {self}")

    @property
    def computation(self) -> float:
        """Forward and backward pass of one mini-batch."""
        return self.forward * self.samples + self.backward


def bandwidth(concurrently: int, links: Links) -> float:
    """B_j of a ring with p_j = ``concurrently`` (6), (7).

    k = xi1 p is at least 1: as printed, k < 1 would give a ring more bandwidth than the link has.
    """
    if concurrently == 0:
        return links.intra
    return links.inter / links.degradation(max(1.0, links.xi1 * concurrently))


def iteration_time(ring: Ring, servers: int, concurrently: int, links: Links) -> float:
    """(8) tau_j: time per iteration of a ring on ``servers`` servers with p_j = ``concurrently``."""
    piece = ring.gradient / ring.gpus * (ring.gpus - 1)
    exchange = 2 * piece / bandwidth(concurrently, links)
    return exchange + piece / links.reduce + links.xi2 * servers + ring.computation


def iterations_per_slot(tau: float, slot: float = 1.0) -> int:
    """phi_j: whole iterations per slot, the speed in slotted time. The rest of a slot is lost."""
    return math.floor(slot / tau * (1 + 1e-12))  # 0.3 / 0.1 is just below 3
