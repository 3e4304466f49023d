"""How often intervals of starts held, as the benchmarks say it."""

from __future__ import annotations

import math
from typing import Any

_Z = 1.96


def held(jobs: int, early: int, late: int) -> dict[str, Any]:
    """Shares of the ``jobs`` that were told; ``inside_95``: where the true share lies with 95% (Wilson 1927)."""
    least = max(jobs, 1)
    shares = {"inside": (jobs - early - late) / least, "early": early / least, "late": late / least}
    return {
        "jobs": jobs,
        **{name: round(share, 4) for name, share in shares.items()},
        "inside_95": [round(end, 4) for end in _wilson(shares["inside"], jobs)],
    }


def _wilson(share: float, of: int) -> tuple[float, float]:
    if not of:
        return 0.0, 1.0
    middle, scale = share + _Z * _Z / (2 * of), 1 + _Z * _Z / of
    spread = _Z * math.sqrt(share * (1 - share) / of + _Z * _Z / (4 * of * of))
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
