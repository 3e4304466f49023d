"""Times the blocks of a torch model on this machine. Needs torch: the extra ``profile``.

A forward pass of the model shows each block's inputs. Then, round after round, each block runs by itself on those
inputs in the model's order: forward, backward, optimiser step; and once a round a whole iteration runs, so that both
see the same machine. Medians count. Nothing waits for a GPU: the host runs ahead of it, as it does in training, and
where the host is the slower one both show it. The batch is on the device from the beginning: what a data loader takes
does not count. The code for GPUs has not been run on one yet.
"""

from __future__ import annotations

import copy
import datetime
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch

from slurm_asrpt.errors import InputError
from slurm_asrpt.profile.blocks import Block, UncutFile
from slurm_asrpt.profile.clock import Span, begin_peak, device_name, peak, software, spanned, total, wait, wake
from slurm_asrpt.profile.head import MEASURED, Head, Provenance
from slurm_asrpt.profile.torchblocks import Piece, call, detached, kept_bytes, map_tensors, size_of, tensors, trace

OPTIMISERS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-5),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-5, momentum=0.9),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LOSS = "loss"
STANDSTILLS = 3


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


@dataclass
class _Round:
    """From when to when each call of a piece, or of the whole model, took in one round."""

    forward: list[Span] = field(default_factory=list)
    backward: list[Span] = field(default_factory=list)
    update: list[Span] = field(default_factory=list)
    all: list[Span] = field(default_factory=list)


@dataclass(frozen=True)
class Whole:
    """Medians of whole iterations, in seconds, and the distance between their quartiles.

    standstill_s: of one that finds the device idle and is waited for, until it is done; launch_s: of that, until the
    host has given all of it to the device. rounds: what all blocks by themselves took together in each round.
    """

    seconds: float
    spread_s: float
    forward_s: float
    backward_s: float
    update_s: float
    standstill_s: float
    launch_s: float
    rounds: tuple[float, ...] = ()


def subject(made: Any) -> Subject:
    """What a factory returned: (module, batch) or (module, batch, loss function of the output). Raises InputError."""
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3) or not isinstance(made[0], torch.nn.Module):
        raise InputError("the factory must return (module, batch) or (module, batch, loss), a torch module first")
    loss = made[2] if len(made) == 3 else lambda output: sum(t.float().mean() for t in tensors(output))
    return Subject(made[0], made[1], loss)


def measure(make: Callable[[], Any], name: str, origin: str, how: How, tell: Told) -> UncutFile:
    """The blocks of the model that ``make`` builds. Raises InputError."""
    if not how.layers:
        return measure_both(make, name, origin, how, tell)[0]
    _check(how)
    with torch.device("meta"):
        found = subject(make())
    with _memory(how):
        return _measure_some(placed(found, "meta", how), name, origin, how, tell)


def measure_both(make: Callable[[], Any], name: str, origin: str, how: How, tell: Told) -> tuple[UncutFile, Whole]:
    """All blocks, and whole iterations between them. Raises InputError."""
    _check(how)
    with _memory(how):
        return _measure_all(placed(subject(make()), how.device, how), name, origin, how, tell)


def _check(how: How) -> None:
    if how.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no GPU here; run inside of a job that has one, or --device cpu")


@contextmanager
def _memory(how: How) -> Iterator[None]:
    """What a GPU has no memory for is told so."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        smaller = "a smaller --batch" if how.layers else "a smaller --batch, or --layers K/N"
        raise InputError(f"the GPU's memory is too small for it; try --dtype bfloat16, {smaller}") from None


def placed(found: Subject, device: str, how: How) -> Subject:
    """With module and batch on the device, in the dtype."""
    dtype = DTYPES[how.dtype]

    def place(tensor: Any) -> Any:
        return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

    return Subject(found.module.to(device=device, dtype=dtype), map_tensors(place, found.inputs), found.loss)


def _measure_all(model: Subject, name: str, origin: str, how: How, tell: Told) -> tuple[UncutFile, Whole]:
    model.module.train()
    pieces, output = trace(model.module, model.inputs)
    loss = Piece(LOSS, model.loss, [((map_tensors(detached, output),), {})], in_bytes=size_of(output))
    stations = [_Station(piece, how) for piece in (*pieces, loss)]
    del output
    iteration = _Iteration(model, how)
    wake(how.device)
    rounds = how.warm_up + how.repeats
    for number in range(rounds):
        tell(number, "", rounds)
        for station in stations:
            station.run(number >= how.warm_up)
        iteration.run(number >= how.warm_up)
    whole = replace(iteration.whole(), rounds=_together(stations))
    head = _head(name, model.inputs, origin, _formula(how, ""), how)
    return UncutFile(head, tuple(s.block() for s in stations), whole.seconds), whole


def _together(stations: Sequence[_Station]) -> tuple[float, ...]:
    """Seconds of all of them in each round."""
    parts = ([total([*taken.forward, *taken.backward, *taken.update]) for taken in s.rounds] for s in stations)
    return tuple(map(sum, zip(*parts, strict=True)))


def _measure_some(model: Subject, name: str, origin: str, how: How, tell: Told) -> UncutFile:
    """K of the N like layers, one at a time, and all that is like no other; the rest of the N gets their medians."""
    assert how.layers is not None  # noqa: S101
    pieces, _ = trace(model.module, model.inputs)
    like = _like_layers(pieces, how.layers[1])
    chosen = {like[i * len(like) // how.layers[0]] for i in range(how.layers[0])}
    blocks: dict[int, Block] = {}
    wake(how.device)
    for number, piece in enumerate(pieces):
        tell(number, piece.name, len(pieces))
        if number in chosen or number not in like:
            block = _by_itself(piece, how)
            blocks[number] = replace(block, bytes_in=piece.in_bytes, tied_bytes=piece.tied_bytes)
    typical = _typical([blocks[number] for number in sorted(chosen)])
    together = tuple(blocks.get(n) or replace(typical, name=p.name) for n, p in enumerate(pieces))
    note = f"{how.layers[0]} of {how.layers[1]} like layers measured, the others get their medians; without the loss"
    return UncutFile(_head(name, model.inputs, origin, _formula(how, note), how), together)


def _by_itself(piece: Piece, how: How) -> Block:
    """A piece of the meta device, with memory that is free again afterwards."""
    station = _Station(_materialised(piece, how), how)
    station.piece.kept_bytes = kept_bytes(station.piece)
    for turn in range(how.warm_up + how.repeats):
        station.run(turn >= how.warm_up)
    return station.block()


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
    module = copy.deepcopy(piece.module).to_empty(device=how.device)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.normal_(0, 0.02) if tensor.is_floating_point() else tensor.zero_()

    def fill(meta: Any) -> Any:
        if not meta.is_floating_point():
            return torch.zeros(meta.shape, dtype=meta.dtype, device=how.device)
        made = torch.randn(meta.shape, dtype=meta.dtype, device=how.device)
        return made.requires_grad_(meta.requires_grad)

    calls = [(map_tensors(fill, args), map_tensors(fill, kwargs)) for args, kwargs in piece.calls]
    mine = {id(parameter) for parameter in piece.own}
    own = [new for old, new in zip(piece.module.parameters(), module.parameters(), strict=True) if id(old) in mine]
    return Piece(piece.name, module, calls, piece.in_bytes, own=own, changes=piece.changes)


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
        looks = not (counts and self.rounds)  # to ask for the memory takes the host as long as to launch a small block
        before = begin_peak(self.how.device) if looks else 0
        taken = _Round()
        for args, kwargs in self.piece.calls:
            self._call(map_tensors(self._input, args), map_tensors(self._input, kwargs), taken)
        if self.optimiser:
            spanned(partial(_update, self.optimiser), self.how.device, taken.update)
        if looks:
            self.peak_bytes = peak(self.how.device, before)
        if counts:
            self.rounds.append(taken)

    def _call(self, args: Any, kwargs: Any, taken: _Round) -> None:
        output = spanned(partial(self.piece.module, *args, **kwargs), self.how.device, taken.forward)
        results = [t for t in tensors(output) if t.requires_grad]
        if results:
            gradients = [torch.ones_like(t) for t in results]
            spanned(partial(torch.autograd.backward, results, gradients), self.how.device, taken.backward)
        self.out_bytes = size_of(output)

    def _input(self, tensor: Any) -> Any:
        """As in the model, and a copy if the piece would write on it: autograd lets nobody write on a leaf."""
        return detached(tensor).clone() if self.piece.changes else detached(tensor)

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


def _update(optimiser: Any) -> None:
    """A step, and the gradients let go, which takes a CPU its time."""
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


class _Iteration:
    """A whole iteration of training, as a training loop has it."""

    def __init__(self, model: Subject, how: How) -> None:
        self.model, self.how = model, how
        self.optimiser = OPTIMISERS[how.optimiser](model.module.parameters())
        self.rounds: list[_Round] = []

    def run(self, counts: bool) -> None:
        """One of them. On a GPU it returns before it is done."""
        taken = _Round()
        spanned(partial(self._step, taken), self.how.device, taken.all)
        if counts:
            self.rounds.append(taken)

    def _step(self, taken: _Round) -> None:
        loss = spanned(
            lambda: self.model.loss(call(self.model.module, self.model.inputs)), self.how.device, taken.forward
        )
        spanned(loss.backward, self.how.device, taken.backward)
        spanned(partial(_update, self.optimiser), self.how.device, taken.update)

    def whole(self) -> Whole:
        """The medians, and what it takes from a standstill."""
        wait(self.how.device)
        seconds, spread, _ = robust([total(taken.all) for taken in self.rounds])
        forward, backward, update = (
            statistics.median(total(getattr(taken, part)) for taken in self.rounds)
            for part in ("forward", "backward", "update")
        )
        standstill, launch = self._from_standstill() if self.how.device == "cuda" else (seconds, seconds)
        return Whole(seconds, spread, forward, backward, update, standstill, launch)

    def _from_standstill(self) -> tuple[float, float]:
        """Seconds of this process until all is done, and until all is launched."""
        launched, done = list[float](), list[float]()
        for _ in range(STANDSTILLS):
            wait(self.how.device)
            begin = time.perf_counter()
            self._step(_Round())
            launched.append(time.perf_counter() - begin)
            wait(self.how.device)
            done.append(time.perf_counter() - begin)
        return statistics.median(done), statistics.median(launched)


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
    provenance = Provenance(MEASURED, origin, formula)
    return Head(
        name,
        name,
        int(first.shape[0]),
        device_name(how.device),
        provenance,
        datetime.date.today(),
        software(how.device),
    )


def _formula(how: How, note: str) -> str:
    means = (
        f"medians of {how.repeats} rounds after {how.warm_up} to warm up, block by block; {how.dtype}, {how.optimiser}"
    )
    return f"{means}; {note}" if note else means
