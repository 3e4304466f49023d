"""The coverage of start-time intervals, as the benchmarks report it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

_Z = 1.96
Verdict = tuple[float, bool, bool]
"""The time of an estimate, and whether the job started before the interval, or after it."""


def start_coverage(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Shares of the ``jobs`` with an estimate; ``inside_95``: the 95% confidence interval of the share (Wilson 1927).

    It counts each job as one trial, but jobs with estimates from one forecast wait in one queue and fail together.
    ``together_95`` is the interval for the number of independent trials in ``batches`` (design effect: Kish 1965).
    """
    jobs, least = len(verdicts), max(len(verdicts), 1)
    early, late = sum(early for _, early, _ in verdicts) / least, sum(late for _, _, late in verdicts) / least
    shares = {"inside": 1 - early - late if jobs else 0.0, "early": early, "late": late}
    together = defaultdict[float, list[bool]](list)
    for made, early_one, late_one in verdicts:
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
    total = sum(map(len, together))
    share = sum(map(sum, together)) / max(total, 1)
    beyond = sum((sum(one) - share * len(one)) ** 2 for one in together)
    if len(together) < 2 or not beyond:
        return len(together)
    return min(total, share * (1 - share) * total * total / beyond * (len(together) - 1) / len(together))


def _wilson(share: float, total: float) -> tuple[float, float]:
    if not total:
        return 0.0, 1.0
    middle, scale = share + _Z * _Z / (2 * total), 1 + _Z * _Z / total
    spread = _Z * math.sqrt(share * (1 - share) / total + _Z * _Z / (4 * total * total))
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
