"""Trainings of torch modules. A class of your own, or an existing module with its DataLoader:

    class Net(TorchTraining):
        tasks, rounds = 4, 1000

        def __init__(self, lr):
            self.lr = lr

        def model(self):
            return torch.nn.Linear(784, 10)

        def optimizer(self, parameters):
            return torch.optim.SGD(parameters, self.lr, momentum=0.9)

        def data(self, round, task):
            return batch_number(round * self.tasks + task)

        def loss(self, model, batch):
            return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

Random numbers (dropout, data) are seeded by the round and the task, so that a task that runs again draws the same ones.
Buffers such as BatchNorm's running statistics are averaged over the tasks of a round. Parameters in bfloat16 are not
supported, as numpy has no such type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from slurm_asrpt.pool.arrays import Array, Arrays
from slurm_asrpt.pool.memory import Check, Needs
from slurm_asrpt.pool.snapshot import weights
from slurm_asrpt.pool.training import DeviceLostError

MODEL, OPTIMIZER = "model/", "optimizer/"
EPOCH, INITIAL = -1, -2
"""Instead of a task, in the seeds of an epoch's order and of the first weights."""


class TorchTraining:
    """Derive from it. seed: of all random numbers. device: where the model is."""

    tasks: int
    rounds: int
    seed: int = 0
    device: str = "cuda" if torch.cuda.is_available() else "cpu"

    def model(self) -> Any:
        """The module."""
        raise NotImplementedError

    def optimizer(self, parameters: Any) -> Any:
        """The optimizer of these parameters."""
        raise NotImplementedError

    def data(self, round: int, task: int) -> Any:
        """The batch of a task: tensors, also in lists, tuples and dicts."""
        raise NotImplementedError

    def loss(self, model: Any, batch: Any) -> Any:
        """The loss of a batch, a tensor with one element."""
        raise NotImplementedError

    def schedule(self, optimizer: Any, round: int) -> None:
        """Set the learning rate of a round, ``optimizer.param_groups[0]["lr"]``. By default it stays."""

    def stop(self, losses: Sequence[float]) -> bool:
        """Whether the training ends now. losses: the mean of each round so far."""
        return False

    # What the pool calls

    def memory(self, check: Check) -> None:
        """Check the parameters while the module is made, before they are written to, then all that training needs."""
        new: dict[int, int] = {}

        def count(module: Any, name: str, parameter: Any) -> None:
            if parameter is not None:
                new[id(parameter)] = _bytes(parameter)
                check(Needs(sum(new.values())))

        hook = register_module_parameter_registration_hook(count)
        try:
            made = self._made
        finally:
            hook.remove()
        found = list(made.parameters())
        parameters = sum(map(_bytes, (*found, *made.buffers())))
        gradients = sum(_bytes(each) for each in found if each.requires_grad)
        free = torch.cuda.mem_get_info(self.device)[0] if torch.device(self.device).type == "cuda" else None
        there = max(0, parameters - sum(new.values()))
        check(Needs(parameters, gradients, self._optimizer_bytes(found), free, there=there))

    def _optimizer_bytes(self, parameters: Sequence[Any]) -> int:
        """Of the optimizer's state after a step, on tensors without content; 0 where the optimizer cannot do that."""
        shadows = [torch.nn.Parameter(torch.empty_like(each, device="meta"), each.requires_grad) for each in parameters]
        for shadow in shadows:
            shadow.grad = torch.empty_like(shadow) if shadow.requires_grad else None
        try:
            optimizer = self.optimizer(iter(shadows))
            optimizer.step()
        except Exception:  # of users' code, or an optimizer of theirs
            return 0
        values = (value for state in optimizer.state.values() for value in state.values())
        return sum(_bytes(value) for value in values if isinstance(value, torch.Tensor))

    def initial(self) -> Arrays:
        """The module's first weights."""
        return self._state()

    def gradient(self, state: Arrays, round: int, task: int) -> tuple[Arrays, float]:
        """The gradients, and the buffers after the forward pass."""
        with _device_errors():
            self._put(state)
            self._model.train()
            self._optimizer.zero_grad(set_to_none=True)
            _seed(self.seed, round, task)
            batch = _moved(self.data(round, task), self.device)
            _seed(self.seed, round, task)
            loss = self.loss(self._model, batch)
            loss.backward()
            found = {
                name: each.grad if each.grad is not None else torch.zeros_like(each)
                for name, each in self._parameters()
            }
            return _arrays({**found, **dict(self._buffers())}, MODEL), float(loss.detach())

    def step(self, state: Arrays, gradient: Arrays, round: int) -> Arrays:
        """The optimizer's step."""
        with _device_errors():
            self._put(state)
            self._restore_optimizer(state)
            for name, parameter in self._parameters():
                parameter.grad = torch.tensor(gradient[MODEL + name], device=parameter.device)
            self.schedule(self._optimizer, round)
            self._optimizer.step()
            for name, buffer in self._buffers():
                buffer.copy_(torch.tensor(gradient[MODEL + name]))
            self._placed = None
            return self._state()

    # Between arrays and tensors

    _placed: Arrays | None = None
    """The state whose parameters are in the module."""

    @cached_property
    def _made(self) -> Any:
        _seed(self.seed, 0, INITIAL)
        return self.model()

    @cached_property
    def _model(self) -> Any:
        return self._made.to(self.device)

    @cached_property
    def _optimizer(self) -> Any:
        return self.optimizer(self._model.parameters())

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        return ((name, each) for name, each in self._model.named_parameters() if each.requires_grad)

    def _buffers(self) -> Iterator[tuple[str, Any]]:
        """Those that the module saves."""
        saved = self._model.state_dict().keys()
        return ((name, each) for name, each in self._model.named_buffers() if name in saved)

    def _put(self, state: Arrays) -> None:
        """Copy a state into the module; the parameters only if they are not there already."""
        parameters = () if state is self._placed else self._model.named_parameters()
        with torch.no_grad():
            for name, tensor in (*parameters, *self._buffers()):
                tensor.copy_(torch.tensor(state[MODEL + name]))
        self._placed = state

    def _state(self) -> Arrays:
        found = _arrays({**dict(self._model.named_parameters()), **dict(self._buffers())}, MODEL)
        for index, values in self._optimizer.state_dict()["state"].items():
            kept = {key: torch.as_tensor(value) for key, value in values.items() if value is not None}
            found.update(_arrays(kept, f"{OPTIMIZER}{index}/"))
        return found

    def _restore_optimizer(self, state: Arrays) -> None:
        values: dict[int, dict[str, Any]] = {}
        for name, array in state.items():
            if name.startswith(OPTIMIZER):
                index, _, key = name.removeprefix(OPTIMIZER).partition("/")
                values.setdefault(int(index), {})[key] = torch.tensor(array)
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": values, "param_groups": groups})


class LoaderTraining(TorchTraining):
    """An existing module with its DataLoader, whose batches are given out in the order of rounds and tasks.

    Each epoch has an order of its own, drawn from the seed. The loader's workers are not used.
    loss: of the module and a batch. optimizer: of the module's parameters. Raises TypeError for an iterable dataset.
    """

    def __init__(
        self,
        module: Any,
        loader: Any,
        loss: Callable[[Any, Any], Any],
        optimizer: Callable[[Any], Any],
        tasks: int,
        rounds: int,
        seed: int = 0,
    ) -> None:
        if loader.batch_sampler is None or not hasattr(loader.dataset, "__getitem__"):
            raise TypeError("a pool needs a DataLoader with batches, of a dataset with indices")
        self.tasks, self.rounds, self.seed = tasks, rounds, seed
        self._module, self._loader, self._loss, self._make = module, loader, loss, optimizer
        self._order: tuple[int, list[list[int]]] = -1, []

    def model(self) -> Any:
        return self._module

    def optimizer(self, parameters: Any) -> Any:
        return self._make(parameters)

    def loss(self, model: Any, batch: Any) -> Any:
        return self._loss(model, batch)

    def data(self, round: int, task: int) -> Any:
        epoch, number = divmod(round * self.tasks + task, len(self._loader))
        if self._order[0] != epoch:
            self._order = epoch, self._batches(epoch)
        rows = [self._loader.dataset[index] for index in self._order[1][number]]
        return self._loader.collate_fn(rows)

    def _batches(self, epoch: int) -> list[list[int]]:
        """The indices of each batch of an epoch."""
        _seed(self.seed, epoch, EPOCH)
        generator = getattr(self._loader.sampler, "generator", None)
        if generator is not None:
            generator.manual_seed(torch.initial_seed())
        return [list(batch) for batch in self._loader.batch_sampler]


def load_weights(module: Any, checkpoint: str | Path) -> None:
    """Put the weights of a checkpoint into a module. Raises AsrptError without one, RuntimeError if they do not fit."""
    arrays = weights(Path(checkpoint))
    found = {name.removeprefix(MODEL): torch.tensor(array) for name, array in arrays.items() if name.startswith(MODEL)}
    module.load_state_dict({**module.state_dict(), **found})


def _seed(seed: int, round: int, task: int) -> None:
    words = [each % 2**32 for each in (seed, round, task)]
    torch.manual_seed(int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1))


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _arrays(tensors: dict[str, Any], prefix: str) -> dict[str, Array]:
    return {prefix + name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def _moved(batch: Any, device: str) -> Any:
    """The batch with its tensors on the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: _moved(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_moved(value, device) for value in batch]
    return batch


@contextmanager
def _device_errors() -> Iterator[None]:
    """An error of CUDA itself leaves the process unusable. Running out of memory does not: that is the training's."""
    try:
        yield
    except RuntimeError as error:
        if "CUDA error" in str(error):
            raise DeviceLostError(str(error)) from error
        raise
