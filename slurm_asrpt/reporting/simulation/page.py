"""The page of asrpt-sim report."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_asrpt.reporting.html import jobs, render
from slurm_asrpt.reporting.plot_style import duration
from slurm_asrpt.reporting.simulation.plots import Picture, plain
from slurm_asrpt.reporting.simulation.result_digest import Digest, LongWait
from slurm_asrpt.sim.assumptions import assumptions, nobody_waits, scattered, scattering

Cell = Callable[[Digest], str]


def _time(name: str) -> Cell:
    return lambda digest: _or_dash(digest.summary[name], duration)


def _factor(name: str) -> Cell:
    return lambda digest: _or_dash(digest.summary[name], plain)


def _or_dash(value: float | None, show: Callable[[float], str]) -> str:
    return "-" if value is None else show(value)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


_TABLES: Mapping[str, Mapping[str, Cell]] = {
    "Completion times": {
        "mean": _time("mean_jct_s"),
        "over sound bound": _factor("over_sound"),
        "over design bound": _factor("over_design"),
        "median": _time("median_jct_s"),
        "99%": _time("p99_jct_s"),
        "ended / jobs": lambda digest: f"{digest.summary['ended']:,} / {digest.summary['jobs']:,}",
    },
    "Waits and slowdowns": {
        "median wait": _time("median_wait_s"),
        "90% wait": _time("p90_wait_s"),
        "99% wait": _time("p99_wait_s"),
        "median slowdown": _factor("median_slowdown"),
        "90% slowdown": _factor("p90_slowdown"),
        "99% slowdown": _factor("p99_slowdown"),
    },
    "GPUs": {
        "used while jobs arrive": lambda digest: _or_dash(digest.summary.get("utilisation_arriving"), _percent),
        "used in all": lambda digest: _percent(digest.summary["utilisation"]),
        "lost to placement": lambda digest: f"{100 * digest.summary['placement_loss']:,.1f}%",
        "mean fragmentation": lambda digest: _or_dash(digest.mean_fragmentation, lambda value: f"{100 * value:.1f}%"),
        "mean largest free block": lambda digest: f"{digest.mean_largest:.2f} GPUs",
    },
}
"""Three tables: one would be wider than the page."""


def page(found: Sequence[Digest], drawn: Sequence[Digest], pictures: Sequence[tuple[Picture, bytes]]) -> str:
    """The HTML page. found: all results, for the tables; drawn: those in the pictures; pictures: with their SVGs."""
    return render(
        "simulation.html.j2",
        workloads=list(dict.fromkeys(_described(digest) for digest in sorted(found, key=_place))),
        warnings=_warnings(found, drawn),
        tables=[_table(title, columns, found) for title, columns in _TABLES.items()],
        pictures=[(picture, base64.b64encode(svg).decode("ascii")) for picture, svg in pictures],
        longest_waits=[(digest.label, [_wait_cells(wait) for wait in digest.waits]) for digest in drawn],
        versions=sorted({f"{name} {number}" for digest in found for name, number in digest.meta["versions"].items()}),
    )


def _place(digest: Digest) -> tuple[str, int, float]:
    """Sort key: the order of the sweep."""
    notes = digest.meta["notes"]
    return str(notes["trace"]), digest.scenario.options.seed, notes["load"] or 0.0


def _described(digest: Digest) -> str:
    notes, cluster, options = digest.meta["notes"], digest.scenario.cluster, digest.scenario.options
    assumed = ". ".join(f"{label}: {text}" for label, text in assumptions(digest.scenario, notes))
    return (
        f"{jobs(digest.summary['jobs'])} of {notes['trace']}, {100 * notes['single_gpu']:.0f}% on one GPU, "
        f"{100 * notes['unseen']:.0f}% in unseen groups, seed {options.seed}; {cluster.text}. {assumed}. "
        f"Lower bounds on the mean completion time: "
        f"{duration(digest.meta['bounds']['sound'])} (sound), {duration(digest.meta['bounds']['design'])} (design)."
    )


def _warnings(found: Sequence[Digest], drawn: Sequence[Digest]) -> list[str]:
    says = []
    cut = [digest.label for digest in found if digest.meta["interrupted"]]
    if cut:
        says.append(f"Interrupted before the end; their figures cover only the jobs that had ended: {', '.join(cut)}.")
    left = [digest.label for digest in found if digest.summary["never_started"] and not digest.meta["interrupted"]]
    if left:
        says.append(f"Jobs that never started: {', '.join(left)}.")
    idle = [digest.label for digest in found if nobody_waits([digest.summary], None)]
    if idle:
        says.append(
            f"Hardly a job waits, so policies do not differ; use fewer servers or more load: {', '.join(idle)}."
        )
    note = scattered(scattering({"policy": digest.scenario.policy, **digest.summary} for digest in found))
    if note:
        says.append(f"{note[:1].upper()}{note[1:]}.".replace("(LOST)", "(lost to placement)"))
    if len(drawn) < len(found):
        says.append(f"The pictures show {len(drawn)} of the {len(found)} results: those of one workload, best first.")
    return says


def _table(title: str, columns: Mapping[str, Cell], found: Sequence[Digest]) -> dict[str, Any]:
    best_first = sorted(found, key=lambda d: (d.summary["mean_jct_s"] is None, d.summary["mean_jct_s"]))
    rows = [[digest.label, *(cell(digest) for cell in columns.values())] for digest in best_first]
    return {"title": title, "heads": ["policy", *columns], "rows": rows}


def _wait_cells(wait: LongWait) -> tuple[str | int, ...]:
    waited = duration(wait.wait) + ("" if wait.started else ", never started")
    return wait.job, wait.user, wait.gpus, wait.profile, waited, wait.why
