"""What a prediction rests on: each key of the chain, what the table knows under it, and the past runs behind that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_asrpt.predict.history import History, Run
from slurm_asrpt.predict.keys import keys_of
from slurm_asrpt.predict.table import Answer, Entry, answer


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
    """runs: the past ones that the answering level (without one: the group) learns from, the latest first."""

    answer: Answer
    levels: tuple[Level, ...]
    runs: tuple[Run, ...]


def evidence(subject: Subject, entries: Mapping[str, Entry], history: History) -> Evidence:
    """Why this is predicted. entries: of the active model. Raises HistoryError."""
    found = answer(subject.keys, subject.features, entries.get)
    past = {name: runs_of(subject, name, history) for name, _ in subject.keys}
    levels = tuple(
        Level(name, key, entries.get(key), len(past[name]), name == found.level) for name, key in subject.keys
    )
    return Evidence(found, levels, tuple(past[found.level or "group"]))


def runs_of(subject: Subject, level: str, history: History) -> list[Run]:
    """The completed runs with known iterations that share the key of this level, the latest first."""
    found: dict[str, tuple[str, str | int]] = {
        "program": ("program", subject.program),
        "user": ("uid", subject.uid),
        "cluster": ("state", "COMPLETED"),
    }
    column, value = found.get(level, ("group_id", subject.group))
    runs = [run for run in history.runs_where(column, value) if run.state == "COMPLETED" and run.iterations > 0]
    if level == "exact":
        return [run for run in runs if run.gpus == subject.gpus and run.features == dict(subject.features)]
    return runs
