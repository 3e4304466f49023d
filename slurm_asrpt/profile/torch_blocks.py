"""The blocks of a torch module: which there are, their inputs and the memory they keep. Needs torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch

from slurm_asrpt.errors import InputError

_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList)


@dataclass
class TracedBlock:
    """A block of the model as recorded in one forward pass.

    calls: the arguments of each call, detached. out_bytes, in_bytes, kept_bytes: of the whole batch; kept_bytes:
    what autograd saved in this block and in none before. own: parameters that no earlier piece has; tied_bytes:
    parameters shared with the first piece. changes: whether it writes to its inputs.
    """

    name: str
    module: Any
    calls: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    in_bytes: int = 0
    out_bytes: int = 0
    kept_bytes: int = 0
    own: list[Any] = field(default_factory=list)
    tied_bytes: int = 0
    changes: bool = False

    @property
    def trained(self) -> list[Any]:
        """Its own parameters that are not frozen."""
        return [parameter for parameter in self.own if parameter.requires_grad]

    @property
    def shape(self) -> tuple[Any, ...]:
        """Equal for like layers: their class, and the shapes of parameters and inputs."""
        inputs = tuple(tuple(t.shape) for call in self.calls for t in tensors(call))
        return type(self.module), tuple(tuple(p.shape) for p in self.module.parameters()), inputs


def named_blocks(module: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The parts into which a model is cut: the entries of lists and sequences, and the other children of the model.

    A model that only wraps another is looked into.
    """
    children = list(module.named_children())
    while len(children) == 1 and not isinstance(module, _CONTAINERS):
        name, module = f"{name}.{children[0][0]}".lstrip("."), children[0][1]
        children = list(module.named_children())
    if not children:
        yield name or type(module).__name__.lower(), module
    for part, child in children:
        path = f"{name}.{part}".lstrip(".")
        if isinstance(child, _CONTAINERS):
            yield from named_blocks(child, path) if len(list(child.children())) != 1 else [(path, child)]
        else:
            yield path, child


def tensors(value: Any) -> Iterator[Any]:
    """All tensors in tuples, lists, dicts and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from tensors(entry)
    elif _is_record(value):
        yield from tensors([getattr(value, entry.name) for entry in fields(value)])


def map_tensors(change: Callable[[Any], Any], value: Any) -> Any:
    """``value`` with each tensor changed. Containers keep their class, since a loss may read their attributes."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, entry in value.items():
            made[key] = map_tensors(change, entry)
        return made
    if isinstance(value, (tuple, list)):
        entries = [map_tensors(change, entry) for entry in value]
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
    if _is_record(value):
        made = copy.copy(value)
        for entry in fields(value):
            object.__setattr__(made, entry.name, map_tensors(change, getattr(value, entry.name)))
        return made
    return value


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def size_of(value: Any) -> int:
    """Bytes of all tensors in ``value``."""
    return sum(t.numel() * t.element_size() for t in tensors(value))


def detached(tensor: Any) -> Any:
    """A detached copy of the tensor that requires a gradient if the original does."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def trace(module: Any, inputs: Any) -> tuple[list[TracedBlock], Any]:
    """The blocks in the order in which a forward pass calls them, and its output.

    Raises InputError if it calls none, or if not all parameters are in the called ones.
    """
    pieces = {id(block): TracedBlock(name, block) for name, block in named_blocks(module)}
    order: list[TracedBlock] = []
    saved = _storages(module.parameters())
    current: list[tuple[TracedBlock, list[tuple[Any, int]]]] = []

    def enter(block: Any, args: Any, kwargs: Any) -> None:
        piece = pieces[id(block)]
        if not piece.calls:
            order.append(piece)
        piece.calls.append((map_tensors(detached, args), map_tensors(detached, kwargs)))
        piece.in_bytes += size_of((args, kwargs))
        current.append((piece, [(t, t._version) for t in tensors((args, kwargs))]))

    def leave(block: Any, args: Any, output: Any) -> None:
        piece, inputs = current.pop()
        _check_output(output, f"the block {piece.name}")
        piece.out_bytes = size_of(output)
        piece.changes |= any(tensor._version != version for tensor, version in inputs)

    def keep(count: int) -> None:
        if current:
            current[-1][0].kept_bytes += count

    with ExitStack() as hooks:
        for piece in pieces.values():
            hooks.enter_context(_removed(piece.module.register_forward_pre_hook(enter, with_kwargs=True)))
            hooks.enter_context(_removed(piece.module.register_forward_hook(leave)))
        hooks.enter_context(_saving(saved, keep))
        output = call(module, inputs)
    _check_output(output, "the model")
    _share_parameters(module, order)
    return order, output


def _check_output(output: Any, whose: str) -> None:
    """Raises InputError if the tensors are not found: the output would seem to need no backward pass."""
    if hasattr(output, "__dict__") and next(tensors(output), None) is None:
        kind = type(output).__name__
        raise InputError(f"{whose} returns a {kind}; return tensors, or tuples, lists, dicts or dataclasses of them")


def kept_bytes(piece: TracedBlock) -> int:
    """What autograd saves in the piece's calls, without parameters."""
    counts, outputs = list[int](), list[Any]()  # keep outputs, or their memory would be reused and counted again
    parameters = (
        piece.module.parameters() if isinstance(piece.module, torch.nn.Module) else ()
    )  # a loss may be a function
    with _saving(_storages(parameters), counts.append):
        for args, kwargs in piece.calls:
            inputs = map_tensors(lambda tensor: tensor.clone(), (args, kwargs)) if piece.changes else (args, kwargs)
            outputs.append(piece.module(*inputs[0], **inputs[1]))
    return sum(counts)


def _storages(values: Iterable[Any]) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in values}


def _saving(known: set[int], tell: Callable[[int], None]) -> Any:
    """A context that reports the bytes of each storage that autograd saves and that is not known yet.

    What is kept must not lead to the graph: an operation that saves its own result would keep itself for ever.
    """

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            known.add(storage._cdata)
            tell(storage.nbytes())
        return tensor.detach()

    return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)


def call(module: Any, inputs: Any) -> Any:
    """Call the module on a batch: a tuple holds positional arguments, a dict named ones."""
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, (tuple, list)) else module(inputs)


class _removed:  # noqa: N801  (reads as what it does)
    """Removes a hook at the end."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.handle.remove()


def _share_parameters(module: Any, order: list[TracedBlock]) -> None:
    """Assign each parameter to the first piece that has it; one that no block has goes to the first piece."""
    if not order:
        raise InputError(
            "the model's forward pass calls none of its blocks; return a module whose children do the work"
        )
    owner: dict[int, TracedBlock] = {}
    for piece in order:
        for parameter in piece.module.parameters():
            if owner.setdefault(id(parameter), piece) is piece:
                if all(parameter is not other for other in piece.own):
                    piece.own.append(parameter)
            elif owner[id(parameter)] is order[0]:
                piece.tied_bytes += size_of(parameter)
    order[0].own += [p for p in module.parameters() if id(p) not in owner]
