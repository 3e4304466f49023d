"""The page that compares what the A-SRPT paper reports with our results, figure by figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from papers.asrpt.claims import CLAIMS, region, won
from papers.asrpt.evidence import Evidence
from papers.asrpt.fig5_lab import FIGURE, LARGEST_NODE, NODES, SCALE
from papers.asrpt.simulations import (
    BASELINES,
    FIG9_PREDICTORS,
    FIXED_TAU,
    GATED,
    IDEAL,
    TAUS,
    Figures,
    Runs,
    View,
    mean,
    over,
    seconds,
)
from papers.asrpt.table2 import EXACT, HEAVY_EDGE, REFINED
from papers.asrpt.workload import HISTORY, TESTBED_GPUS, TESTBED_JOBS, TESTBED_SETS, TRACE_JOBS
from papers.claims import Claim
from papers.report import Section, Table, render
from papers.seeded import plus_minus, spread
from slurm_asrpt.text import counted

TITLES: Mapping[str, str] = {
    "fig4": "Fig. 4: prediction errors",
    "fig5": "Fig. 5: the testbed, simulated",
    FIGURE: "Fig. 5: the testbed, on a real Slurm",
    "fig6": "Fig. 6: different numbers of jobs",
    "fig7": "Fig. 7: different shares of single-GPU jobs",
    "fig8": "Fig. 8: different NIC bandwidths, no single-GPU jobs",
    "fig9": "Fig. 9: different predictors",
    "table2": "Table II: Heavy-Edge and the exact placement",
    "map": "Where A-SRPT beats the baselines",
    "steps": "From A-SRPT to asrpt-gated, step by step",
}

ABOUT: Mapping[str, str] = {
    "fig4": (
        "The paper does not say how near a prediction must be to count as correct. Its average error of 369 "
        "iterations is 32 s at the 88 ms of Table II, but the jobs of its trace run for hours on average: its "
        "iterations are not those of Table II."
    ),
    "fig5": (
        f"{TESTBED_GPUS} GPUs of one server at 128 GB/s, so that placement does not matter; τ = 0. Each seed has "
        f"{TESTBED_SETS} sets of {TESTBED_JOBS} consecutive jobs, in which sizes above 8 GPUs become 8. The paper "
        "scales submissions and iterations to a tenth; here they are as in the trace, which changes no ratio. A set "
        "is submitted within minutes or hours and runs for days: nearly all of its jobs wait at once."
    ),
    FIGURE: (
        f"The same jobs on a real slurmctld with {NODES} GPUs (the paper's testbed has two cards with {LARGEST_NODE} "
        "MIG instances each), under asrptd in mode enforce, τ = 0. As in the paper, submissions and runtimes are "
        f"{SCALE:.0%} of the trace's. A job sleeps for as long as it would train, since placement does not matter. "
        "Each job has the prediction of the simulation (that of the forest, or its true runtime for A-SRPT-Perfect). "
        "Completion counts from Slurm's submit time. *Simulated* are the same jobs in the simulator, submitted "
        "when they were submitted to Slurm."
    ),
    "table2": (
        "Compare ratios, not absolute times: our profiles are not the paper's, whose GPT figures are of three layers."
        " The solver is HiGHS instead of Gurobi, and knows what a heuristic has reached. Where it ran out of time, "
        "its best placement so far counts. No share of our bytes gives VGG19 both of the paper's times: with all of "
        "them, the ratio is the paper's and an iteration takes 13 times as long; with 1.2% of them, it takes 88 ms "
        "and the ratio is 1.03 (`papers/asrpt/models.py`)."
    ),
    "map": (
        "37,500 jobs. "
        "Models: *library* are our profiles; *tenth* the same with a tenth of the bytes, or on a network ten times as"
        " fast; *table2* those with the bytes that Table II implies (`papers/asrpt/models.py`). Unseen jobs are drawn"
        " by group; groups that become seen get predictions as wrong as those of the other seen groups. *With a "
        "prior*: unseen jobs count with the mean work of first runs instead of 0."
    ),
    "setting": (
        "**What the paper's setting must have been.** A-SRPT wins here where several things come together. The "
        "models lose much in a bad placement: with the bytes that give Table II's time there is nothing to gain, "
        "and a queue that blocks only costs. The load, counted in best placements, is well below 1, so that a job "
        "that waits for a good placement soon finds one. τ is large, 100 or more. And from load 1 on, few jobs are "
        "unseen: ñ = 0 puts a job first and gives it no time to wait for a good placement. The paper prints none of"
        " these. Its Fig. 9, in which the forest costs 14% against perfect predictions, also says that few jobs "
        "were unseen. On 2,000 GPUs at its trace's rate of submissions, the load would be that of our Fig. 6, where"
        " A-SRPT takes several times as long as the best baseline; so its jobs must have been shorter, or fewer at "
        "a time, than those of the published trace."
    ),
    "steps": (
        "37,500 jobs. "
        "Each step keeps those above it. *A prior*: jobs of unseen groups get the mean work of first runs instead of "
        "0, and with it a delay budget. *Work conservation*: jobs that do not fit, or are delayed, let others pass. "
        "*Re-sorting*: the order is that of predicted workload at each decision, without the virtual machine. *The "
        "gate*: asrpt-gated without its reservations, which also brings its estimates of runtimes and its choice of "
        "servers. The first four have τ = 100. The last row does not belong to the sum: it shows that asrpt-gated "
        "does without the prior."
    ),
}
"""What a reader must know of a figure."""


def asrpt_page(asked: Sequence[str], evidence: Evidence) -> str:
    """The page for the figures asked for, Markdown."""
    return render(
        "asrpt.md.j2",
        sections(asked, evidence),
        command=evidence.command("all" if len(asked) > 1 else asked[0]),
        base=evidence.base,
        seeds=evidence.seeds.number,
        trace_jobs=TRACE_JOBS,
        history=HISTORY,
        taus=[f"{tau:g}" for tau in TAUS],
    )


def sections(asked: Sequence[str], evidence: Evidence) -> list[Section]:
    """One section for each figure asked for."""
    return [
        Section(TITLES[name], "", ("", NOTES[name](evidence)), TABLES[name](evidence), claims=_claims(name, evidence))
        for name in TITLES
        if name in asked
    ]


def _claims(name: str, evidence: Evidence) -> tuple[Claim, ...]:
    return tuple(CLAIMS[name](evidence))


# words and figures


def hours(runs: Runs) -> str:
    return f"{spread([each / 3600 for each in seconds(runs)])} h"


def less(ratios: Sequence[float]) -> str:
    """How much less than another: ``31% ± 4% less``, ``2.10 ± 0.20 times``."""
    middle = fmean(ratios)
    if middle >= 1:
        return f"{middle:.2f}{plus_minus(ratios, 2)} times"
    around = plus_minus([100 * each for each in ratios], 0)
    return f"{100 * (1 - middle):.0f}%{around and f'{around}%'} less"


def percent(values: Sequence[float]) -> str:
    return f"{spread([100 * each for each in values])}%"


def column(runs: Runs, key: str) -> list[float]:
    return [float(figures[key]) for figures in runs]


# tables


def _fig4(evidence: Evidence) -> list[Table]:
    head = ["predictor", "mean error, iterations", "error over work", "within 1%", "10%", "25%", "50%", "unseen: ñ = 0"]
    rows = []
    for name in FIG9_PREDICTORS:
        runs = evidence.errors(name)
        shares = ("relative_error", "within_1", "within_10", "within_25", "within_50", "unseen")
        rows.append([name, spread(column(runs, "mean_error")), *(percent(column(runs, key)) for key in shares)])
    return [Table(head, rows)]


def _fig5(evidence: Evidence) -> list[Table]:
    ideal = evidence.testbed[IDEAL]
    rows = [
        [
            name,
            hours(runs),
            less(over(runs, ideal)),
            f"{spread([each / 3600 for each in column(runs, 'makespan_s')])} h",
        ]
        for name, runs in evidence.testbed.items()
    ]
    return [Table(["policy", "mean completion", "against A-SRPT-Perfect", "makespan"], rows)]


def _fig5_lab(evidence: Evidence) -> list[Table]:
    if not evidence.lab:
        return []
    ideal = evidence.lab[IDEAL]
    rows = [
        [
            name,
            _minutes(runs, "mean_jct_s"),
            less(over(runs, ideal)),
            _minutes(runs, "makespan_s"),
            *_as_simulated(runs),
        ]
        for name, runs in evidence.lab.items()
    ]
    head = ["policy", "mean completion", "against A-SRPT-Perfect", "makespan", "simulated: completion", "makespan"]
    return [Table(head, rows)]


def _as_simulated(runs: Runs) -> list[str]:
    return [_minutes(runs, key) for key in ("simulated_s", "simulated_makespan_s")]


def _minutes(runs: Runs, key: str) -> str:
    return f"{spread([each / 60 for each in column(runs, key)])} min"


def _columns(figure: str) -> Callable[[Evidence], list[Table]]:
    def tables(evidence: Evidence) -> list[Table]:
        found = evidence.views(figure)
        return [_means(found), _details(found)]

    return tables


def _fig9(evidence: Evidence) -> list[Table]:
    found = evidence.views("fig9")
    head = ["predictor", "mean error, iterations", "error over work", "within 10%", "unseen: ñ = 0"]
    rows = [
        [
            each.x,
            spread(column(each.best, "mean_error")),
            *(percent(column(each.best, key)) for key in ("relative_error", "within_10", "unseen")),
        ]
        for each in found
    ]
    return [Table(head, rows), _means(found), _details(found)]


def _means(found: Sequence[View]) -> Table:
    """Mean completion times, a row for each policy."""
    rows = [["A-SRPT, best τ", *(hours(each.best) for each in found)]]
    rows.append([f"A-SRPT, τ = {FIXED_TAU:g}", *(hours(each.fixed) for each in found)])
    for name in (*BASELINES, GATED):
        if any(name in each.others for each in found):
            rows.append([name, *(hours(each.others[name]) if name in each.others else "" for each in found)])
    rows.append(["sound bound", *(f"{spread([s / 3600 for s in column(v.best, 'sound_s')])} h" for v in found)])
    return Table(["mean completion time", *(each.x for each in found)], rows)


def _details(found: Sequence[View]) -> Table:
    """What a column is, and how A-SRPT compares with the baselines in it."""
    rows = [
        ["load", *(spread(column(each.best, "load")) for each in found)],
        ["jobs on one GPU", *(percent(column(each.best, "single_gpu")) for each in found)],
        ["jobs in unseen groups", *(percent(column(each.best, "unseen")) for each in found)],
        ["their share of the work", *(percent(column(each.best, "unseen_work")) for each in found)],
        ["A-SRPT's best τ", *(f"{each.tau:g}" for each in found)],
        ["GPU time lost to placement", *(percent(column(each.best, "placement_loss")) for each in found)],
        ["against the best baseline", *(_against(each, "rival") for each in found)],
        ["against the worst", *(_against(each, "worst") for each in found)],
        ["below every baseline", *(f"{each.wins} of {len(each.best)} seeds" if each.others else "" for each in found)],
    ]
    return Table(["", *(each.x for each in found)], rows)


def _against(view: View, which: str) -> str:
    if not view.baselines:
        return ""
    name = getattr(view, which)
    return f"{less(view.over(name))} ({name})"


def _map(evidence: Evidence) -> list[Table]:
    found = evidence.views("map")
    head = ["load, models, unseen jobs", "median α_max/α̃_min", "work of unseen jobs", "best baseline"]
    head += ["A-SRPT against it", "best τ", "below every baseline", "with τ = 1", "worst baseline"]
    rows = [
        [
            each.x,
            spread(column(each.best, "heaviness")),
            percent(column(each.best, "unseen_work")),
            each.rival,
            less(each.over(each.rival)),
            f"{each.tau:g}",
            f"{each.wins} of {len(each.best)}",
            less(over(each.fixed, each.others[each.rival])),
            f"{less(each.over(each.worst))} ({each.worst})",
        ]
        for each in found
    ]
    return [_region(found), Table(head, rows)]


def _region(found: Sequence[View]) -> Table:
    """Against the best baseline, for each set of models: by load and unseen jobs."""
    by_load = region(found)
    head = ["A-SRPT against the best baseline", *next(iter(by_load.values()))]
    rows = [
        [f"load {load:g}, {models}", *(_point(views[number]) for views in by_unseen.values())]
        for load, by_unseen in by_load.items()
        for number, models in enumerate(each.workload.models for each in next(iter(by_unseen.values())))
    ]
    return Table(head, rows)


def _point(view: View) -> str:
    """Bold where A-SRPT is below every baseline (``won``)."""
    text = less(view.over(view.rival))
    return f"**{text}**" if won(view) else text


def _steps(evidence: Evidence) -> list[Table]:
    found = evidence.steps
    points = [f"{nic:g} Gbit/s, load {load:g}" for nic, load in found]
    names = list(next(iter(found.values())))
    means = [[name, *(hours(row[name]) for row in found.values())] for name in names]
    gains = [
        [after, *(less(over(row[after], row[before])) for row in found.values())]
        for before, after in pairwise(names[:-1])
    ]
    return [Table(["mean completion time", *points], means), Table(["against the step before", *points], gains)]


def _table2(evidence: Evidence) -> list[Table]:
    head = ["model", "cases", "Heavy-Edge, ms", "heavy-edge+, ms", "exact, ms", "Heavy-Edge over exact", "unproven"]
    rows = [
        [
            model,
            str(int(sum(column(runs, "cases")))),
            *(spread([1000 * each for each in column(runs, key)]) for key in (HEAVY_EDGE, REFINED, EXACT)),
            less([a / b for a, b in zip(column(runs, HEAVY_EDGE), column(runs, EXACT), strict=True)]),
            str(int(sum(column(runs, "unproven")))),
        ]
        for model, runs in evidence.placed.items()
    ]
    return [Table(head, rows)]


TABLES: Mapping[str, Callable[[Evidence], list[Table]]] = {
    "fig4": _fig4,
    "fig5": _fig5,
    FIGURE: _fig5_lab,
    "fig6": _columns("fig6"),
    "fig7": _columns("fig7"),
    "fig8": _columns("fig8"),
    "fig9": _fig9,
    "table2": _table2,
    "map": _map,
    "steps": _steps,
}


# notes


def _why(figure: str) -> Callable[[Evidence], list[str]]:
    """Where the difference to the best baseline comes from, in the column that is least favorable to A-SRPT."""

    def notes(evidence: Evidence) -> list[str]:
        compared = [each for each in evidence.views(figure) if each.baselines]
        view = max(compared, key=lambda each: fmean(each.over(each.rival)))
        ours, theirs = view.best, view.baselines[view.rival]
        if mean(ours) <= mean(theirs):
            return [_loads(compared)]
        return [
            f"At {view.x}, under A-SRPT (τ = {view.tau:g}) jobs wait {_hours(ours, 'mean_wait_s')} and then run for "
            f"{_running(ours)}; under {view.rival}, {_hours(theirs, 'mean_wait_s')} and {_running(theirs)}. "
            f"Compared with the best placements, the work is {_work(ours):.3g} and {_work(theirs):.3g} times as much.",
            _loads(compared),
        ]

    return notes


def _loads(found: Sequence[View]) -> str:
    loads = [fmean(column(each.best, "load")) for each in found]
    return (
        f"Load {min(loads):.2f} to {max(loads):.2f}; above 1, where waiting dominates, in {_over_one(loads)} columns."
    )


def _over_one(loads: Sequence[float]) -> str:
    return f"{sum(load > 1 for load in loads)} of {len(loads)}"


def _work(runs: Runs) -> float:
    """The GPU time that the jobs took over that of their best placements."""
    return 1 + fmean(column(runs, "placement_loss"))


def _hours(runs: Runs, key: str) -> str:
    return f"{fmean(column(runs, key)) / 3600:,.3g} h"


def _running(runs: Runs) -> str:
    return f"{fmean(_run_s(each) for each in runs) / 3600:,.3g} h"


def _run_s(figures: Figures) -> float:
    return float(figures["mean_jct_s"]) - float(figures["mean_wait_s"])


def _only(text: str) -> Callable[[Evidence], list[str]]:
    return lambda _: [text]


def _lab_notes(evidence: Evidence) -> list[str]:
    if not evidence.lab:
        return [ABOUT[FIGURE]]
    runs = [run for each in evidence.lab.values() for run in each]
    sets, ended = counted(len(evidence.lab[IDEAL]), "set"), sum(int(run["completed"]) for run in runs)
    speeds = ", ".join(f"{speed:g}" for speed in sorted({float(run["speed"]) for run in runs}))
    jobs = sum(int(run["jobs"]) for run in runs)
    late, longer = (fmean(column(runs, key)) for key in ("late_s", "longer_s"))
    return [
        ABOUT[FIGURE],
        f"{sets} of {jobs // len(runs)} jobs under {len(evidence.lab)} policies on clocks {speeds} times as fast as "
        f"the machine's; {ended} of {jobs} jobs completed. On average, jobs were submitted {abs(late):.1f} s of the "
        f"lab {'late' if late > 0 else 'early'}, and ran {longer:.1f} s longer than they should.",
    ]


def _map_notes(evidence: Evidence) -> list[str]:
    found = evidence.views("map")
    fixed = [fmean(over(each.fixed, each.others[each.rival])) < 1 for each in found]
    spjf = [each.worst == "spjf" for each in found]
    return [
        ABOUT["map"],
        "In the first table, bold is where A-SRPT, with its best τ in hindsight, is below every baseline on average "
        f"over the seeds, by more than two standard errors: {sum(map(won, found))} of {len(found)} points. With τ = 1 "
        f"its mean is below the best baseline's at {sum(fixed)} points. SPJF is the worst baseline at {sum(spjf)}.",
        ABOUT["setting"],
    ]


NOTES: Mapping[str, Callable[[Evidence], list[str]]] = {
    "fig4": _only(ABOUT["fig4"]),
    "fig5": _only(ABOUT["fig5"]),
    FIGURE: _lab_notes,
    "fig6": _why("fig6"),
    "fig7": _why("fig7"),
    "fig8": _why("fig8"),
    "fig9": _why("fig9"),
    "table2": _only(ABOUT["table2"]),
    "map": _map_notes,
    "steps": _only(ABOUT["steps"]),
}
