"""What a training is to the pool: functions on named arrays. ``torch_training`` makes one of a torch module."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from slurm_asrpt.pool.arrays import Allocate, Arrays
from slurm_asrpt.pool.memory import Check

WARM, LAYERS, AHEAD = "warm", "layers", "ahead"


@dataclass(frozen=True)
class Switching:
    """How a process turns to another training: WARM, LAYERS or AHEAD (``residency.Way``).

    device_bytes: that the parameters of trainings may have on a device together; 0: half of what is free there.
    """

    way: str = WARM
    device_bytes: int = 0


class Training(Protocol):
    """One training of a pool. All arrays that it gets are read-only.

    tasks: per round, each with a batch of its own; fixed, so that the result does not depend on the number of slots.
    rounds: at most so many.

    For results that are equal to the bit, each method must depend on its arguments only: a random generator is seeded
    by the round and the task, and nothing is kept from one call to the next but what is the same each time (the data).
    """

    tasks: int
    rounds: int

    def initial(self) -> Arrays:
        """The state before the first round: parameters, and what the optimizer needs."""

    def gradient(self, state: Arrays, round: int, task: int) -> tuple[Arrays, float]:
        """The gradient and the loss of a task's batch."""

    def step(self, state: Arrays, gradient: Arrays, round: int) -> Arrays:
        """The state after the round. gradient: the mean over the round's tasks."""

    def stop(self, losses: Sequence[float]) -> bool:
        """Whether the training ends now. losses: the mean of each round so far. May be left out."""

    def memory(self, check: Check) -> None:
        """Call ``check`` with what the training needs, before that is allocated. May be left out."""


class OnDevice(Protocol):
    """What a training may have in addition if its states are copied to a device."""

    def adopt(self, switching: Switching) -> Allocate | None:
        """Called first. Returns what makes blocks of memory from which copies are fast; None if any memory will do."""

    def prefetch(self, state: Arrays) -> None:
        """Begin to copy the state; from another thread, while another training computes."""

    def holds(self, state: Arrays) -> None:
        """The state that ``step`` has returned last is this object from now on."""

    def leave(self) -> None:
        """Give up the memory on the device; the training is not called anymore."""


class DeviceLostError(Exception):
    """The device has failed, not the training's code: the executor ends, and its work runs again elsewhere."""


def load(uses: str, settings: Mapping[str, Any], folder: Path) -> Training:
    """Make a training: ``module:factory`` with these keywords; modules of ``folder`` come first.

    Raises whatever the user's code raises, and TypeError for what is no training.
    """
    module, _, name = uses.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    factory = getattr(importlib.import_module(module), name)
    _seed_generators()
    training: Training = factory(**settings)
    for size in ("tasks", "rounds"):
        value = getattr(training, size, None)
        if type(value) is not int or value < 1:
            raise TypeError(f"{uses}: {size} must be a whole number of at least 1, not {value!r}")
    return training


def _seed_generators() -> None:
    """Seed the global generators: what a factory makes is then the same in any process, whatever ran there before."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def stops(training: Training, losses: Sequence[float]) -> bool:
    """Whether the training ends by itself now."""
    stop = getattr(training, "stop", None)
    return bool(stop and stop(losses))
