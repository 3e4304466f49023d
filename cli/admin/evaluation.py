"""What asrpt-admin evaluate does: it lets predictors learn from the first jobs, and judges them on the others."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from slurm_asrpt_cli._app.progress import Told, progress
from slurm_asrpt_cli._app.tables import Column, show_table
from slurm_asrpt_cli.admin.access import of_asrptd, read_history
from slurm_asrpt_cli.sim.options import retrain_seconds

from slurm_asrpt.config.settings import Settings, load_settings
from slurm_asrpt.errors import InputError
from slurm_asrpt.predict.evaluation import EvaluationRun, Score, evaluate_predictor, evaluation_runs
from slurm_asrpt.predict.predictors import TRAINING_STATES, predictor_names
from slurm_asrpt.sim.predictor_evaluation import POLICIES, cases_of_trace, completion_times, trace_of_runs
from slurm_asrpt.text import UNKNOWN, slurm_time
from slurm_asrpt.traces import Trace
from slurm_asrpt.traces.sources import column_titles, load_trace, no_jobs

REFERENCE, SCIKIT_LEARN = "forest", "forest-sklearn"
LEAST = 10
"""Minimum number of test jobs."""


@dataclass
class Row:
    """The scores of one predictor. rolling: with retraining; completion_s: mean completion time by policy, seconds."""

    predictor: str
    once: Score
    rolling: Score | None = None
    completion_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """What to evaluate. first, last: range of the test jobs, last excluded. jobs: to simulate, 0 for none."""

    names: tuple[str, ...]
    first: int
    last: int
    every_s: float | None
    jobs: int
    train: float
    load: float
    trees: int
    seed: int


class Source(NamedTuple):
    """Where the runs come from: the options of the command. data: a trace; "" for the history."""

    data: str
    fmt: str
    columns: list[str]
    processors: bool
    learn_from: list[str]


class Trial(NamedTuple):
    """What is tried: the options of the command. predictors: empty for all. rolling: with retraining, too."""

    predictors: list[str]
    train: float
    judge: float
    rolling: bool
    retrain: str
    jobs: int
    load: float


def evaluate_predictors(source: Source, trial: Trial, config: Path | None, as_json: bool) -> None:
    """Raises InputError."""
    settings = load_settings(config) if source.data else of_asrptd(config)
    cases, trace = _trace(source) if source.data else _history(settings, source)
    task = Task(
        _names(trial.predictors),
        *_judged(len(cases), trial.train, trial.judge),
        _period(trial.retrain) if trial.rolling else None,
        trial.jobs,
        trial.train,
        trial.load,
        settings.predict.trees,
        settings.predict.seed,
    )
    rows = _rows(task, cases, trace)
    if as_json:
        print(json.dumps(_plain(source.data or "history", task, rows), indent=2))
    else:
        _show(rows)


def _history(settings: Settings, source: Source) -> tuple[list[EvaluationRun], Trace]:
    states = _states(source)
    with read_history(settings) as history:
        runs = [run for run in history.runs() if states or run.state in TRAINING_STATES]
    _check_states(states, {run.state for run in runs})
    return evaluation_runs(runs, states or TRAINING_STATES), trace_of_runs(runs)


def _trace(source: Source) -> tuple[list[EvaluationRun], Trace]:
    titles, states = column_titles(source.columns), _states(source)
    trace = load_trace(source.data, fmt=source.fmt, processors_as_gpus=source.processors, columns=titles)
    if not len(trace):
        raise InputError(no_jobs(source.data, trace))
    _check_states(states, set(trace.jobs["status"].str.upper()))
    return cases_of_trace(trace, states), trace


def _states(source: Source) -> set[str]:
    return {state.upper() for state in source.learn_from}


def _check_states(wanted: set[str], there: set[str]) -> None:
    """Raises InputError for a state that no run has."""
    for state in sorted(wanted - there):
        known = ", ".join(sorted(there - {""})) or "none"
        raise InputError(f"--learn-from {state}: no run has this state; states found: {known}")


def _names(chosen: list[str]) -> tuple[str, ...]:
    known = predictor_names()
    for name in chosen:
        if name not in known:
            raise InputError(f"--predictor {name}: unknown predictor; valid names: {', '.join(known)}")
    quick = [name for name in known if name != SCIKIT_LEARN]  # forest-sklearn is the reference again, but slow
    return tuple(dict.fromkeys([REFERENCE, *(chosen or quick)]))


def _judged(jobs: int, train: float, judge: float) -> tuple[int, int]:
    """The first test job, and the first job after them."""
    if not 0 < train < 1:
        raise InputError(f"--train {train:g}: give a share between 0 and 1, such as 0.8")
    if not 0 < judge <= 1:
        raise InputError(f"--judge {judge:g}: give a share above 0, such as 0.2, and at most 1")
    first, last = int(jobs * train), min(jobs, int(jobs * (train + judge)))
    if first < 1 or last - first < LEAST:
        raise InputError(f"{jobs} runs are too few: {first} to learn from, {last - first} to test on; {LEAST} needed")
    return first, last


def _period(text: str) -> float:
    seconds = retrain_seconds(text)
    if seconds <= 0:
        raise InputError(f"--retrain {text}: give a time above 0, or leave out --rolling")
    return seconds


def _rows(task: Task, cases: list[EvaluationRun], trace: Trace) -> list[Row]:
    judged, simulated = task.last - task.first, min(task.jobs, len(trace) - int(len(trace) * task.train))
    steps = judged * (2 if task.every_s is not None else 1) + len(POLICIES) * simulated
    with progress("evaluating", steps * len(task.names)) as tell:
        rows = []
        for number, name in enumerate(task.names):
            advance = partial(_advance, tell, name, number * steps)
            rows.append(_row(name, task, cases, trace, judged, advance))
        return rows


def _advance(tell: Told, name: str, before: int, done: int) -> None:
    tell(before + done, name)


def _row(
    name: str, task: Task, cases: list[EvaluationRun], trace: Trace, judged: int, tell: Callable[[int], None]
) -> Row:
    def judge_every(every_s: float | None, before: int) -> Score:
        return evaluate_predictor(
            name, cases[: task.last], task.first, every_s, task.trees, task.seed, lambda done: tell(before + done)
        )

    row, done = Row(name, judge_every(None, 0)), judged
    if task.every_s is not None:
        row.rolling, done = judge_every(task.every_s, done), done + judged
    if task.jobs and len(trace) > 1:  # without runtimes, nothing can be simulated
        row.completion_s = completion_times(
            trace, name, task.train, task.jobs, task.load, lambda ended: tell(done + ended)
        )
    return row


def _plain(data: str, task: Task, rows: list[Row]) -> dict[str, Any]:
    facts = {
        "data": data,
        "train": task.train,
        "judged": task.last - task.first,
        "load": task.load,
        "retrain_s": task.every_s,
    }
    return {**facts, "predictors": [_nan_to_none(asdict(row)) for row in rows]}


def _nan_to_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nan_to_none(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _show(rows: list[Row]) -> None:
    names = [row.predictor for row in rows]
    times = [
        Column(policy.upper(), [slurm_time(row.completion_s[policy]) for row in rows], right=True)
        for policy in rows[0].completion_s
    ]
    show_table([Column("PREDICTOR", names), *_scores([row.once for row in rows]), *times])
    if rows[0].rolling:
        print()
        show_table([Column("ROLLING", names), *_scores([row.rolling for row in rows if row.rolling])])


def _scores(scores: list[Score]) -> list[Column]:
    forest = scores[0].mae
    cells = {
        "MAE": [f"{score.mae:,.1f} s" for score in scores],
        "/FOREST": [f"{score.mae / forest:.3f}" if forest else UNKNOWN for score in scores],
        "NEAR": [f"{100 * score.near:.1f}%" for score in scores],
        "UNSEEN": [f"{100 * score.unseen:.1f}%" for score in scores],
        "INSIDE": [UNKNOWN if math.isnan(score.inside) else f"{100 * score.inside:.1f}%" for score in scores],
    }
    return [Column(title, texts, right=True) for title, texts in cells.items()]
