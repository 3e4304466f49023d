"""The rank map: which host each rank of a job should run on, as a host file for srun's arbitrary distribution.

A nicety: what cannot be written or removed is said and left as it is. A spool that is full (users write there, too)
stops no start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from slurm_asrpt.errors import one_line
from slurm_asrpt.spool import hosts_dir

LOG = logging.getLogger("asrptd")


def block_order(gpus: Mapping[str, int]) -> tuple[str, ...]:
    """The host of each rank in Slurm's own block distribution: node after node."""
    return tuple(name for name, count in gpus.items() for _ in range(count))


def announce(spool: Path, number: int) -> None:
    """Tell the TaskProlog that a host file will follow, so that it waits a moment for it."""
    _write(hosts_dir(spool) / f"{number}.wait", "")


def write_hosts(spool: Path, number: int, ranks: Sequence[str]) -> None:
    """The host file, one line a rank; then the announcement goes."""
    _write(hosts_dir(spool) / str(number), "".join(f"{host}\n" for host in ranks))
    withdraw(spool, number)


def withdraw(spool: Path, number: int) -> None:
    _remove(hosts_dir(spool) / f"{number}.wait")


def remove(spool: Path, numbers: Iterable[int]) -> None:
    for number in numbers:
        withdraw(spool, number)
        _remove(hosts_dir(spool) / str(number))


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        LOG.warning("%s; it stays", one_line(error))


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        LOG.warning("%s; the job's ranks stay in Slurm's order", one_line(error))
        with suppress(OSError):
            temporary.unlink()
