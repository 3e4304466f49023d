"""A fake GPU: torch's CUDA calls on CPU tensors, which fail where a real GPU would.

Tensors know their device, and an operation across devices fails, as on a real GPU. Events complete when the device is
synchronized, and cannot be read before; each is a millisecond after the previous one. Memory is that of the tensors
on the device. The device of tensors made in C++, such as gradients, is unknown.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

TICK_MS = 1.0
NAME = "Fake H100"
HOST, GPU = "host", "GPU"
PROPERTIES = {torch.Tensor.device: torch.device("cuda", 0), torch.Tensor.is_cuda: True, torch.Tensor.is_cpu: False}
_READS = {prop.__get__: value for prop, value in PROPERTIES.items()}  # type: ignore[attr-defined]


class FakeGpu(TorchFunctionMode):
    """A context in which there is a GPU. memory: its size in bytes."""

    def __init__(self, memory: int = 1 << 40) -> None:
        super().__init__()
        self.memory, self.used, self.most = memory, 0, 0
        self.now_ms = self.done_ms = 0.0
        self.waits = 0
        self.pauses: list[int] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _READS and _place(args[0]) == GPU:
            return _READS[function]
        if function is torch.device:
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        given = list(_tensors((args, kwargs)))
        if name == "__set__":  # parameter.data = tensor, possibly from another device
            result = function(*args, **kwargs)
            if len(given) == 2:
                self._put(given[0], _place(given[1]))
            return result
        if name == "_parse_to":
            return function(*args, **kwargs)
        args, kwargs, wanted = _on_cpu(args, kwargs)
        kwargs.pop("pin_memory", None)
        place = wanted or _common(name, given)
        if name == "copy_":
            place = _place(args[0])
        result = function(*args, **kwargs)
        if name == "to" and wanted and _place(args[0]) != wanted:
            result = result.clone()  # on a real GPU it is a new tensor
        for tensor in _tensors(result):
            shares = any(tensor.data_ptr() == other.data_ptr() for other in given)
            self._put(tensor, place, 0 if shares else tensor.nbytes)
        return result

    def _put(self, tensor: Any, place: str, size: int | None = None) -> None:
        tensor.place = place
        count = tensor.nbytes if size is None else size
        if place == GPU and count:
            self.used += count
            self.most = max(self.most, self.used)
            weakref.finalize(tensor, self._free, count)
            if self.used > self.memory:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.")

    def _free(self, count: int) -> None:
        self.used -= count

    def synchronize(self, device: Any = None) -> None:
        self.done_ms, self.waits = self.now_ms, self.waits + 1

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        self.most = self.used


def event_of(gpu: FakeGpu) -> type:
    """torch.cuda.Event of that GPU."""

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.timing, self.at_ms = enable_timing, -1.0

        def record(self, stream: Any = None) -> None:
            gpu.now_ms += TICK_MS
            self.at_ms = gpu.now_ms

        def query(self) -> bool:
            return self.at_ms <= gpu.done_ms

        def elapsed_time(self, other: Event) -> float:
            if not (self.timing and other.timing):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if min(self.at_ms, other.at_ms) < 0:
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            if max(self.at_ms, other.at_ms) > gpu.done_ms:
                raise RuntimeError("Both events must be completed before calculating elapsed time.")
            return other.at_ms - self.at_ms

    return Event


def stream_of(gpu: FakeGpu) -> type:
    """torch.cuda.Stream of that GPU: what it is told is done at once, but its events are only known when one waits."""

    class Stream:
        def __init__(self, device: Any = None) -> None:
            self.waited = 0

        def record_event(self) -> Any:
            made = torch.cuda.Event()
            made.record()
            return made

        def wait_event(self, event: Any) -> None:
            assert event.at_ms >= 0, "an event that was not recorded"
            self.waited += 1

        def synchronize(self) -> None:
            gpu.synchronize()

    return Stream


def _place(tensor: Any) -> str:
    place: str = getattr(tensor, "place", HOST if isinstance(tensor, torch.nn.Parameter) else "")
    return place


def _common(name: str, given: list[Any]) -> str:
    """The device of the result of an operation on these. Raises RuntimeError."""
    places = {_place(tensor) for tensor in given if tensor.ndim or len(given) == 1} - {""}
    if len(places) > 1 and name not in ("copy_", "_has_compatible_shallow_copy_type"):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found two, cuda:0 and cpu! ({name})")
    return places.pop() if places else "" if given else HOST


def _on_cpu(args: Any, kwargs: Any) -> tuple[Any, Any, str]:
    """The same call for the CPU, and the requested device."""
    found = ""

    def change(value: Any) -> Any:
        nonlocal found
        if isinstance(value, torch.device) or value in ("cuda", "cpu"):
            found = GPU if "cuda" in str(value) else HOST
            return "cpu"
        return value

    args = tuple(change(value) if isinstance(value, (torch.device, str)) else value for value in args)
    return args, {key: change(value) if key == "device" else value for key, value in kwargs.items()}, found


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from _tensors(entry)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """The single GPU."""
    made = FakeGpu()
    with monkeypatch.context() as patch:
        answers = {"is_available": True, "device_count": 1, "get_device_name": NAME, "current_device": 0}
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
        patch.setattr(torch.cuda, "Event", event_of(made))
        patch.setattr(torch.cuda, "Stream", stream_of(made))
        patch.setattr(torch.cuda, "stream", lambda stream: nullcontext(stream))
        computing = torch.cuda.Stream()
        patch.setattr(torch.cuda, "current_stream", lambda device=None: computing)
        patch.setattr(torch.cuda, "mem_get_info", lambda device=None: (made.memory - made.used, made.memory))
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
        patch.setattr(torch.cuda, "synchronize", made.synchronize)
        patch.setattr(torch.cuda, "reset_peak_memory_stats", made.reset_peak_memory_stats)
        patch.setattr(torch.cuda, "memory_allocated", lambda *_: made.used)
        patch.setattr(torch.cuda, "max_memory_allocated", lambda *_: made.most)
        patch.setattr(torch.cuda, "empty_cache", lambda: None)
        patch.setattr(torch.cuda, "_sleep", made.pauses.append)
        patch.setattr("slurm_asrpt.profile.device_clock.WAKE_S", 0.0)
        patch.setattr("slurm_asrpt.profile.device_clock.WAKE_WIDTH", 8)
        with made:
            yield made
