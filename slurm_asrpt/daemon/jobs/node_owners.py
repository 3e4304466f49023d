"""Whose jobs run where: for jobs that share their nodes with those of the same user only.

That is ``--exclusive=user``, or a partition with ``ExclusiveUser=YES``. Slurm starts such a job on nodes without jobs
of others, and starts no job of others beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from slurm_asrpt.core.job import NOTHING
from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.records import RUNNING_STATES, JobRecord

WITH_OWN = "user"
"""``JobRecord.exclusive`` of such jobs."""


class NodeOwners:
    """The users of each node, as of the last cycle. Nothing is known unless there are such jobs."""

    def __init__(self) -> None:
        self._own: dict[int, frozenset[str]] = {}
        self._keepers: dict[str, int] = {}  # the user of nodes with such a job
        self._kept: dict[int, frozenset[str]] = {}

    def follow(self, records: Sequence[JobRecord]) -> None:
        """Set the current jobs."""
        self._own, self._keepers, self._kept = {}, {}, {}
        if not any(record.exclusive == WITH_OWN for record in records):
            return
        users = defaultdict[str, set[int]](set)
        for record in records:
            if record.state in RUNNING_STATES:
                for name in expand(record.nodes):
                    users[name].add(record.uid)
                    if record.exclusive == WITH_OWN:
                        self._keepers[name] = record.uid
        for uid in set[int]().union(*users.values()):
            self._own[uid] = frozenset([name for name, found in users.items() if found == {uid}])

    def own(self, uid: int) -> frozenset[str]:
        """The nodes on which only jobs of this user run."""
        return self._own.get(uid, NOTHING)

    def kept_from(self, uid: int) -> frozenset[str]:
        """The nodes that such jobs of others keep from this user."""
        if uid not in self._kept:
            self._kept[uid] = frozenset([name for name, keeper in self._keepers.items() if keeper != uid])
        return self._kept[uid]
