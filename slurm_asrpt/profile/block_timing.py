"""The measurements of one round: each block by itself, the optimizer's step for all, a whole iteration. Needs torch.

Nothing waits for a GPU while a measurement counts. A block by itself, and the step, are launched ahead of the GPU: what
counts is the GPU's own time, as in training, where the host is ahead. Whole iterations run as in a plain loop, so they
show it if the host is slower than the GPU.
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
    """What a factory returned. loss: of the model's output; its mean if the factory gives none."""

    module: Any
    inputs: Any
    loss: Callable[[Any], Any]


@dataclass
class _Round:
    """Start and end of each call of a piece, or of the whole model, in one round."""

    forward: list[Interval] = field(default_factory=list)
    backward: list[Interval] = field(default_factory=list)
    update: list[Interval] = field(default_factory=list)
    all: list[Interval] = field(default_factory=list)


@dataclass(frozen=True)
class IterationTimes:
    """Medians of whole iterations, in seconds, and the interquartile range.

    standstill_s: of an iteration on an idle device, until it is done; launch_s: upper bound of the host's time to
    launch an iteration, at most ``seconds``. rounds: total of all blocks by themselves in each round.
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
    """Times pieces by themselves, one after the other, and then one step for the parameters of all, as in training.

    A step for each piece would find its parameters in a cache, or too few of them to keep a GPU busy. The step's
    time is divided by bytes of parameters.
    """

    def __init__(self, pieces: Sequence[TracedBlock], options: MeasureOptions) -> None:
        self.options, self.stations = options, [_PieceTimer(piece, options) for piece in pieces]
        trained = [parameter for piece in pieces for parameter in piece.trained]
        self.optimiser = OPTIMISERS[options.optimiser](trained) if trained else None
        self.trained_bytes, self.lead = size_of(trained), LaunchAhead(options.device)
        self.updates: list[list[Interval]] = []

    def run(self, counts: bool) -> None:
        """Run one round. On a GPU it returns before the round is done."""
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
        """Seconds of all pieces and the step, in each round."""
        parts = [[total([*taken.forward, *taken.backward]) for taken in s.rounds] for s in self.stations]
        return tuple(map(sum, zip(*parts, map(total, self.updates), strict=True)))

    def launch_s(self) -> float:
        """The host's time to launch a round."""
        return self.lead.host_s + sum(station.lead.host_s for station in self.stations)

    def blocks(self, launch_s: float = 0.0) -> tuple[Block, ...]:
        """The medians and the memory of each piece.

        launch_s: of a whole iteration; 0: unknown, as pieces by themselves take several times as long to launch.
        """
        wait(self.options.device)
        update_s, state = robust(list(map(total, self.updates)))[0], self.optimiser.state if self.optimiser else {}
        launches = launch_s / max(sum(station.lead.host_s for station in self.stations), 1e-9)
        return tuple(station.block(update_s / max(self.trained_bytes, 1), launches, state) for station in self.stations)


class _PieceTimer:
    """Times one piece by itself: its forward and backward passes."""

    def __init__(self, piece: TracedBlock, options: MeasureOptions) -> None:
        self.piece, self.options, self.lead = piece, options, LaunchAhead(options.device)
        self.rounds: list[_Round] = []
        self.out_bytes, self.peak_bytes = piece.out_bytes, 0

    def run(self, counts: bool) -> None:
        """All calls of an iteration. On a GPU it returns before they are done."""
        self.lead.run(lambda: self._pass(counts), counts)

    def _pass(self, counts: bool) -> None:
        looks = not (counts and self.rounds)  # querying the memory takes as long as launching a small block
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
            gradients = list(map(output_gradient, results))
            timed_interval(partial(torch.autograd.backward, results, gradients), self.options.device, taken.backward)
        self.out_bytes = size_of(output)

    def _input(self, tensor: Any) -> Any:
        """The input as in the model; a copy if the piece writes to it, since autograd forbids writes to a leaf."""
        return detached(tensor).clone() if self.piece.changes else detached(tensor)

    def block(self, update_s: float, launches: float, state: Any) -> Block:
        """The medians and the memory of the piece.

        update_s: seconds per byte; launches: the host's time in an iteration over that of the piece by itself; state:
        the optimizer's, by parameter.
        """
        gradients = size_of(self.piece.trained)
        forward, spread, far = robust([total(taken.forward) for taken in self.rounds])
        backward, wide, off = robust([total(taken.backward) for taken in self.rounds])
        return Block(
            name=self.piece.name,
            forward_s=forward,
            backward_s=backward,
            bytes_out=0.0 if self.piece.name == LOSS else float(self.out_bytes),
            update_s=update_s * gradients,
            launch_s=launches * self.lead.host_s if self.options.device == "cuda" else 0.0,
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


def output_gradient(result: Any) -> Any:
    """What the backward pass starts from: random, since GPUs are faster with equal numbers; 1 for a loss."""
    return torch.randn_like(result) if result.ndim else torch.ones_like(result)


def _update(optimiser: Any) -> None:
    """A step, and freeing the gradients, which takes time on a CPU."""
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


class IterationTimer:
    """Times whole iterations of training, as in a training loop."""

    def __init__(self, model: TrainingSetup, optimiser: Any, device: str) -> None:
        self.model, self.optimiser, self.device = model, optimiser, device
        self.rounds: list[_Round] = []
        self.launches: list[float] = []

    def run(self, counts: bool) -> None:
        """One iteration; on a GPU after another one, so that the host is as far ahead as in a loop."""
        taken = _Round()
        if self.device == "cuda":
            self._step(_Round())
        begin = time.perf_counter()
        timed_interval(partial(self._step, taken), self.device, taken.all)
        if counts:
            self.rounds.append(taken)
            self.launches.append(time.perf_counter() - begin)

    def _step(self, taken: _Round) -> None:
        loss = timed_interval(
            lambda: self.model.loss(call(self.model.module, self.model.inputs)), self.device, taken.forward
        )
        timed_interval(loss.backward, self.device, taken.backward)
        timed_interval(partial(_update, self.optimiser), self.device, taken.update)

    def whole(self, blocks: BlockTimer) -> IterationTimes:
        """The medians, and the times from an idle device. blocks: measured in turns with the iterations."""
        wait(self.device)
        seconds, spread, _ = robust([total(taken.all) for taken in self.rounds])
        forward, backward, update = (
            statistics.median(total(getattr(taken, part)) for taken in self.rounds)
            for part in ("forward", "backward", "update")
        )
        standstill, launch = seconds, seconds
        if self.device == "cuda":
            standstill, launch = self._from_standstill()
            # the host waits if a whole iteration fills the GPU's queue, and takes longer from a standstill
            launch = min(launch, blocks.launch_s(), statistics.median(self.launches), seconds)
        return IterationTimes(seconds, spread, forward, backward, update, standstill, launch, blocks.rounds())

    def _from_standstill(self) -> tuple[float, float]:
        """Seconds until all is done, and until all is launched, on the host's clock."""
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
    """Median, interquartile range, and number of outliers beyond 1.5 times that range (Tukey)."""
    if len(values) < 2:
        return (values[0] if values else 0.0), 0.0, 0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    spread = high - low
    return middle, spread, sum(not low - 1.5 * spread <= value <= high + 1.5 * spread for value in values)
