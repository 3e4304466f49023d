"""The evidence for a prediction: each key of the chain, its entry in the table, and the past runs behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_asrpt.core.units import Unit
from slurm_asrpt.history.store import History, Run, features_text
from slurm_asrpt.hook.group import keys_of, profiled_keys_of
from slurm_asrpt.hook.table import Answer, Entry, answer
from slurm_asrpt.predict.communication import Placed, keys_for, placed_runs
from slurm_asrpt.predict.conformal import RunConformal, rounded_interval
from slurm_asrpt.predict.predictors import TRAINING_STATES
from slurm_asrpt.predict.sensitivity import NOTHING, Belief, Beliefs

MAX_RUNS = 100


@dataclass(frozen=True)
class PredictionInput:
    """What a prediction is made for: the fields of ``hook.group.keys_of``, and the profile ("" for none)."""

    group: str
    program: str
    uid: int
    gpus: int
    features: Mapping[str, float] = field(default_factory=dict)
    profile: str = ""

    @property
    def profiled_keys(self) -> tuple[tuple[str, str], ...]:
        return profiled_keys_of(self.group, self.uid, self.gpus, self.features, self.profile)

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        return keys_of(self.group, self.program, self.uid, self.gpus, self.features)


@dataclass(frozen=True)
class Level:
    """One key of the chain. entry: its entry in the table, or None. runs: number of past runs with that key.

    unit: of the entry.
    """

    name: str
    unit: Unit
    key: str
    entry: Entry | None
    runs: int
    answers: bool


@dataclass(frozen=True)
class Evidence:
    """runs: the latest runs that the answering level (or the group, if no level answers) learns from; at most
    MAX_RUNS.

    adjusted: the answer's interval as asrptd uses it; (0, 0) if there is none. communication: what is known about a job
    without a profile, if it is placed accordingly. placed: what the runs of its group took by placement.
    """

    answer: Answer
    levels: tuple[Level, ...]
    runs: tuple[Run, ...]
    adjusted: tuple[int, int]
    communication: Belief | None = None
    placed: tuple[Placed, ...] = ()


def evidence(
    subject: PredictionInput,
    entries: Mapping[str, Entry],
    history: History,
    conformal: RunConformal,
    beliefs: Beliefs = NOTHING,
) -> Evidence:
    """Explain a prediction. entries, beliefs: of the active model. conformal: of the same history. Raises
    HistoryError."""
    found = answer(subject.keys, subject.features, entries.get, subject.profiled_keys)
    chain = [(Unit.ITERATIONS, *key) for key in subject.profiled_keys] + [(Unit.SECONDS, *key) for key in subject.keys]
    levels = tuple(
        Level(
            *(name, unit, key, entries.get(key), history.count(*_sharing(subject, name, unit))),
            answers=(name, unit) == (found.level, found.unit),
        )
        for unit, name, key in chain
    )
    where = (found.level, found.unit) if found.level else ("group", Unit.SECONDS)
    runs = history.runs_where(*_sharing(subject, *where), MAX_RUNS)
    adjusted = (
        rounded_interval(*conformal.adjusted(subject.uid, found.low, found.iterations, found.high))
        if found.high
        else (0, 0)
    )
    if subject.profile or subject.gpus == 1:
        return Evidence(found, levels, tuple(runs), adjusted)
    known = beliefs.of(*keys_for(subject.group, subject.program, subject.uid))
    placed = placed_runs(history, subject.group, subject.uid, subject.gpus)
    return Evidence(found, levels, tuple(runs), adjusted, known if known and known.rate else None, tuple(placed))


def _sharing(subject: PredictionInput, level: str, unit: Unit) -> tuple[str, tuple[str | int, ...]]:
    """SQL condition and values that select the runs that this level's key learns from."""
    of_profile = (("? IN (iterations_of, profile)", subject.profile),) if unit is Unit.ITERATIONS else ()
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
    chosen = (*wanted[level], *of_profile)
    return " AND ".join([teaches, *(text for text, _ in chosen)]), (*states, *(value for _, value in chosen))
