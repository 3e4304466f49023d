"""Copies between arrays in host memory and tensors on a device, beside what the device computes.

On a CPU a copy is done when the call returns. On a GPU there is one stream for copies to it and one for copies from it;
marks (events) say when a copy has arrived, and let one stream wait for another without the host.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from slurm_asrpt.pool.arrays import ALIGNMENT, Array

with warnings.catch_warnings():  # torch warns of read-only arrays once in a process; ours are only read
    warnings.simplefilter("ignore")
    _one = np.zeros(1, np.uint8)
    _one.flags.writeable = False
    torch.from_numpy(_one)


CHUNK = 64 << 20
"""Bytes that tensors are put together to, in memory of the device beside their own."""


class Copies(Protocol):
    """Copies to and from one device. A mark is a point in the work of the device; None: it is over already."""

    def room(self, shape: Sequence[int], dtype: Any) -> Any:
        """A tensor without content. Raises torch.cuda.OutOfMemoryError."""

    def copy_in(self, target: Any, array: Array, after: Any) -> Any:
        """Copy an array into a tensor, once the device has passed a mark. Returns the mark of its arrival."""

    def copy_out(self, tensor: Any) -> Any:
        """The tensor in host memory, valid after ``wait_out``; if it is there already, not a copy."""

    def copy_all_out(self, tensors: Sequence[Any]) -> list[Any]:
        """``copy_out`` of each, in few copies."""

    def copy_all_in(self, arrays: Sequence[Array]) -> list[Any]:
        """The arrays as tensors on the device, for what it is told to compute from now on, in few copies.

        The arrays must stay until the device has been waited for.
        """

    def wait_out(self) -> None:
        """Wait for all copies in host memory."""

    def now(self) -> Any:
        """The mark of what the device has been told to compute so far."""

    def compute_after(self, mark: Any) -> None:
        """Let what the device is told to compute from now on wait for a mark."""

    def arrived(self, mark: Any) -> bool:
        """Whether a mark is over."""

    def release(self, tensor: Any) -> None:
        """To be called before the last reference to a tensor of ``room`` goes: what computes with it may go on."""


class HostCopies:
    """On a CPU, or another device whose copies the host waits for."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)

    def room(self, shape: Sequence[int], dtype: Any) -> Any:
        return torch.empty(shape, dtype=dtype, device=self._device)

    def copy_in(self, target: Any, array: Array, after: Any) -> Any:
        target.copy_(torch.from_numpy(array))

    def copy_out(self, tensor: Any) -> Any:
        return tensor.detach().cpu()

    def copy_all_out(self, tensors: Sequence[Any]) -> list[Any]:
        return [self.copy_out(tensor) for tensor in tensors]

    def copy_all_in(self, arrays: Sequence[Array]) -> list[Any]:
        return [torch.tensor(array, device=self._device) for array in arrays]

    def wait_out(self) -> None:
        """Nothing to wait for."""

    def now(self) -> Any:
        return None

    def compute_after(self, mark: Any) -> None:
        """Nothing to wait for."""

    def arrived(self, mark: Any) -> bool:
        return True

    def release(self, tensor: Any) -> None:
        """Nothing goes on."""


class CudaCopies:
    """On a GPU. Copies overlap only with host memory that is pinned (``pinned_block``)."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._in, self._out = torch.cuda.Stream(self._device), torch.cuda.Stream(self._device)

    def room(self, shape: Sequence[int], dtype: Any) -> Any:
        with torch.cuda.stream(self._in):
            return torch.empty(shape, dtype=dtype, device=self._device)

    def copy_in(self, target: Any, array: Array, after: Any) -> Any:
        with torch.cuda.stream(self._in):
            if after is not None:
                self._in.wait_event(after)
            target.copy_(torch.from_numpy(array), non_blocking=True)
            return self._in.record_event()

    def copy_out(self, tensor: Any) -> Any:
        if tensor.device.type == "cpu":
            return tensor.detach()
        found = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._out.wait_event(self.now())
        with torch.cuda.stream(self._out):
            found.copy_(tensor.detach(), non_blocking=True)
        tensor.record_stream(self._out)
        return found

    def copy_all_out(self, tensors: Sequence[Any]) -> list[Any]:
        found = list(tensors)
        there = [at for at, tensor in enumerate(found) if tensor.device.type != "cpu"]
        for chunk in _chunks([found[at].detach() for at in there]):
            parts = [found[there[at]].detach() for at in chunk]
            whole = self.copy_out(torch.cat([part.reshape(-1) for part in parts]) if len(parts) > 1 else parts[0])
            for at, part in zip(chunk, _divided(whole, parts), strict=True):
                found[there[at]] = part
        return [tensor.detach() for tensor in found]

    def copy_all_in(self, arrays: Sequence[Array]) -> list[Any]:
        found = [torch.from_numpy(array) for array in arrays]
        for chunk in _chunks(found):
            parts = [found[at] for at in chunk]
            whole = parts[0]
            if len(parts) > 1:
                sizes = sum(part.numel() for part in parts)
                whole = torch.empty(sizes, dtype=whole.dtype, pin_memory=True)
                torch.cat([part.reshape(-1) for part in parts], out=whole)
            for at, part in zip(chunk, _divided(whole.to(self._device, non_blocking=True), parts), strict=True):
                found[at] = part
        return found

    def wait_out(self) -> None:
        self._out.synchronize()

    def now(self) -> Any:
        return torch.cuda.current_stream(self._device).record_event()

    def compute_after(self, mark: Any) -> None:
        if mark is not None:
            torch.cuda.current_stream(self._device).wait_event(mark)

    def arrived(self, mark: Any) -> bool:
        return mark is None or bool(mark.query())

    def release(self, tensor: Any) -> None:
        for stream in (torch.cuda.current_stream(self._device), self._in):
            tensor.record_stream(stream)


def _chunks(tensors: Sequence[Any]) -> Iterator[list[int]]:
    """Positions of tensors that are copied as one: of one dtype, and not more than CHUNK bytes."""
    chunks: dict[Any, list[int]] = {}
    sizes = Counter[Any]()
    for at, tensor in enumerate(tensors):
        kind, size = tensor.dtype, tensor.numel() * tensor.element_size()
        if sizes[kind] + size > CHUNK and kind in chunks:
            yield chunks.pop(kind)
            sizes[kind] = 0
        chunks.setdefault(kind, []).append(at)
        sizes[kind] += size
    yield from chunks.values()


def _divided(whole: Any, like: Sequence[Any]) -> list[Any]:
    """The parts of ``whole`` with these sizes and shapes."""
    parts = whole.reshape(-1).split([each.numel() for each in like])
    return [part.reshape(each.shape) for part, each in zip(parts, like, strict=True)]


def copies_of(device: str) -> Copies:
    """Of a device: ``cpu``, ``cuda``, ``cuda:1``. Others are copied to as a CPU is: the call returns afterwards."""
    return CudaCopies(device) if torch.device(device).type == "cuda" else HostCopies(device)


def pinned_block(size: int) -> Array:
    """Like ``aligned_block``, in memory that a GPU reads while the host goes on."""
    room: Array = torch.empty(size + ALIGNMENT, dtype=torch.uint8, pin_memory=True).numpy()
    skip = -room.ctypes.data % ALIGNMENT
    return room[skip : skip + size]
