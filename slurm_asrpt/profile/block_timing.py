"""What is run once a round: each block by itself, a step of the optimiser for all, a whole iteration. Needs torch.

Nothing waits for a GPU while it counts. A block by itself, and the step, come after a pause that the host needs to
launch them: what counts is the GPU's own time, as in training, where the host is ahead. Whole iterations are a plain
loop's; where the host is the slower one they show it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from slurm_asrpt.profile.blocks import Block
from slurm_asrpt.profile.device_clock import Interval, LaunchAhead, begin_peak, peak, timed_interval, total, wait
from slurm_asrpt.profile.torch_blocks import TracedBlock, call, detached, map_tensors, size_of, tensors

OPTIMISERS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-5),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-5, momentum=0.9),
}
LOSS = "loss"
STANDSTILLS = 3


@dataclass(frozen=True)
class MeasureOptions:
    """layers: measure (K, N) of N like layers, built without memory; None: all, built as the factory does."""

    device: str = "cpu"
    dtype: str = "float32"
    optimiser: str = "adamw"
    warm_up: int = 3
    repeats: int = 10
    layers: tuple[int, int] | None = None


@dataclass(frozen=True)
class TrainingSetup:
    """What a factory has returned. loss: of the model's output; its mean where the factory gives none."""

    module: Any
    inputs: Any
    loss: Callable[[Any], Any]


@dataclass
class _Round:
    """From when to when each call of a piece, or of the whole model, took in one round."""

    forward: list[Interval] = field(default_factory=list)
    backward: list[Interval] = field(default_factory=list)
    update: list[Interval] = field(default_factory=list)
    all: list[Interval] = field(default_factory=list)


@dataclass(frozen=True)
class IterationTimes:
    """Medians of whole iterations, in seconds, and the distance between their quartiles.

    standstill_s: of one that finds the device idle and is waited for, until it is done; launch_s: the most that the
    host takes to give all of it to the device. rounds: what all blocks by themselves took together in each round.
    """

    seconds: float
    spread_s: float
    forward_s: float
    backward_s: float
    update_s: float
    standstill_s: float
    launch_s: float
    rounds: tuple[float, ...] = ()


class BlockTimer:
    """Pieces by themselves, one after the other, and then a step for the parameters of all, as training has it.

    A step for each piece would find its parameters in a cache, or too few to keep a GPU busy. Bytes say whose share of
    the step is how large.
    """

    def __init__(self, pieces: Sequence[TracedBlock], options: MeasureOptions) -> None:
        self.options, self.stations = options, [_PieceTimer(piece, options) for piece in pieces]
        trained = [parameter for piece in pieces for parameter in piece.trained]
        self.optimiser = OPTIMISERS[options.optimiser](trained) if trained else None
        self.trained_bytes, self.lead = size_of(trained), LaunchAhead(options.device)
        self.updates: list[list[Interval]] = []

    def run(self, counts: bool) -> None:
        """One round. On a GPU it returns before it is done."""
        for station in self.stations:
            station.run(counts)
        intervals: list[Interval] = []
        if self.optimiser:
            self.lead.run(
                lambda: timed_interval(partial(_update, self.optimiser), self.options.device, intervals), counts
            )
        if counts:
            self.updates.append(intervals)

    def rounds(self) -> tuple[float, ...]:
        """Seconds of all in each round."""
        parts = [[total([*taken.forward, *taken.backward]) for taken in s.rounds] for s in self.stations]
        return tuple(map(sum, zip(*parts, map(total, self.updates), strict=True)))

    def launch_s(self) -> float:
        """What the host took to launch a round."""
        return self.lead.host_s + sum(station.lead.host_s for station in self.stations)

    def blocks(self) -> tuple[Block, ...]:
        """The medians, and what each piece takes."""
        wait(self.options.device)
        update_s, state = robust(list(map(total, self.updates)))[0], self.optimiser.state if self.optimiser else {}
        return tuple(station.block(update_s / max(self.trained_bytes, 1), state) for station in self.stations)


class _PieceTimer:
    """One piece by itself: its forward and backward passes."""

    def __init__(self, piece: TracedBlock, options: MeasureOptions) -> None:
        self.piece, self.options, self.lead = piece, options, LaunchAhead(options.device)
        self.rounds: list[_Round] = []
        self.out_bytes, self.peak_bytes = piece.out_bytes, 0

    def run(self, counts: bool) -> None:
        """All calls of an iteration. On a GPU it returns before they are done."""
        self.lead.run(lambda: self._pass(counts), counts)

    def _pass(self, counts: bool) -> None:
        looks = not (counts and self.rounds)  # to ask for the memory takes the host as long as to launch a small block
        before = begin_peak(self.options.device) if looks else 0
        taken = _Round()
        for args, kwargs in self.piece.calls:
            self._call(map_tensors(self._input, args), map_tensors(self._input, kwargs), taken)
        if looks:
            self.peak_bytes = peak(self.options.device, before)
        if counts:
            self.rounds.append(taken)

    def _call(self, args: Any, kwargs: Any, taken: _Round) -> None:
        output = timed_interval(partial(self.piece.module, *args, **kwargs), self.options.device, taken.forward)
        results = [t for t in tensors(output) if t.requires_grad]
        if results:
            gradients = list(map(_gradient, results))
            timed_interval(partial(torch.autograd.backward, results, gradients), self.options.device, taken.backward)
        self.out_bytes = size_of(output)

    def _input(self, tensor: Any) -> Any:
        """As in the model, and a copy if the piece would write on it: autograd lets nobody write on a leaf."""
        return detached(tensor).clone() if self.piece.changes else detached(tensor)

    def block(self, update_s: float, state: Any) -> Block:
        """The medians, and what the piece takes. update_s: of a byte; state: the optimiser's, by parameter."""
        gradients = size_of(self.piece.trained)
        forward, spread, far = robust([total(taken.forward) for taken in self.rounds])
        backward, wide, off = robust([total(taken.backward) for taken in self.rounds])
        return Block(
            name=self.piece.name,
            forward_s=forward,
            backward_s=backward,
            bytes_out=0.0 if self.piece.name == LOSS else float(self.out_bytes),
            update_s=update_s * gradients,
            forward_spread_s=spread,
            backward_spread_s=wide,
            outliers=far + off,
            bytes_in=float(self.piece.in_bytes),
            kept_bytes=float(self.piece.kept_bytes),
            param_bytes=float(size_of(self.piece.own)),
            grad_bytes=float(gradients),
            optimiser_bytes=float(sum(size_of(list(state.get(p, {}).values())) for p in self.piece.trained)),
            tied_bytes=float(self.piece.tied_bytes),
            peak_bytes=float(self.peak_bytes),
        )


def _gradient(result: Any) -> Any:
    """Random, as GPUs are quicker with numbers that are all alike; of a loss it is 1."""
    return torch.randn_like(result) if result.ndim else torch.ones_like(result)


def _update(optimiser: Any) -> None:
    """A step, and the gradients let go, which takes a CPU its time."""
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


class IterationTimer:
    """A whole iteration of training, as a training loop has it."""

    def __init__(self, model: TrainingSetup, optimiser: Any, device: str) -> None:
        self.model, self.optimiser, self.device = model, optimiser, device
        self.rounds: list[_Round] = []

    def run(self, counts: bool) -> None:
        """One of them; on a GPU after another, so that the host is as far ahead as in a loop."""
        taken = _Round()
        if self.device == "cuda":
            self._step(_Round())
        timed_interval(partial(self._step, taken), self.device, taken.all)
        if counts:
            self.rounds.append(taken)

    def _step(self, taken: _Round) -> None:
        loss = timed_interval(
            lambda: self.model.loss(call(self.model.module, self.model.inputs)), self.device, taken.forward
        )
        timed_interval(loss.backward, self.device, taken.backward)
        timed_interval(partial(_update, self.optimiser), self.device, taken.update)

    def whole(self, blocks: BlockTimer) -> IterationTimes:
        """The medians, and what it takes from a standstill. blocks: that had turns with it."""
        wait(self.device)
        seconds, spread, _ = robust([total(taken.all) for taken in self.rounds])
        forward, backward, update = (
            statistics.median(total(getattr(taken, part)) for taken in self.rounds)
            for part in ("forward", "backward", "update")
        )
        standstill, launch = seconds, seconds
        if self.device == "cuda":
            standstill, launch = self._from_standstill()
            launch = min(launch, blocks.launch_s())  # a whole iteration may fill the GPU's queue: then the host waits
        return IterationTimes(seconds, spread, forward, backward, update, standstill, launch, blocks.rounds())

    def _from_standstill(self) -> tuple[float, float]:
        """Seconds of this process until all is done, and until all is launched."""
        launched, done = list[float](), list[float]()
        for _ in range(STANDSTILLS):
            wait(self.device)
            begin = time.perf_counter()
            self._step(_Round())
            launched.append(time.perf_counter() - begin)
            wait(self.device)
            done.append(time.perf_counter() - begin)
        return statistics.median(done), statistics.median(launched)


def robust(values: Sequence[float]) -> tuple[float, float, int]:
    """Median, distance between the quartiles, and how many are beyond 1.5 of it from them (Tukey)."""
    if len(values) < 2:
        return (values[0] if values else 0.0), 0.0, 0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    spread = high - low
    return middle, spread, sum(not low - 1.5 * spread <= value <= high + 1.5 * spread for value in values)
