"""U_s^g, the estimated seconds of work already assigned to each GPU, and SJF-BCO's rules for assigning more.

Ties are broken in favor of the first GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.policies.sjf_bco.evaluation import BatchJob, Servers

Floats = NDArray[np.float64]
_SLACK = 1 + 1e-9  # tolerance for sums of the same estimates in another order


class GpuLoads:
    """U_s^g, shape (GPUs,). The rules return a job's GPUs within the limit theta, or None if there are none."""

    def __init__(self, servers: Servers, loads: Floats | None = None) -> None:
        self.servers = servers
        self.loads = np.zeros(servers.gpus) if loads is None else loads
        self.of = np.array(servers.of, dtype=np.int64)
        self.sizes = np.array(servers.sizes, dtype=np.int64)
        self.first = np.concatenate([[0], np.cumsum(self.sizes)])  # first GPU of each server, and the number of GPUs

    def copy(self) -> GpuLoads:
        clone = object.__new__(GpuLoads)
        clone.__dict__.update(self.__dict__)
        clone.loads = self.loads.copy()
        return clone

    def take(self, gpus: Sequence[int], seconds: float) -> None:
        self.loads[gpus] += seconds

    def fa_ffp(self, job: BatchJob, theta: float) -> list[int] | None:
        """Algorithm 2: the least loaded GPUs that stay within theta."""
        if not job.plain:
            return self._in_blocks(job, range(len(self.sizes)), theta)
        return _within(_least(self.loads, job.gpus), self.loads, job, theta)

    def lbsgf(self, job: BatchJob, theta: float, factor: float = 1.0) -> list[int] | None:
        """Algorithm 3: the least loaded GPUs of the least busy servers with factor x G_j GPUs (lambda_j)."""
        busy = np.add.reduceat(self.loads, self.first[:-1]) / self.sizes
        order = np.argsort(busy, kind="stable")
        held = np.cumsum(self.sizes[order])
        if not job.plain:
            return self._in_blocks(job, order.tolist(), theta, factor)
        chosen = order[: int(np.searchsorted(held, min(factor * job.gpus, held[-1]))) + 1]
        among = np.concatenate([np.arange(self.first[s], self.first[s + 1]) for s in chosen.tolist()])
        if len(among) < job.gpus:
            return None
        return _within(among[_least(self.loads[among], job.gpus)], self.loads, job, theta)

    def _in_blocks(
        self, job: BatchJob, order: Iterable[int], theta: float, factor: float = math.inf
    ) -> list[int] | None:
        """The GPUs of a job whose GPUs must share servers in blocks, or that only some servers may run.

        Collects servers in this order until they have factor x G_j GPUs, and then takes their least loaded blocks.
        """
        blocks: list[tuple[float, int, list[int]]] = []
        held = 0
        for server in order:
            if held >= factor * job.gpus and held >= job.gpus:
                break
            if job.servers is None or server in job.servers:
                here = self._blocks(server, job)
                held += job.block * len(here)
                blocks += [(max(self.loads[gpu] for gpu in block), len(blocks), block) for block in here]
        blocks = sorted(blocks)[: job.gpus // job.block]
        if job.block * len(blocks) < job.gpus or blocks[-1][0] + job.estimate > theta * _SLACK:
            return None
        return sorted(gpu for _, _, block in blocks for gpu in block)

    def _blocks(self, server: int, job: BatchJob) -> list[list[int]]:
        gpus = sorted(range(self.first[server], self.first[server + 1]), key=lambda gpu: float(self.loads[gpu]))
        number = min(len(gpus) // job.block, 1 if job.one_block else len(gpus))
        return [gpus[i * job.block : (i + 1) * job.block] for i in range(number)]

    def open_to(self, job: BatchJob, theta: float) -> NDArray[np.bool_]:
        """Whether each GPU stays within theta with this job, shape (GPUs,)."""
        return np.asarray(self.loads + job.estimate <= theta * _SLACK)


def _least(loads: Floats, number: int) -> NDArray[np.int64]:
    """The positions of the smallest loads, ties by position, in linear time."""
    if number == 1:
        return np.array([loads.argmin()])
    if number >= len(loads):
        return np.arange(len(loads))
    last = np.partition(loads, number - 1)[number - 1]
    below = np.flatnonzero(loads < last)
    equal = np.flatnonzero(loads == last)[: number - len(below)]
    return np.concatenate([below, equal])


def _within(gpus: NDArray[np.int64], loads: Floats, job: BatchJob, theta: float) -> list[int] | None:
    """These least loaded GPUs if there are enough and all stay within theta; otherwise no other GPUs would."""
    if len(gpus) < job.gpus or float(loads[gpus].max()) + job.estimate > theta * _SLACK:
        return None
    return [int(gpu) for gpu in gpus]
