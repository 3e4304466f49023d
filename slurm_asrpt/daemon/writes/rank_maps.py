"""Rank maps: the host of each rank of a job, as a host file for srun's arbitrary distribution.

A job runs without a rank map too. So if a file cannot be written or removed, that is only logged, and a full spool
(users write there too) does not prevent starts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_asrpt.core.cluster import host_of
from slurm_asrpt.daemon import placements
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.errors import one_line
from slurm_asrpt.files import replace_file
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.spool import hosts_dir

LOG = logging.getLogger("asrptd")
ALLOCATION_WAIT_S = 2.0
"""How long asrptd waits for a start. For later starts, it writes the host file when it reads the job."""
ALLOCATION_POLL_S = 0.2


class RankMaps:
    """Writes the host files of starting jobs. How Slurm spreads the GPUs is known only after the start."""

    def __init__(self, spool: Path, cluster: ClusterState, client: SlurmClient, clock: Any) -> None:
        self._spool, self._cluster, self._client, self._clock = spool, cluster, client, clock
        self._waiting: dict[str, tuple[ManagedJob, float]] = {}  # by number; until when to ask for its allocation

    def prepare(self, jobs: Iterable[ManagedJob]) -> None:
        """Before the start: write the host file if the pin determines it, else announce that one will follow."""
        for job in jobs:
            if job.mapped and self._is_certain(job):
                self._write(job, job.pin.gpus if job.pin else {})
            elif job.mapped:
                announce(self._spool, job.record.number)

    def started(self, jobs: Iterable[ManagedJob]) -> None:
        """The pins are written: query Slurm for their allocations from now on."""
        until = self._clock.monotonic() + ALLOCATION_WAIT_S
        unknown = [job for job in jobs if job.mapped and not self._is_certain(job)]
        self._waiting |= {str(job.record.number): (job, until) for job in unknown}

    def _is_certain(self, job: ManagedJob) -> bool:
        """Whether the pin takes whole servers. Then Slurm allocates exactly that, and the job need not wait."""
        return self._cluster.takes_whole_servers(job.pin.gpus if job.pin is not None else {})

    def write(self, most_s: float) -> None:
        """Query the real allocations at short intervals, because host files must exist before the first srun.

        most_s: time limit; later starts are queried the next time. Raises SlurmError.
        """
        clock, self._waiting = self._clock, {n: each for n, each in self._waiting.items() if each[0].waits_for_map}
        latest = clock.monotonic() + most_s
        while self._waiting:
            for number, gpus in self._client.allocations(list(self._waiting)).items():
                job, _ = self._waiting.pop(number)
                self._write(job, placements.by_server(job, gpus))
            now = clock.monotonic()
            self._waiting = {n: (job, until) for n, (job, until) in self._waiting.items() if now < until}
            if not self._waiting or now + ALLOCATION_POLL_S > latest:
                return
            clock.sleep(ALLOCATION_POLL_S)

    def _write(self, job: ManagedJob, gpus: Mapping[str, int]) -> None:
        if not placements.could_be(job, gpus):
            return  # handled when the running job is read
        placement = placements.placement_of(job, gpus, self._cluster)
        if placement is None:
            withdraw(self._spool, job.record.number)
        else:
            write_hosts(self._spool, job.record.number, placement.ranks)

    def remove(self, jobs: Iterable[ManagedJob]) -> None:
        """Remove the host files: another run will have other nodes."""
        remove(self._spool, [job.record.number for job in jobs])


def announce(spool: Path, number: int) -> None:
    """Announce a host file to the TaskProlog, which then waits for it."""
    _replace(hosts_dir(spool) / f"{number}.wait", "")


def write_hosts(spool: Path, number: int, ranks: Sequence[str]) -> None:
    """Write the host file, one line per rank, then remove the announcement. ranks: the server of each."""
    _replace(hosts_dir(spool) / str(number), "".join(f"{host_of(server)}\n" for server in ranks))
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
        LOG.warning("%s; the file is kept", one_line(error))


def _replace(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(path, text.encode(), durable=False)
    except OSError as error:
        LOG.warning("%s; the job's ranks keep Slurm's order", one_line(error))
