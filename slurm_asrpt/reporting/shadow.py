"""The page of asrpt-admin shadow-report."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_asrpt.reporting.html import duration, render
from slurm_asrpt.reporting.what_if import comparison
from slurm_asrpt.sim.shadow import Report, Share, limitations

TITLES = ("jobs", "GPU hours", "mean wait, Slurm", "mean wait, enforce", "completion ratio", "started later", "verdict")


def page(found: Report, notes: Sequence[str]) -> str:
    """The HTML page. notes: remarks on the data."""
    return render(
        "shadow.html.j2",
        interrupted=found.interrupted,
        remarks=notes,
        outcomes=comparison(found.outcomes),
        share_heads=list(TITLES),
        users=_rows(found.users),
        sizes=_rows(found.sizes),
        limits=limitations(found.past),
    )


def _rows(shares: Sequence[Share]) -> list[list[str]]:
    return [[share.name, *cells(share)] for share in shares]


def cells(share: Share) -> list[str]:
    """The figures of a share for display, one text for each of TITLES."""
    waits = (duration(share.real_wait_s), duration(share.wait_s))
    later = f"{100 * share.later:.0f}%"
    return [str(share.jobs), f"{share.gpu_hours:.1f}", *waits, f"{share.ratio:.2f}", later, share.verdict]
