"""Trainings of a pool on a GPU, which is faked: nothing is on the wrong device, waits for nothing, or leaks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.training import AHEAD, LAYERS, WARM

torch = pytest.importorskip("torch", reason="needs torch: make test-integrations")

from slurm_asrpt.pool.residency import Residency  # noqa: E402
from slurm_asrpt.pool.torch_training import TorchTraining  # noqa: E402
from tests.integration.fake_cuda import FakeGpu, gpu  # noqa: E402, F401 a fixture
from tests.integration.pool_turns import turns  # noqa: E402

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


@pytest.fixture(scope="module")
def expected() -> list[Packed]:
    """The same on a CPU, where there is no GPU."""
    return turns(partial(Net, device="cpu"), WARM)


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
    found = turns(partial(Net, device="cuda"), way, limit)
    size = 4 * (WIDTH * WIDTH + 3 * WIDTH) * 4
    assert threads.most > size
    assert all(one.same(two) for one, two in zip(found, expected, strict=True))
