"""The exact placement: an integer program that minimizes alpha (7), as a reference for heuristics.

Replicas of a stage are interchangeable, so a placement is x_s^m, the replicas of stage s on server m. With one binary
z_{s,m,v} for each value v of x_s^m, every term of (4)-(6) is linear:

    minimize alpha
    sum_v z_{s,m,v} = 1,  x_s^m = sum_v v z_{s,m,v}
    sum_m x_s^m = k_s                                                                     (2)
    sum_s x_s^m = replicas that server m holds                                            (3)
    alpha >= sum_{v>0} (comp_s + allreduce_s(v) + far_s) z_{s,m,v} - saved_s^m
    saved_s^m = sum over neighbors r of s:  2 d x_r^m / k_r (1/share - 1/B_intra)        from (5)

far_s is the communication (5) of a stage whose neighbors are all on other servers. With x_s^m = 0 the last
constraint reads alpha >= -saved, which always holds as long as a link inside a server is no slower than a NIC share.

With levels above the server (docs/decisions/0038), (5) stays linear: far_s is over the highest level, and saved_s^m
sums the same difference for each block that contains m, with the replicas of r in the block. The largest of the
all-reduce times (6) needs one constraint on alpha per level. For those above the first, there are binaries for the
replicas of stage s in each block:

    alpha >= sum_{v>0} (comp_s + far_s) z_{s,m,v} - saved_s^m + sum_v allreduce_s^b(v) w_{s,b,v}

With x_s^m = 0 this holds, too: (6) is the same on all servers of a block, and one of them has a replica of s. The same
binaries bound alpha from below with each block as one server, which proves optima much sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import highspy

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile, Pipeline
from slurm_asrpt.core.placement.heavy_edge import gpu_ranks, replica_counts
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.timing.stage import StageCost, allreduce_bytes, stage_cost
from slurm_asrpt.core.topology import Blocks

# HiGHS stops when alpha is within this share of its bound, far below the resolution of any figure.
RELATIVE_GAP = 1e-6
# HiGHS rejects coefficients of 1e-9 and less; smaller times and savings by a neighbor are ignored.
NEGLIGIBLE_S = 1e-9


Value = tuple[Any, float]
"""A binary, and the seconds of the all-reduce if it is 1."""


class OracleError(RuntimeError):
    """The solver found no placement within its limits."""


@dataclass(frozen=True)
class Optimum:
    """ranks: the server of each GPU. alpha: seconds per iteration. bound: lower bound of alpha, seconds.

    proven: alpha is the minimum (up to RELATIVE_GAP); False if the solver reached the time limit first.
    """

    ranks: tuple[int, ...]
    alpha: float
    bound: float
    proven: bool


def optimal_placement(
    profile: JobProfile,
    counts: Sequence[int],
    server_gpus: Sequence[int],
    fabric: Fabric,
    time_limit_s: float = 60.0,
    at_most: float = float("inf"),
    blocks: Blocks = (),
) -> Optimum:
    """The placement with the least alpha on exactly these GPUs per server.

    at_most: an alpha known to be feasible (from a heuristic), which prunes the search and makes it much faster.
    blocks: the switch of each server at the levels above (``blocks_of``).
    Raises ValueError for profiles outside the model (synchronous, experts, a NIC share above B_intra), for a level
    that is faster than the one below, and OracleError if the solver finds no placement in time.
    """
    room = replica_counts(profile, counts)
    shares = [fabric.inter / gpus for gpus in server_gpus]
    if profile.pipeline is not Pipeline.ASYNCHRONOUS or any(stage.routing for stage in profile.stages):
        raise ValueError("the oracle minimizes (7): asynchronous pipelines without experts")
    if max(shares) > fabric.intra:
        raise ValueError("the oracle needs links inside a server that are no slower than a GPU's share of the NIC")
    program = _Program(profile, room, server_gpus, fabric, blocks, at_most)
    if any(above > below for below, above in pairwise(program.speeds)):
        raise ValueError("the oracle needs levels that are no faster than the level below")
    return program.solve(time_limit_s)


class _Program:
    """The integer program for one job on given servers. Sizes are in replicas."""

    def __init__(
        self,
        profile: JobProfile,
        room: Sequence[int],
        server_gpus: Sequence[int],
        fabric: Fabric,
        blocks: Blocks,
        at_most: float,
    ) -> None:
        self.profile, self.room, self.server_gpus, self.fabric, self.blocks = profile, room, server_gpus, fabric, blocks
        self.intra = fabric.intra
        self.shares = [fabric.inter / gpus for gpus in server_gpus]
        self.speeds = [fabric.through(level) for level in range(1, len(blocks) + 2)]
        self.at_most = at_most * (1 + RELATIVE_GAP)
        self.solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self.solver.setOptionValue("output_flag", False)
        self.solver.setOptionValue("threads", 1)
        self.solver.setOptionValue("mip_rel_gap", RELATIVE_GAP)
        self.alpha: Any = self.solver.addVariable(lb=0, ub=min(self.at_most, highspy.kHighsInf), obj=1)
        self.chosen: dict[tuple[int, int], list[Any]] = {}  # (stage, server) -> z for v = 0, 1, ...
        self._add_values()
        self._add_blocks()
        self._add_capacities()
        self._add_symmetry()

    def _add_values(self) -> None:
        for s, stage in enumerate(self.profile.stages):
            for m, room in enumerate(self.room):
                values = range(min(stage.replicas, room) + 1)
                self.chosen[s, m] = [
                    self.solver.addVariable(lb=0, ub=float(self._possible(s, m, v)), type=highspy.HighsVarType.kInteger)
                    for v in values
                ]
                self.solver.addConstr(self._sum(self.chosen[s, m]) == 1)
        for s, m in self.chosen:
            here = [(z, self._alone(s, m, v).allreduce) for v, z in enumerate(self.chosen[s, m]) if v]
            self.solver.addConstr(self.alpha >= self._stage_time(s, m, here))

    def _possible(self, s: int, m: int, v: int) -> bool:
        """Whether alpha <= at_most is possible with v replicas of stage s on server m (neighbors as near as can be)."""
        if v == 0:
            return True
        others = self.room[m] - v
        counts = [v if r == s else min(stage.replicas, others) for r, stage in enumerate(self.profile.stages)]
        return stage_cost(self.profile, s, counts, self.shares[m], self.intra).total <= self.at_most

    def _alone(self, s: int, m: int, v: int) -> StageCost:
        """The cost of v replicas of stage s on server m without any of its neighbors, those through level 1."""
        counts = [v if r == s else 0 for r in range(len(self.profile.stages))]
        return stage_cost(self.profile, s, counts, self.shares[m], self.intra)

    def _stage_time(self, s: int, m: int, here: Sequence[Value], more: Sequence[Value] = (), lowest: int = 0) -> Any:
        """The right-hand side of alpha >= beta_s^m.

        here: binaries, of which one is 1 if the stage is there, and the all-reduce of each; more: others with a time.
        lowest: the level of the block whose replicas count as on one server, for a lower bound.
        """
        this, cost = self.profile.stages[s], self._alone(s, m, 1)
        # seconds per byte of a replica: on the server, through level 1, level 2 ...
        shares = [self.intra, *[speed / self.server_gpus[m] for speed in self.speeds]]
        slowness = [1 / share / self.profile.tensor for share in shares]
        neighbors = [
            (r, 2 * size)
            for r, size in ((s - 1, this.bytes_in), (s + 1, this.bytes_out))
            if 0 <= r < len(self.profile.stages)
        ]
        apart = cost.total - cost.allreduce + sum(size for _, size in neighbors) * (slowness[-1] - slowness[1])
        terms = [(apart + seconds) * z for z, seconds in here]
        terms += [seconds * w for w, seconds in more if seconds > NEGLIGIBLE_S]
        for level in range(lowest, len(self.speeds)):
            gain = slowness[level + 1] - slowness[level if level > lowest else 0]
            for r, size in neighbors:
                saved = size / self.profile.stages[r].replicas * gain  # by each neighbor in the block
                if saved > NEGLIGIBLE_S:
                    near = (self.chosen[r, n] for n in self._block(m, level))
                    terms += [-saved * v * z for some in near for v, z in enumerate(some) if v]
        return self._sum(terms)

    def _block(self, m: int, level: int) -> tuple[int, ...]:
        """The servers under the same switch of a level; level 0: the server alone."""
        if level == 0:
            return (m,)
        switches = self.blocks[level - 1]
        return tuple([n for n in range(len(self.room)) if switches[n] == switches[m]])

    def _add_blocks(self) -> None:
        """The all-reduces (6) through levels above the first; and bounds, with each block as one server."""
        for level in range(1, len(self.speeds)):
            for some in sorted({self._block(m, level) for m in range(len(self.room))}):
                for s, stage in enumerate(self.profile.stages):
                    values = self._block_values(s, some, self.speeds[level])
                    smallest = min(some, key=lambda m: self.server_gpus[m])
                    self.solver.addConstr(self.alpha >= self._stage_time(s, smallest, values, (), level))
                    for m in some if stage.replicas > 1 else ():
                        here = [(z, 0.0) for z in self.chosen[s, m][1:]]
                        self.solver.addConstr(self.alpha >= self._stage_time(s, m, here, values))

    def _block_values(self, s: int, some: Sequence[int], speed: float) -> list[Value]:
        """Binaries for the replicas of stage s in a block, from one on, and the time of its all-reduce out of it.

        speed: bandwidth of a server to outside of the block. Servers of one size are alike.
        """
        stage, sizes = self.profile.stages[s], sorted({self.server_gpus[m] for m in some})
        kinds = [[m for m in some if self.server_gpus[m] == size] for size in sizes]
        ranges = (range(min(stage.replicas, sum(self.room[m] for m in kind)) + 1) for kind in kinds)
        chosen = list[tuple[tuple[int, ...], Any, float]]()
        for counts in product(*ranges):
            time = 0.0
            if 0 < sum(counts) < stage.replicas:
                out = self.profile.tensor * sum(x * speed / size for x, size in zip(counts, sizes, strict=True))
                time = self.profile.overlap.allreduce * allreduce_bytes(stage) / out
            possible = float(sum(counts) <= stage.replicas and stage.forward_s + time <= self.at_most)
            w = self.solver.addVariable(lb=0, ub=possible, type=highspy.HighsVarType.kInteger)
            chosen.append((counts, w, time))
        self.solver.addConstr(self._sum([w for _, w, _ in chosen]) == 1)
        for number, kind in enumerate(kinds):
            here = self._sum([counts[number] * w for counts, w, _ in chosen])
            self.solver.addConstr(here == self._sum([self._x(s, m) for m in kind]))
        return [(w, time) for counts, w, time in chosen if any(counts)]

    def _add_capacities(self) -> None:
        for s, stage in enumerate(self.profile.stages):
            self.solver.addConstr(self._sum([self._x(s, m) for m in range(len(self.room))]) == stage.replicas)
        for m, room in enumerate(self.room):
            self.solver.addConstr(self._sum([self._x(s, m) for s in range(len(self.profile.stages))]) == room)

    def _add_symmetry(self) -> None:
        """Break symmetry: order equivalent servers by the sum of their replicas' stage numbers."""
        last: dict[tuple[int, ...], int] = {}
        for m, kind in enumerate(zip(self.room, self.server_gpus, *self.blocks, strict=True)):
            if kind in last:
                before, here = (
                    self._sum([(s + 1) * self._x(s, n) for s in range(len(self.profile.stages))])
                    for n in (last[kind], m)
                )
                self.solver.addConstr(before <= here)
            last[kind] = m

    def _x(self, s: int, m: int) -> Any:
        return self._sum([v * z for v, z in enumerate(self.chosen[s, m])])

    def _sum(self, terms: Sequence[Any]) -> Any:
        return self.solver.qsum(terms)

    def solve(self, time_limit_s: float) -> Optimum:
        self.solver.setOptionValue("time_limit", time_limit_s)
        self.solver.run()
        info = self.solver.getInfo()
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            raise OracleError(f"no placement of {self.profile.name} found in {time_limit_s:g} s")
        ranks = self._ranks()
        return Optimum(
            ranks=ranks,
            alpha=iteration_time(self.profile, ranks, self.server_gpus, self.fabric, self.blocks),
            bound=info.mip_dual_bound,
            proven=self.solver.getModelStatus() == highspy.HighsModelStatus.kOptimal,
        )

    def _ranks(self) -> tuple[int, ...]:
        values = self.solver.getSolution().col_value
        replicas: list[int] = []
        for s in range(len(self.profile.stages)):
            for m in range(len(self.room)):
                replicas += [m] * sum(v * round(values[z.index]) for v, z in enumerate(self.chosen[s, m]))
        return gpu_ranks(self.profile, replicas)
