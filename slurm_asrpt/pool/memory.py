"""Whether a training fits into a slot: what it needs at least, and what a slot has. Refused before its first task.

Activations and data come in addition; what is refused here cannot run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MB = 1 << 20
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Of glibc's mallopt."""
STATUS = Path("/proc/self/status")
CGROUP = Path("/sys/fs/cgroup/memory.max")
MEMINFO = Path("/proc/meminfo")
COPIES = 3
"""Of a training's state, at the end of a step: the one before, the one after, and what is sent."""


@dataclass(frozen=True)
class Needs:
    """Bytes. parameters: with buffers. gradients: of those that are trained. optimizer: of its state.

    device_free: of the GPU; None for a model on the CPU.
    module: whether parameters and optimizer are in a module beside the copies, with gradients. there: what of that the
    process has already.
    """

    parameters: int
    gradients: int = 0
    optimizer: int = 0
    device_free: int | None = None
    module: bool = True
    there: int = 0

    @property
    def state(self) -> int:
        return self.parameters + self.optimizer

    @property
    def computing(self) -> int:
        """Where the model is: parameters, gradients and the optimizer's state."""
        return self.state + self.gradients if self.module else 0

    @property
    def host(self) -> int:
        """Of the slot's process, beyond what it has."""
        return COPIES * self.state + (self.computing if self.device_free is None else 0) - self.there


class DoesNotFitError(Exception):
    """A training needs more memory than a slot has: one line, with the sizes."""


Check = Callable[[Needs], None]
"""Raises DoesNotFitError."""


def check_fits(needs: Needs, used: int, limit: int) -> None:
    """Raises DoesNotFitError. used: bytes that the process has. limit: bytes of the slot."""
    sizes = f"{'parameters' if needs.module else 'state'} {size(needs.parameters)}"
    if needs.optimizer:
        sizes += f", optimizer {size(needs.optimizer)}"
    free = needs.device_free
    if free is not None and needs.computing > free:
        raise DoesNotFitError(
            f"needs {size(needs.computing)} of GPU memory ({sizes}, and gradients), and {size(free)} are free"
        )
    if used + needs.host > limit:
        raise DoesNotFitError(
            f"needs {size(used + needs.host)} of memory ({sizes}, with copies; {size(used)} without it), "
            f"and a slot has {size(limit)}"
        )


def size(number: int) -> str:
    """Bytes for users, in the units of Slurm's options: 1024 MB are 1 GB."""
    return f"{number / MB / 1024:.1f} GB" if number >= 1024 * MB else f"{number / MB:.1f} MB"


def used_bytes() -> int:
    """Memory of this process that cannot be dropped: without files that are mapped, as libraries are.

    What malloc keeps for later is given back first: it may be a third of it.
    """
    with suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError, ValueError):
        return _kilobytes(STATUS, "RssAnon:") << 10
    return 0


def keep_freed() -> None:
    """Let malloc give large blocks out again instead of mapping new ones, as the first use of a page is slow."""
    with suppress(AttributeError):  # only glibc has it
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)


def machine_bytes() -> int:
    """Memory of this machine, or of the container."""
    total = _kilobytes(MEMINFO, "MemTotal:") << 10
    with suppress(OSError, ValueError):  # no cgroups of version 2, or "max"
        return min(total, int(CGROUP.read_text()))
    return total


def _kilobytes(path: Path, key: str) -> int:
    """Raises ValueError for a missing key."""
    for line in path.read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    raise ValueError(f"{path} has no {key}")


def slurm_bytes(environment: Mapping[str, str], neighbors: int) -> int | None:
    """Memory that Slurm allocated to each of the job's tasks; None if it does not limit it.

    neighbors: tasks of the node, which share what is allocated by node.
    """
    by_cpu, by_gpu, by_node = (_number(environment.get(f"SLURM_MEM_PER_{unit}")) for unit in ("CPU", "GPU", "NODE"))
    if by_cpu:
        return by_cpu * MB * max(1, _number(environment.get("SLURM_CPUS_PER_TASK")))
    if by_gpu:
        return by_gpu * MB * max(1, _number(environment.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]))
    return by_node * MB // neighbors if by_node else None


def _number(text: str | None) -> int:
    """0 for what is not there, or of another form."""
    return int(text) if text and text.isdigit() else 0
