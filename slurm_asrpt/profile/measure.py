"""Time the blocks of a torch model on this machine. Needs torch: the extra ``profile``.

A forward pass of the model records each block's inputs. Then, round after round (block_timing.py), each block runs by
itself on those inputs in the model's order, forward and backward, followed by the optimizer's step for all; and once
per round a whole iteration runs, so that both see the same conditions. Results are medians. The batch stays on the
device: the time of a data loader does not count.
"""

from __future__ import annotations

import copy
import datetime
import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch

from slurm_asrpt.errors import InputError
from slurm_asrpt.profile.block_timing import (
    LOSS,
    BlockTimer,
    IterationTimer,
    IterationTimes,
    MeasureOptions,
    TrainingSetup,
)
from slurm_asrpt.profile.blocks import Block, UncutFile
from slurm_asrpt.profile.device_clock import device_name, software, warm_clock
from slurm_asrpt.profile.header import MEASURED, Head, Provenance
from slurm_asrpt.profile.torch_blocks import TracedBlock, detached, kept_bytes, map_tensors, size_of, tensors, trace

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class ProgressCallback(Protocol):
    """Called with the work done, a note on its position, and the total."""

    def __call__(self, done: float, note: str = "", of: float | None = None, /) -> None: ...


def training_setup(made: Any) -> TrainingSetup:
    """Check what a factory returned: (module, batch) or (module, batch, loss function of the output). Raises
    InputError."""
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3) or not isinstance(made[0], torch.nn.Module):
        raise InputError("the factory must return (module, batch) or (module, batch, loss), a torch module first")
    if len(made) == 3 and not callable(made[2]):
        raise InputError("the factory's third value must be a function: the loss of the model's output")
    loss = made[2] if len(made) == 3 else lambda output: sum(t.float().mean() for t in tensors(output))
    return TrainingSetup(made[0], made[1], loss)


def measure(
    make: Callable[[], Any], name: str, origin: str, options: MeasureOptions, tell: ProgressCallback
) -> UncutFile:
    """Measure the blocks of the model that ``make`` builds. Raises InputError."""
    if not options.layers:
        return measure_both(make, name, origin, options, tell)[0]
    _check(options)
    with torch.device("meta"):
        found = training_setup(make())
    with _memory(options):
        return _measure_some(placed(found, "meta", options), name, origin, options, tell)


def measure_both(
    make: Callable[[], Any], name: str, origin: str, options: MeasureOptions, tell: ProgressCallback
) -> tuple[UncutFile, IterationTimes]:
    """Measure all blocks, interleaved with whole iterations. Raises InputError."""
    _check(options)
    with _memory(options):
        return _measure_all(placed(training_setup(make()), options.device, options), name, origin, options, tell)


def _check(options: MeasureOptions) -> None:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no GPU here; run it in a job with a GPU, or use --device cpu")


@contextmanager
def _memory(options: MeasureOptions) -> Iterator[None]:
    """Turn a GPU's out-of-memory error into an InputError with a remedy."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        smaller = "a smaller --batch" if options.layers else "a smaller --batch, or --layers K/N"
        raise InputError(f"the GPU's memory is too small for the model; try --dtype bfloat16, {smaller}") from None


def placed(found: TrainingSetup, device: str, options: MeasureOptions) -> TrainingSetup:
    """Move module and batch to the device, in the dtype."""
    dtype = DTYPES[options.dtype]

    def place(tensor: Any) -> Any:
        return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

    return TrainingSetup(found.module.to(device=device, dtype=dtype), map_tensors(place, found.inputs), found.loss)


def _measure_all(
    model: TrainingSetup, name: str, origin: str, options: MeasureOptions, tell: ProgressCallback
) -> tuple[UncutFile, IterationTimes]:
    model.module.train()
    pieces, output = trace(model.module, model.inputs)
    _check_training(model, output)
    loss = TracedBlock(LOSS, model.loss, [((map_tensors(detached, output),), {})], in_bytes=size_of(output))
    loss.kept_bytes = kept_bytes(loss)
    del output
    blocks = BlockTimer([*pieces, loss], options)
    iteration = IterationTimer(model, blocks.optimiser, options.device)
    warm_clock(options.device)
    rounds = options.warm_up + options.repeats
    for number in range(rounds):
        tell(number, "", rounds)
        blocks.run(number >= options.warm_up)
        iteration.run(number >= options.warm_up)
    whole = iteration.whole(blocks)
    found = blocks.blocks(whole.launch_s)
    return UncutFile(_head(name, model.inputs, origin, _formula(options, ""), options), found, whole.seconds), whole


def _check_training(model: TrainingSetup, output: Any) -> None:
    """Raises InputError if nothing can be trained."""
    if not any(parameter.requires_grad for parameter in model.module.parameters()):
        raise InputError("no parameter of the model requires a gradient: nothing is trained; unfreeze some")
    loss = model.loss(output)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise InputError("the loss must be a scalar tensor with a gradient; return such a function as the third value")


def _measure_some(
    model: TrainingSetup, name: str, origin: str, options: MeasureOptions, tell: ProgressCallback
) -> UncutFile:
    """Measure K of the N like layers, one at a time, and every other block; the rest of the N layers get the
    medians."""
    assert options.layers is not None  # noqa: S101
    pieces, _ = trace(model.module, model.inputs)
    like = _like_layers(pieces, options.layers[1])
    chosen = {like[i * len(like) // options.layers[0]] for i in range(options.layers[0])}
    blocks: dict[int, Block] = {}
    warm_clock(options.device)
    for number, piece in enumerate(pieces):
        tell(number, piece.name, len(pieces))
        if number in chosen or number not in like:
            block = _by_itself(piece, options)
            gc.collect()  # optimizers are in cycles, and one more layer may not fit beside this one
            blocks[number] = replace(block, bytes_in=piece.in_bytes, tied_bytes=piece.tied_bytes)
    typical = _typical([blocks[number] for number in sorted(chosen)])
    together = tuple(blocks.get(n) or replace(typical, name=p.name) for n, p in enumerate(pieces))
    some, of = options.layers
    note = f"{some} of {of} like layers measured, the others get their medians; without the loss"
    return UncutFile(_head(name, model.inputs, origin, _formula(options, note), options), together)


def _by_itself(piece: TracedBlock, options: MeasureOptions) -> Block:
    """Measure a piece of the meta device; its memory is freed afterwards."""
    made = materialized(piece, options)
    made.kept_bytes = kept_bytes(made)
    alone = BlockTimer([made], options)
    for turn in range(options.warm_up + options.repeats):
        alone.run(turn >= options.warm_up)
    return alone.blocks()[0]


def _like_layers(pieces: Sequence[TracedBlock], count: int) -> list[int]:
    """The positions of the ``count`` like layers. Raises InputError."""
    shapes = [piece.shape for piece in pieces]
    found = sorted({shapes.count(shape) for shape in shapes if shapes.count(shape) > 1}, reverse=True)
    for shape in shapes:
        if shapes.count(shape) == count:
            return [number for number, other in enumerate(shapes) if other == shape]
    if not found:
        raise InputError("--layers: no two layers of the model are alike; omit the option")
    known = " and ".join(map(str, found))
    raise InputError(f"--layers: the model has {known} like layers, not {count}; write K/{found[0]}")


def materialized(piece: TracedBlock, options: MeasureOptions) -> TracedBlock:
    """A piece of the meta device with memory and random values; integers are rows of its embeddings."""
    rows = min((m.num_embeddings for m in piece.module.modules() if isinstance(m, torch.nn.Embedding)), default=1)
    module = copy.deepcopy(piece.module).to_empty(device=options.device)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.normal_(0, 0.02) if tensor.is_floating_point() else tensor.zero_()

    def fill(meta: Any) -> Any:
        if not meta.is_floating_point():
            most = rows if meta.dtype in (torch.int32, torch.int64) else 1
            return torch.randint(most, meta.shape, dtype=meta.dtype, device=options.device)
        made = torch.randn(meta.shape, dtype=meta.dtype, device=options.device)
        return made.requires_grad_(meta.requires_grad)

    calls = [(map_tensors(fill, args), map_tensors(fill, kwargs)) for args, kwargs in piece.calls]
    mine = {id(parameter) for parameter in piece.own}
    own = [new for old, new in zip(piece.module.parameters(), module.parameters(), strict=True) if id(old) in mine]
    return TracedBlock(piece.name, module, calls, piece.in_bytes, own=own, changes=piece.changes)


def _typical(blocks: Sequence[Block]) -> Block:
    """Medians of the figures of like layers."""
    names = ("forward_s", "backward_s", "update_s", "forward_spread_s", "backward_spread_s", "peak_bytes")
    return replace(blocks[0], outliers=0, **{n: statistics.median(getattr(b, n) for b in blocks) for n in names})


def _head(name: str, inputs: Any, origin: str, formula: str, options: MeasureOptions) -> Head:
    first = next(tensors(inputs), None)
    if first is None or not first.ndim:
        raise InputError("the factory's batch holds no tensor with a dimension for the samples")
    provenance = Provenance(MEASURED, origin, formula)
    return Head(
        name,
        name,
        int(first.shape[0]),
        device_name(options.device),
        provenance,
        datetime.date.today(),
        software(options.device),
    )


def _formula(options: MeasureOptions, note: str) -> str:
    rounds = f"medians of {options.repeats} rounds after {options.warm_up} to warm up, block by block"
    means = f"{rounds}; {options.dtype}, {options.optimiser}"
    return f"{means}; {note}" if note else means
