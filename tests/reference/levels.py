"""(5) to (7) with levels of the fabric, written from docs/decisions/0038 and not from the code: one pair at a time."""

from collections.abc import Sequence

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.topology import Blocks


def level_between(one: int, other: int, blocks: Blocks) -> int:
    """0 on the same server, else the level of the lowest switch above both."""
    if one == other:
        return 0
    return next((level for level, names in enumerate(blocks, start=1) if names[one] == names[other]), len(blocks) + 1)


def alpha(
    profile: JobProfile, ranks: Sequence[int], server_gpus: Sequence[int], fabric: Fabric, blocks: Blocks
) -> float:
    """Seconds per iteration of an asynchronous pipeline."""
    servers, t = ranks[:: profile.tensor], profile.tensor
    where: list[list[int]] = [[] for _ in profile.stages]  # of each stage, the server of each replica
    for stage, server in zip(profile.stage_of_replica, servers, strict=True):
        where[stage].append(server)

    def share(server: int, level: int) -> float:
        """Bandwidth of a replica there to another at this level."""
        return t * fabric.intra if level == 0 else t * fabric.through(level) / server_gpus[server]

    def transfers(s: int, server: int) -> float:
        stage, found = profile.stages[s], 0.0
        for r, size in ((s - 1, stage.bytes_in), (s + 1, stage.bytes_out)):
            if 0 <= r < len(where):
                for other in where[r]:
                    found += 2 * size / len(where[r]) / share(server, level_between(server, other, blocks))
        return found + 2 * (t - 1) / t * stage.tensor_bytes / fabric.intra

    def routing(s: int, server: int) -> float:
        stage = profile.stages[s]
        found = [0.0]
        for i in (i for i, at in enumerate(where[s]) if at == server and stage.routing):
            pairs = (
                (stage.routing[i] + stage.routing[j]) / share(server, level_between(server, other, blocks))
                for j, other in enumerate(where[s])
                if j != i
            )
            found.append(4 * stage.routed_bytes * sum(pairs))
        return max(found)

    def allreduce(s: int, server: int) -> float:
        stage, k = profile.stages[s], len(where[s])
        volume = 2 * (k - 1) * stage.param_bytes / k
        widest = max(level_between(server, other, blocks) for other in where[s])
        if widest == 0:
            return volume / share(server, 0)
        ways = [
            sum(share(other, level) for other in where[s] if level_between(server, other, blocks) < level)
            for level in range(1, widest + 1)
        ]
        return volume / min(ways)

    return max(
        stage.forward_s
        + profile.overlap.backward * stage.backward_s
        + transfers(s, server)
        + routing(s, server)
        + profile.overlap.allreduce * allreduce(s, server)
        for s, stage in enumerate(profile.stages)
        for server in set(where[s])
    )


def heavy_edge_by_blocks(profile: JobProfile, counts: Sequence[int], blocks: Blocks) -> list[set[int]]:
    """The GPUs of the job under each switch of the highest level: Heavy-Edge on servers of the blocks' sizes."""
    sizes = [0] * (max(blocks[-1]) + 1)
    for block, count in zip(blocks[-1], counts, strict=True):
        sizes[block] += count
    found: list[set[int]] = [set() for _ in sizes]
    for gpu, block in enumerate(heavy_edge(profile, tuple(sizes))):
        found[block].add(gpu)
    return found
