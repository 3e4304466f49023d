"""The tables of who wins and who loses, of asrpt-sim what-if and asrpt-admin shadow-report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_asrpt_cli._app.tables import Column, safe, show_table

if TYPE_CHECKING:
    from slurm_asrpt.sim.shares import Share

MOST_ROWS = 20
"""Rows of a table: half of them those with the largest gain, half those with the largest loss."""
TITLES = ("JOBS", "GPU_HOURS", "WAIT_SLURM", "WAIT_ASRPTD", "RATIO", "LATER", "VERDICT")


def show_shares(group: str, found: Sequence[Share]) -> None:
    """Print a blank line, and a row for each user, account or size. Nothing if there is none."""
    from slurm_asrpt.reporting.shares import cells

    if not found:
        return
    if len(found) > MOST_ROWS:
        found = [*found[: MOST_ROWS // 2], *found[-MOST_ROWS // 2 :]]
    rows = [cells(share) for share in found]
    columns = [Column(title, [row[at] for row in rows], right=True) for at, title in enumerate(TITLES)]
    print()
    show_table([Column(group.upper(), [safe(share.name) for share in found], cap=20), *columns])
