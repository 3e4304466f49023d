"""What reports say about the jobs of a what-if, and about the simulated Slurm: sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from slurm_asrpt.sim import simulated_slurm, site_limits
from slurm_asrpt.sim.what_if import Outcome, Past, simulated
from slurm_asrpt.text import counted, span

UNLIKE = 1.2
"""From this ratio of mean completion times on, the simulated Slurm is said to be unlike the real one. On half days it
was within 3% (docs/evidence.md)."""


def unread(why: str) -> str:
    """The remark that the limits could not be read."""
    return f"Neither the limits of QOS and accounts nor this Slurm's priorities and parameters are simulated: {why}."


def unlike_slurm(outcomes: Sequence[Outcome]) -> list[str]:
    """The remark that the simulated Slurm is far from the real one, if it is."""
    ratio = next((each.figures["jct_over_real"] for each in outcomes if each.name == simulated_slurm.NAME), None)
    if ratio is None or 1 / UNLIKE <= ratio <= UNLIKE:
        return []
    return [
        f"In the simulator Slurm's mean completion time is {ratio:.2f} of the real one: something that the simulation "
        "leaves out counted in this time (priorities, limits, or earlier usage). Trust no figure more than that."
    ]


def remarks(past: Past) -> list[str]:
    """Notes on the data."""
    return [*_on_jobs(past.notes), *_on_slurm(past), *_on_figures(past.notes)]


def _on_jobs(notes: Mapping[str, Any]) -> Iterator[str]:
    """Which jobs are simulated, and which are not."""
    load = "" if notes["load"] is None else f", load {notes['load']:.2f}"
    none = f"none for {100 * notes['predicted_zero']:.0f}% of jobs"
    yield (
        f"{counted(notes['jobs'], 'job', ',')} submitted {_when(notes)}, on {notes['cluster']}{load}; "
        f"predictions: {notes['predictor']} ({none}{' from the history' if notes['history_jobs'] else ''})."
    )
    if notes.get("only_user"):
        yield (
            f"All jobs belong to {notes['only_user']}, who ran this command. Slurm may hide other users' jobs "
            "(PrivateData); then the policies look better than they are. Run it as root or as a Slurm operator."
        )
    left = [f"{count} {why}" for why, count in notes["left_out"].items()]
    if notes["too_large"]:
        left.append(f"{notes['too_large']} larger than the nodes found")
    if left:
        yield f"Left out of {counted(notes['rows'], 'row')}: {', '.join(left)}."
    if notes["history_jobs"]:
        yield (
            f"The first {counted(notes['history_jobs'], 'job')} only trained the predictor. If some were still running "
            "or pending when the others arrived, the real cluster was not empty, and the policies look too good."
        )


def _on_slurm(past: Past) -> Iterator[str]:
    """How the site's Slurm is simulated, and its limits."""
    yield from simulated_slurm.remarks(past.slurm.facts, simulated(past)["settings"])
    unlimited = int((~np.isfinite(past.jobs["time_limit_s"].to_numpy())).sum())
    if unlimited:
        yield (
            f"{counted(unlimited, 'job')} without a known time limit: the simulated Slurm cannot backfill jobs that "
            "could last until the planned start of others."
        )
    if "site_limits" in past.notes:
        yield from site_limits.remarks(past.notes["site_limits"], past.notes["jobs"])
    if past.notes.get("limits_unread"):
        yield unread(past.notes["limits_unread"])


def _on_figures(notes: Mapping[str, Any]) -> Iterator[str]:
    """What makes the figures incomplete or wrong."""
    if notes["wait_unknown"]:
        yield f"{counted(notes['wait_unknown'], 'job')} without a known wait: simulated, but in no figure."
    if notes["most_gpus_in_use"] > notes["gpus"]:
        yield (
            f"Under Slurm these jobs held up to {counted(notes['most_gpus_in_use'], 'GPU')} at once, but the nodes "
            f"found have {notes['gpus']}: nodes are missing, and the policies look worse than they are."
        )


def _when(notes: Mapping[str, Any]) -> str:
    """From which day to which, if that is known, and for how long."""
    length = span(86400 * notes["days"])
    if notes.get("first_at") is None:
        return f"within {length}"
    first, last = notes["first_at"], notes["first_at"] + 86400 * notes["days"]
    days = [datetime.fromtimestamp(time).date().isoformat() for time in (first, last)]
    return f"from {days[0]} to {days[1]} ({length})"
