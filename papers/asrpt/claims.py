"""The claims of the A-SRPT paper's figures and tables, and of its theorem, with verdicts computed from our results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from papers.asrpt.evidence import Evidence
from papers.asrpt.fig5_lab import FIGURE
from papers.asrpt.simulations import (
    ASRPT,
    BASELINES,
    CONSERVING,
    FIG9_PREDICTORS,
    FIGURES,
    GATED,
    IDEAL,
    Errors,
    Runs,
    Sim,
    View,
    cells,
    mean,
    over,
)
from papers.asrpt.table2 import EXACT, EXACT_TOOK, HEAVY_EDGE, HEAVY_EDGE_TOOK, QUICK_CASES, Placed
from papers.asrpt.workload import PRIOR, Jobs
from papers.claims import NO, REGION, UNTESTED, YES, Claim, Sample, Verdict, graded, where
from papers.seeded import deviation, plus_minus
from slurm_asrpt.text import counted

PAPER = "A-SRPT"
TABLE2: Mapping[str, tuple[str, float, int]] = {
    "VGG19": ("6% longer", 88.11 / 82.96, 28_515),
    "GPT-175B": ("the same", 1.0005, 1_505),
}
"""Heavy-Edge over the exact placement, in words and as a bound, and how many times as fast it is found."""
LAB_ITEM = "Fig. 5 (real Slurm)"
THEORY = "pytest tests/property/test_theory.py"


def claims(asked: Sequence[str], evidence: Evidence) -> list[Claim]:
    """The claims of the figures asked for; with all figures also those that need no simulation."""
    found = [claim for name, of_figure in CLAIMS.items() if name in asked for claim in of_figure(evidence)]
    return [*found, *_without_simulation()] if set(CLAIMS) <= set(asked) else found


def samples(base: Jobs, seed: int) -> list[Sample]:
    """A cell of each figure with one seed: completion times, s; iterations in error (Fig. 4); seconds (Table II)."""

    def sample(figure: str, cell: str, value: float) -> Sample:
        return Sample(PAPER, figure, cell, seed, base.divide, value)

    found = [sample("fig4", "forest", Errors("forest", base.divide).measure(seed)["mean_error"])]
    for figure in FIGURES[1:]:
        sim = next(cell for cell in cells(figure, base) if isinstance(cell, Sim))
        found.append(sample(figure, f"{sim.label}, τ = {sim.tau:g}", sim.measure(seed)["mean_jct_s"]))
    return [*found, sample("table2", "VGG19, Heavy-Edge", Placed("VGG19", QUICK_CASES).measure(seed)[HEAVY_EDGE])]


def _claim(
    evidence: Evidence,
    figure: str,
    item: str,
    text: str,
    paper: str,
    ours: str,
    spread: str,
    verdict: Verdict,
    region: str = "",
) -> Claim:
    number = evidence.seeds.number
    return Claim(PAPER, item, text, paper, ours, spread, number, verdict, region, evidence.command(figure))


# figures as text


def _percent(shares: Sequence[float]) -> tuple[str, str]:
    """Mean and standard deviation, in percent."""
    around = plus_minus([100 * each for each in shares], 0, sign="")
    return f"{100 * fmean(shares):.0f}%", around and f"{around}%"


def _times(ratios: Sequence[float]) -> tuple[str, str]:
    return f"{fmean(ratios):.2f} times", plus_minus(ratios, 2, sign="")


def _less(ratios: Sequence[float]) -> tuple[str, str]:
    """Ours over theirs as a reduction in percent, or in times if it is none."""
    if fmean(ratios) >= 1:
        return _times(ratios)
    middle, around = _percent([1 - each for each in ratios])
    return f"{middle} less", around


# claims


def _fig4(evidence: Evidence) -> list[Claim]:
    right = [float(figures["within_10"]) for figures in evidence.errors("forest")]
    return [
        _claim(evidence, "fig4", "Fig. 4", "about 60% of the jobs are predicted correctly", "about 60%",
               *_percent(right), UNTESTED, "within 10%; the trace is generated to be about as predictable"),
    ]  # fmt: skip


def _fig5(evidence: Evidence) -> list[Claim]:
    return _testbed(evidence, "fig5", "Fig. 5", evidence.testbed)


def _fig5_lab(evidence: Evidence) -> list[Claim]:
    """On a real Slurm; the spread is that over the sets of jobs."""
    if not evidence.lab:
        nothing, command = "no run is recorded", evidence.command(FIGURE)
        seeds = evidence.seeds.number
        return [Claim(PAPER, LAB_ITEM, "the testbed", "", "not played", "", seeds, UNTESTED, nothing, command)]
    sets, jobs = len(evidence.lab[IDEAL]), evidence.lab[IDEAL][0]["jobs"]
    item = f"Fig. 5 (real Slurm, {counted(sets, 'set')} of {jobs} jobs)"
    return [replace(claim, seeds=sets) for claim in _testbed(evidence, FIGURE, item, evidence.lab)]


def _testbed(evidence: Evidence, figure: str, item: str, found: Mapping[str, Runs]) -> list[Claim]:
    more = over(found[ASRPT], found[IDEAL])
    below = {name: over(found[ASRPT], found[name]) for name in BASELINES}
    worst = min(below.values(), key=fmean)
    best = max(below.values(), key=fmean)
    spans = {name: _makespans(found[name], found[ASRPT]) for name in CONSERVING}
    every = [fmean(each) < 1 for each in below.values()]
    shorter = [fmean(each) < 1 for each in spans.values()]
    return [
        _claim(evidence, figure, item, "A-SRPT is within 7% of A-SRPT-Perfect", "7% longer",
               *_times(more), YES if fmean(more) <= 1.07 else NO),
        _claim(evidence, figure, item, "total completion time up to 44% less than the baselines'", "up to 44% less",
               *_less(worst), YES if fmean(worst) <= 0.56 else NO),
        _claim(evidence, figure, item, "A-SRPT outperforms all baselines", "all", *_less(best), graded(every),
               where(every, [f"below {name}" for name in below])),
        _claim(evidence, figure, item, "the WCS baselines have shorter makespans", "shorter",
               *_times(min(spans.values(), key=fmean)), graded(shorter), where(shorter, list(spans))),
    ]  # fmt: skip


def _makespans(ours: Runs, theirs: Runs) -> list[float]:
    return [float(a["makespan_s"]) / float(b["makespan_s"]) for a, b in zip(ours, theirs, strict=True)]


def _reduces(evidence: Evidence, figure: str, item: str, least: float, paper: str) -> Claim:
    """Below every baseline by at least ``least`` in every column. Ours: against the best one, in the worst column."""
    found = evidence.views(figure)
    good = [fmean(view.over(view.rival)) <= 1 - least for view in found]
    tightest = max((view.over(view.rival) for view in found), key=fmean)
    text = "A-SRPT is below every baseline"
    return _claim(
        evidence, figure, item, text, paper, *_less(tightest), graded(good), where(good, [v.x for v in found])
    )


def _fig6(evidence: Evidence) -> list[Claim]:
    found = evidence.views("fig6")
    worst = [view.worst == "spjf" for view in found]
    most = min((view.over(view.worst) for view in found), key=fmean)
    return [
        _reduces(evidence, "fig6", "Fig. 6", 0.31, "31% less or more"),
        _claim(evidence, "fig6", "Fig. 6", "up to 91% less than the worst baseline", "91% less", *_less(most),
               YES if fmean(most) <= 0.09 else NO),
        _claim(evidence, "fig6", "Fig. 6", "SPJF is the worst", "spjf", ", ".join(sorted({v.worst for v in found})), "",
               graded(worst), where(worst, [v.x for v in found])),
    ]  # fmt: skip


def _fig7(evidence: Evidence) -> list[Claim]:
    found = evidence.views("fig7")
    first, last = (fmean(view.over(view.rival)) for view in (found[0], found[-1]))
    return [
        _reduces(evidence, "fig7", "Fig. 7", 0.16, "16% to 57% less"),
        _claim(evidence, "fig7", "Fig. 7", "the gain grows as fewer jobs use one GPU", "from 16% to 57% less",
               f"{first:.2f}, then {last:.2f} times the best baseline", "", YES if last < min(1.0, first) else NO),
    ]  # fmt: skip


def _fig8(evidence: Evidence) -> list[Claim]:
    slow, *_, fast = evidence.views("fig8")
    against, most = fast.over("wcs-duration"), slow.over(slow.worst)
    steady = [fmean(view.over(view.rival)) < 1 for view in evidence.views("fig8")]
    return [
        _claim(evidence, "fig8", "Fig. 8", "12% better than WCS-Duration, the best baseline, at 50 Gbit/s", "12% less",
               *_less(against), YES if fmean(against) <= 0.88 and fast.rival == "wcs-duration" else NO),
        _claim(evidence, "fig8", "Fig. 8", "up to 92% less at 1 Gbit/s", "92% less", *_less(most),
               YES if fmean(most) <= 0.08 else NO),
        _claim(evidence, "fig8", "Fig. 8", "consistent gains at all bandwidths", "yes",
               *_less(max((v.over(v.rival) for v in evidence.views("fig8")), key=fmean)), graded(steady),
               where(steady, [v.x for v in evidence.views("fig8")])),
    ]  # fmt: skip


def _fig9(evidence: Evidence) -> list[Claim]:
    found = {view.x: view for view in evidence.views("fig9")}
    gap = over(found["forest"].best, found["perfect"].best)
    errors = {name: fmean(float(f["mean_error"]) for f in found[name].best) for name in FIG9_PREDICTORS}
    times = {name: mean(found[name].best) for name in FIG9_PREDICTORS}
    listed = ", ".join(f"{name} {error:,.0f}" for name, error in errors.items())
    slower = ", ".join(f"{name} {time / times['forest']:.3f}" for name, time in times.items())
    least = errors["forest"] == min(errors.values())
    return [
        _claim(evidence, "fig9", "Fig. 9", "the forest is within 14% of perfect predictions", "14% longer",
               *_times(gap), YES if fmean(gap) <= 1.14 else NO),
        _claim(evidence, "fig9", "Fig. 9", "the forest has the least average error, in iterations",
               "forest 369, median 563, mean 593", listed, "", YES if least else NO),
        _claim(evidence, "fig9", "Fig. 9", "less accurate predictors degrade A-SRPT: forest, median, mean",
               "forest, median, mean", f"{slower} (completion over the forest's)", "",
               YES if list(times) == sorted(times, key=lambda name: times[name]) else NO),
    ]  # fmt: skip


def _table2(evidence: Evidence) -> list[Claim]:
    found = []
    for model, (paper, most, quick) in TABLE2.items():
        runs = evidence.placed[model]
        ratio = [float(each[HEAVY_EDGE]) / float(each[EXACT]) for each in runs]
        faster = [float(each[EXACT_TOOK]) / float(each[HEAVY_EDGE_TOOK]) for each in runs]
        around = plus_minus([100 * each for each in ratio], 1, sign="")
        found += [
            _claim(evidence, "table2", "Table II", f"{model}: Heavy-Edge against the exact placement", paper,
                   f"{100 * (fmean(ratio) - 1):.1f}% longer", around and f"{around}%",
                   YES if fmean(ratio) <= most else NO),
            _claim(evidence, "table2", "Table II", f"{model}: Heavy-Edge is found faster", f"{quick:,} times",
                   f"{fmean(faster):,.0f} times", plus_minus(faster, 0, sign=""),
                   YES if fmean(faster) >= quick else REGION if min(faster) > 1 else NO,
                   "" if fmean(faster) >= quick else "faster, by less: our solver is told a good placement"),
        ]  # fmt: skip
    return found


def won(view: View) -> bool:
    """Whether A-SRPT is below every baseline, on average over the seeds and by more than two standard errors."""
    return all(
        fmean(ratios) + 2 * deviation(ratios) / len(ratios) ** 0.5 < 1 for ratios in map(view.over, view.baselines)
    )


def treatment(view: View) -> str:
    """The unseen jobs of a point of the map: ``10% unseen``, ``30% unseen with a prior``."""
    share = f"{100 * (view.workload.unseen_share or 0):.0f}% unseen"
    return f"{share} with a prior" if view.workload.unseen == PRIOR else share


def region(found: Sequence[View]) -> Mapping[float, Mapping[str, list[View]]]:
    """The points of the map by load, then by unseen jobs: one for each set of models."""
    by_load: dict[float, dict[str, list[View]]] = {}
    for view in found:
        by_load.setdefault(view.workload.load or 0.0, {}).setdefault(treatment(view), []).append(view)
    return by_load


def _map(evidence: Evidence) -> list[Claim]:
    found = evidence.views("map")
    good = [won(view) for view in found]
    best = min((view.over(view.rival) for view in found), key=fmean)
    return [
        _claim(evidence, "map", "abstract", "A-SRPT outperforms all baseline designs", "all, by up to 92%",
               *_less(best), graded(good), where(good, [view.x for view in found])),
    ]  # fmt: skip


def _steps(evidence: Evidence) -> list[Claim]:
    """Not a claim of the paper: asrpt-gated against A-SRPT, the sum of the steps."""
    rows = evidence.steps.values()
    each = [over(row["+ the reservation"], row["A-SRPT"]) for row in rows]
    worst = max(each, key=fmean)
    return [
        _claim(evidence, "steps", "(ours)", f"A-SRPT with all steps ({GATED}) is below A-SRPT", "", *_less(worst),
               YES if all(max(ratios) < 1 for ratios in each) else NO),
    ]  # fmt: skip


CLAIMS: Mapping[str, Callable[[Evidence], list[Claim]]] = {
    "fig4": _fig4,
    "fig5": _fig5,
    FIGURE: _fig5_lab,
    "fig6": _fig6,
    "fig7": _fig7,
    "fig8": _fig8,
    "fig9": _fig9,
    "table2": _table2,
    "map": _map,
    "steps": _steps,
}
"""The claims of each figure."""


def _without_simulation() -> list[Claim]:
    def one(item: str, text: str, paper: str, ours: str, verdict: Verdict, region: str, command: str) -> Claim:
        return Claim(PAPER, item, text, paper, ours, "", 0, verdict, region, command)

    drawing = "a drawing"
    heavy_edge = "pytest tests/unit/core/test_heavy_edge.py"
    return [
        one("Fig. 1", "the three kinds of parallelism", "", "", UNTESTED, drawing, heavy_edge),
        one("Fig. 2", "Heavy-Edge's cut of an example", "2 + 2 replicas, 1, 1", "the same", YES, "", heavy_edge),
        one("Fig. 3", "the idea of the algorithm", "", "", UNTESTED, drawing, THEORY),
        one("Table I", "nine models and their batches", "nine", "our profiles", YES, "", "asrpt-profile list"),
        one("Lemma 1", "OPT_A1 <= ρ OPT_A", "always", "as printed, if ρ is taken from the true α_min", YES, "", THEORY),
        one("Lemma 2", "bound on Γ_A", "always", "if a delayed job blocks and no job needs the whole cluster", REGION,
            "delay = block, g_max < G", THEORY),
        one("Lemma 3", "OPT_Ã1 <= OPT_A1 + I g_max α_max ε/G", "always", "as printed", YES, "", THEORY),
        one("Theorem 1", "competitive ratio", "always", "if also every job has an iteration", REGION,
            "delay = block, g_max < G, n_i >= 1; not for times since submission", THEORY),
    ]  # fmt: skip
