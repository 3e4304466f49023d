"""A batch out of the present: jobs that run on a cluster now, and jobs that wait."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from slurm_asrpt.core.batch.ledger import Ledger
from slurm_asrpt.core.batch.plan import BatchJob, Servers
from slurm_asrpt.core.batch.planners import Begun, Found, sjf_bco
from slurm_asrpt.core.cluster import Node

FOREIGN_S = 3600.0
"""How long GPUs are taken to stay in use of which nothing is known, seconds."""
STEPS = 63
"""Values of theta, of which the bisection tries about the logarithm."""


class Present:
    """What runs keeps its GPUs until its expected end; of those that wait the late ones choose first.

    jobs: those that run, and from number ``first`` on those that wait. kept: the GPUs chosen for the late ones.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        free: Mapping[str, int],
        running: Iterable[tuple[Mapping[str, int], float]],
        waiting: Sequence[BatchJob],
        late: Sequence[int],
    ) -> None:
        """free: GPUs by node. running: GPUs by node, and seconds to go. late: numbers of waiting jobs, from 0."""
        self.servers = Servers.like([node.gpus for node in nodes])
        self.jobs: list[BatchJob] = []
        self._gpus: dict[int, Sequence[int]] = {}  # of the jobs that have theirs
        self._ledger = Ledger(self.servers)
        self._take_up(nodes, free, running)
        self.first = len(self.jobs)
        self.jobs += waiting
        self.kept: set[int] = set()
        for number in late:
            self._choose_for(self.first + number)

    def _take_up(
        self, nodes: Sequence[Node], free: Mapping[str, int], running: Iterable[tuple[Mapping[str, int], float]]
    ) -> None:
        """Which GPU of a server a job has makes no difference: the first that are left."""
        at = {node.name: number for number, node in enumerate(nodes)}
        left = [range(self._ledger.first[s], self._ledger.first[s + 1]) for s in range(len(nodes))]

        def take(server: int, count: int) -> range:
            taken, left[server] = left[server][:count], left[server][count:]
            return taken

        for counts, seconds in running:
            self._fix([gpu for name, n in counts.items() if name in at for gpu in take(at[name], n)], seconds)
        for server, node in enumerate(nodes):
            self._fix(take(server, max(0, len(left[server]) - free[node.name])), FOREIGN_S)

    def _fix(self, gpus: Sequence[int], seconds: float) -> None:
        if gpus:
            self._gpus[len(self.jobs)] = gpus
            self.jobs.append(BatchJob(len(gpus), seconds, seconds, lambda counts, rings: 1.0))
            self._ledger.take(gpus, seconds)

    def _choose_for(self, number: int) -> None:
        gpus = self._ledger.fa_ffp(self.jobs[number], math.inf)
        if gpus is not None:
            self._gpus[number] = gpus
            self._ledger.take(gpus, self.jobs[number].estimate)
            self.kept.update(gpus)

    def best(self) -> Found:
        """The plan with the least makespan of those tried. Raises ValueError for a job that fits nowhere."""
        longest = max((job.estimate for job in self.jobs[: self.first]), default=0.0)  # of those that run
        most = longest + sum(job.estimate for job in self.jobs[self.first :])
        horizon = 2.2 * most + 1  # the first theta, about half of it, lets every job go everywhere
        kappas = sorted({1, *(job.gpus for job in self.jobs[self.first :])})
        step = horizon / STEPS
        found = sjf_bco(
            self.jobs,
            self.servers,
            horizon,
            kappas=kappas,
            begun=Begun(self._gpus, self._ledger),
            step=step,
            deadline=math.inf,
            floor=longest,
        )
        if found is None:
            raise ValueError("a job of the batch fits on no servers")
        return found
