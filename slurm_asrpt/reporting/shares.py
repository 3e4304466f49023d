"""Tables of who wins and who loses, by user, account and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_asrpt.reporting.html import duration
from slurm_asrpt.sim.shares import Share

TITLES = ("jobs", "GPU hours", "mean wait, Slurm", "mean wait, asrptd", "completion ratio", "started later", "verdict")


def tables(shares: Mapping[str, Sequence[Share]]) -> list[tuple[str, list[str], list[list[str]]]]:
    """What a table is by, its titles and its rows."""
    return [
        (group, [group, *TITLES], [[share.name, *cells(share)] for share in found])
        for group, found in shares.items()
        if found
    ]


def cells(share: Share) -> list[str]:
    """The figures of a share for display, one text for each of TITLES."""
    waits = (duration(share.real_wait_s), duration(share.wait_s))
    later = f"{100 * share.later:.0f}%"
    return [str(share.jobs), f"{share.gpu_hours:.1f}", *waits, f"{share.ratio:.2f}", later, share.verdict]
