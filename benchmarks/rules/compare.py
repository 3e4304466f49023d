"""The figures of each side of a scenario, and those of asrptd over those of plain Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.rules import figures
from benchmarks.rules.figures import Played
from benchmarks.rules.play import REFUSED, SHADOW, Side
from benchmarks.rules.scenario import Scenario


def measured(scenario: Scenario, side: Side) -> dict[str, Any]:
    """The figures of a side."""
    played = without_never(scenario, side.played)
    found = list(figures.steps(without_hopeless(scenario, side.played), scenario.limits))
    kept, decided = decisions(scenario, side.played)
    refused = sum(side.events.get(name, 0) for name in REFUSED)
    return {
        "seconds": scenario.measure(scenario, played),
        "makespan_s": figures.makespan_s(played, scenario.measured),
        "mean_completion_s": figures.mean_completion_s(played, scenario.measured),
        "utilisation": figures.utilisation(found),
        "longest_idle_s": figures.longest_idle_s(found, side.played.began),
        "refused_share": refused / max(1, side.events.get("start", 0)),
        "obeyed": figures.share(kept, decided),
        "decisions": decided,
        "mean_wait_s": figures.mean_waits_s(side.played),
        "unfinished": sum(run.end == figures.NEVER for run in played.runs),
        "states": dict(side.states),
        "events": dict(side.events),
        "sbatch_late_s": side.late_s,
    }


def decisions(scenario: Scenario, played: Played) -> tuple[int, int]:
    """Decisions in which the rules of the scenario were kept, and all that they decide."""
    ordered = figures.order_kept(played.runs, scenario.before, played.began + scenario.ruled_from_s)
    each = (
        ordered,
        figures.preemption_kept(played.runs, scenario.preempts),
        figures.limits_kept(played, scenario.limits),
    )
    return sum(kept for kept, _ in each), sum(decided for _, decided in each)


def without_never(scenario: Scenario, played: Played) -> Played:
    return played._replace(runs=[run for run in played.runs if run.role not in scenario.never])


def without_hopeless(scenario: Scenario, played: Played) -> Played:
    """Without the jobs that have never started and never would: no GPU could be in use for them."""
    return played._replace(runs=[r for r in played.runs if r.start < figures.NEVER or r.role not in scenario.never])


def compare(plain: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a scenario, for one mode."""
    return {
        "plain_s": plain["seconds"],
        "asrptd_s": ours["seconds"],
        "ratio": figures.over(ours["seconds"], plain["seconds"]),
        "utilisation_ratio": figures.share(ours["utilisation"], plain["utilisation"]),
        "refused_share": ours["refused_share"],
        "obeyed": ours["obeyed"],
        "obeyed_plain": plain["obeyed"],
        "mean_ratio": figures.over(ours["mean_completion_s"], plain["mean_completion_s"]),
        "unfinished": ours["unfinished"],
        "asrptd": dict(ours),
    }


def shadow_report(side: Side) -> dict[str, Any]:
    """What shadow-report said of the side: mean completion over the real one, of the policy and of Slurm simulated."""
    if not side.report:
        return {}
    *_, slurm, row = side.report["rows"]
    notes, keys = side.report["notes"], {name: row[name] for name in ("policy", "jobs", "mean_jct_s")}
    ratios = {"mean_ratio": row["jct_over_real"], "slurm_ratio": slurm["jct_over_real"]}
    return {SHADOW: {**keys, **ratios, "predicted_zero": notes["predicted_zero"]}}
