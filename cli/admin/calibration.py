"""asrpt-admin calibrate and calibration: bandwidths fitted to measured iterations, and how often start times held."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.tables import Column, print_prose, safe, show_table
from slurm_asrpt_cli.admin.access import asking_slurm, of_asrptd, read_history

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.errors import AsrptError, printable
from slurm_asrpt.forecast.calibration import Calibration, calibration
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.slurm.notation import read_past
from slurm_asrpt.text import counted

if TYPE_CHECKING:
    from slurm_asrpt.config.settings import Settings
    from slurm_asrpt.predict.bandwidths import (
        Array,
        Fitted,
        Observed,
    )

FEWEST_RUNS, FEWEST_PLACES = 10, 3
FEW = 30
"""Fewer starts than these are too few for a percentage."""
WORTH_IT = 0.9, 0.005
"""New figures are recommended if the error falls below this share of the old one, and by at least this much."""
SETTINGS = {"inter": "inter_bytes_per_s", "intra": "intra_bytes_per_s"}
"""By their names in ``predict.bandwidths``."""


class TooFewError(AsrptError):
    """Too few runs for a fit."""


def calibrate_command(
    since: Annotated[str, typer.Option(metavar="WHEN", help="Use runs that ended since then.")] = "30d",
    shortest: Annotated[
        float, typer.Option("--at-least", min=1, max=1e6, metavar="SECONDS", help="Minimum runtime of a run.")
    ] = 300.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit bandwidths and overlap to reported iteration times.

    Uses ended jobs that had a profile and reported progress.
    Prints the error before and after, and what to write into
    asrpt.toml and profiles; it changes nothing. Figures that
    the runs do not determine stay as they are. Start-up time
    counts as training, so leave out short runs.

    \b
    Example:
      asrpt-admin calibrate --since 7d
    """
    from slurm_asrpt.predict.bandwidths import errors, figures_of, fit, held_out

    settings = of_asrptd(config)
    observed, left, fabric = _observed(settings, int(read_past(since, time.time())), shortest)
    runs = sum(one.runs for one in observed)
    if runs < FEWEST_RUNS or len(observed) < FEWEST_PLACES:
        raise TooFewError(_too_few(runs, len(observed), left, since, shortest))
    before = figures_of(observed, fabric)
    with progress(f"fitting to {counted(runs, 'run')}", 2) as tell:
        fitted = fit(observed, before)
        tell(1)
        outside = held_out(observed, before)
    found = {
        "runs": runs,
        "placements": len(observed),
        "left_out": dict(left),
        "error_before": _shares(errors(observed, before)),
        "error_after": _shares(errors(observed, fitted.figures)),
        "error_held_out": _shares(outside),
        "before": before,
        "fitted": {name: fitted.figures[name] for name in fitted.spread},
        "spread": fitted.spread,
    }
    if as_json:
        print(json.dumps(found))
        return
    print(f"{counted(runs, 'run')} in {counted(len(observed), 'placement')}{_left_out(left)}")
    _show(before, fitted)
    _show_errors(found)
    _advise(fitted, _better(found))


def _better(found: dict[str, Any]) -> bool:
    """Whether the new figures are worth it, also for held-out runs."""
    after = found["error_held_out"] or found["error_after"]
    share, least = WORTH_IT
    return bool(after["median"] < min(share * found["error_before"]["median"], found["error_before"]["median"] - least))


def _observed(settings: Settings, since: int, shortest: float) -> tuple[list[Observed], Counter[str], Fabric]:
    """The runs, the number of unused ones by reason, and the fabric of the settings, with all levels of Slurm's
    topology."""
    from slurm_asrpt.predict.bandwidths import CONDITION, observe, with_levels

    with read_history(settings) as history:
        runs = history.runs_where(CONDITION, (since, shortest))
    profiles = Profiles(lambda name: load_named(name, settings.paths.profiles))
    with asking_slurm(settings) as slurm:
        nodes = slurm.nodes() if runs else []
        switches = slurm.topology(settings.slurm.partitions).switches if runs else {}
    fabric = with_levels(settings.fabric.to_core(), max(map(len, switches.values()), default=1))
    return *observe(runs, nodes, profiles.get, fabric, switches), fabric


def _too_few(runs: int, places: int, left: Counter[str], since: str, shortest: float) -> str:
    return (
        f"{counted(runs, 'usable run')} in {counted(places, 'placement')}{_left_out(left)}; "
        f"{FEWEST_RUNS} in {FEWEST_PLACES} are needed, with a profile and reported progress, {shortest:g} s or longer, "
        f"since {printable(since)} (--at-least, --since)"
    )


def _left_out(left: Counter[str]) -> str:
    return f" (left out: {', '.join(f'{count} with {why}' for why, count in left.most_common())})" if left else ""


def _shares(off: Array) -> dict[str, float]:
    """Median and 90th percentile of the absolute relative error."""
    import numpy as np

    if not off.size:
        return {}
    return {"median": float(np.median(np.abs(off))), "p90": float(np.quantile(np.abs(off), 0.9))}


def _show(before: dict[str, float], fitted: Fitted) -> None:
    from slurm_asrpt.predict.bandwidths import is_bandwidth

    names = [*filter(is_bandwidth, before), *(name for name in fitted.spread if not is_bandwidth(name))]
    sure = [name in fitted.spread for name in names]
    show_table(
        [
            Column("FIGURE", [f"B_{name}" if is_bandwidth(name) else f"overlap {safe(name)}" for name in names]),
            Column("NOW", [_figure(name, before[name]) for name in names], right=True),
            Column("FITTED", [_fitted(name, fitted, ok) for name, ok in zip(names, sure, strict=True)]),
        ]
    )


def _figure(name: str, value: float) -> str:
    from slurm_asrpt.predict.bandwidths import is_bandwidth

    return f"{value / 1e9:.4g} GB/s" if is_bandwidth(name) else f"{value:.3g}"


def _fitted(name: str, fitted: Fitted, sure: bool) -> str:
    if not sure:
        return "not determined by these runs"
    return f"{_figure(name, fitted.figures[name])} ±{max(fitted.spread[name], 0.001):.1%}"


def _show_errors(found: dict[str, object]) -> None:
    kinds: Sequence[tuple[str, str]] = (
        ("before", "error_before"),
        ("after", "error_after"),
        ("held-out runs", "error_held_out"),
    )
    for title, key in kinds:
        shares = found[key]
        if isinstance(shares, dict) and shares:
            print(f"error {title + ':':<18}{shares['median']:6.1%} median, 90% below {shares['p90']:.1%}")


def _advise(fitted: Fitted, better: bool) -> None:
    from slurm_asrpt.predict.bandwidths import is_bandwidth

    if not fitted.spread or not better:
        print("not better than the current settings: keep them")
        return
    if any(map(is_bandwidth, fitted.spread)):
        print("\nwrite this into asrpt.toml and restart asrptd:\n[fabric]")
        print("\n".join(_bandwidths(fitted)))
    for profile in sorted({name.partition(" ")[2] for name in fitted.spread if not is_bandwidth(name)}):
        print(f"\nwrite this into the site's profile {safe(profile)} (asrpt-profile convert creates one):\n[overlap]")
        for kind in ("backward", "allreduce"):
            print(f"{kind} = {fitted.figures[f'{kind} {profile}']:.3g}")


def _bandwidths(fitted: Fitted) -> list[str]:
    """The lines of asrpt.toml. Bandwidths beyond the first level are one list."""
    from slurm_asrpt.predict.bandwidths import BEYOND

    lines = [f"{key} = {fitted.figures[name]:.4g}" for name, key in SETTINGS.items() if name in fitted.spread]
    if any(name.startswith(BEYOND) for name in fitted.spread):
        speeds = [f"{value:.4g}" for name, value in fitted.figures.items() if name.startswith(BEYOND)]
        lines.append(f"beyond_bytes_per_s = [{', '.join(speeds)}]")
    return lines


def calibration_command(
    since: Annotated[str, typer.Option(metavar="WHEN", help="Count jobs that ended since then.")] = "30d",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how often jobs started when asrpt-status said.

    Counts the first estimate of each ended job: 85% of the
    starts should be inside the interval, 5% before it.

    \b
    Example:
      asrpt-admin calibration --since 7d
    """
    with read_history(of_asrptd(config)) as history:
        found = calibration(history, int(read_past(since, time.time())))
    if as_json:
        print(json.dumps({**asdict(found), "closed_late": found.closed_late}))
    else:
        print_prose(_words(found, since))


def _words(found: Calibration, since: str) -> str:
    if not found.jobs:
        return f"no job that ended since {since} had an expected start"
    late = (
        f"; of the {found.closed} with an upper bound, {found.closed_late:.0%} started after it" if found.closed else ""
    )
    few = f"; fewer than {FEW} jobs say little" if found.jobs < FEW else ""
    return (
        f"{counted(found.jobs, 'job')} since {since}: {found.inside:.0%} started inside their "
        f"5-90% interval, {found.early:.0%} before, {found.late:.0%} after{late}{few}"
    )
