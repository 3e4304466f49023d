"""The device's own clock and its memory: CUDA events on a GPU, this process's clock on a CPU. Needs torch.

A GPU works behind the host: a mark is a moment in its queue of work, and can be read once ``wait`` has returned.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

WAKE_S, WAKE_WIDTH = 0.5, 4096
CYCLES_PER_S = 2e9
"""At least those of a GPU: an H100 has 1.98e9 at most."""
AHEAD = 1.25
"""For how much of the time that the host took to launch some work a GPU is kept waiting before it."""

Mark = Any
"""A CUDA event, which may still be to come, or seconds."""
Interval = tuple[Mark, Mark]


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


def timed_interval(work: Callable[[], Any], device: str, intervals: list[Interval]) -> Any:
    """What ``work`` returns; from when to when it takes is added to ``intervals``."""
    begin = mark(device)
    result = work()
    intervals.append((begin, mark(device)))
    return result


def total(intervals: Sequence[Interval]) -> float:
    """Seconds of all of them, whose marks have come."""
    return float(sum(e - b if isinstance(b, float) else b.elapsed_time(e) / 1e3 for b, e in intervals))


class LaunchAhead:
    """Work that the host launches before a GPU comes to it: kernels then follow each other without the host's pauses.

    While it does not count it begins on an idle GPU, and ``host_s`` is what the host takes; when it counts, the GPU
    first waits for about so long.
    """

    def __init__(self, device: str) -> None:
        self.device, self.host_s = device, 0.0

    def run(self, work: Callable[[], Any], counts: bool) -> None:
        """Runs it."""
        if counts:
            if self.device == "cuda":
                torch.cuda._sleep(int(AHEAD * self.host_s * CYCLES_PER_S))
            work()
            return
        wait(self.device)
        begin = time.perf_counter()
        work()
        self.host_s = time.perf_counter() - begin


def timed(work: Callable[[], Any], device: str) -> tuple[Any, float]:
    """What ``work`` returns, and the seconds that it took from a standstill."""
    intervals: list[Interval] = []
    wait(device)
    result = timed_interval(work, device, intervals)
    wait(device)
    return result, total(intervals)


def warm_clock(device: str) -> None:
    """Until a GPU runs at the clock of one that works: an idle one is several times as slow."""
    if device != "cuda":
        return
    matrix = torch.ones(WAKE_WIDTH, WAKE_WIDTH, device=device)
    end = time.perf_counter() + WAKE_S
    while time.perf_counter() < end:
        torch.mm(matrix, matrix)
        wait(device)


def begin_peak(device: str) -> int:
    """Bytes in use now; from here on the most is kept."""
    if device != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_allocated())


def peak(device: str, before: int) -> int:
    """The most bytes since then beyond those in use then; 0 on a CPU, where nobody counts."""
    return int(torch.cuda.max_memory_allocated()) - before if device == "cuda" else 0


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


def software(device: str) -> dict[str, str]:
    """Versions by name."""
    found = {"torch": torch.__version__, "python": platform.python_version()}
    if device != "cuda":
        return found
    return found | {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
