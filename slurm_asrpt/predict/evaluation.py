"""How good predictions are, told in the order of time: what is judged was never learned from."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median

from slurm_asrpt.history.store import Run
from slurm_asrpt.hook.group import keys_of
from slurm_asrpt.hook.table import Answer, answer
from slurm_asrpt.predict.conformal import Misses
from slurm_asrpt.predict.predictors import Lesson, fit

NEAR = 0.1
"""A prediction is near if it is off by at most this share of the truth."""


@dataclass(frozen=True)
class Case:
    """One run, when it was submitted and when it ended, seconds on one clock. teaches: else it is only judged."""

    lesson: Lesson
    submit: float
    end: float
    teaches: bool = True


@dataclass(frozen=True)
class Score:
    """jobs: how many were judged. mae: mean absolute error, iterations; an unseen job counts as predicted 0.

    near, unseen: shares of the jobs. inside: share of the predicted jobs within their 10-90% interval as asrptd tells
    it when they are submitted; width: the median of upper over lower end. table_inside, table_width: of the intervals
    in the table, from which these follow. All four nan for no predicted job.
    """

    jobs: int
    mae: float
    near: float
    unseen: float
    inside: float
    width: float
    table_inside: float
    table_width: float


def cases_of(runs: Sequence[Run], teaching: Collection[str]) -> list[Case]:
    """The history's runs with a group and iterations, in the order of their submission. teaching: states."""
    cases = [
        Case(_lesson(run), run.submit_time or run.start_time, run.end_time, run.state in teaching)
        for run in runs
        if run.iterations > 0 and run.group_id
    ]
    return sorted(cases, key=lambda case: case.submit)


def _lesson(run: Run) -> Lesson:
    return Lesson(keys_of(run.group_id, run.program, run.uid, run.gpus, run.features), run.iterations, run.features)


def assess(
    name: str,
    cases: Sequence[Case],
    first: int,
    every_s: float | None,
    trees: int,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Score:
    """Predict ``cases[first:]`` from what had ended before, and compare.

    cases: in the order of submission. every_s: learn anew so often, seconds; None: once, before the first of them.
    progress: called with the number of jobs predicted.
    """
    by_end = sorted(cases, key=lambda case: case.end)
    answers, told = list[Answer](), list[Answer]()
    table, due = {}, float("-inf")
    watched = _Watched()
    for case in cases[first:]:
        if case.submit >= due:
            past = [c.lesson for c in by_end[: _ended(by_end, case.submit)] if c.teaches]
            table = fit(name, past, trees, seed)
            due = case.submit + every_s if every_s is not None else float("inf")
            progress(len(answers))
        answers.append(answer(case.lesson.chain, case.lesson.features, table.get))
        told.append(watched.told(case, answers[-1]))
    progress(len(answers))
    return score(answers, told, [case.lesson.iterations for case in cases[first:]])


class _Watched:
    """What asrptd would have told of each job, with the misses of those that had ended by then."""

    def __init__(self) -> None:
        self._misses = Misses()
        self._under_way: list[
            tuple[float, int, Case, Answer]
        ] = []  # a heap: the number keeps ties from comparing cases
        self._count = 0

    def told(self, case: Case, given: Answer) -> Answer:
        while self._under_way and self._under_way[0][0] <= case.submit:
            _, _, ended, said = heapq.heappop(self._under_way)
            self._misses.learn(_user(ended), said.low, said.iterations, said.high, ended.lesson.iterations)
        if not given.iterations:
            return given
        if case.teaches:
            self._count += 1
            heapq.heappush(self._under_way, (case.end, self._count, case, given))
        low, high = self._misses.around(_user(case), given.low, given.iterations, given.high)
        return replace(given, low=math.floor(low), high=math.ceil(high))


def _user(case: Case) -> str:
    return dict(case.lesson.chain)["user"]


def _ended(by_end: Sequence[Case], now: float) -> int:
    """How many had ended by ``now``."""
    return bisect_right(by_end, now, key=lambda case: case.end)


def score(answers: Sequence[Answer], told: Sequence[Answer], truth: Sequence[float]) -> Score:
    """told: the answers with the intervals that asrptd tells. Raises ValueError for no jobs."""
    if not truth:
        raise ValueError("no job is left to judge predictions by")
    pairs = list(zip(answers, truth, strict=True))
    seen = sum(given.iterations > 0 for given in answers)
    (inside, width), (table_inside, table_width) = (_intervals(each, truth) for each in (told, answers))
    return Score(
        jobs=len(truth),
        mae=sum(abs(given.iterations - true) for given, true in pairs) / len(pairs),
        near=sum(abs(given.iterations - true) <= NEAR * true for given, true in pairs) / len(pairs),
        unseen=1 - seen / len(pairs),
        inside=inside,
        width=width,
        table_inside=table_inside,
        table_width=table_width,
    )


def _intervals(answers: Sequence[Answer], truth: Sequence[float]) -> tuple[float, float]:
    """Share of the predicted jobs that lie inside, and the median of upper over lower end; nan without any."""
    seen = [(given, true) for given, true in zip(answers, truth, strict=True) if given.iterations]
    if not seen:
        return math.nan, math.nan
    inside = sum(given.low <= true <= given.high for given, true in seen)
    return inside / len(seen), median(given.high / max(given.low, 1) for given, _ in seen)
