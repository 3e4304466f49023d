"""How long a training's tasks take on each type of slot, as measured so far."""

from __future__ import annotations

from collections import defaultdict

LEAST_S = 1e-6
UNKNOWN_S = 1.0
"""Of a task before any has ended: policies compare times, and then all are alike."""


class TaskTimes:
    """Mean seconds of a task, by training and type of slot, with what it takes to send it and its answer."""

    def __init__(self, types: int) -> None:
        self._types = types
        self._spent: defaultdict[str, list[list[float]]] = defaultdict(lambda: [[0.0, 0.0] for _ in range(types)])

    def add(self, training: str, kind: int, seconds: float) -> None:
        """A task has ended on a slot of this type."""
        spent = self._spent[training][kind]
        spent[0] += seconds
        spent[1] += 1

    def of(self, training: str) -> tuple[float, ...]:
        """By type. One that has run none of its tasks counts as the mean of the others; at first, of all trainings."""
        spent = self._spent.get(training)
        if spent is None:
            return (self._mean([each for other in self._spent.values() for each in other], UNKNOWN_S),) * self._types
        mean = self._mean(spent, UNKNOWN_S)
        return tuple(self._mean([each], mean) for each in spent)

    @staticmethod
    def _mean(spent: list[list[float]], unknown: float) -> float:
        """Rounded, so that a record is short."""
        seconds, number = (sum(each[at] for each in spent) for at in (0, 1))
        return float(f"{max(LEAST_S, seconds / number):.6g}") if number else unknown
