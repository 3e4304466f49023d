"""How far a pool is, as a document: status.json, which asrpt-pool status reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from slurm_asrpt.errors import AsrptError
from slurm_asrpt.pool.board import Board, Training, tasks_of

FORMAT = 1


@dataclass(frozen=True)
class TrainingStatus:
    """A training. rounds, tasks: 0 until they are known. loss: of the last round. ended: seconds since 1970."""

    name: str
    state: str
    rounds_done: int
    rounds: int
    tasks: int
    loss: float | None
    ended: float | None
    why: str


@dataclass(frozen=True)
class PoolStatus:
    """A pool. state: running, or why it ended. work_s: seconds that executors worked, of slots_s that there were.

    slots_live, slots: with an executor now, and in all. lost: executors that ended unasked. Times: seconds since 1970.
    """

    state: str
    job_id: str
    started: float
    written: float
    slots_live: int
    slots: int
    tasks_done: int
    tasks_total: int
    switches: int
    lost: int
    work_s: float
    slots_s: float
    note: str
    trainings: tuple[TrainingStatus, ...]

    def document(self) -> dict[str, Any]:
        """As in status.json."""
        return {"format": FORMAT, **asdict(self)}

    def count(self, state: str) -> int:
        """Number of trainings in a state."""
        return sum(each.state == state for each in self.trainings)


def parse_status(document: Mapping[str, Any]) -> PoolStatus:
    """Raises AsrptError for the document of another release."""
    values = dict(document)
    if values.pop("format", None) != FORMAT:
        raise AsrptError("status.json is of another release of asrpt-pool")
    trainings = tuple(TrainingStatus(**each) for each in values.pop("trainings"))
    return PoolStatus(**values, trainings=trainings)


def trainings_status(trainings: Iterable[Training], ended: Mapping[str, float]) -> tuple[TrainingStatus, ...]:
    """ended: when those that ended in this run did."""
    return tuple(_of(each, ended.get(each.name)) for each in trainings)


def _of(training: Training, ended: float | None) -> TrainingStatus:
    losses = training.snapshot.losses if training.snapshot else ()
    loss = losses[-1] if losses and math.isfinite(losses[-1]) else None
    sizes = training.done, training.rounds, training.tasks
    return TrainingStatus(training.name, training.state.value, *sizes, loss, ended, training.why)


def progress_of(board: Board) -> tuple[int, int]:
    """Tasks done and in all."""
    return tasks_of(board.trainings.values())
