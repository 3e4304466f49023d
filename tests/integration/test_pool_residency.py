"""Parameters that are copied while others compute, and that make room early: always the same weights, to the bit."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.training import AHEAD, LAYERS, WARM, Switching

torch = pytest.importorskip("torch", reason="needs torch: make test-integrations")

from slurm_asrpt.pool import residency, torch_training  # noqa: E402
from slurm_asrpt.pool.device_copies import HostCopies, copies_of  # noqa: E402
from slurm_asrpt.pool.residency import Residency  # noqa: E402
from slurm_asrpt.pool.torch_training import TorchTraining  # noqa: E402

WIDTH = 12
WAYS = [WARM, LAYERS, AHEAD]


class Tied(torch.nn.Module):  # type: ignore[misc]
    """The output layer's weight is the input layer's, and is used without that layer's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = torch.nn.BatchNorm1d(WIDTH)

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.linear(self.norm(self.first(x)).tanh(), self.first.weight.t())


class Attention(torch.nn.Module):  # type: ignore[misc]
    """torch's own attention uses its output layer's weight without calling that layer."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.MultiheadAttention(WIDTH, 3, dropout=0.1)
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.mix(x, x, x, need_weights=False)[0]


class Recurrent(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.memory = torch.nn.LSTM(WIDTH, WIDTH, 2)

    def forward(self, x: Any) -> Any:
        return self.memory(x.unsqueeze(1))[0].squeeze(1)


class Recomputed(torch.nn.Module):  # type: ignore[misc]
    """One layer in two segments that are computed again in the backward pass, by a backward pass within it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        x = x.requires_grad_()
        for _ in range(2):
            x = torch.utils.checkpoint.checkpoint(lambda x: self.layer(x).tanh(), x, use_reentrant=True)
        return x


class InThread(torch.nn.Module):  # type: ignore[misc]
    """Computes where nothing sees it: what uses parameters there cannot be told to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Any) -> Any:
        def compute() -> Any:
            with torch.enable_grad():
                return self.layers[2](self.layers[1](self.layers[0](x)).tanh())

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(compute).result()


class Sometimes(Recomputed):
    """The same from the second backward pass on; in the first, its gradient is told of once."""

    passes = 0

    def forward(self, x: Any) -> Any:
        self.passes += self.training
        return self.layer(self.layer(x).tanh()).tanh() if self.passes == 1 else super().forward(x)


def deep() -> Any:
    parts = [(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Dropout(0.1)) for _ in range(6)]
    return torch.nn.Sequential(*(each for part in parts for each in part))


class Fitted(TorchTraining):
    """A module that learns to give its input again. penalty: with a gradient of the gradient."""

    tasks, rounds, device = 2, 3, "cpu"

    def __init__(self, module: Callable[[], Any], seed: int = 0, penalty: bool = False) -> None:
        self._module, self.seed, self._penalty = module, seed, penalty

    def model(self) -> Any:
        return self._module()

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, 0.01)

    def data(self, round: int, task: int) -> Any:
        return torch.randn(8, WIDTH)

    def loss(self, model: Any, batch: Any) -> Any:
        found = ((model(batch) - batch) ** 2).mean()
        if self._penalty:
            slopes = torch.autograd.grad(found, list(model.parameters()), create_graph=True)
            found = found + 0.1 * sum((slope**2).sum() for slope in slopes)
        return found


@pytest.fixture(autouse=True)
def alone() -> Any:
    """Each test has residencies of its own."""
    torch_training.residency.cache_clear()
    yield
    torch_training.residency.cache_clear()


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each parameter is a piece: so small models have many."""
    monkeypatch.setattr(residency, "PIECE", 0)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies take longer than what is computed."""
    copy_in = HostCopies.copy_in

    def slowly(self: HostCopies, target: Any, array: Any, after: Any) -> Any:
        time.sleep(0.0005)
        return copy_in(self, target, array, after)

    monkeypatch.setattr(HostCopies, "copy_in", slowly)


class Usual:
    """A training without pieces of others between: all states and gradients that it has."""

    def __init__(self, training: Any) -> None:
        self.states, self.gradients = [Packed.of(training.initial())], []
        for round in range(training.rounds):
            state = self.states[-1].arrays()
            found = [Packed.of(training.gradient(state, round, task)[0]) for task in range(training.tasks)]
            self.gradients.append(found)
            self.states.append(Packed.of(training.step(state, found[0].arrays(), round)))


MODULES = [Tied, Attention, Recurrent, Recomputed, InThread, deep]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("module", MODULES)
def test_each_module_learns_the_same(module: Callable[[], Any], way: str, slow: None) -> None:
    usual = Usual(Fitted(module))
    torch_training.residency.cache_clear()
    training = Fitted(module)
    training.adopt(Switching(way))
    again = Usual(training)
    assert all(one.same(two) for one, two in zip(usual.states, again.states, strict=True))
    if way != WARM and module is not InThread:
        assert not training._plain


def test_a_gradient_of_the_gradient_in_the_loss(slow: None) -> None:
    usual = Usual(Fitted(Tied, penalty=True))
    torch_training.residency.cache_clear()
    training = Fitted(Tied, penalty=True)
    training.adopt(Switching(AHEAD))
    assert all(one.same(two) for one, two in zip(usual.states, Usual(training).states, strict=True))


def test_a_gradient_that_comes_in_parts_only_later_is_not_lost() -> None:
    gradients = []
    for way in (WARM, AHEAD):
        training = Fitted(Sometimes)
        training.adopt(Switching(way))
        state = training.initial()
        training.gradient(state, 0, 0)
        gradients.append(Packed.of(training.gradient(state, 0, 1)[0]))
    assert gradients[0].same(gradients[1])
    assert training._plain


def test_an_optimizer_sees_parameters_as_they_are(slow: None) -> None:
    """In a process in which the training did not begin, too."""

    class Grouped(Fitted):
        def optimizer(self, parameters: Any) -> Any:
            found = list(parameters)
            self.sizes = [each.numel() for each in found]
            return torch.optim.SGD(found, 0.1)

    state = Fitted(deep).initial()
    training = Grouped(deep)
    training.adopt(Switching(AHEAD))
    training.gradient(state, 0, 0)
    assert min(training.sizes) == WIDTH


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(12))
def test_pieces_of_many_trainings_in_any_order_under_any_limit(
    way: str, seed: int, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an executor: what comes is announced from another thread, right or wrong, early or late, or not at all."""
    chance = random.Random(seed)
    monkeypatch.setattr(residency, "PIECE", chance.choice([0, 700, 1 << 20]))
    modules = [chance.choice(MODULES) for _ in range(3)]
    usual = [Usual(Fitted(module, at)) for at, module in enumerate(modules)]
    torch_training.residency.cache_clear()
    limit = chance.choice([1, 2_000, 6_000, 20_000, 1 << 30])
    trainings: list[Any] = [Fitted(module, at) for at, module in enumerate(modules)]
    for training in trainings:
        training.adopt(Switching(way, limit))
        training.initial()
    held = [[state.arrays() for state in each.states] for each in usual]
    pieces = [chance.choice(range(3)) for _ in range(40)]
    announcing: list[threading.Thread] = []
    for at, which in enumerate(pieces):
        if chance.random() < 0.8:
            guess = chance.choice([*pieces[at + 1 : at + 2] * 4, 0, 1, 2])
            state = held[guess][chance.randrange(3)]
            announcing.append(threading.Thread(target=trainings[guess].prefetch, args=(state,)))
            announcing[-1].start()
        training, round, task = trainings[which], chance.randrange(3), chance.randrange(2)
        if chance.random() < 0.3:
            found = training.step(held[which][round], usual[which].gradients[round][0].arrays(), round)
            assert Packed.of(found).same(usual[which].states[round + 1])
            if chance.random() < 0.7:
                training.holds(held[which][round + 1])
        else:
            found, _ = training.gradient(held[which][round], round, task)
            assert Packed.of(found).same(usual[which].gradients[round][task])
        if chance.random() < 0.1:
            training.leave()
            trainings[which] = Fitted(modules[which], which)
            trainings[which].adopt(Switching(way, limit))
    for thread in announcing:
        thread.join(30)
        assert not thread.is_alive()


class Waits(torch.autograd.Function):  # type: ignore[misc]
    """Lets the backward pass wait until something has happened."""

    @staticmethod
    def forward(ctx: Any, x: Any, happened: Callable[[], bool]) -> Any:
        ctx.happened = happened
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        deadline = time.monotonic() + 30
        while not ctx.happened():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return gradient, None


class Announces(torch.nn.Module):  # type: ignore[misc]
    """The next training is announced in the forward pass, and the backward pass of the first layer waits for it.

    The whole backward pass waits for ``ready``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = torch.nn.Linear(WIDTH, WIDTH), deep()
        self.announce: Callable[[], object] = lambda: None
        self.ready: Callable[[], bool] = lambda: True
        self.happened: Callable[[], bool] = lambda: True

    def forward(self, x: Any) -> Any:
        self.announce()
        return Waits.apply(self.after(Waits.apply(self.before(x), self.happened)), self.ready)


def test_the_next_training_comes_into_the_room_that_the_backward_pass_leaves() -> None:
    """Only one of the two fits."""
    first, second = Fitted(Announces), Fitted(deep, 1)
    for training in (first, second):
        training.adopt(Switching(AHEAD, 5_000))
    state, next_one = first.initial(), second.initial()
    second.gradient(next_one, 0, 0)
    expected, _ = first.gradient(state, 0, 0)
    assert second._resident.bytes == 0
    first._model.announce = lambda: second.prefetch(next_one)
    first._model.ready = lambda: first._residency.short
    first._model.happened = lambda: second._resident.copied >= 4
    found, _ = first.gradient(state, 0, 0)
    assert Packed.of(found).same(Packed.of(expected))
    assert first._resident.missing > 0
    first._model.ready = first._model.happened = lambda: True
    again, _ = first.gradient(state, 0, 0)
    assert Packed.of(again).same(Packed.of(expected))


def test_what_has_left_after_a_step_is_not_taken_to_be_there() -> None:
    """It is named only after the step, and the next training may have come into its room meanwhile."""
    usual = Usual(Fitted(deep))
    first, second = Fitted(deep), Fitted(deep, 1)
    for training in (first, second):
        training.adopt(Switching(AHEAD, 5_000))
    state, next_one = usual.states[0].arrays(), second.initial()
    second.gradient(next_one, 0, 0)
    first.step(state, usual.gradients[0][0].arrays(), 0)
    second.prefetch(next_one)
    second._residency.begin(second._resident, next_one)
    second._residency.finish(second._resident)
    second._residency.over(second._resident)
    stepped = usual.states[1].arrays()
    first.holds(stepped)
    assert Packed.of(first.gradient(stepped, 1, 0)[0]).same(usual.gradients[1][0])


def test_if_memory_is_short_the_others_leave_and_it_is_tried_again() -> None:
    first, second = Fitted(deep), Fitted(deep, 1)
    for training in (first, second):
        training.adopt(Switching(WARM))
    state = first.initial()
    expected, _ = first.gradient(state, 0, 0)
    second.gradient(second.initial(), 0, 0)
    errors = [torch.cuda.OutOfMemoryError("CUDA out of memory")]
    loss = first.loss

    def short(model: Any, batch: Any) -> Any:
        if errors:
            raise errors.pop()
        return loss(model, batch)

    first.loss = short  # type: ignore[method-assign]
    found, _ = first.gradient(state, 0, 0)
    assert Packed.of(found).same(Packed.of(expected))
    assert (second._resident.bytes, first._resident.missing) == (0, 0)
    errors.append(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        first.gradient(state, 0, 0)


def test_an_error_of_the_trainings_own_code_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing was done that the usual loop would not do."""
    training, calls = Fitted(deep), []
    training.adopt(Switching(LAYERS))
    state = training.initial()
    training.gradient(state, 0, 0)

    def wrong(model: Any, batch: Any) -> Any:
        calls.append(1)
        raise ValueError("no such layer")

    training.loss = wrong  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="no such layer"):
        training.gradient(state, 0, 1)
    assert (len(calls), capsys.readouterr().out) == (1, "")


def test_a_copy_that_fails_is_an_error_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Fitted(deep)
    training.adopt(Switching(LAYERS))
    state = training.initial()

    def fails(self: HostCopies, target: Any, array: Any, after: Any) -> Any:
        raise RuntimeError("no copy")

    monkeypatch.setattr(HostCopies, "copy_in", fails)
    with pytest.raises(RuntimeError, match="no copy"):
        training.gradient(state, 0, 0)


def test_the_limit_holds_between_trainings() -> None:
    residency: Residency | None = None
    trainings = [Fitted(deep, seed) for seed in range(5)]
    for training in trainings:
        training.adopt(Switching(AHEAD, 12_000))
        training.gradient(training.initial(), 0, 0)
        residency = training._residency
        assert sum(each.bytes for each in residency._there) <= 12_000
    assert [training._resident.missing for training in trainings[-2:]] == [0, 0]


def test_what_a_step_gets_is_on_the_trainings_device() -> None:
    """Also on a device that is neither a CPU nor CUDA's; meta stands for it."""
    for device in ("cpu", "meta"):
        copies = copies_of(device)
        (found,) = copies.copy_all_in([np.ones(3)])
        assert found.device.type == copies.room((3,), found.dtype).device.type == device
