"""The page that compares what Hare's paper reports with our results. Verdicts are computed from the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median

from papers.hare.introduction import introduction
from papers.hare.simulations import (
    INTRODUCTION,
    KNOWN,
    MORE,
    OFFLINE,
    RELEASED,
    Figure,
    Outcome,
    Outcomes,
    figures,
)
from papers.hare.workload import NAMES, TASKS, RoundOptions
from papers.report import FAILS, HOLDS, PARTLY, Measured, Section, Table, Verdict, render
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
    "hare-abstract": "the 2.94 times of the abstract",
    "hare-fig24": "Fig. 24: numbers of GPU groups",
    "hare-fig25": "Fig. 25: cost of the algorithm",
    "hare-fig26": "Fig. 26: HLAS-P, numbers of GPUs",
    "hare-fig27": "Fig. 27: HLAS-P, numbers of jobs",
    "hare-load": "HLAS-P by load, 100 jobs (not in the paper)",
    "hare-switching": "Switching: Table III, and the pool's ways as measured on an H200",
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
    "hare-abstract": "HLAS can outperform existing works with an improvement of about 2.94 times.",
    "hare-fig24": "With more groups the total completion time decreases, but the average increases. (With the same "
    "jobs both must do the same.)",
    "hare-fig25": "If all jobs arrive at once, the cost of the algorithm grows sub-linearly with the jobs.",
    "hare-fig26": "HLAS-P is always best, by another 1.42 times against HLAS; HLAS-L gains little.",
    "hare-fig27": "HLAS-P is always best, whatever the number of jobs.",
    "hare-load": "As Fig. 26: 1.42 times for HLAS-P, little for HLAS-L.",
    "hare-switching": "A switch takes at most 6 ms with Hare, up to 12.57 ms with PipeSwitch, and 3 s or more without "
    "optimization (Table III). Hare's are negligible for scheduling.",
}
PAPER: Mapping[tuple[str, str], str] = {
    **{("hare-fig14", policy): "1.91 to 4.05 (47.6% to 75.3% less)" for policy in OFFLINE[1:]},
    **{("hare-fig17", policy): "2.20 to 5.13 with 300 jobs (54.6% to 80.5% less)" for policy in OFFLINE[1:]},
    ("hare-fig16", "sched-allox"): "about 2",
    ("hare-fig22", "2d-las"): "about 2.04",
    ("hare-fig23", "2d-las"): "about 1.69 or 1.1",
    ("hare-fig26", "hlas"): "1.42",
    ("hare-load", "hlas"): "1.42",
}
"""What the paper prints of a policy's completion time over that of the figure's first policy."""


NEGLIGIBLE = 1.05
"""Costs of switching are negligible if they make HLAS's mean less than so many times as long."""


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
    found = introduction() if INTRODUCTION in asked else []
    return found + [
        Section(
            f"Hare, {TITLES[name]}",
            CLAIMS[name],
            _VERDICTS[name](figure, outcomes),
            [_table(figure, outcomes)],
            measured=_measured(figure, outcomes),
        )
        for name, figure in figures(divide).items()
        if name in asked
    ]


# verdicts


def _values(figure: Figure, outcomes: Outcomes, column: str, row: str) -> tuple[float, ...]:
    outcome: Outcome = outcomes[figure.cell(column, *figure.rows[row])]
    return outcome.weighted if figure.weighted else outcome.mean


def _over(figure: Figure, outcomes: Outcomes, column: str, row: str, other: str = "") -> list[float]:
    """The row's figure over that of the figure's first policy, or of another row, for each seed."""
    ours = _values(figure, outcomes, column, other or figure.policies[0])
    return ratios(_values(figure, outcomes, column, row), ours)


def _ratio(figure: Figure, outcomes: Outcomes, column: str, row: str) -> float:
    """The same, mean over the seeds."""
    return fmean(_over(figure, outcomes, column, row))


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
    """Holds if a reading rises from the first column to the last, in part if it rises from some column to the last."""
    columns = list(figure.columns)
    sentences, begins = [], []
    for name in figure.rows:
        values = [_values(figure, outcomes, column, name) for column in columns]
        begin = next(at for at in range(len(columns)) if all(direction(a, b) > 0 for a, b in pairwise(values[at:])))
        begins.append(begin)
        low, last = columns[begin], columns[-1]
        rises = f"rises from {low} on, by {fmean(ratios(values[-1], values[begin])):.2f} times to {last}"
        sentences.append(f"{name}: {rises if low != last else 'does not rise towards ' + last}.")
    rises_from = min(begins)
    return HOLDS if rises_from == 0 else PARTLY if rises_from < len(columns) - 1 else FAILS, [
        *sentences,
        "Without whole groups, their number only scales the sizes of jobs.",
    ]


def _fig25(figure: Figure, outcomes: Outcomes) -> Verdict:
    columns = list(figure.columns)
    few, many = (outcomes[figure.cell(column, "hlas")] for column in (columns[0], columns[-1]))
    jobs = figure.columns[columns[-1]].jobs / figure.columns[columns[0]].jobs
    begin, whole = median(many.first_s) / median(few.first_s), median(many.policy_s) / median(few.policy_s)
    return _graded(begin < jobs, whole < jobs), [
        f"CPU time of the algorithm alone, for {jobs:g} times as many jobs: the first decision, for all jobs, takes "
        f"{begin:.2f} times as long (median over the seeds), all decisions of all rounds {whole:.2f} times."
    ]


def _hlas_p(figure: Figure, outcomes: Outcomes) -> Verdict:
    best, sentences = _always_best(figure, outcomes)
    gain = [_gain(figure, outcomes, column, "hlas-p") for column in figure.columns]
    known = [_gain(figure, outcomes, column, KNOWN) for column in figure.columns]
    return _graded(best, min(gain) >= 1.2), [
        *sentences,
        f"HLAS-P gains {100 * (fmean(gain) - 1):.1f}% on HLAS, and at most {100 * (max(gain) - 1):.1f}%. With the true "
        f"sizes instead of predictions ({KNOWN}), the gain is {100 * (fmean(known) - 1):.1f}%, and at most "
        f"{100 * (max(known) - 1):.1f}%: at these loads few jobs wait for others (see *HLAS-P by load*).",
    ]


def _gain(figure: Figure, outcomes: Outcomes, column: str, row: str) -> float:
    """HLAS's figure over that of the row, mean over the seeds."""
    return fmean(_over(figure, outcomes, column, "hlas", row))


def _load(figure: Figure, outcomes: Outcomes) -> Verdict:
    """Holds if HLAS-P reaches 1.42 times somewhere, in part if it is better than HLAS and HLAS-L on foreign curves."""
    gains = {
        row: {column: _gain(figure, outcomes, column, row) for column in figure.columns}
        for row in ("hlas-p", "hlas-l", KNOWN)
    }
    best = {row: max(each.items(), key=lambda one: one[1]) for row, each in gains.items()}
    sentences = [
        f"{row} gains {100 * (over - 1):.0f}% on HLAS at most ({column})." for row, (column, over) in best.items()
    ]
    ahead = [column for column in figure.columns if gains["hlas-p"][column] > gains["hlas-l"][column] > 0]
    sentences.append(
        f"hlas-p is before hlas-l with {'; '.join(ahead) or 'no column'}. HLAS-L fits the right family of loss curves, "
        "except where a column names another."
    )
    foreign = [column for column in figure.columns if "exponential" in column]
    return _graded(best["hlas-p"][1] >= 1.42, set(foreign) <= set(ahead)), sentences


def _switching(figure: Figure, outcomes: Outcomes) -> Verdict:
    """Holds if HLAS with Hare's costs is within NEGLIGIBLE of HLAS without any, for each seed."""
    longer = {way: _longer(figure, outcomes, way) for way in list(figure.columns)[1:]}
    text = ", ".join(f"{way} {fmean(each):.3g} times" for way, each in longer.items())
    dear = [policy for policy in figure.policies[1:] if _ratio(figure, outcomes, "default", policy) < 1]
    better = f"below it: {', '.join(dear)}" if dear else "all others are above it still"
    ratios_of = {way: _ratio(figure, outcomes, way, "gavel-fifo") for way in figure.columns}
    fifo = ", ".join(f"{over:.2f} ({way})" for way, over in ratios_of.items())
    return _graded(max(longer["Hare"]) < NEGLIGIBLE, fmean(longer["default"]) > NEGLIGIBLE), [
        f"HLAS, over HLAS with switches that cost nothing: {text}.",
        f"With the default's costs for all, {better}. gavel-fifo, which never preempts, over hlas: {fifo}.",
        "All schedulers get the costs of the column; gavel-fifo pays them only when a job starts.",
        "The pool's are those of an H200 with memory for one of two trainings; tasks take as long as in the paper.",
    ]


def _longer(figure: Figure, outcomes: Outcomes, way: str) -> list[float]:
    """HLAS's time with these costs of a switch over that without any, for each seed."""
    return ratios(_values(figure, outcomes, way, "hlas"), _values(figure, outcomes, next(iter(figure.columns)), "hlas"))


def _abstract(figure: Figure, outcomes: Outcomes) -> Verdict:
    """Holds if the largest ratio reaches the paper's."""
    over = {
        (policy, column): _ratio(figure, outcomes, column, policy)
        for policy in figure.policies[1:]
        for column in figure.columns
    }
    policy, column = most = max(over, key=lambda one: over[one])
    return _graded(over[most] >= 2.94, min(over.values()) > 1), [
        f"The largest ratio of Figs. 22 and 23 is {over[most]:.2f} ({policy} over hlas, {column}); their mean is "
        f"{fmean(over.values()):.2f}. The paper does not say over what and where it has 2.94."
    ]


def _fig22(figure: Figure, outcomes: Outcomes) -> Verdict:
    best, sentences = _always_best(figure, outcomes)
    for name in (RELEASED, "hlas, whole"):
        sentences.append(f"{name} over hlas: {_range([_ratio(figure, outcomes, c, name) for c in figure.columns])}.")
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
    "hare-abstract": _abstract,
    "hare-fig24": _fig24,
    "hare-fig25": _fig25,
    "hare-fig26": _hlas_p,
    "hare-fig27": _hlas_p,
    "hare-load": _load,
    "hare-switching": _switching,
}


# figures beside the paper's


def _measured(figure: Figure, outcomes: Outcomes) -> tuple[Measured, ...]:
    """Mean over the columns, for each seed: the time of each policy over that of the figure's first."""
    if figure.name == "hare-fig20":
        return (_bandwidth(figure, outcomes),)
    if figure.name == "hare-fig25":
        return (_cost(figure, outcomes),)
    if figure.name == "hare-fig24":
        return tuple(_groups(figure, outcomes, row) for row in figure.rows)
    if figure.name == "hare-switching":
        ways = list(figure.columns)[1:]
        return tuple(Measured(f"hlas, {way} over none", "", tuple(_longer(figure, outcomes, way))) for way in ways)
    first = figure.policies[0]
    return tuple(
        Measured(f"{row} over {first}", PAPER.get((figure.name, row), ""), _mean_over(figure, outcomes, row))
        for row in figure.rows
        if row != first
    )


def _mean_over(figure: Figure, outcomes: Outcomes, row: str) -> tuple[float, ...]:
    columns = [_over(figure, outcomes, column, row) for column in figure.columns]
    return tuple(fmean(each) for each in zip(*columns, strict=True))


def _ends(figure: Figure) -> tuple[str, str]:
    first, *_, last = figure.columns
    return first, last


def _bandwidth(figure: Figure, outcomes: Outcomes) -> Measured:
    slow, fast = (_values(figure, outcomes, column, figure.policies[0]) for column in _ends(figure))
    return Measured("fall from 10 to 25 Gbit/s", "31.2%", tuple(1 - over for over in ratios(fast, slow)))


def _cost(figure: Figure, outcomes: Outcomes) -> Measured:
    few, many = (outcomes[figure.cell(column, "hlas")].first_s for column in _ends(figure))
    return Measured("CPU time of the first decision, 300 jobs over 100", "below 3", tuple(ratios(many, few)))


def _groups(figure: Figure, outcomes: Outcomes, row: str) -> Measured:
    few, many = (_values(figure, outcomes, column, row) for column in _ends(figure))
    first, last = _ends(figure)
    return Measured(f"{row}: {last} over {first}", "above 1", tuple(ratios(many, few)))


# tables


def _table(figure: Figure, outcomes: Outcomes) -> Table:
    if figure.name == "hare-fig25":
        return _cost_table(figure, outcomes)
    rows = {row: [spread(_values(figure, outcomes, column, row)) for column in figure.columns] for row in figure.rows}
    head = ["weighted, s" if figure.weighted else "mean, s", *figure.columns]
    return Table(head, [[name, *cells] for name, cells in rows.items()])


def _cost_table(figure: Figure, outcomes: Outcomes) -> Table:
    each = {column: outcomes[figure.cell(column, "hlas")] for column in figure.columns}
    rows = {
        "first decision, ms": [spread([1000 * s for s in one.first_s]) for one in each.values()],
        "all decisions, ms": [spread([1000 * s for s in one.policy_s]) for one in each.values()],
    }
    return Table(["CPU time", *figure.columns], [[name, *cells] for name, cells in rows.items()])
