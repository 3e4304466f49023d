"""The evidence for a prediction: each key of the chain, its entry in the table, and the past runs behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_asrpt.history.store import History, Run, features_text
from slurm_asrpt.hook.group import keys_of
from slurm_asrpt.hook.table import Answer, Entry, answer
from slurm_asrpt.predict.conformal import RunConformal, rounded_interval
from slurm_asrpt.predict.predictors import TRAINING_STATES

MAX_RUNS = 100


@dataclass(frozen=True)
class PredictionInput:
    """What a prediction is made for: the fields of ``hook.group.keys_of``."""

    group: str
    program: str
    uid: int
    gpus: int
    features: Mapping[str, float] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        return keys_of(self.group, self.program, self.uid, self.gpus, self.features)


@dataclass(frozen=True)
class Level:
    """One key of the chain. entry: its entry in the table, or None. runs: number of past runs with that key."""

    name: str
    key: str
    entry: Entry | None
    runs: int
    answers: bool


@dataclass(frozen=True)
class Evidence:
    """runs: the latest runs that the answering level (or the group, if no level answers) learns from; at most
    MAX_RUNS.

    adjusted: the answer's interval as asrptd uses it; (0, 0) if there is none.
    """

    answer: Answer
    levels: tuple[Level, ...]
    runs: tuple[Run, ...]
    adjusted: tuple[int, int]


def evidence(
    subject: PredictionInput, entries: Mapping[str, Entry], history: History, conformal: RunConformal
) -> Evidence:
    """Explain a prediction. entries: of the active model. conformal: of the same history. Raises HistoryError."""
    found = answer(subject.keys, subject.features, entries.get)
    levels = tuple(
        Level(name, key, entries.get(key), history.count(*_sharing(subject, name)), name == found.level)
        for name, key in subject.keys
    )
    runs = history.runs_where(*_sharing(subject, found.level or "group"), MAX_RUNS)
    adjusted = (
        rounded_interval(*conformal.adjusted(subject.uid, found.low, found.iterations, found.high))
        if found.high
        else (0, 0)
    )
    return Evidence(found, levels, tuple(runs), adjusted)


def _sharing(subject: PredictionInput, level: str) -> tuple[str, tuple[str | int, ...]]:
    """SQL condition and values that select the runs that this level's key learns from."""
    user = ("uid = ?", subject.uid)
    group = ("group_id = ?", subject.group)
    exact = (user, group, ("gpus = ?", subject.gpus), ("features = ?", features_text(subject.features)))
    wanted: dict[str, tuple[tuple[str, str | int], ...]] = {
        "exact": exact,
        "group": (user, group),
        "program": (user, ("program = ?", subject.program)),
        "user": (user,),
        "cluster": (),
    }
    states = tuple(sorted(TRAINING_STATES))
    teaches = f"iterations > 0 AND length(group_id) = 16 AND state IN ({', '.join('?' * len(states))})"
    conditions = [teaches, *(text for text, _ in wanted[level])]
    return " AND ".join(conditions), (*states, *(value for _, value in wanted[level]))
