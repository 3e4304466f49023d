"""Two trainings that take turns in one process, as an executor has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slurm_asrpt.pool import torch_training
from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.torch_training import TorchTraining
from slurm_asrpt.pool.training import Switching


def turns(make: Callable[[int], TorchTraining], way: str, limit: int = 0) -> list[Packed]:
    """Their states after each round; each training is announced while the other computes. make: with a seed."""
    torch_training.residency.cache_clear()
    trainings = [make(seed) for seed in (0, 1)]
    blocks = [training.adopt(Switching(way, limit)) for training in trainings]
    states = [Packed.of(each.initial(), block).arrays() for each, block in zip(trainings, blocks, strict=True)]
    found = []
    for round in range(trainings[0].rounds):
        for at, training in enumerate(trainings):
            for task in range(training.tasks):
                training.loss = _announcing(training, trainings[1 - at], states[1 - at])  # type: ignore[method-assign]
                gradient, _ = training.gradient(states[at], round, task)
            state = Packed.of(training.step(states[at], gradient, round), blocks[at])
            states[at] = state.arrays()
            training.holds(states[at])
            found.append(state)
    for training in trainings:
        assert not training._plain
        training.leave()
    return found


def _announcing(training: TorchTraining, other: TorchTraining, state: Any) -> Any:
    def loss(model: Any, batch: Any) -> Any:
        other.prefetch(state)
        return type(training).loss(training, model, batch)

    return loss
