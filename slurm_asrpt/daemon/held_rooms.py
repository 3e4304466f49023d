"""The CPUs and the memory that running jobs hold on each node."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from slurm_asrpt.core.cluster import host_of
from slurm_asrpt.core.cpu_jobs import Room
from slurm_asrpt.slurm.limits import parse_tres
from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.records import RUNNING_STATES, JobRecord


def running_rooms(record: JobRecord) -> dict[str, Room]:
    """What a running job holds on each node, in proportion to its GPUs there."""
    gpus = dict[str, int]()
    for name, count in record.gpus_by_node.items():
        gpus[host_of(name)] = gpus.get(host_of(name), 0) + count
    parts = gpus or dict.fromkeys(expand(record.nodes), 1)
    total, memory = sum(parts.values()) or 1, parse_tres(record.tres).get("mem", 0.0)
    return {name: Room(record.cpus * part / total, memory * part / total) for name, part in parts.items()}


def cpus_by_partition(records: Iterable[JobRecord]) -> dict[str, Counter[str]]:
    """The CPUs that the running jobs of each partition hold on each node."""
    found = defaultdict[str, Counter[str]](Counter)
    for job in records:
        for name, room in running_rooms(job).items() if job.state in RUNNING_STATES else ():
            found[job.partition][name] += math.ceil(room.cpus)
    return found
