"""Trainings of a pool on a real GPU: the same each time, about the same as on a CPU, and within its memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.memory import DoesNotFitError, check_fits
from slurm_asrpt.pool.training import AHEAD, LAYERS, WARM, Switching
from tests.benches.pool import Pool, same

torch = pytest.importorskip("torch", reason="needs torch: make test-integrations")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from slurm_asrpt.pool import torch_training  # noqa: E402
from slurm_asrpt.pool.torch_training import TorchTraining  # noqa: E402
from tests.integration.pool_turns import turns  # noqa: E402

ROUNDS, TASKS = 6, 2
TOLERANCE = 1e-2
"""Of float32 weights after these rounds on a GPU and on a CPU, relative to their norm."""
GB = 1 << 30

MODULE = """
import pathlib
import torch

from slurm_asrpt.pool.torch_training import TorchTraining

class Net(TorchTraining):
    tasks, rounds, device = 3, 40, "cuda"

    def __init__(self, seed, breaks):
        self.seed, self.breaks, self.calls = seed, breaks, 0

    def model(self):
        layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Flatten()]
        return torch.nn.Sequential(*layers, torch.nn.Dropout(0.2), torch.nn.Linear(16 * 14 * 14, 100))

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, 0.01, momentum=0.9)

    def data(self, round, task):
        return torch.randn(64, 3, 16, 16), torch.randint(100, (64,))

    def loss(self, model, batch):
        once, self.calls = pathlib.Path(__file__).with_name("broke"), self.calls + 1
        if self.breaks and self.calls > 5 and not once.exists():
            once.touch()
            torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")].sum().item()  # an assertion of the device
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


class Net(TorchTraining):
    tasks, rounds = TASKS, ROUNDS

    def __init__(self, seed: int, device: str) -> None:
        self.seed, self.device = seed, device

    def model(self) -> Any:
        # no bias before the batch norm: its gradient is rounding only
        first = torch.nn.Conv2d(3, 32, 3, bias=False)
        parts = [first, torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3)]
        return torch.nn.Sequential(*parts, torch.nn.Flatten(), torch.nn.Linear(32 * 28 * 28, 256))

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, 1e-3)

    def data(self, round: int, task: int) -> Any:
        return torch.randn(16, 3, 32, 32)

    def loss(self, model: Any, batch: Any) -> Any:
        return (model(batch) - 1).pow(2).mean()


class Large(TorchTraining):
    """Parameters without content, of so many bytes, and as many of activations."""

    tasks, rounds, device = 1, 1, "cuda"

    def __init__(self, size: int, activations: int = 0) -> None:
        self.size, self.activations = size, activations

    def model(self) -> Any:
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(torch.zeros(self.size // 4))  # type: ignore[assignment]
        return module

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD(parameters, 0.1)

    def data(self, round: int, task: int) -> Any:
        return None

    def loss(self, model: Any, batch: Any) -> Any:
        return model.weight[:8].sum() + torch.empty(self.activations, dtype=torch.uint8, device="cuda")[:1].sum() * 0


@pytest.fixture(scope="module")
def expected() -> list[Packed]:
    return turns(partial(Net, device="cuda"), WARM)


@pytest.mark.parametrize("limit", [0, 30_000_000])
@pytest.mark.parametrize("way", [WARM, LAYERS, AHEAD])
def test_each_way_computes_the_same(way: str, limit: int, expected: list[Packed]) -> None:
    found = turns(partial(Net, device="cuda"), way, limit)
    assert all(one.same(two) for one, two in zip(found, expected, strict=True))


def test_about_the_same_as_on_a_cpu(expected: list[Packed]) -> None:
    # one training's batches are drawn on the CPU, so they are the same
    for one, two in zip(turns(partial(Net, device="cpu"), WARM)[-2:], expected[-2:], strict=True):
        there = two.arrays()
        for name, array in one.arrays().items():
            if name.startswith("model/") and array.dtype.kind == "f":
                a, b = torch.tensor(array).double(), torch.tensor(there[name]).double()
                error = float((a - b).norm() / a.norm())
                print(f"{name}: {error:.1e}")
                assert error <= TOLERANCE, name


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Leave 3 GB of the GPU."""
    torch_training.residency.cache_clear()
    torch.cuda.empty_cache()
    filled = torch.empty(torch.cuda.mem_get_info()[0] - 3 * GB, dtype=torch.uint8, device="cuda")
    yield
    del filled
    torch.cuda.empty_cache()


def test_what_does_not_fit_is_refused_with_the_sizes(little_memory: None) -> None:
    def check(needs: Any) -> None:
        check_fits(needs, 0, 1 << 60)

    Large(1 * GB).memory(check)
    with pytest.raises(DoesNotFitError, match=r"needs 4\.0 GB of GPU memory \(parameters 2\.0 GB, .*free"):
        Large(2 * GB).memory(check)


def test_others_leave_if_memory_runs_out(little_memory: None) -> None:
    one, two = Large(1 * GB // 2), Large(GB // 4, activations=2 * GB + GB // 4)
    for each in (one, two):
        block = each.adopt(Switching(WARM, 2 * GB))
        state = Packed.of(each.initial(), block).arrays()
        each.gradient(state, 0, 0)
    assert one._resident.bytes == 0
    assert two._resident.bytes == GB // 4
    for each in (one, two):
        each.leave()


def sweep(breaks: bool) -> str:
    """Three trainings, the second of which breaks the GPU once if told so."""
    rows = (
        f'[[training]]\nname = "t{seed}"\nuses = "nets:Net"\n'
        f"with = {{ seed = {seed}, breaks = {str(breaks and seed == 1).lower()} }}\n"
        for seed in range(3)
    )
    return '[pool]\nswitch = "ahead"\n' + "".join(rows)


def pool_of(path: Path, breaks: bool) -> Pool:
    made = Pool(path, sweep(breaks))
    (path / "nets.py").write_text(MODULE)
    return made


def test_an_error_of_the_gpu_costs_a_process_and_no_training(tmp_path: Path) -> None:
    whole, broken = pool_of(tmp_path / "whole", False), pool_of(tmp_path / "broken", True)
    for each, slots in ((whole, 2), (broken, 1)):
        code, _, errors = each.run(slots)
        assert code == 0, errors
    assert (tmp_path / "broken" / "broke").exists()
    assert broken.status().lost == 1
    assert same(broken.results(), whole.results())
