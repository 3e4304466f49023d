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

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from slurm_asrpt.errors import one_line
from slurm_asrpt.pool.arrays import Allocate, Arrays
from slurm_asrpt.pool.device_copies import pinned_block
from slurm_asrpt.pool.memory import Check, Needs
from slurm_asrpt.pool.residency import Residency, Resident, Way
from slurm_asrpt.pool.snapshot import weights
from slurm_asrpt.pool.training import AHEAD, LAYERS, WARM, DeviceLostError, Switching

C = TypeVar("C")
MODEL, OPTIMIZER = "model/", "optimizer/"
WAYS = {WARM: Way(), LAYERS: Way(layers=True), AHEAD: Way(layers=True, ahead=True)}
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
        return self._computed(lambda: self._gradient(state, round, task))

    def step(self, state: Arrays, gradient: Arrays, round: int) -> Arrays:
        """The optimizer's step."""
        return self._computed(lambda: self._step(state, gradient, round))

    def adopt(self, switching: Switching) -> Allocate | None:
        """How the process turns to other trainings. Pinned memory is what copies to a GPU are fast from."""
        self._switching = switching
        if torch.device(self.device).type != "cuda":
            return None
        repeatable()
        return pinned_block

    def prefetch(self, state: Arrays) -> None:
        """Begin to copy the parameters; from another thread, while another training computes."""
        if self._has_begun:
            self._residency.prefetch(self._resident, state)

    def holds(self, state: Arrays) -> None:
        """The state that ``step`` has returned last is this object from now on."""
        self._residency.holds(self._resident, state)

    def leave(self) -> None:
        """Give up the memory on the device."""
        if self._has_begun:
            self._residency.leave(self._resident)

    # Computing

    _plain = False
    """Whether all parameters are in before it computes, and none is given up early, as its code does not bear that."""
    _differs = False
    """Whether what computes now does anything that the usual loop would not do."""
    _once_each = False
    """Whether each parameter's gradient was complete when the backward pass told of it."""

    def _computed(self, compute: Callable[[], C]) -> C:
        """Compute; if that fails, again without what the usual loop would not do, or without other trainings."""
        with _device_errors():
            while True:
                try:
                    return compute()
                except Exception as error:
                    if not self._may_help(error):
                        raise
                finally:
                    if self._has_begun:
                        self._residency.over(self._resident)

    def _may_help(self, error: Exception) -> bool:
        """Whether to compute again, and differently."""
        if isinstance(error, torch.cuda.OutOfMemoryError):
            return self._residency.only(self._resident if self._has_begun else None)
        if _is_of_device(error) or self._plain or not self._differs:
            return False
        self._plain = True
        print(f"asrpt-pool: parameters are all copied first from now on, as this failed: {one_line(error)}")
        return True

    def _gradient(self, state: Arrays, round: int, task: int) -> tuple[Arrays, float]:
        self._taken.clear()
        self._takes = self._residency.way.ahead and self._once_each and not self._plain
        self._differs = self._takes
        self._model.train()
        self._residency.begin(self._resident, state)
        if self._plain:
            self._residency.finish(self._resident)
        self._optimizer.zero_grad(set_to_none=True)
        self._put_buffers(state)
        with self._residency.waiting(self._resident) as waits:
            self._differs = waits or self._takes
            _seed(self.seed, round, task)
            batch = _moved(self.data(round, task), self.device)
            _seed(self.seed, round, task)
            loss = self.loss(self._model, batch)
        self._residency.finish(self._resident)
        found = self._arrays({**self._gradients(loss), **dict(self._buffers())}, MODEL), float(loss.detach())
        self._optimizer.zero_grad(set_to_none=True)
        self._taken.clear()
        return found

    def _gradients(self, loss: Any) -> dict[str, Any]:
        """By parameter, on the host where they were copied there during the backward pass, which makes room."""
        self._fired.clear()
        self._counts = self._residency.way.ahead
        try:
            loss.backward()
        finally:
            self._counts = False
        self._once_each = max(self._fired.values(), default=1) == 1
        self._residency.copies.wait_out()
        if self._takes and not self._once_each:
            raise RuntimeError("the backward pass told of a gradient in parts")
        return {name: self._gradient_of(name, each) for name, each in self._parameters()}

    def _gradient_of(self, name: str, parameter: Any) -> Any:
        found = self._taken.get(name, parameter.grad)
        return torch.zeros_like(parameter) if found is None else found

    _counts = _takes = False

    def _accumulated(self, at: int, name: str, parameter: Any) -> None:
        """Called in the backward pass, when a parameter has its gradient."""
        if not self._counts:  # a backward pass of the training's own code
            return
        self._fired[name] += 1
        if self._takes and self._residency.short:
            self._taken[name] = self._residency.copies.copy_out(parameter.grad)
            parameter.grad = None
            self._residency.done_with(self._resident, at)

    def _step(self, state: Arrays, gradient: Arrays, round: int) -> Arrays:
        self._differs = False
        self._residency.begin(self._resident, state)
        self._residency.finish(self._resident)
        self._residency.changes(self._resident)
        self._restore_optimizer(state)
        parameters, buffers = list(self._parameters()), list(self._buffers())
        given = self._tensors({name: gradient[MODEL + name] for name, _ in (*parameters, *buffers)})
        for name, parameter in parameters:
            parameter.grad = given[name]
        self.schedule(self._optimizer, round)
        self._optimizer.step()
        for name, buffer in buffers:
            buffer.copy_(given[name])
        found = self._state()
        self._optimizer.zero_grad(set_to_none=True)
        self._optimizer.state.clear()  # it is in the state
        return found

    # Between arrays and tensors

    _switching = Switching()

    @cached_property
    def _taken(self) -> dict[str, Any]:
        """Gradients on the host, by parameter."""
        return {}

    @cached_property
    def _fired(self) -> Counter[str]:
        """How often the backward pass told of a gradient, by parameter."""
        return Counter()

    @cached_property
    def _residency(self) -> Residency:
        return residency(self.device, self._switching)

    @cached_property
    def _made(self) -> Any:
        _seed(self.seed, 0, INITIAL)
        return self.model()

    @cached_property
    def _model(self) -> Any:
        self._residency.make_room(sum(map(_bytes, self._made.parameters())))
        return self._made.to(self.device)

    @cached_property
    def _resident(self) -> Resident:
        _ = self._optimizer  # may look at the parameters, which may be out later
        named = dict(self._model.named_parameters())
        if self._residency.way.ahead:
            for at, (name, parameter) in enumerate(named.items()):
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(partial(self._accumulated, at, name))
        return self._residency.settle({MODEL + name: parameter for name, parameter in named.items()})

    @property
    def _has_begun(self) -> bool:
        return "_resident" in self.__dict__

    @cached_property
    def _optimizer(self) -> Any:
        return self.optimizer(self._model.parameters())

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        return ((name, each) for name, each in self._model.named_parameters() if each.requires_grad)

    def _buffers(self) -> Iterator[tuple[str, Any]]:
        """Those that the module saves."""
        return ((name, each) for name, each in self._model.named_buffers() if name in self._saved)

    @cached_property
    def _saved(self) -> Set[str]:
        return set(self._model.state_dict())

    def _put_buffers(self, state: Arrays) -> None:
        buffers = list(self._buffers())
        given = self._tensors({name: state[MODEL + name] for name, _ in buffers})
        with torch.no_grad():
            for name, tensor in buffers:
                tensor.copy_(given[name])

    def _state(self) -> Arrays:
        found = {MODEL + name: each for name, each in self._model.named_parameters()}
        found.update((MODEL + name, each) for name, each in self._buffers())
        for index, values in self._optimizer.state_dict()["state"].items():
            kept = {key: torch.as_tensor(value) for key, value in values.items() if value is not None}
            found.update((f"{OPTIMIZER}{index}/{key}", each) for key, each in kept.items())
        return self._arrays(found)

    def _arrays(self, tensors: Mapping[str, Any], prefix: str = "") -> Arrays:
        """In host memory. All copies are begun before one is waited for."""
        copies = self._residency.copies
        found = copies.copy_all_out(list(tensors.values()))
        copies.wait_out()
        return {prefix + name: tensor.numpy() for name, tensor in zip(tensors, found, strict=True)}

    def _tensors(self, arrays: Arrays) -> dict[str, Any]:
        """On the device, in memory of their own. The arrays must stay until the device has been waited for."""
        return dict(zip(arrays, self._residency.copies.copy_all_in(list(arrays.values())), strict=True))

    def _restore_optimizer(self, state: Arrays) -> None:
        values: dict[int, dict[str, Any]] = {}
        kept = {name: array for name, array in state.items() if name.startswith(OPTIMIZER)}
        given = self._tensors({name: array for name, array in kept.items() if array.ndim})
        for name, array in kept.items():
            index, _, key = name.removeprefix(OPTIMIZER).partition("/")
            values.setdefault(int(index), {})[key] = given[name] if array.ndim else torch.tensor(array)
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
    """Seed the generators of the CPU and of GPUs, as ``torch.manual_seed`` does, which takes longer."""
    words = [each % 2**32 for each in (seed, round, task)]
    number = int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)
    torch.default_generator.manual_seed(number)
    if _gpus():
        torch.cuda.manual_seed_all(number)


@cache
def _gpus() -> bool:
    return bool(torch.cuda.is_available())


def repeatable() -> None:
    """Let the GPU compute the same each time: some kernels add numbers in any order. torch warns of what has no other.

    Called before the process uses its GPU, as cuBLAS reads its variable then.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False  # the fastest kernel may differ from process to process


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


@cache
def residency(device: str, switching: Switching) -> Residency:
    """Of this process, on a device."""
    limit = switching.device_bytes or None
    if limit is None and torch.device(device).type == "cuda":
        limit = torch.cuda.mem_get_info(device)[0] // 2
    return Residency(device, WAYS[switching.way], limit)


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
        if _is_of_device(error):
            raise DeviceLostError(str(error)) from error
        raise


def _is_of_device(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and "CUDA error" in str(error)
