"""The rank map: which host each rank of a job should run on, as a host file for srun's arbitrary distribution."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slurm_asrpt.spool import hosts_dir


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
    (hosts_dir(spool) / f"{number}.wait").unlink(missing_ok=True)


def remove(spool: Path, numbers: Iterable[int]) -> None:
    for number in numbers:
        withdraw(spool, number)
        (hosts_dir(spool) / str(number)).unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(0o644)
    temporary.replace(path)
