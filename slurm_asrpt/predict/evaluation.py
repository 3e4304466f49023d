"""Evaluation of predictors in the order of time: no prediction uses a run that had not ended by then."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median

from slurm_asrpt.history.store import Run, sample_of
from slurm_asrpt.hook.table import Answer, answer
from slurm_asrpt.predict.conformal import RunConformal
from slurm_asrpt.predict.predictors import Example, examples_of, fit

NEAR = 0.1
"""A prediction counts as near if its relative error is at most this share."""


@dataclass(frozen=True)
class EvaluationRun:
    """One run, its submission and its end, seconds on one clock. trains: whether predictors learn from it, or it is
    only evaluated."""

    example: Example
    submit: float
    end: float
    trains: bool = True


@dataclass(frozen=True)
class Score:
    """jobs: number evaluated. mae: mean absolute error, seconds of work; a job without a prediction counts as predicted
    0.

    near, unseen: shares of the jobs. inside: share of the predicted jobs within the 10-90% interval that asrptd
    shows at submission; width: median ratio of upper to lower end. table_inside, table_width: the same for the
    unadjusted intervals of the table. All four are nan if no job has a prediction.
    """

    jobs: int
    mae: float
    near: float
    unseen: float
    inside: float
    width: float
    table_inside: float
    table_width: float


def evaluation_runs(runs: Sequence[Run], teaching: Collection[str]) -> list[EvaluationRun]:
    """The history's runs with a group and iterations, in the order of submission. teaching: states of runs to learn
    from."""
    known = [run for run in runs if run.iterations > 0 and run.group_id]
    cases = [
        EvaluationRun(example, run.submit_time or run.start_time, run.end_time, run.state in teaching)
        for example, run in zip(examples_of([sample_of(run) for run in known]), known, strict=True)
    ]
    return sorted(cases, key=lambda case: case.submit)


def evaluate_predictor(
    name: str,
    cases: Sequence[EvaluationRun],
    first: int,
    every_s: float | None,
    trees: int,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Score:
    """Predict ``cases[first:]`` from the runs that had ended before, and compare.

    cases: in the order of submission. every_s: interval between fits, seconds; None: fit once, before the first of
    them.
    progress: called with the number of jobs predicted.
    """
    by_end = sorted(cases, key=lambda case: case.end)
    answers, told = list[Answer](), list[Answer]()
    table, due = {}, float("-inf")
    watched = _OnlineIntervals()
    for case in cases[first:]:
        if case.submit >= due:
            past = [c.example for c in by_end[: _ended(by_end, case.submit)] if c.trains]
            table = fit(name, past, trees, seed)
            due = case.submit + every_s if every_s is not None else float("inf")
            progress(len(answers))
        example = case.example
        given = answer(example.chain, example.features, table.get, example.profiled)
        answers.append(given.in_seconds(example.alpha))
        told.append(watched.told(case, answers[-1]))
    progress(len(answers))
    return score(answers, told, [case.example.work for case in cases[first:]])


class _OnlineIntervals:
    """The intervals that asrptd would have shown for each job, adjusted by the runs that had ended by then."""

    def __init__(self) -> None:
        self._conformal = RunConformal()
        self._under_way: list[
            tuple[float, int, EvaluationRun, Answer]
        ] = []  # a heap; the number breaks ties, so that runs are never compared
        self._count = 0

    def told(self, case: EvaluationRun, given: Answer) -> Answer:
        while self._under_way and self._under_way[0][0] <= case.submit:
            _, _, ended, said = heapq.heappop(self._under_way)
            self._conformal.learn(_user(ended), said.low, said.iterations, said.high, ended.example.work)
        if not given.iterations:
            return given
        if case.trains:
            self._count += 1
            heapq.heappush(self._under_way, (case.end, self._count, case, given))
        low, high = self._conformal.adjusted(_user(case), given.low, given.iterations, given.high)
        return replace(given, low=math.floor(low), high=math.ceil(high))


def _user(case: EvaluationRun) -> str:
    return dict(case.example.chain)["user"]


def _ended(by_end: Sequence[EvaluationRun], now: float) -> int:
    """How many had ended by ``now``."""
    return bisect_right(by_end, now, key=lambda case: case.end)


def score(answers: Sequence[Answer], told: Sequence[Answer], truth: Sequence[float]) -> Score:
    """told: the answers with the adjusted intervals. Raises ValueError if there are no jobs."""
    if not truth:
        raise ValueError("no job is left to evaluate predictions with")
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
    """Share of the predicted jobs inside the interval, and median ratio of its ends; nan if no job has a prediction."""
    seen = [(given, true) for given, true in zip(answers, truth, strict=True) if given.iterations]
    if not seen:
        return math.nan, math.nan
    inside = sum(given.low <= true <= given.high for given, true in seen)
    return inside / len(seen), median(given.high / max(given.low, 1) for given, _ in seen)
