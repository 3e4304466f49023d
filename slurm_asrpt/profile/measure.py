"""Times the blocks of a torch model on this machine. Needs torch: the extra ``profile``.

A forward pass of the model shows each block's inputs. Then, round after round (rounds.py), each block runs by itself on
those inputs in the model's order, forward and backward, then the optimiser's step for all; and once a round a whole
iteration runs, so that both see the same machine. Medians count. The batch is on the device from the beginning: what a
data loader takes does not count. The code for GPUs has not been run on one yet.
"""

from __future__ import annotations

import copy
import datetime
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch

from slurm_asrpt.errors import InputError
from slurm_asrpt.profile.block_timing import LOSS, Blocks, How, Iteration, Subject, Whole
from slurm_asrpt.profile.blocks import Block, UncutFile
from slurm_asrpt.profile.device_clock import device_name, software, wake
from slurm_asrpt.profile.header import MEASURED, Head, Provenance
from slurm_asrpt.profile.torch_blocks import Piece, detached, kept_bytes, map_tensors, size_of, tensors, trace

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Told(Protocol):
    """Called with what is done, a word on where it stands, and the total."""

    def __call__(self, done: float, note: str = "", of: float | None = None, /) -> None: ...


def subject(made: Any) -> Subject:
    """What a factory returned: (module, batch) or (module, batch, loss function of the output). Raises InputError."""
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3) or not isinstance(made[0], torch.nn.Module):
        raise InputError("the factory must return (module, batch) or (module, batch, loss), a torch module first")
    if len(made) == 3 and not callable(made[2]):
        raise InputError("the factory's third must be a function: the loss of the model's output")
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
    _check_training(model, output)
    loss = Piece(LOSS, model.loss, [((map_tensors(detached, output),), {})], in_bytes=size_of(output))
    loss.kept_bytes = kept_bytes(loss)
    del output
    blocks = Blocks([*pieces, loss], how)
    iteration = Iteration(model, blocks.optimiser, how.device)
    wake(how.device)
    rounds = how.warm_up + how.repeats
    for number in range(rounds):
        tell(number, "", rounds)
        blocks.run(number >= how.warm_up)
        iteration.run(number >= how.warm_up)
    found, whole = blocks.blocks(), iteration.whole(blocks)
    return UncutFile(_head(name, model.inputs, origin, _formula(how, ""), how), found, whole.seconds), whole


def _check_training(model: Subject, output: Any) -> None:
    """Raises InputError where nothing can be trained."""
    if not any(parameter.requires_grad for parameter in model.module.parameters()):
        raise InputError("no parameter of the model wants a gradient: nothing of it is trained; leave some unfrozen")
    loss = model.loss(output)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise InputError("the loss must be a tensor of one number with a gradient; return such a function third")


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
    made = _materialised(piece, how)
    made.kept_bytes = kept_bytes(made)
    alone = Blocks([made], how)
    for turn in range(how.warm_up + how.repeats):
        alone.run(turn >= how.warm_up)
    return alone.blocks()[0]


def _like_layers(pieces: Sequence[Piece], count: int) -> list[int]:
    """Which pieces are the ``count`` like ones. Raises InputError."""
    shapes = [piece.shape for piece in pieces]
    found = sorted({shapes.count(shape) for shape in shapes if shapes.count(shape) > 1}, reverse=True)
    for shape in shapes:
        if shapes.count(shape) == count:
            return [number for number, other in enumerate(shapes) if other == shape]
    if not found:
        raise InputError("--layers: no two layers of the model are alike; leave it out")
    known = " and ".join(map(str, found))
    raise InputError(f"--layers: the model has {known} like layers, not {count}; write K/{found[0]}")


def _materialised(piece: Piece, how: How) -> Piece:
    """A piece of the meta device with memory and values of its own; whole numbers are rows of its embeddings."""
    rows = min((m.num_embeddings for m in piece.module.modules() if isinstance(m, torch.nn.Embedding)), default=1)
    module = copy.deepcopy(piece.module).to_empty(device=how.device)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.normal_(0, 0.02) if tensor.is_floating_point() else tensor.zero_()

    def fill(meta: Any) -> Any:
        if not meta.is_floating_point():
            most = rows if meta.dtype in (torch.int32, torch.int64) else 1
            return torch.randint(most, meta.shape, dtype=meta.dtype, device=how.device)
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
