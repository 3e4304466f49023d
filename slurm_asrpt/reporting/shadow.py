"""The page of asrpt-admin shadow-report."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_asrpt.reporting.html import render
from slurm_asrpt.reporting.shares import tables
from slurm_asrpt.reporting.what_if import comparison
from slurm_asrpt.sim.shadow import Report, limitations


def page(found: Report, notes: Sequence[str]) -> str:
    """The HTML page. notes: remarks on the data."""
    return render(
        "shadow.html.j2",
        interrupted=found.interrupted,
        headline=found.headline,
        remarks=notes,
        outcomes=comparison(found.outcomes),
        groups=tables(found.shares),
        limits=limitations(found.past),
    )
