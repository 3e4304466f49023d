"""The plot of a prediction: the losses that a running job reports, the curve fitted to them, and past runs."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from slurm_asrpt.core.convergence import Convergence
from slurm_asrpt.predict.evidence import Evidence
from slurm_asrpt.reporting.plot_style import COLORS, applied, check_path, figure, label, save

POINTS = 200
MAX_AHEAD = 3.0
"""The fitted curve is drawn up to this multiple of the iterations done; a far end would hide everything else."""
_BLUE, _RED, _GREEN = COLORS[:3]
_DAY = timedelta(days=1)
_COUNT = FuncFormatter(lambda value, _: f"{value:,.10g}")


def draw(title: str, found: Evidence, loss: Convergence | None, path: Path) -> None:
    """Write the plot. Raises InputError for an unsupported suffix or an unwritable file."""
    check_path(path)
    with applied():
        picture = figure(3.6)
        picture.suptitle(label(title, 80), fontsize=11)
        axes = picture.subplots(1, 1 if loss is None else 2, squeeze=False)[0]
        if loss is not None:
            _loss(axes[0], loss)
        _runs(axes[-1], found)
        save(picture, path)


def _loss(axis: Axes, loss: Convergence) -> None:
    iterations, losses = zip(*loss.points, strict=True)
    axis.plot(iterations, losses, ".", color=_BLUE, markersize=4, label="reported")
    axis.axvline(loss.done, color="#999999", linewidth=0.9, linestyle=":")
    if loss.curve is not None and loss.ends is not None:
        last = min(loss.ends, MAX_AHEAD * max(loss.done, 1)) * 1.02
        at = np.linspace(iterations[0], last, POINTS)
        axis.plot(at, [loss.curve.loss(k) for k in at], color=_RED, label="fitted")
        if loss.ends <= last:
            axis.axvline(loss.ends, color=_RED, linewidth=0.9, linestyle="--", label=f"ends at {loss.ends:,}")
    axis.set(title="Loss", xlabel="iteration")
    axis.xaxis.set_major_formatter(_COUNT)
    axis.legend(frameon=True, edgecolor="none", framealpha=1)


def _runs(axis: Axes, found: Evidence) -> None:
    answer, runs, (low, high) = found.answer, found.runs, found.adjusted
    if runs:
        ends = [datetime.fromtimestamp(run.end_time) for run in runs]  # local time, as Slurm prints it
        if len(set(ends)) == 1:  # matplotlib would show years
            axis.set_xlim(ends[0] - _DAY, ends[0] + _DAY)  # type: ignore[arg-type,unused-ignore]
        axis.plot(ends, [run.iterations for run in runs], "o", color=_BLUE, markersize=4, label="past runs")  # type: ignore[arg-type,unused-ignore]
    if answer.iterations:
        axis.axhline(answer.iterations, color=_GREEN, label=f"predicted: {answer.iterations:,}")
    if high:
        axis.axhspan(low, high, color=_GREEN, alpha=0.15, linewidth=0, label="10-90%")
    axis.set(title=f"Past runs of this {answer.level or 'group'}", ylabel="iterations", xlabel="ended")
    if not runs and not answer.iterations:
        axis.set_axis_off()
        axis.text(0.5, 0.5, "no past runs, no prediction", ha="center", transform=axis.transAxes)
        return
    axis.set_ylim(0, 1.1 * max([high, answer.iterations, *(run.iterations for run in runs)]))
    axis.yaxis.set_major_formatter(_COUNT)
    axis.tick_params(axis="x", labelrotation=30, labelsize=8)
    axis.legend()
