"""(5) to (7) with NVLink domains, written from docs/decisions/0046 and not from the code: one pair at a time."""

from collections.abc import Sequence

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.core.topology import Blocks
from tests.reference.levels import level_between


def gpus_given(taken: set[int], gpus: int, size: int) -> list[int]:
    """The indexes that Slurm gives to a job on a server with ``size`` GPUs, of which some are taken."""
    return [index for index in range(size) if index not in taken][:gpus]


def alpha(
    profile: JobProfile,
    servers_of_ranks: Sequence[int],
    indexes: Sequence[Sequence[int]],
    server_gpus: Sequence[int],
    fabric: Fabric,
    blocks: Blocks,
) -> float:
    """Seconds per iteration of an asynchronous pipeline. indexes: the GPUs of the job on each server."""
    free = [sorted(each) for each in indexes]
    gpus = [(server, free[server].pop(0) // fabric.domain) for server in servers_of_ranks]
    twin = _Twin(profile, gpus, server_gpus, fabric, blocks)
    return max(twin.seconds(stage, replica) for stage, members in enumerate(twin.members) for replica in members)


class _Twin:
    """gpus: the server and the domain of each GPU of the job."""

    def __init__(
        self,
        profile: JobProfile,
        gpus: Sequence[tuple[int, int]],
        server_gpus: Sequence[int],
        fabric: Fabric,
        blocks: Blocks,
    ) -> None:
        self.profile, self.t, self.server_gpus, self.fabric, self.blocks = (
            profile,
            profile.tensor,
            server_gpus,
            fabric,
            blocks,
        )
        self.replicas = [gpus[first : first + self.t] for first in range(0, len(gpus), self.t)]
        self.members: list[list[int]] = [[] for _ in profile.stages]
        for replica, stage in enumerate(profile.stage_of_replica):
            self.members[stage].append(replica)

    def server(self, replica: int) -> int:
        return self.replicas[replica][0][0]

    def level(self, one: int, other: int) -> int:
        return level_between(self.server(one), self.server(other), self.blocks)

    def domains(self, *some: int) -> int:
        """In how many domains the GPUs of these replicas are."""
        return len({gpu for replica in some for gpu in self.replicas[replica]})

    def inside(self, *some: int) -> float:
        """Bandwidth between GPUs of these replicas on one server."""
        return self.fabric.intra if self.domains(*some) == 1 else self.fabric.across

    def share(self, replica: int, level: int) -> float:
        return self.t * self.fabric.through(level) / self.server_gpus[self.server(replica)]

    def bandwidth(self, one: int, other: int) -> float:
        """Of replica ``one`` to another."""
        level = self.level(one, other)
        return self.share(one, level) if level else self.t * self.inside(one, other)

    def seconds(self, stage: int, replica: int) -> float:
        this, overlap = self.profile.stages[stage], self.profile.overlap
        computation = this.forward_s + overlap.backward * this.backward_s
        communication = self.transfers(stage, replica) + self.routing(stage, replica)
        return computation + communication + overlap.allreduce * self.allreduce(stage, replica)

    def transfers(self, stage: int, replica: int) -> float:
        this, found = self.profile.stages[stage], 0.0
        for r, size in ((stage - 1, this.bytes_in), (stage + 1, this.bytes_out)):
            if 0 <= r < len(self.members):
                others = self.members[r]
                found += sum(2 * size / len(others) / self.bandwidth(replica, other) for other in others)
        return found + 2 * (self.t - 1) / self.t * this.tensor_bytes / self.inside(replica)

    def routing(self, stage: int, replica: int) -> float:
        this, first = self.profile.stages[stage], self.members[stage][0]
        if not this.routing:
            return 0.0
        pairs = (
            (this.routing[replica - first] + this.routing[other - first]) / self.bandwidth(replica, other)
            for other in self.members[stage]
            if other != replica
        )
        return 4 * this.routed_bytes * sum(pairs)

    def allreduce(self, stage: int, replica: int) -> float:
        """Of the ring, as far as its part on this replica's server, and the ways out of there, decide."""
        members = self.members[stage]
        if len(members) == 1:
            return 0.0
        widest = max(self.level(replica, other) for other in members)
        ways = [
            sum(self.share(other, level) for other in members if self.level(replica, other) < level)
            for level in range(1, widest + 1)
        ]
        near = [other for other in members if self.level(replica, other) == 0]
        if widest == 0 or self.domains(*near) > 1:
            ways.append(self.t * self.inside(*near))
        return 2 * (len(members) - 1) * self.profile.stages[stage].param_bytes / len(members) / min(ways)
