"""Trainings of a pool on a GPU, which is faked: nothing is on the wrong device, waits for nothing, or leaks."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.training import AHEAD, LAYERS, WARM, Switching

torch = pytest.importorskip("torch", reason="needs torch: make test-integrations")

from slurm_asrpt.pool import torch_training  # noqa: E402
from slurm_asrpt.pool.residency import Residency  # noqa: E402
from slurm_asrpt.pool.torch_training import TorchTraining  # noqa: E402
from tests.integration.fake_cuda import FakeGpu, gpu  # noqa: E402, F401 a fixture

WIDTH = 64


class Net(TorchTraining):
    tasks, rounds = 2, 3

    def __init__(self, seed: int, device: str) -> None:
        self.seed, self.device = seed, device

    def model(self) -> Any:
        layers = [(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.ReLU()) for _ in range(4)]
        return torch.nn.Sequential(*(each for layer in layers for each in layer))

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, 0.01)

    def data(self, round: int, task: int) -> Any:
        return torch.randn(8, WIDTH)

    def loss(self, model: Any, batch: Any) -> Any:
        return (model(batch) - 1).pow(2).mean()


def turns(device: str, way: str, limit: int = 0) -> list[Packed]:
    """States of two trainings that take turns, each announced while the other computes."""
    torch_training.residency.cache_clear()
    trainings = [Net(seed, device) for seed in (0, 1)]
    blocks = [training.adopt(Switching(way, limit)) for training in trainings]
    states = [Packed.of(each.initial(), block).arrays() for each, block in zip(trainings, blocks, strict=True)]
    found = []
    for round in range(3):
        for at, training in enumerate(trainings):
            for task in range(2):
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


def _announcing(training: Any, other: Any, state: Any) -> Any:
    def loss(model: Any, batch: Any) -> Any:
        other.prefetch(state)
        return Net.loss(training, model, batch)

    return loss


@pytest.fixture(scope="module")
def expected() -> list[Packed]:
    """The same on a CPU, where there is no GPU."""
    return turns("cpu", WARM)


@pytest.fixture
def threads(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:  # noqa: F811
    """The thread that copies and the hooks of the backward pass see the GPU, too."""
    serve = Residency._serve

    def inside(self: Residency) -> None:
        with gpu:
            serve(self)

    accumulated = TorchTraining._accumulated

    def in_backward(self: TorchTraining, *told: Any) -> None:
        with gpu:
            accumulated(self, *told)

    monkeypatch.setattr(Residency, "_serve", inside)
    monkeypatch.setattr(TorchTraining, "_accumulated", in_backward)
    return gpu


@pytest.mark.parametrize("limit", [0, 100_000])
@pytest.mark.parametrize("way", [WARM, LAYERS, AHEAD])
def test_each_way_on_a_gpu(way: str, limit: int, expected: list[Packed], threads: FakeGpu) -> None:
    found = turns("cuda", way, limit)
    size = 4 * (WIDTH * WIDTH + 3 * WIDTH) * 4
    assert threads.most > size
    assert all(one.same(two) for one, two in zip(found, expected, strict=True))
