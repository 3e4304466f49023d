"""The device's clock and memory: CUDA events on a GPU, this process's clock on a CPU. Needs torch.

A GPU runs asynchronously to the host: a mark is a point in its queue of work, and can be read after ``wait``.
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
"""An upper bound of GPU clocks: an H100 has at most 1.98e9."""
AHEAD = 1.25
"""Factor on the host's launch time: how long a GPU is kept busy before work that is launched ahead."""

Mark = Any
"""A CUDA event, possibly still pending, or seconds."""
Interval = tuple[Mark, Mark]


def mark(device: str) -> Mark:
    """The current point in the device's queue."""
    if device != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def wait(device: str) -> None:
    """Wait until the device has finished all its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed_interval(work: Callable[[], Any], device: str, intervals: list[Interval]) -> Any:
    """The result of ``work``; appends its start and end to ``intervals``."""
    begin = mark(device)
    result = work()
    intervals.append((begin, mark(device)))
    return result


def total(intervals: Sequence[Interval]) -> float:
    """Seconds of all intervals, after ``wait``."""
    return float(sum(e - b if isinstance(b, float) else b.elapsed_time(e) / 1e3 for b, e in intervals))


class LaunchAhead:
    """Launches work before a GPU gets to it, so that kernels follow each other without pauses of the host.

    A call that does not count starts on an idle GPU and measures the host's launch time, ``host_s``. In a call that
    counts, the GPU first waits for about as long.
    """

    def __init__(self, device: str) -> None:
        self.device, self.host_s = device, 0.0

    def run(self, work: Callable[[], Any], counts: bool) -> None:
        """Run the work."""
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
    """The result of ``work``, and the seconds that it took from an idle device on."""
    intervals: list[Interval] = []
    wait(device)
    result = timed_interval(work, device, intervals)
    wait(device)
    return result, total(intervals)


def warm_clock(device: str) -> None:
    """Keep a GPU busy until it runs at its working clock: an idle GPU is several times slower."""
    if device != "cuda":
        return
    matrix = torch.ones(WAKE_WIDTH, WAKE_WIDTH, device=device)
    end = time.perf_counter() + WAKE_S
    while time.perf_counter() < end:
        torch.mm(matrix, matrix)
        wait(device)


def begin_peak(device: str) -> int:
    """Bytes in use now; starts the measurement of the peak."""
    if device != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_allocated())


def peak(device: str, before: int) -> int:
    """Peak bytes since ``begin_peak``, minus those in use then; 0 on a CPU, where they are not counted."""
    return int(torch.cuda.max_memory_allocated()) - before if device == "cuda" else 0


def device_name(device: str) -> str:
    """The GPU; or the processor with the number of threads that torch uses."""
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
