"""Relaxed scale-fixed synchronization (Hare, section II-B.3): a round's gradients, added in the order of its tasks.

A floating-point sum depends on the order of its terms, and on nothing else. Here the order is always that of the tasks,
so the sum is equal to the bit wherever the tasks run, in whatever order they end, and however often.
"""

from __future__ import annotations

import numpy as np

from slurm_asrpt.pool.arrays import Array, Packed


class RoundSum:
    """The gradients of one round. A gradient that comes before those of earlier tasks waits for them."""

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self._added = 0
        self._early: dict[int, tuple[Packed, float]] = {}
        self._sum: dict[str, Array] = {}
        self._loss = 0.0

    @property
    def complete(self) -> bool:
        return self._added == self.tasks

    def has(self, task: int) -> bool:
        """Whether this task's gradient is there."""
        return task < self._added or task in self._early

    def add(self, task: int, gradient: Packed, loss: float) -> None:
        """Keep a task's gradient. One that is there already is ignored: it is the same.

        Raises ValueError for a task that the round does not have, and for arrays that differ from those of task 0.
        """
        if not 0 <= task < self.tasks:
            raise ValueError(f"the round has no task {task}")
        if not self.has(task):
            self._early[task] = gradient, loss
        while self._added in self._early:
            self._append(*self._early.pop(self._added))

    def _append(self, gradient: Packed, loss: float) -> None:
        arrays = gradient.arrays()
        if not self._added:
            self._sum = {name: array.copy() for name, array in arrays.items()}
        elif {name: array.shape for name, array in arrays.items()} != {n: a.shape for n, a in self._sum.items()}:
            raise ValueError(f"the gradient of task {self._added} has other arrays than that of task 0")
        else:
            for name, array in arrays.items():
                np.add(self._sum[name], array, out=self._sum[name])
        self._loss += loss
        self._added += 1
        if self.complete:
            self._sum = {name: _divided(array, self.tasks) for name, array in self._sum.items()}

    @property
    def mean_loss(self) -> float:
        return self._loss / self.tasks

    def mean(self) -> Packed:
        """The mean gradient of the round. Raises ValueError if tasks are missing."""
        if not self.complete:
            raise ValueError(f"{self.tasks - self._added} tasks of the round are missing")
        return Packed.of(self._sum)


def _divided(array: Array, number: int) -> Array:
    """Floats keep their dtype, and their memory; means of integers are float64."""
    if array.dtype.kind == "f":
        np.divide(array, array.dtype.type(number), out=array)
        return array
    return np.asarray(array / number)
