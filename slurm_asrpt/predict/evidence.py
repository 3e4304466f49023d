"""What a prediction rests on: each key of the chain, what the table knows under it, and the past runs behind that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_asrpt.history.store import History, Run, features_text
from slurm_asrpt.hook.group import keys_of
from slurm_asrpt.hook.table import Answer, Entry, answer
from slurm_asrpt.predict.conformal import Misses, whole_ends
from slurm_asrpt.predict.predictors import TEACHING

MOST_RUNS = 100


@dataclass(frozen=True)
class Subject:
    """What is predicted for: the fields of ``predict.keys.keys_of``."""

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
    """One key of the chain. entry: what the table holds under it, None for nothing. runs: past ones of that key."""

    name: str
    key: str
    entry: Entry | None
    runs: int
    answers: bool


@dataclass(frozen=True)
class Evidence:
    """runs: the latest that the answering level (without one: the group) learns from, MOST_RUNS at most.

    told: the interval that asrptd goes by, of the answer's; 0 and 0 where there is none.
    """

    answer: Answer
    levels: tuple[Level, ...]
    runs: tuple[Run, ...]
    told: tuple[int, int]


def evidence(subject: Subject, entries: Mapping[str, Entry], history: History, misses: Misses) -> Evidence:
    """Why this is predicted. entries: of the active model. misses: of the same history. Raises HistoryError."""
    found = answer(subject.keys, subject.features, entries.get)
    levels = tuple(
        Level(name, key, entries.get(key), history.count(*_sharing(subject, name)), name == found.level)
        for name, key in subject.keys
    )
    runs = history.runs_where(*_sharing(subject, found.level or "group"), MOST_RUNS)
    told = whole_ends(*misses.around(subject.uid, found.low, found.iterations, found.high)) if found.high else (0, 0)
    return Evidence(found, levels, tuple(runs), told)


def _sharing(subject: Subject, level: str) -> tuple[str, tuple[str | int, ...]]:
    """The condition, and its values, of the runs that teach something under the key of this level."""
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
    states = tuple(sorted(TEACHING))
    teaches = f"iterations > 0 AND length(group_id) = 16 AND state IN ({', '.join('?' * len(states))})"
    conditions = [teaches, *(text for text, _ in wanted[level])]
    return " AND ".join(conditions), (*states, *(value for _, value in wanted[level]))
