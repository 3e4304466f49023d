"""The rank map: which host each rank of a job should run on, as a host file for srun's arbitrary distribution.

Optional for the job: what cannot be written or removed is logged and left as it is. A full spool (users write there,
too) stops no start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurm_asrpt.daemon import placements
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.errors import one_line
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.spool import hosts_dir

LOG = logging.getLogger("asrptd")
ALLOCATION_WAIT_S = 2.0
"""So long asrptd waits for a start; host files of later ones are written when the job is read back."""
ALLOCATION_POLL_S = 0.2


class RankMaps:
    """Writes the host files of starts. Where Slurm splits the GPUs is known only after the start."""

    def __init__(self, spool: Path, cluster: ClusterState, client: SlurmClient, clock: Any) -> None:
        self._spool, self._cluster, self._client, self._clock = spool, cluster, client, clock
        self._waiting: dict[str, tuple[ManagedJob, float]] = {}  # by number; until when to ask for its allocation

    def prepare(self, jobs: Iterable[ManagedJob]) -> None:
        """Before these start: the host file where the pin says all, else a note that one will follow."""
        for job in jobs:
            if job.mapped and self._is_certain(job):
                self._write(job, job.pin.gpus if job.pin else {})
            elif job.mapped:
                announce(self._spool, job.record.number)

    def started(self, jobs: Iterable[ManagedJob]) -> None:
        """Their pins are written: from now on ask Slurm where they run."""
        until = self._clock.monotonic() + ALLOCATION_WAIT_S
        unknown = [job for job in jobs if job.mapped and not self._is_certain(job)]
        self._waiting |= {str(job.record.number): (job, until) for job in unknown}

    def _is_certain(self, job: ManagedJob) -> bool:
        """The pin takes whole servers: then it is what Slurm will allocate, and the job need not wait."""
        return self._cluster.takes_whole_servers(job.pin.gpus if job.pin is not None else {})

    def write(self, most_s: float) -> None:
        """Host files must be there before the first srun: ask for the real allocations at short intervals.

        most_s: the time for it; later starts are asked for next time. Raises SlurmError.
        """
        clock, self._waiting = self._clock, {n: each for n, each in self._waiting.items() if each[0].waits_for_map}
        latest = clock.monotonic() + most_s
        while self._waiting:
            for number, gpus in self._client.allocations(list(self._waiting)).items():
                self._write(self._waiting.pop(number)[0], gpus)
            now = clock.monotonic()
            self._waiting = {n: (job, until) for n, (job, until) in self._waiting.items() if now < until}
            if not self._waiting or now + ALLOCATION_POLL_S > latest:
                return
            clock.sleep(ALLOCATION_POLL_S)

    def _write(self, job: ManagedJob, gpus: Mapping[str, int]) -> None:
        if not placements.could_be(job, gpus):
            return  # read back once it runs
        placement = placements.placement_of(job, gpus, self._cluster)
        if placement is None:
            withdraw(self._spool, job.record.number)
        else:
            write_hosts(self._spool, job.record.number, placement.ranks)

    def remove(self, jobs: Iterable[ManagedJob]) -> None:
        """Another run will have other nodes."""
        remove(self._spool, [job.record.number for job in jobs])


def announce(spool: Path, number: int) -> None:
    """Tell the TaskProlog that a host file will follow, so that it waits a moment for it."""
    _replace(hosts_dir(spool) / f"{number}.wait", "")


def write_hosts(spool: Path, number: int, ranks: Sequence[str]) -> None:
    """The host file, one line a rank; then the announcement goes."""
    _replace(hosts_dir(spool) / str(number), "".join(f"{host}\n" for host in ranks))
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


def _replace(path: Path, text: str) -> None:
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
