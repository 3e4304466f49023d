"""The page that compares what the SJF-BCO paper reports with our results. Verdicts are computed from the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, stdev

from papers.report import FAILS, HOLDS, PARTLY, Section, Table, Verdict, render
from papers.seeded import Seeds, direction, ratios, spread
from papers.sjf_bco.simulations import (
    FIGURES,
    KAPPAS,
    LAMBDAS,
    MORE,
    OURS,
    PLANNERS,
    SERVERS,
    Point,
    Points,
    Setting,
    settings,
)
from papers.sjf_bco.workload import EXTRA

TITLES: Mapping[str, str] = {
    "bco-fig4": "SJF-BCO, Fig. 4: the planners",
    "bco-fig5": "SJF-BCO, Fig. 5: kappa",
    "bco-fig6": "SJF-BCO, Fig. 6: numbers of servers",
    "bco-fig7": "SJF-BCO, Fig. 7: lambda",
}
CLAIMS: Mapping[str, str] = {
    "bco-fig4": "SJF-BCO has the least makespan and the least average completion time.",
    "bco-fig5": "As kappa grows from 1 to 32, the makespan first drops, then increases, then drops again.",
    "bco-fig6": "From 10 servers to 20 the makespans of FF, LS and SJF-BCO decrease, that of FF the most.",
    "bco-fig7": "The makespan decreases monotonically as lambda grows from 1 to 8 (kappa = 1).",
}
NO_PICTURES: Mapping[str, str] = {}
WHAT: Mapping[str, str] = {"makespan": "makespan", "mean": "average completion"}


def bco_page(asked: Sequence[str], points: Points, seeds: Seeds, pictures: Mapping[str, str] = NO_PICTURES) -> str:
    """The page for the figures asked for, Markdown. pictures: files by figure."""
    sections = bco_sections(asked, points, pictures)
    command = f"python -m papers.sjf_bco {asked[0] if len(asked) == 1 else 'all'} {seeds.text}"
    return render("sjf_bco.md.j2", sections, command=command, seeds=seeds.number, extra=EXTRA, more=MORE)


def bco_sections(asked: Sequence[str], points: Points, pictures: Mapping[str, str] = NO_PICTURES) -> list[Section]:
    """The sections of the figures asked for. pictures: files by figure."""
    return [
        Section(TITLES[name], CLAIMS[name], VERDICTS[name](points), [_table(name, points)], pictures.get(name, ""))
        for name in FIGURES
        if name in asked
    ]


# verdicts


def fig4(points: Points) -> Verdict:
    found = {(extra, what): _least(points, extra, what) for extra in (EXTRA, MORE) for what in WHAT}
    paper = [better for (extra, _), (better, _) in found.items() if extra == EXTRA]
    return HOLDS if all(paper) else PARTLY if any(paper) else FAILS, [sentence for _, sentence in found.values()]


def _least(points: Points, extra: float, what: str) -> tuple[bool, str]:
    """Whether SJF-BCO is below all others on average, and a sentence about it."""
    ours, others = _against(points, extra)
    mine, theirs = getattr(ours, what), {name: getattr(point, what) for name, point in others.items()}
    best = min(theirs, key=lambda name: fmean(theirs[name]))
    won = sum(value <= min(rest) for value, rest in zip(mine, zip(*theirs.values(), strict=True), strict=True))
    over = _ratio(ratios(mine, theirs[best]))
    return fmean(mine) < fmean(theirs[best]), (
        f"With {extra:.0%}: {WHAT[what]} relative to {best}, the best of the others: {over}; the smallest in {won} of "
        f"{len(mine)} seeds."
    )


def _against(points: Points, extra: float) -> tuple[Point, dict[str, Point]]:
    return points[Setting(extra=extra)], {n: points[Setting(n, extra=extra)] for n in PLANNERS if n != OURS}


def _ratio(over: Sequence[float]) -> str:
    return f"{fmean(over):.2f} ± {stdev(over) if len(over) > 1 else 0:.2f}"


def _steps(row: Sequence[Point]) -> list[int]:
    return [direction(a.makespan, b.makespan) for a, b in pairwise(row)]


_WORD = {-1: "falls", 0: "does not change", 1: "rises"}


def _described(names: Sequence[str], steps: Sequence[int]) -> str:
    pairs = zip(names, names[1:], steps, strict=False)
    return ", ".join(f"{_WORD[step]} from {a} to {b}" for a, b, step in pairs)


def fig5(points: Points) -> Verdict:
    sentences, turns = [], []
    for extra in (EXTRA, MORE):
        steps = _steps([points[Setting(kappa=kappa, extra=extra)] for kappa in KAPPAS])
        moved = [step for step in steps if step]
        turns.append([step for i, step in enumerate(moved) if i == 0 or moved[i - 1] != step])
        sentences.append(f"With {extra:.0%} the makespan {_described([str(kappa) for kappa in KAPPAS], steps)}.")
    status = HOLDS if turns[0] == [-1, 1, -1] else PARTLY if [-1, 1, -1] in turns or turns[0][:1] == [-1] else FAILS
    sentences.append("Changes within two standard errors count as none. Other values of kappa give the same plans.")
    return status, sentences


def fig6(points: Points) -> Verdict:
    falls, loss, sentences = [], {}, []
    for name in (OURS, "ff", "ls"):
        row = [points[Setting(name, number, 1500.0)] for number in SERVERS]
        steps = _steps(row)
        falls.append(1 not in steps and direction(row[0].makespan, row[-1].makespan) < 0)
        loss[name] = fmean(a - b for a, b in zip(row[0].makespan, row[-1].makespan, strict=True))
        share = 1 - fmean(ratios(row[-1].makespan, row[0].makespan))
        sentences.append(f"{name}: {loss[name]:,.0f} slots or {share:.0%} less with 20 servers than with 10.")
    most = max(loss, key=lambda name: loss[name])
    sentences.append(f"The largest reduction, in slots, is that of {most}.")
    return HOLDS if all(falls) and most == "ff" else PARTLY if all(falls) else FAILS, sentences


def fig7(points: Points) -> Verdict:
    sentences, ends = [], []
    for extra in (EXTRA, MORE):
        row = [points[Setting(kappa=1, factor=factor, extra=extra)] for factor in LAMBDAS]
        steps, whole = _steps(row), direction(row[0].makespan, row[-1].makespan)
        ends.append(HOLDS if set(steps) == {-1} else PARTLY if 1 not in steps and whole < 0 else FAILS)
        names = [f"{factor:g}" for factor in LAMBDAS]
        sentences.append(f"With {extra:.0%} the makespan {_described(names, steps)}; from 1 to 8 it {_WORD[whole]}.")
    return ends[0], [*sentences, "Changes within two standard errors count as none."]


VERDICTS: Mapping[str, Callable[[Points], Verdict]] = {
    "bco-fig4": fig4,
    "bco-fig5": fig5,
    "bco-fig6": fig6,
    "bco-fig7": fig7,
}


# tables


def _table(figure: str, points: Points) -> Table:
    chosen = settings(figure)
    if figure == "bco-fig6":
        rows = {name: [points[s].text for s in chosen if s.planner == name] for name in (OURS, "ff", "ls")}
        return _titled("makespan", [f"{number} servers" for number in SERVERS], rows)
    if figure == "bco-fig4":
        rows = {
            f"{words}, {extra:.0%}": [spread(getattr(points[s], what)) for s in chosen if s.extra == extra]
            for extra in (EXTRA, MORE)
            for what, words in WHAT.items()
        }
        return _titled("slots", list(PLANNERS), rows)
    names = [f"kappa {k}" for k in KAPPAS] if figure == "bco-fig5" else [f"lambda {f:g}" for f in LAMBDAS]
    rows = {f"{extra:.0%}": [points[s].text for s in chosen if s.extra == extra] for extra in (EXTRA, MORE)}
    return _titled("makespan", names, rows)


def _titled(corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    return Table([corner, *columns], [[name, *cells] for name, cells in rows.items()])
