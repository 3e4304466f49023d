"""Follows Slurm's topology: which switches are above each node."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.log_once import LogOnce
from slurm_asrpt.errors import SlurmError, one_line
from slurm_asrpt.slurm.client import SlurmClient

REREAD_S = 300.0
"""Seconds between two reads. Slurm's topology changes with topology.conf, or when nodes are added."""


class TopologyWatch:
    """Sets ``ClusterState.topology``."""

    def __init__(self, client: SlurmClient, cluster: ClusterState, partitions: Sequence[str]) -> None:
        """partitions: the managed ones."""
        self._client, self._cluster, self._partitions = client, cluster, partitions
        self._read, self._log = -math.inf, LogOnce()

    def follow(self, now: float) -> None:
        """Read the topology if it is time; if Slurm does not answer, the previous one stays in force."""
        if self._read <= now < self._read + REREAD_S:
            return
        self._read = now
        try:
            self._cluster.topology = self._client.topology(self._partitions)
        except SlurmError as error:
            self._log.trouble(f"{one_line(error)}; the previous topology stays in force")
        else:
            self._log.over()
