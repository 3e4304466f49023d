"""Times the blocks of a torch model on this machine. Needs torch: the extra ``profile``.

A forward pass of the model shows each block's inputs. Then, round after round, each block runs by itself on those
inputs in the model's order: forward, backward, optimiser step; and once a round a whole iteration runs, so that both
see the same machine. Medians count. On a GPU nothing waits for it within a round: the host runs ahead, as it does in
training. The code for GPUs (CUDA events, peak memory) has not been run on one yet.
"""

from __future__ import annotations

import copy
import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from slurm_asrpt.errors import InputError
from slurm_asrpt.profile.blocks import Block, UncutFile
from slurm_asrpt.profile.head import MEASURED, Head, Provenance
from slurm_asrpt.profile.torchblocks import Piece, call, detached, map_tensors, size_of, tensors, trace

OPTIMISERS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-5),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-5, momentum=0.9),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LOSS = "loss"


class Told(Protocol):
    """Called with what is done, a word on where it stands, and the total."""

    def __call__(self, done: float, note: str = "", of: float | None = None, /) -> None: ...


@dataclass(frozen=True)
class How:
    """layers: measure (K, N) of N like layers, built without memory; None: all, built as the factory does."""

    device: str = "cpu"
    dtype: str = "float32"
    optimiser: str = "adamw"
    warm_up: int = 3
    repeats: int = 10
    layers: tuple[int, int] | None = None


@dataclass(frozen=True)
class Subject:
    """What a factory has returned. loss: of the model's output; its mean where the factory gives none."""

    module: Any
    inputs: Any
    loss: Callable[[Any], Any]


Mark = Any
"""A moment on the device's own clock: a CUDA event, which may still be to come, or seconds."""
Span = tuple[Mark, Mark]


@dataclass
class _Round:
    """From when to when each call of a piece took in one round."""

    forward: list[Span]
    backward: list[Span]
    update: list[Span]


def subject(made: Any) -> Subject:
    """What a factory returned: (module, batch) or (module, batch, loss function of the output). Raises InputError."""
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3) or not isinstance(made[0], torch.nn.Module):
        raise InputError("the factory must return (module, batch) or (module, batch, loss), a torch module first")
    loss = made[2] if len(made) == 3 else lambda output: sum(t.float().mean() for t in tensors(output))
    return Subject(made[0], made[1], loss)


def measure(make: Callable[[], Any], name: str, origin: str, how: How, tell: Told) -> UncutFile:
    """The blocks of the model that ``make`` builds. Raises InputError."""
    if how.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no GPU here; run inside of a job that has one, or --device cpu")
    if how.layers:
        with torch.device("meta"):
            found = subject(make())
        return _measure_some(found, name, origin, how, tell)
    found = subject(make())
    module = found.module.to(device=how.device, dtype=DTYPES[how.dtype])
    inputs = map_tensors(lambda t: _placed(t, how), found.inputs)
    return _measure_all(Subject(module, inputs, found.loss), name, origin, how, tell)


def _placed(tensor: Any, how: How) -> Any:
    return tensor.to(how.device, DTYPES[how.dtype] if tensor.is_floating_point() else tensor.dtype)


def _measure_all(model: Subject, name: str, origin: str, how: How, tell: Told) -> UncutFile:
    model.module.train()
    pieces, output = trace(model.module, model.inputs)
    loss = Piece(LOSS, model.loss, [((map_tensors(detached, output),), {})], in_bytes=size_of(output))
    stations = [_Station(piece, how) for piece in (*pieces, loss)]
    del output
    iteration = _Iteration(model, how)
    whole: list[float] = []
    rounds = how.warm_up + how.repeats
    for number in range(rounds):
        tell(number, "", rounds)
        for station in stations:
            station.run(number >= how.warm_up)
        whole.append(iteration.run())
    head = _head(name, model.inputs, origin, _formula(how, ""), how)
    return UncutFile(head, tuple(s.block() for s in stations), statistics.median(whole[how.warm_up :]))


def _measure_some(model: Subject, name: str, origin: str, how: How, tell: Told) -> UncutFile:
    """K of the N like layers, one at a time, and all that is like no other; the rest of the N gets their medians."""
    assert how.layers is not None  # noqa: S101
    pieces, _ = trace(model.module, model.inputs)
    like = _like_layers(pieces, how.layers[1])
    chosen = {like[i * len(like) // how.layers[0]] for i in range(how.layers[0])}
    blocks: dict[int, Block] = {}
    for number, piece in enumerate(pieces):
        tell(number, piece.name, len(pieces))
        if number in chosen or number not in like:
            station = _Station(_materialised(piece, how), how)
            for turn in range(how.warm_up + how.repeats):
                station.run(turn >= how.warm_up)
            blocks[number] = replace(station.block(), bytes_in=piece.in_bytes, tied_bytes=piece.tied_bytes)
    typical = _typical([blocks[number] for number in sorted(chosen)])
    together = tuple(blocks.get(n) or replace(typical, name=p.name) for n, p in enumerate(pieces))
    note = f"{how.layers[0]} of {how.layers[1]} like layers measured, the others get their medians; without the loss"
    return UncutFile(_head(name, model.inputs, origin, _formula(how, note), how), together)


def _like_layers(pieces: Sequence[Piece], count: int) -> list[int]:
    """Which pieces are the ``count`` like ones. Raises InputError."""
    shapes = [piece.shape for piece in pieces]
    found = sorted({shapes.count(shape) for shape in shapes if shapes.count(shape) > 1}, reverse=True)
    for shape in shapes:
        if shapes.count(shape) == count:
            return [number for number, other in enumerate(shapes) if other == shape]
    known = " and ".join(map(str, found)) or "no"
    raise InputError(
        f"--layers: the model has {known} like layers, not {count}; write K/{found[0] if found else count}"
    )


def _materialised(piece: Piece, how: How) -> Piece:
    """A piece of the meta device with memory and values of its own; whole numbers are 0."""
    module = copy.deepcopy(piece.module).to(dtype=DTYPES[how.dtype]).to_empty(device=how.device)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.normal_(0, 0.02) if tensor.is_floating_point() else tensor.zero_()

    def fill(meta: Any) -> Any:
        if not meta.is_floating_point():
            return torch.zeros(meta.shape, dtype=meta.dtype, device=how.device)
        made = torch.randn(meta.shape, dtype=DTYPES[how.dtype], device=how.device)
        return made.requires_grad_(meta.requires_grad)

    calls = [(map_tensors(fill, args), map_tensors(fill, kwargs)) for args, kwargs in piece.calls]
    own = list(module.parameters()) if piece.own else []
    scale = torch.finfo(DTYPES[how.dtype]).bits / 32
    return Piece(piece.name, module, calls, piece.in_bytes, 0, round(piece.kept_bytes * scale), own)


def _typical(blocks: Sequence[Block]) -> Block:
    """Medians of the figures of like layers."""
    names = ("forward_s", "backward_s", "update_s", "forward_spread_s", "backward_spread_s", "peak_bytes")
    return replace(blocks[0], outliers=0, **{n: statistics.median(getattr(b, n) for b in blocks) for n in names})


class _Station:
    """One piece by itself, with an optimiser for its parameters."""

    def __init__(self, piece: Piece, how: How) -> None:
        self.piece, self.how = piece, how
        self.optimiser = OPTIMISERS[how.optimiser](piece.own) if piece.own else None
        self.rounds: list[_Round] = []
        self.out_bytes, self.peak_bytes = piece.out_bytes, 0

    def run(self, counts: bool) -> None:
        """All calls of an iteration: forward, backward, step. On a GPU it returns before they are done."""
        before = _begin_peak(self.how.device)
        taken = _Round([], [], [])
        for args, kwargs in self.piece.calls:
            args, kwargs = map_tensors(detached, args), map_tensors(detached, kwargs)
            output = self._timed(partial(self.piece.module, *args, **kwargs), taken.forward)
            results = [t for t in tensors(output) if t.requires_grad]
            if results:
                gradients = [torch.ones_like(t) for t in results]
                self._timed(partial(torch.autograd.backward, results, gradients), taken.backward)
            self.out_bytes = size_of(output)
        if self.optimiser:
            self._timed(self.optimiser.step, taken.update)
        self.peak_bytes = _peak(self.how.device, before)
        for parameter in self.piece.own:
            parameter.grad = None
        if counts:
            self.rounds.append(taken)

    def _timed(self, work: Callable[[], Any], spans: list[Span]) -> Any:
        begin = mark(self.how.device)
        result = work()
        spans.append((begin, mark(self.how.device)))
        return result

    def block(self) -> Block:
        """The medians, and what the piece takes."""
        wait(self.how.device)
        params = size_of(self.piece.own)
        state = sum(size_of(list(values.values())) for values in self.optimiser.state.values()) if self.optimiser else 0
        forward, spread, far = robust([total(taken.forward) for taken in self.rounds])
        backward, wide, off = robust([total(taken.backward) for taken in self.rounds])
        return Block(
            name=self.piece.name,
            forward_s=forward,
            backward_s=backward,
            bytes_out=0.0 if self.piece.name == LOSS else float(self.out_bytes),
            update_s=robust([total(taken.update) for taken in self.rounds])[0],
            forward_spread_s=spread,
            backward_spread_s=wide,
            outliers=far + off,
            bytes_in=float(self.piece.in_bytes),
            kept_bytes=float(self.piece.kept_bytes),
            param_bytes=float(params),
            grad_bytes=float(params),
            optimiser_bytes=float(state),
            tied_bytes=float(self.piece.tied_bytes),
            peak_bytes=float(self.peak_bytes),
        )


def _begin_peak(device: str) -> int:
    """Bytes in use now; from here on the most is kept."""
    if device != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_allocated())


def _peak(device: str, before: int) -> int:
    """The most bytes since then beyond those in use then; 0 on a CPU, where nobody counts."""
    return int(torch.cuda.max_memory_allocated()) - before if device == "cuda" else 0


class _Iteration:
    """A whole iteration of training, as a training loop has it."""

    def __init__(self, model: Subject, how: How) -> None:
        self.model, self.how = model, how
        self.optimiser = OPTIMISERS[how.optimiser](model.module.parameters())

    def run(self) -> float:
        """Seconds."""
        return timed(self._step, self.how.device)[1]

    def _step(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        self.model.loss(call(self.model.module, self.model.inputs)).backward()
        self.optimiser.step()


def mark(device: str) -> Mark:
    """Now, as the device will come to it."""
    if device != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def wait(device: str) -> None:
    """Until the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def total(spans: Sequence[Span]) -> float:
    """Seconds of all of them, whose marks have come."""
    return float(sum(e - b if isinstance(b, float) else b.elapsed_time(e) / 1e3 for b, e in spans))


def timed(work: Callable[[], Any], device: str) -> tuple[Any, float]:
    """What ``work`` returns, and the seconds that it took: of the GPU's own clock, or this process's."""
    wait(device)
    begin = mark(device)
    result = work()
    end = mark(device)
    wait(device)
    return result, total([(begin, end)])


def robust(values: Sequence[float]) -> tuple[float, float, int]:
    """Median, distance between the quartiles, and how many are beyond 1.5 of it from them (Tukey)."""
    if len(values) < 2:
        return (values[0] if values else 0.0), 0.0, 0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    spread = high - low
    return middle, spread, sum(not low - 1.5 * spread <= value <= high + 1.5 * spread for value in values)


def _head(name: str, inputs: Any, origin: str, formula: str, how: How) -> Head:
    first = next(tensors(inputs), None)
    if first is None or not first.ndim:
        raise InputError("the factory's batch holds no tensor with a dimension for the samples")
    software = {"torch": torch.__version__, "python": platform.python_version()}
    software |= {"cuda": str(torch.version.cuda)} if how.device == "cuda" else {}
    provenance = Provenance(MEASURED, origin, formula)
    return Head(name, name, int(first.shape[0]), device_name(how.device), provenance, datetime.date.today(), software)


def _formula(how: How, note: str) -> str:
    means = (
        f"medians of {how.repeats} rounds after {how.warm_up} to warm up, block by block; {how.dtype}, {how.optimiser}"
    )
    return f"{means}; {note}" if note else means


def device_name(device: str) -> str:
    """The GPU, or the processor with the threads that torch uses."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        model = ""
    return f"{model or platform.machine()}, {torch.get_num_threads()} of {os.cpu_count()} threads"
