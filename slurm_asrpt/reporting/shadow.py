"""The shadow report as one HTML file: nothing is loaded from elsewhere, every text from outside is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_asrpt.reporting.html import duration, head, table, text
from slurm_asrpt.reporting.what_if import curves, outcome_table
from slurm_asrpt.sim.shadow import LIMITS, Report, Share

TITLES = ("jobs", "GPU hours", "mean wait, Slurm", "mean wait, enforce", "completion ratio", "later", "verdict")


def page(found: Report, notes: Sequence[str]) -> str:
    """The whole file."""
    parts = [head("What enforce would have done"), "<h1>What enforce would have done</h1>\n"]
    if found.interrupted:
        parts.append("<p><strong>Interrupted: the jobs that were left had not started.</strong></p>\n")
    parts += [f"<p>{text(line)}</p>\n" for line in notes]
    parts += [outcome_table(found.outcomes), "<h2>How many jobs waited at most so long</h2>\n", curves(found.outcomes)]
    parts += ["<h2>Who wins, who loses: users</h2>\n", _shares("user", found.users)]
    parts += ["<h2>By size</h2>\n", _shares("size", found.sizes)]
    parts.append("<h2>What this does not show</h2>\n<ul>")
    parts += [f"<li>{text(line)}</li>\n" for line in LIMITS]
    parts.append(
        '</ul>\n<p class="note">Completion runs from submission to end; the ratio is that under enforce over that '
        "under Slurm. <em>Later</em>: jobs that would have started over a minute later than they did. Made by "
        "asrpt-admin shadow-report.</p>\n</body></html>\n"
    )
    return "".join(parts)


def _shares(what: str, shares: Sequence[Share]) -> str:
    titles = f'<th class="text">{what}</th>' + "".join(f"<th>{title}</th>" for title in TITLES)
    rows = [
        f'<tr><td class="text">{text(share.name)}</td>' + "".join(f"<td>{text(cell)}</td>" for cell in cells(share))
        for share in shares
    ]
    return table(titles, "".join(f"{row}</tr>\n" for row in rows))


def cells(share: Share) -> list[str]:
    """A share as people read it, one text for each of TITLES."""
    waits = (duration(share.real_wait_s), duration(share.wait_s))
    later = f"{100 * share.later:.0f}%"
    return [str(share.jobs), f"{share.gpu_hours:.1f}", *waits, f"{share.ratio:.2f}", later, share.verdict]
