"""asrpt-admin calibrate: bandwidths and overlap from the iteration times of jobs that have ended."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import typer
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.tables import Column, safe
from slurm_asrpt_cli.admin.common import ConfigOption, JsonOption, asking_slurm, of_asrptd, read_history, show_table

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.plurals import counted
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.errors import AsrptError
from slurm_asrpt.history.maintenance import DAY_S
from slurm_asrpt.predict.bandwidths import (
    CONDITION,
    INTER,
    INTRA,
    Array,
    Fitted,
    Observed,
    errors,
    figures_of,
    fit,
    held_out,
    observe,
)
from slurm_asrpt.profile.documents import load_named

FEWEST_RUNS, FEWEST_PLACES = 10, 3
WORTH_IT = 0.9, 0.005
"""The share of the error before that is to be left at most, and by how much it is to fall at least."""
SETTINGS = {INTER: "inter_bytes_per_s", INTRA: "intra_bytes_per_s"}


class TooFewError(AsrptError):
    """Too few runs to fit anything to."""


def add_commands(app: typer.Typer) -> None:
    """Put calibrate into asrpt-admin."""
    app.command("calibrate", short_help="Fit bandwidths to reported iteration times.")(calibrate_command)


def calibrate_command(
    days: Annotated[int, typer.Option(min=1, max=36500, metavar="N", help="Of how many days.")] = 30,
    shortest: Annotated[
        float, typer.Option("--at-least", min=1, max=1e6, metavar="SECONDS", help="Runs of at least so many seconds.")
    ] = 300.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit bandwidths and overlap to reported iteration times.

    Of jobs that have ended, with a profile and their progress
    reported. Prints the error before and after, and what to put
    into asrpt.toml and into profiles; it changes nothing. What
    the runs do not determine stays as it is. Start-up counts as
    training, so leave out short runs.

    \b
    Example:
      asrpt-admin calibrate --days 7
    """
    settings = of_asrptd(config)
    observed, left = _observed(settings, int(time.time()) - days * DAY_S, shortest)
    runs = sum(one.runs for one in observed)
    if runs < FEWEST_RUNS or len(observed) < FEWEST_PLACES:
        raise TooFewError(_too_few(runs, len(observed), left, days, shortest))
    before = figures_of(observed, _fabric(settings))
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
    """Also for runs that were not fitted to."""
    after = found["error_held_out"] or found["error_after"]
    share, least = WORTH_IT
    return bool(after["median"] < min(share * found["error_before"]["median"], found["error_before"]["median"] - least))


def _fabric(settings: Settings) -> Fabric:
    return Fabric(settings.fabric.inter_bytes_per_s, settings.fabric.intra_bytes_per_s)


def _observed(settings: Settings, since: int, shortest: float) -> tuple[list[Observed], Counter[str]]:
    with read_history(settings) as history:
        runs = history.runs_where(CONDITION, (since, shortest))
    profiles = Profiles(lambda name: load_named(name, settings.paths.profiles))
    with asking_slurm(settings) as slurm:
        nodes = slurm.nodes() if runs else []
    return observe(runs, nodes, profiles.get, _fabric(settings))


def _too_few(runs: int, places: int, left: Counter[str], days: int, shortest: float) -> str:
    return (
        f"{counted(runs, 'usable run')} in {counted(places, 'placement')}{_left_out(left)}; "
        f"{FEWEST_RUNS} in {FEWEST_PLACES} are needed, with a profile, progress reported, of {shortest:g} s or more, "
        f"in the last {counted(days, 'day')} (--at-least, --days)"
    )


def _left_out(left: Counter[str]) -> str:
    return f" (left out: {', '.join(f'{count} with {why}' for why, count in left.most_common())})" if left else ""


def _shares(off: Array) -> dict[str, float]:
    """Of predicted over measured - 1, whatever its sign."""
    if not off.size:
        return {}
    return {"median": float(np.median(np.abs(off))), "p90": float(np.quantile(np.abs(off), 0.9))}


def _show(before: dict[str, float], fitted: Fitted) -> None:
    names = [*SETTINGS, *(name for name in fitted.spread if name not in SETTINGS)]
    sure = [name in fitted.spread for name in names]
    show_table(
        [
            Column("FIGURE", [f"B_{name}" if name in SETTINGS else f"overlap {safe(name)}" for name in names]),
            Column("NOW", [_figure(name, before[name]) for name in names], right=True),
            Column("FITTED", [_fitted(name, fitted, ok) for name, ok in zip(names, sure, strict=True)]),
        ]
    )


def _figure(name: str, value: float) -> str:
    return f"{value / 1e9:.4g} GB/s" if name in SETTINGS else f"{value:.3g}"


def _fitted(name: str, fitted: Fitted, sure: bool) -> str:
    if not sure:
        return "these runs do not say"
    return f"{_figure(name, fitted.figures[name])} ±{max(fitted.spread[name], 0.001):.1%}"


def _show_errors(found: dict[str, object]) -> None:
    kinds: Sequence[tuple[str, str]] = (
        ("before", "error_before"),
        ("after", "error_after"),
        ("of runs held out", "error_held_out"),
    )
    for title, key in kinds:
        shares = found[key]
        if isinstance(shares, dict) and shares:
            print(f"error {title + ':':<18}{shares['median']:6.1%} in the median, 90% below {shares['p90']:.1%}")


def _advise(fitted: Fitted, better: bool) -> None:
    if not fitted.spread or not better:
        print("no better than the settings: leave them as they are")
        return
    bandwidths = [name for name in SETTINGS if name in fitted.spread]
    if bandwidths:
        print("\nfor asrpt.toml, then restart asrptd:\n[fabric]")
        print("\n".join(f"{SETTINGS[name]} = {fitted.figures[name]:.4g}" for name in bandwidths))
    for profile in sorted({name.partition(" ")[2] for name in fitted.spread if name not in SETTINGS}):
        print(f"\nfor this site's profile {safe(profile)} (asrpt-profile convert writes one):\n[overlap]")
        for kind in ("backward", "allreduce"):
            print(f"{kind} = {fitted.figures[f'{kind} {profile}']:.3g}")
