"""The page that compares what the SJF-BCO paper reports with our results. Verdicts are computed from the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from papers.report import FAILS, HOLDS, PARTLY, Measured, Section, Table, Verdict, render
from papers.seeded import Seeds, direction, plus_minus, ratios, spread
from papers.sjf_bco.simulations import (
    COMPETITORS,
    FIGURES,
    KAPPAS,
    LAMBDAS,
    MORE,
    OURS,
    READINGS,
    SERVERS,
    Point,
    Points,
    Setting,
    row,
    rows,
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
    """The sections of the figures asked for."""
    return [
        Section(
            TITLES[name],
            CLAIMS[name],
            VERDICTS[name](points),
            _tables(name, points),
            pictures.get(name, ""),
            MEASURED[name](points),
        )
        for name in FIGURES
        if name in asked
    ]


# verdicts


def fig4(points: Points) -> Verdict:
    """Holds if SJF-BCO is below the others with the jobs in either order, in part if only with one."""
    found = {
        (by_size, f"{row(reading, extra)}, {WHAT[what]}"): _least(points, reading, extra, by_size, what)
        for reading in READINGS
        for extra in (EXTRA, MORE)
        for by_size in (False, True)
        for what in WHAT
    }
    won = {
        order: [name for (by_size, name), (better, _) in found.items() if by_size == order and better]
        for order in (False, True)
    }
    same = f"With the same order of the jobs, SJF-BCO is below all others in {'; '.join(won[True]) or 'no row'}."
    status = HOLDS if len(won[True]) + len(won[False]) == len(found) else PARTLY if won[True] or won[False] else FAILS
    return status, [*(text for _, text in found.values()), same]


def _least(points: Points, reading: str, extra: float, by_size: bool, what: str) -> tuple[bool, str]:
    """Whether SJF-BCO is below all others by more than two standard errors, and a sentence about it."""
    mine = getattr(points[Setting(extra=extra, reading=reading)], what)
    theirs = {
        name: getattr(points[Setting(name, extra=extra, reading=reading, by_size=by_size)], what)
        for name, order in COMPETITORS
        if order == by_size
    }
    best = min(theirs, key=lambda name: fmean(theirs[name]))
    over = _ratio(ratios(mine, theirs[best]))
    order = "by size" if by_size else "in the order of the batch"
    return direction(theirs[best], mine) < 0, (
        f"{row(reading, extra)}, others {order}: {WHAT[what]} relative to {best}, their best: {over}."
    )


def _ratio(over: Sequence[float]) -> str:
    return f"{fmean(over):.2f}{plus_minus(over, 2)}"


def _steps(found: Sequence[Point]) -> list[int]:
    return [direction(a.makespan, b.makespan) for a, b in pairwise(found)]


NO_CHANGE = "Changes within two standard errors count as none."
_WORD = {-1: "falls", 0: "does not change", 1: "rises"}


def _described(names: Sequence[str], steps: Sequence[int]) -> str:
    pairs = zip(names, names[1:], steps, strict=False)
    return ", ".join(f"{_WORD[step]} from {a} to {b}" for a, b, step in pairs)


def fig5(points: Points) -> Verdict:
    sentences, turns = [], {}
    for name, settings in rows("bco-fig5").items():
        steps = _steps([points[one] for one in settings])
        moved = [step for step in steps if step]
        turns[name] = [step for i, step in enumerate(moved) if i == 0 or moved[i - 1] != step]
        sentences.append(f"{name}: the makespan {_described([str(kappa) for kappa in KAPPAS], steps)}.")
    paper = [turns[row(reading, EXTRA)] for reading in READINGS]
    status = HOLDS if [-1, 1, -1] in paper else PARTLY if any(found[:1] == [-1] for found in paper) else FAILS
    return status, [*sentences, f"{NO_CHANGE} Other values of kappa give the same plans."]


def fig6(points: Points) -> Verdict:
    """Holds if all fall in both readings, and FF the most in one."""
    falls, most, sentences = [], set(), []
    for reading in READINGS:
        loss = {}
        for name in (OURS, "ff", "ls"):
            found = [points[one] for one in rows("bco-fig6")[f"{name}, {reading}"]]
            first, last = found[0].makespan, found[-1].makespan
            falls.append(1 not in _steps(found) and direction(first, last) < 0)
            loss[name] = fmean(a - b for a, b in zip(first, last, strict=True))
            share = 1 - fmean(ratios(last, first))
            sentences.append(
                f"{name}, {reading}: {loss[name]:,.0f} slots or {share:.0%} less with 20 servers than with 10."
            )
        most.add(max(loss, key=lambda name: loss[name]))
        sentences.append(f"The largest reduction, in slots, is that of {max(loss, key=lambda name: loss[name])}.")
    return HOLDS if all(falls) and "ff" in most else PARTLY if all(falls) else FAILS, sentences


def fig7(points: Points) -> Verdict:
    """Holds if the makespan falls at each step, with the paper's share of contention: in both readings, or in part."""
    sentences, ends = [], {}
    for name, settings in rows("bco-fig7").items():
        found = [points[one] for one in settings]
        steps, whole = _steps(found), direction(found[0].makespan, found[-1].makespan)
        ends[name] = HOLDS if set(steps) == {-1} else PARTLY if 1 not in steps and whole < 0 else FAILS
        names = [f"{factor:g}" for factor in LAMBDAS]
        sentences.append(f"{name}: the makespan {_described(names, steps)}; from 1 to 8 it {_WORD[whole]}.")
    paper = [ends[row(reading, EXTRA)] for reading in READINGS]
    status = HOLDS if set(paper) == {HOLDS} else FAILS if set(paper) == {FAILS} else PARTLY
    return status, [*sentences, NO_CHANGE]


VERDICTS: Mapping[str, Callable[[Points], Verdict]] = {
    "bco-fig4": fig4,
    "bco-fig5": fig5,
    "bco-fig6": fig6,
    "bco-fig7": fig7,
}


# figures beside the paper's


def _measured4(points: Points) -> tuple[Measured, ...]:
    return tuple(
        Measured(
            f"makespan of sjf-bco over {name}, {'by size' if by_size else 'as in the batch'}, {row(reading, extra)}",
            "below 1",
            tuple(
                ratios(
                    points[Setting(extra=extra, reading=reading)].makespan,
                    points[Setting(name, extra=extra, reading=reading, by_size=by_size)].makespan,
                )
            ),
        )
        for reading in READINGS
        for extra in (EXTRA, MORE)
        for name, by_size in COMPETITORS
    )


def _measured_rows(figure: str, what: str) -> Callable[[Points], tuple[Measured, ...]]:
    """The makespan at the end of each row over that at its beginning."""

    def found(points: Points) -> tuple[Measured, ...]:
        return tuple(
            Measured(
                f"makespan, {what}, {name}", "below 1", tuple(ratios(points[last].makespan, points[first].makespan))
            )
            for name, (first, *_, last) in rows(figure).items()
        )

    return found


MEASURED: Mapping[str, Callable[[Points], tuple[Measured, ...]]] = {
    "bco-fig4": _measured4,
    "bco-fig5": _measured_rows("bco-fig5", "kappa 32 over kappa 1"),
    "bco-fig6": _measured_rows("bco-fig6", "20 servers over 10"),
    "bco-fig7": _measured_rows("bco-fig7", "lambda 8 over lambda 1"),
}


# tables

COLUMNS: Mapping[str, Sequence[str]] = {
    "bco-fig5": [f"kappa {kappa}" for kappa in KAPPAS],
    "bco-fig6": [f"{number} servers" for number in SERVERS],
    "bco-fig7": [f"lambda {factor:g}" for factor in LAMBDAS],
}


def _tables(figure: str, points: Points) -> list[Table]:
    if figure == "bco-fig4":
        return [_compared(points, what) for what in WHAT]
    cells = [[name, *(points[one].text for one in settings)] for name, settings in rows(figure).items()]
    return [Table(["makespan", *COLUMNS[figure]], cells)]


def _compared(points: Points, what: str) -> Table:
    """The planners side by side."""
    head = [OURS, *(f"{name}, by size" if by_size else name for name, by_size in COMPETITORS)]
    cells = [
        [name, *(spread(getattr(points[one], what)) for one in settings)] for name, settings in rows("bco-fig4").items()
    ]
    return Table([WHAT[what], *head], cells)
