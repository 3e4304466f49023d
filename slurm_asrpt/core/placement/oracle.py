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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import highspy

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile, Pipeline
from slurm_asrpt.core.placement.heavy_edge import gpu_ranks, replica_counts
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.timing.stage import stage_cost

# HiGHS stops when alpha is within this share of its bound, far below the resolution of any figure.
RELATIVE_GAP = 1e-6
# HiGHS rejects coefficients of 1e-9 and less; smaller savings by a neighbor are ignored.
NEGLIGIBLE_S = 1e-9


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
) -> Optimum:
    """The placement with the least alpha on exactly these GPUs per server.

    at_most: an alpha known to be feasible (from a heuristic), which prunes the search and makes it much faster.
    Raises ValueError for profiles outside the model (synchronous, experts, a NIC share above B_intra), and OracleError
    if the solver finds no placement in time.
    """
    room = replica_counts(profile, counts)
    shares = [fabric.inter / gpus for gpus in server_gpus]
    if profile.pipeline is not Pipeline.ASYNCHRONOUS or any(stage.routing for stage in profile.stages):
        raise ValueError("the oracle minimizes (7): asynchronous pipelines without experts")
    if max(shares) > fabric.intra:
        raise ValueError("the oracle needs links inside a server that are no slower than a GPU's share of the NIC")
    program = _Program(profile, room, shares, fabric.intra, at_most)
    return program.solve(time_limit_s, server_gpus, fabric)


class _Program:
    """The integer program for one job on given servers. Sizes are in replicas."""

    def __init__(
        self, profile: JobProfile, room: Sequence[int], shares: Sequence[float], intra: float, at_most: float
    ) -> None:
        self.profile, self.room, self.shares, self.intra = profile, room, shares, intra
        self.at_most = at_most * (1 + RELATIVE_GAP)
        self.solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self.solver.setOptionValue("output_flag", False)
        self.solver.setOptionValue("threads", 1)
        self.solver.setOptionValue("mip_rel_gap", RELATIVE_GAP)
        self.alpha: Any = self.solver.addVariable(lb=0, ub=min(self.at_most, highspy.kHighsInf), obj=1)
        self.chosen: dict[tuple[int, int], list[Any]] = {}  # (stage, server) -> z for v = 0, 1, ...
        self._add_values()
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
            self.solver.addConstr(self.alpha >= self._stage_time(s, m))

    def _possible(self, s: int, m: int, v: int) -> bool:
        """Whether alpha <= at_most is possible with v replicas of stage s on server m (neighbors as near as can be)."""
        if v == 0:
            return True
        others = self.room[m] - v
        counts = [v if r == s else min(stage.replicas, others) for r, stage in enumerate(self.profile.stages)]
        return stage_cost(self.profile, s, counts, self.shares[m], self.intra).total <= self.at_most

    def _stage_time(self, s: int, m: int) -> Any:
        """The right-hand side of alpha >= beta_s^m."""
        alone = [0] * len(self.profile.stages)
        terms = []
        for v, z in enumerate(self.chosen[s, m]):
            if v:
                alone[s] = v
                terms.append(stage_cost(self.profile, s, alone, self.shares[m], self.intra).total * z)
        this, t = self.profile.stages[s], self.profile.tensor
        gain = (1 / self.shares[m] - 1 / self.intra) / t  # seconds saved by each byte that stays on the server
        for r, size in ((s - 1, this.bytes_in), (s + 1, this.bytes_out)):
            if 0 <= r < len(self.profile.stages):
                saved = 2 * size / self.profile.stages[r].replicas * gain
                if saved > NEGLIGIBLE_S:
                    terms += [-saved * v * z for v, z in enumerate(self.chosen[r, m]) if v]
        return self._sum(terms)

    def _add_capacities(self) -> None:
        for s, stage in enumerate(self.profile.stages):
            self.solver.addConstr(self._sum([self._x(s, m) for m in range(len(self.room))]) == stage.replicas)
        for m, room in enumerate(self.room):
            self.solver.addConstr(self._sum([self._x(s, m) for s in range(len(self.profile.stages))]) == room)

    def _add_symmetry(self) -> None:
        """Break symmetry: order equivalent servers by the sum of their replicas' stage numbers."""
        last: dict[tuple[int, float], int] = {}
        for m, kind in enumerate(zip(self.room, self.shares, strict=True)):
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

    def solve(self, time_limit_s: float, server_gpus: Sequence[int], fabric: Fabric) -> Optimum:
        self.solver.setOptionValue("time_limit", time_limit_s)
        self.solver.run()
        info = self.solver.getInfo()
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            raise OracleError(f"no placement of {self.profile.name} found in {time_limit_s:g} s")
        ranks = self._ranks()
        return Optimum(
            ranks=ranks,
            alpha=iteration_time(self.profile, ranks, server_gpus, fabric),
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
