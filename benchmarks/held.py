"""How often start-time intervals were correct, as the benchmarks report it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

_Z = 1.96
Verdict = tuple[float, bool, bool]
"""The time of an estimate, and whether the job started before the interval, or after it."""


def held(told: Sequence[Verdict]) -> dict[str, Any]:
    """Shares of the ``jobs`` with an estimate; ``inside_95``: the 95% confidence interval of the share (Wilson 1927).

    It counts each job as one trial, but jobs with estimates from one forecast wait in one queue and fail together.
    ``together_95`` is the interval for the number of independent trials in ``batches`` (design effect: Kish 1965).
    """
    jobs, least = len(told), max(len(told), 1)
    early, late = sum(early for _, early, _ in told) / least, sum(late for _, _, late in told) / least
    shares = {"inside": 1 - early - late if jobs else 0.0, "early": early, "late": late}
    together = defaultdict[float, list[bool]](list)
    for made, early_one, late_one in told:
        together[made].append(not (early_one or late_one))
    return {
        "jobs": jobs,
        **{name: round(share, 4) for name, share in shares.items()},
        "inside_95": [round(end, 4) for end in _wilson(shares["inside"], jobs)],
        "batches": len(together),
        "together_95": [round(end, 4) for end in _wilson(shares["inside"], _trials([*together.values()]))],
    }


def _trials(together: Sequence[Sequence[bool]]) -> float:
    """The effective number of independent jobs."""
    of = sum(map(len, together))
    share = sum(map(sum, together)) / max(of, 1)
    beyond = sum((sum(one) - share * len(one)) ** 2 for one in together)
    if len(together) < 2 or not beyond:
        return len(together)
    return min(of, share * (1 - share) * of * of / beyond * (len(together) - 1) / len(together))


def _wilson(share: float, of: float) -> tuple[float, float]:
    if not of:
        return 0.0, 1.0
    middle, scale = share + _Z * _Z / (2 * of), 1 + _Z * _Z / of
    spread = _Z * math.sqrt(share * (1 - share) / of + _Z * _Z / (4 * of * of))
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
