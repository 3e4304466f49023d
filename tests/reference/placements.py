"""All placements of a small job, to check searches and solvers by brute force."""

from collections.abc import Iterator, Sequence

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.topology import Blocks


def least_alpha(
    profile: JobProfile, counts: Sequence[int], server_gpus: Sequence[int], fabric: Fabric, blocks: Blocks = ()
) -> float:
    """The least alpha over all placements on exactly these GPUs per server, by trying them all."""
    room = [count // profile.tensor for count in counts]
    ranks = ([m for m in replicas for _ in range(profile.tensor)] for replicas in _placements(profile, room, 0))
    return min(iteration_time(profile, placement, server_gpus, fabric, blocks) for placement in ranks)


def _placements(profile: JobProfile, room: list[int], replica: int) -> Iterator[list[int]]:
    """Servers of the replicas from this one on; replicas of a stage are equal, so their servers are in order."""
    if replica == profile.replicas:
        yield []
        return
    stages = profile.stage_of_replica
    for server in range(len(room)):
        if room[server]:
            room[server] -= 1
            for rest in _placements(profile, room, replica + 1):
                if not rest or stages[replica + 1] != stages[replica] or server <= rest[0]:
                    yield [server, *rest]
            room[server] += 1
