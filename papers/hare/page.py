"""The page that compares what Hare's paper reports with our results. Verdicts are computed from the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from papers.hare.simulations import KNOWN, MORE, Figure, Outcome, Outcomes, figures
from papers.hare.workload import NAMES, TASKS, RoundOptions
from papers.report import FAILS, HOLDS, PARTLY, Section, Table, Verdict, render
from papers.seeded import Seeds, direction, ratios, spread

TITLES: Mapping[str, str] = {
    "hare-fig14": "Fig. 14: the testbed",
    "hare-fig15": "Fig. 15: completion times of single jobs on the testbed",
    "hare-fig16": "Fig. 16: numbers of GPUs, sizes known",
    "hare-fig17": "Fig. 17: numbers of jobs, sizes known",
    "hare-fig18": "Fig. 18: levels of heterogeneity, sizes known",
    "hare-fig19": "Fig. 19: kinds of jobs, sizes known",
    "hare-fig20": "Fig. 20: network bandwidth, sizes known",
    "hare-fig21": "Fig. 21: batch sizes, sizes known",
    "hare-fig22": "Fig. 22: numbers of GPUs, sizes unknown",
    "hare-fig23": "Fig. 23: numbers of jobs, sizes unknown",
    "hare-fig24": "Fig. 24: numbers of GPU groups",
    "hare-fig25": "Fig. 25: cost of the algorithm",
    "hare-fig26": "Fig. 26: HLAS-P, numbers of GPUs",
    "hare-fig27": "Fig. 27: HLAS-P, numbers of jobs",
}
CLAIMS: Mapping[str, str] = {
    "hare-fig14": "Hare reduces the total weighted completion time by 47.6% to 75.3%.",
    "hare-fig15": "Within 25 minutes about 90.5% of jobs complete with Hare, 66.7% with Sched_Allox, 56.5% with "
    "Sched_Homo.",
    "hare-fig16": "Hare is always best; Sched_Allox is slower by about 2 times but faster than all others; Gavel_FIFO "
    "is the slowest.",
    "hare-fig17": "With 300 jobs Hare is below the others by 54.6% to 80.5%, and the differences grow with the jobs.",
    "hare-fig18": "The differences between Hare and the others grow with heterogeneity.",
    "hare-fig19": "More NLP jobs make all schemes slower, more Rec. jobs all quicker; Hare is always best.",
    "hare-fig20": "From 10 to 25 Gbit/s Hare's weighted completion time falls by 31.2%.",
    "hare-fig21": "The batch size has no big influence, except on Sched_Homo.",
    "hare-fig22": "HLAS always outperforms the others; it reduces the average by about 2.04 times against 2D-LAS.",
    "hare-fig23": "HLAS is always best, about 1.69 and 1.1 times; its distance to FIFO grows with the jobs.",
    "hare-fig24": "With more groups the average completion time increases.",
    "hare-fig25": "The cost grows sub-linearly with the jobs.",
    "hare-fig26": "HLAS-P is always best, by another 1.42 times against HLAS; HLAS-L gains little.",
    "hare-fig27": "HLAS-P is always best, whatever the number of jobs.",
}


def hare_page(asked: Sequence[str], outcomes: Outcomes, seeds: Seeds, divide: int = 1) -> str:
    """The page for the figures asked for, Markdown. divide: as in ``figures``."""
    sections = hare_sections(asked, outcomes, divide)
    command = f"python -m papers.hare {asked[0] if len(asked) == 1 else 'all'} {seeds.text}"
    return render(
        "hare.md.j2",
        sections,
        command=command if divide == 1 else f"{command} --divide {divide}",
        seeds=seeds.number,
        tasks=TASKS,
        names=NAMES,
        options=RoundOptions(),
    )


def hare_sections(asked: Sequence[str], outcomes: Outcomes, divide: int = 1) -> list[Section]:
    """The sections of the figures asked for."""
    return [
        Section(f"Hare, {TITLES[name]}", CLAIMS[name], _VERDICTS[name](figure, outcomes), [_table(figure, outcomes)])
        for name, figure in figures(divide).items()
        if name in asked
    ]


# verdicts


def _values(figure: Figure, outcomes: Outcomes, column: str, policy: str, whole: bool = False) -> tuple[float, ...]:
    outcome: Outcome = outcomes[figure.cell(column, policy, whole)]
    return outcome.weighted if figure.weighted else outcome.mean


def _ratio(figure: Figure, outcomes: Outcomes, column: str, policy: str) -> float:
    """The policy's figure over that of the figure's first policy, mean over seeds."""
    ours = _values(figure, outcomes, column, figure.policies[0])
    return fmean(ratios(_values(figure, outcomes, column, policy), ours))


def _rivals(figure: Figure, outcomes: Outcomes, column: str) -> dict[str, float]:
    return {policy: _ratio(figure, outcomes, column, policy) for policy in figure.policies[1:]}


def _always_best(figure: Figure, outcomes: Outcomes) -> tuple[bool, list[str]]:
    """Whether the first policy is below all others in every column, and its ratios to them."""
    found = {column: _rivals(figure, outcomes, column) for column in figure.columns}
    sentences = []
    for policy in figure.policies[1:]:
        over = [rivals[policy] for rivals in found.values()]
        sentences.append(f"{policy} over {figure.policies[0]}: {_range(over)}.")
    return all(over > 1 for rivals in found.values() for over in rivals.values()), sentences


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def _graded(best: bool, *more: bool) -> str:
    return HOLDS if best and all(more) else PARTLY if best or any(more) else FAILS


def _best_by(least: float) -> Callable[[Figure, Outcomes], Verdict]:
    """Always best, and ``least`` below the nearest rival; with a smaller gain the claim holds in part."""

    def verdict(figure: Figure, outcomes: Outcomes) -> Verdict:
        best, sentences = _always_best(figure, outcomes)
        nearest = min(min(_rivals(figure, outcomes, column).values()) for column in figure.columns)
        return _graded(best, nearest >= 1 / (1 - least)), sentences

    return verdict


def _grows(figure: Figure, outcomes: Outcomes) -> Verdict:
    """Always best, and by more in the last column than in the first."""
    best, sentences = _always_best(figure, outcomes)
    first, *_, last = (fmean(_rivals(figure, outcomes, column).values()) for column in figure.columns)
    columns = list(figure.columns)
    sentences.append(f"Mean of these ratios: {first:.2f} with {columns[0]}, {last:.2f} with {columns[-1]}.")
    return _graded(best, last > first), sentences


def _fig17(figure: Figure, outcomes: Outcomes) -> Verdict:
    """As ``_grows``, and with most jobs as far below the nearest rival as in the paper."""
    status, sentences = _grows(figure, outcomes)
    column = list(figure.columns)[-1]
    below = [1 - 1 / over for over in _rivals(figure, outcomes, column).values()]
    sentences.append(f"With {column} it is below the others by {min(below):.1%} to {max(below):.1%}.")
    return status if min(below) >= 0.546 or status == FAILS else PARTLY, sentences


def _fig15(figure: Figure, outcomes: Outcomes) -> Verdict:
    column = next(iter(figure.columns))
    early = {policy: _early(figure, outcomes, column, policy) for policy in figure.policies}
    text = ", ".join(f"{share:.1%} with {policy}" for policy, share in early.items())
    ours, *others = early.values()
    return _graded(ours > max(others), early["sched-allox"] > early["sched-homo"]), [
        f"Within the time in which 90.5% complete with hare-offline: {text}."
    ]


def _early(figure: Figure, outcomes: Outcomes, column: str, policy: str) -> float:
    shares = []
    each = zip(
        outcomes[figure.cell(column, "hare-offline")].each, outcomes[figure.cell(column, policy)].each, strict=True
    )
    for ours, theirs in each:
        within = sorted(ours)[int(0.905 * len(ours))]
        shares.append(sum(seconds <= within for seconds in theirs) / len(theirs))
    return fmean(shares)


def _fig16(figure: Figure, outcomes: Outcomes) -> Verdict:
    best, sentences = _always_best(figure, outcomes)
    rows = [_rivals(figure, outcomes, column) for column in figure.columns]
    order = all(min(row, key=lambda p: row[p]) == "sched-allox" for row in rows)
    worst = {max(row, key=lambda p: row[p]) for row in rows}
    sentences.append(f"The nearest is {'always' if order else 'not always'} sched-allox; the slowest: {_names(worst)}.")
    return _graded(best, order, worst == {"gavel-fifo"}), sentences


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _fig19(figure: Figure, outcomes: Outcomes) -> Verdict:
    best, sentences = _always_best(figure, outcomes)
    moved = {}
    for kind in ("NLP", "Rec."):
        over = [
            fmean(ratios(_values(figure, outcomes, f"more {kind}", p), _values(figure, outcomes, "equal", p)))
            for p in figure.policies
        ]
        moved[kind] = over
        sentences.append(f"With {MORE:g} times as many {kind} jobs: {_range(over)} times as long.")
    return _graded(best, min(moved["NLP"]) > 1, max(moved["Rec."]) < 1), sentences


def _fig20(figure: Figure, outcomes: Outcomes) -> Verdict:
    columns = list(figure.columns)
    slow, fast = (_values(figure, outcomes, c, figure.policies[0]) for c in (columns[0], columns[-1]))
    fall = 1 - fmean(ratios(fast, slow))
    best, sentences = _always_best(figure, outcomes)
    return _graded(best, fall > 0.2), [
        f"Hare's weighted completion time falls by {fall:.1%} from {columns[0]} to {columns[-1]}.",
        *sentences,
    ]


def _fig21(figure: Figure, outcomes: Outcomes) -> Verdict:
    small, *_, large = figure.columns
    rise = {
        policy: fmean(ratios(_values(figure, outcomes, large, policy), _values(figure, outcomes, small, policy)))
        for policy in figure.policies
    }
    text = ", ".join(f"{policy} {over:.2f}" for policy, over in rise.items())
    change = {policy: max(over, 1 / over) for policy, over in rise.items()}
    others = [times for policy, times in change.items() if policy != "sched-homo"]
    return _graded(change["sched-homo"] > max(others), max(others) < 1.25), [
        f"{large} relative to {small}, for the same data: {text}. Here a batch of twice the size takes twice the time."
    ]


def _fig24(figure: Figure, outcomes: Outcomes) -> Verdict:
    columns = list(figure.columns)
    sentences, rises = [], []
    for whole in (False, True):
        rows = [_values(figure, outcomes, column, "hlas", whole) for column in columns]
        steps = [direction(a, b) for a, b in pairwise(rows)]
        rises.append(direction(rows[0], rows[-1]) > 0 and -1 not in steps)
        name = "hlas, whole" if whole else "hlas"
        sentences.append(f"{name}: from {columns[0]} to {columns[-1]} {fmean(ratios(rows[-1], rows[0])):.2f} times.")
    return _graded(rises[0], rises[1]), sentences


def _fig25(figure: Figure, outcomes: Outcomes) -> Verdict:
    columns = list(figure.columns)
    first, last = (fmean(outcomes[figure.cell(c, "hlas")].took_s) for c in (columns[0], columns[-1]))
    jobs = figure.columns[columns[-1]].jobs / figure.columns[columns[0]].jobs
    return _graded(last / first < jobs), [
        f"Simulating {columns[-1]} takes {last / first:.2f} times as long as {columns[0]}: {last:.1f} s and "
        f"{first:.1f} s for all decisions of all rounds, on a machine that may have had other work."
    ]


def _hlas_p(figure: Figure, outcomes: Outcomes) -> Verdict:
    best, sentences = _always_best(figure, outcomes)
    gain = [_ratio(figure, outcomes, column, "hlas") for column in figure.columns]
    known = [
        fmean(ratios(_values(figure, outcomes, column, "hlas"), _values(figure, outcomes, column, KNOWN)))
        for column in figure.columns
    ]
    return _graded(best, min(gain) >= 1.2), [
        *sentences,
        f"HLAS-P gains {100 * (fmean(gain) - 1):.1f}% on HLAS, and at most {100 * (max(gain) - 1):.1f}%. With the true "
        f"sizes instead of predictions ({KNOWN}), the gain is {100 * (fmean(known) - 1):.1f}%, and at most "
        f"{100 * (max(known) - 1):.1f}%: about what any prediction could gain with these jobs and queues.",
    ]


def _fig22(figure: Figure, outcomes: Outcomes) -> Verdict:
    best, sentences = _always_best(figure, outcomes)
    over = [
        fmean(ratios(_values(figure, outcomes, c, "hlas", True), _values(figure, outcomes, c, "hlas")))
        for c in figure.columns
    ]
    sentences.append(f"hlas with whole groups over hlas: {_range(over)}.")
    return _graded(best, fmean(_rivals(figure, outcomes, c)["2d-las"] for c in figure.columns) > 1.5), sentences


_VERDICTS: Mapping[str, Callable[[Figure, Outcomes], Verdict]] = {
    "hare-fig14": _best_by(0.476),
    "hare-fig15": _fig15,
    "hare-fig16": _fig16,
    "hare-fig17": _fig17,
    "hare-fig18": _grows,
    "hare-fig19": _fig19,
    "hare-fig20": _fig20,
    "hare-fig21": _fig21,
    "hare-fig22": _fig22,
    "hare-fig23": _grows,
    "hare-fig24": _fig24,
    "hare-fig25": _fig25,
    "hare-fig26": _hlas_p,
    "hare-fig27": _hlas_p,
}


# tables


def _table(figure: Figure, outcomes: Outcomes) -> Table:
    rows = {
        policy: [spread(_values(figure, outcomes, column, policy)) for column in figure.columns]
        for policy in figure.policies
    }
    if figure.shows_known:
        rows[KNOWN] = [spread(_values(figure, outcomes, column, KNOWN)) for column in figure.columns]
    if figure.shows_whole:
        rows["hlas, whole"] = [spread(_values(figure, outcomes, column, "hlas", True)) for column in figure.columns]
    head = ["weighted, s" if figure.weighted else "mean, s", *figure.columns]
    return Table(head, [[name, *cells] for name, cells in rows.items()])
