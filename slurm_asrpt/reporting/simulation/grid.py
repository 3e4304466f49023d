"""The picture of a sweep: how each policy's distance to the bound moves with what was varied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from slurm_asrpt.reporting import style
from slurm_asrpt.reporting.simulation.digest import Digest
from slurm_asrpt.reporting.simulation.pictures import Picture, plain
from slurm_asrpt.sim.sweep import value_of, varying

_REPEATS = "seed"  # other seeds are other draws of the same cell, not a quantity
_MOST_PANELS = 3
_UNITS = {"nic": "NIC, Gbit/s", "intra": "GPU to GPU in a server, GB/s", "single-gpu": "share of single-GPU jobs"}


def grid_keys(found: Sequence[Digest]) -> list[str]:
    """The quantities that vary over these results and can be drawn along an axis."""
    scenarios = [digest.scenario for digest in found]
    numeric = [
        key
        for key in varying(scenarios)
        if key != _REPEATS and all(isinstance(value_of(scenario, key), int | float) for scenario in scenarios)
    ]
    return numeric[:_MOST_PANELS]


def over_grid(found: Sequence[Digest]) -> Figure:
    """Mean completion time over the sound bound against each quantity: mean over all other cells.

    With one quantity the others are seeds, and a band shows their range.
    """
    keys = grid_keys(found)
    most = max((digest.summary["over_sound"] or 1.0 for digest in found), default=1.0)
    policies = list(dict.fromkeys(digest.scenario.policy for digest in found))[: style.MOST]
    figure = style.figure(4.6)
    panels = figure.subplots(1, len(keys), sharey=True, squeeze=False)[0]
    for key, axes in zip(keys, panels, strict=True):
        for number, policy in enumerate(policies):
            at, mean, low, high = _curve([d for d in found if d.scenario.policy == policy], key)
            axes.plot(at, mean, marker="o", markersize=4, label=style.label(policy), **style.line(number))
            if len(keys) == 1:
                axes.fill_between(at, low, high, color=style.COLOURS[number], alpha=0.15, linewidth=0)
        axes.set_xlabel(_UNITS.get(key, key))
        if most > 10:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(plain))
    panels[0].set_ylabel("mean completion time over the sound bound")
    style.legend(figure, panels[0], policies)
    return figure


def _curve(found: Sequence[Digest], key: str) -> tuple[list[float], list[float], list[float], list[float]]:
    """Values of the key; mean, least and most ratio at each. Results without a ratio (cut short) are left out."""
    ratios: dict[float, list[float]] = {}
    for digest in found:
        if digest.summary["over_sound"]:
            ratios.setdefault(float(value_of(digest.scenario, key)), []).append(digest.summary["over_sound"])
    at = sorted(ratios)
    return (
        at,
        [float(np.mean(ratios[value])) for value in at],
        [min(ratios[value]) for value in at],
        [max(ratios[value]) for value in at],
    )


GRID = Picture(
    "grid",
    "Over the grid",
    "Mean completion time over the sound bound, against what the sweep varied: the mean over all other cells, seeds "
    "included. A band is the range over seeds. At most nine policies, first those of the other pictures.",
    over_grid,
)
