"""Mode order: which SiteFactor each waiting job gets, changing as few as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

STEP = 1000
TOP = 1_000_000_000
ANY = TOP
"""Of a job whose factor is not known for sure. It fits nowhere, as all that are written are less."""


def factors(order: Sequence[str], written: Mapping[str, int | None]) -> dict[str, int]:
    """The SiteFactors to write so that those of ``order`` descend; jobs whose factor already fits are left alone."""
    updates: dict[str, int] = {}
    ceiling = TOP
    for job_id in order:
        current = written.get(job_id)
        if current is not None and current < ceiling:
            ceiling = current
        else:
            ceiling -= STEP
            updates[job_id] = ceiling
    return updates
