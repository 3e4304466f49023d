"""heavy-edge+: Heavy-Edge and a few other initial placements, improved by Kernighan-Lin swaps that minimize alpha.

Heavy-Edge cuts the job graph by bytes, but alpha (7) is the time of the slowest stage on the slowest server: it also
depends on computation, and the server with the fewest replicas of a stage limits a split all-reduce (6). The search
therefore minimizes alpha over x_s^m, the replicas of each stage on each server. beta_s^m depends only on server m.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile, Pipeline
from slurm_asrpt.core.placement.heavy_edge import gpu_ranks, heavy_edge, replica_counts
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.timing.stage import allreduce_time

# Swaps without an improvement before a search ends: enough to merge a split stage one replica at a time.
PATIENCE = 4
# How many of the initial placements are improved, the best ones first.
SEARCHES = 2
# The sum of beta^POWER breaks ties between placements of equal alpha: it counts the second and third slowest stages.
POWER = 8

Row = tuple[int, ...]
"""x_s^m of one server, for every stage."""
Score = tuple[float, float]
"""alpha, and the tie-breaking sum over all stages and servers."""
Swap = tuple[int, int, int, int]
"""(server, stage there, other server, stage there): one replica of each moves to the other server."""


@lru_cache(maxsize=65536)
def heavy_edge_plus(
    profile: JobProfile, counts: tuple[int, ...], server_gpus: tuple[int, ...], fabric: Fabric
) -> tuple[int, ...]:
    """The server of each GPU of the job, as an index into ``counts``; alpha is never above that of heavy_edge.

    counts: GPUs allocated on each server. server_gpus: all GPUs of each server. Deterministic.
    Synchronous pipelines and experts get the best initial placement, without swaps.
    Raises ValueError for the same counts as heavy_edge.
    """
    plain = heavy_edge(profile, counts)
    if len(counts) == 1 or (len(profile.stages) == 1 and not profile.stages[0].routing):
        return plain  # all replicas are equivalent: there is only one placement
    room = replica_counts(profile, counts)
    starts = [_rows(profile, plain, len(room)), *_starts(profile, room)]
    if profile.pipeline is Pipeline.ASYNCHRONOUS and not any(stage.routing for stage in profile.stages):
        found = [_Search(profile, room, server_gpus, fabric).best(starts)]
    else:
        found = starts
    # compare by iteration_time, so that rounding in the search cannot make the result worse than Heavy-Edge
    candidates = [plain, *(_ranks(profile, rows) for rows in found)]
    return min(candidates, key=lambda ranks: iteration_time(profile, ranks, server_gpus, fabric))


def _rows(profile: JobProfile, ranks: Sequence[int], servers: int) -> list[Row]:
    counts = [[0] * len(profile.stages) for _ in range(servers)]
    for stage, server in zip(profile.stage_of_replica, ranks[:: profile.tensor], strict=True):
        counts[server][stage] += 1
    return [tuple(row) for row in counts]


def _ranks(profile: JobProfile, rows: Sequence[Row]) -> tuple[int, ...]:
    stages = range(len(profile.stages))
    return gpu_ranks(profile, [m for s in stages for m, row in enumerate(rows) for _ in range(row[s])])


def _starts(profile: JobProfile, room: Sequence[int]) -> Iterator[list[Row]]:
    """Initial placements: stages in pipeline order over several orders of the servers, and whole stages if they fit.

    A stage alone on a server uses the NIC for both neighbors, unless it is the first or the last. Small servers
    therefore go to the ends of the pipeline.
    """
    largest = sorted(range(len(room)), key=lambda m: -room[m])
    peak = [*largest[1::2][::-1], *largest[::2]]
    for servers in (largest, peak, peak[::-1]):
        yield _fill(profile, room, servers)
    yield _whole_stages(profile, room, largest)


def _fill(profile: JobProfile, room: Sequence[int], servers: Sequence[int]) -> list[Row]:
    rows = [[0] * len(profile.stages) for _ in room]
    order = iter(profile.stage_of_replica)
    for m in servers:
        for _ in range(room[m]):
            rows[m][next(order)] += 1
    return [tuple(row) for row in rows]


def _whole_stages(profile: JobProfile, room: Sequence[int], servers: Sequence[int]) -> list[Row]:
    """Stages by all-reduce bytes, the most first: each on the fullest server that can hold it, else on several."""
    rows = [[0] * len(profile.stages) for _ in room]
    left = list(room)
    for s in sorted(range(len(profile.stages)), key=lambda s: (-_allreduce_bytes(profile, s), s)):
        todo = profile.stages[s].replicas
        fitting = [m for m in servers if left[m] >= todo]
        order = [min(fitting, key=lambda m: left[m])] if fitting else sorted(servers, key=lambda m: -left[m])
        for m in order:
            here = min(todo, left[m])
            rows[m][s] += here
            left[m] -= here
            todo -= here
    return [tuple(row) for row in rows]


def _allreduce_bytes(profile: JobProfile, s: int) -> float:
    stage = profile.stages[s]
    return 2 * (stage.replicas - 1) / stage.replicas * stage.param_bytes


class _Search:
    """Swaps between servers for one job on given servers."""

    def __init__(self, profile: JobProfile, room: Sequence[int], server_gpus: Sequence[int], fabric: Fabric) -> None:
        self.profile = profile
        self.stages = range(len(profile.stages))
        kinds = {gpus: _Costs(profile, fabric.inter / gpus, fabric.intra, max(room)) for gpus in set(server_gpus)}
        self.costs = [kinds[gpus] for gpus in server_gpus]
        self.floor = min(cost.floor() for cost in kinds.values()) * (1 + 1e-9)

    def best(self, starts: Sequence[list[Row]]) -> list[Row]:
        ranked = sorted({tuple(rows): self.score(rows) for rows in starts}.items(), key=lambda item: item[1])
        found = [self.improve(list(rows), score) for rows, score in ranked[:SEARCHES]]
        return min(found)[1]

    def score(self, rows: Sequence[Row]) -> Score:
        betas = [cost.of(row) for cost, row in zip(self.costs, rows, strict=True)]
        return max(beta for beta, _, _ in betas), sum(tie for _, tie, _ in betas)

    def improve(self, rows: list[Row], score: Score) -> tuple[Score, list[Row]]:
        """Repeat the best swap at the bottleneck, even if it is worse, and return the best placement found."""
        best, best_rows = score, list(rows)
        settled: set[tuple[int, int]] = set()  # (server, stage) moved there by a swap: fixed until an improvement
        stale = 0
        while stale < PATIENCE and best[0] > self.floor:
            move = min(self.moves(rows, settled), default=None)
            if move is None:
                break
            score, (m, s, n, r) = move
            rows[m], rows[n] = _exchange(rows[m], s, r), _exchange(rows[n], r, s)
            settled |= {(m, r), (n, s)}
            stale += 1
            if score < best:
                best, best_rows, stale = score, list(rows), 0
                settled.clear()
        return best, best_rows

    def moves(self, rows: Sequence[Row], settled: set[tuple[int, int]]) -> Iterator[tuple[Score, Swap]]:
        """Swaps between the server of the slowest stage and another that involve this stage or a neighboring one."""
        now = [cost.of(row) for cost, row in zip(self.costs, rows, strict=True)]
        m = max(range(len(rows)), key=lambda m: now[m][0])
        near = (now[m][2] - 1, now[m][2], now[m][2] + 1)
        here = [s for s in self.stages if rows[m][s] and (m, s) not in settled]
        ties = sum(tie for _, tie, _ in now)
        seen: set[tuple[Row, _Costs]] = set()  # equivalent servers give equivalent swaps
        for n, row in enumerate(rows):
            if n == m or (row, self.costs[n]) in seen:
                continue
            seen.add((row, self.costs[n]))
            others = max((now[o][0] for o in range(len(rows)) if o not in (m, n)), default=0.0)
            rest = ties - now[m][1] - now[n][1]
            there = [r for r in self.stages if row[r] and (n, r) not in settled]
            for s, r in ((s, r) for s in here for r in there if r != s and (s in near or r in near)):
                one, two = self.costs[m].of(_exchange(rows[m], s, r)), self.costs[n].of(_exchange(row, r, s))
                yield (max(others, one[0], two[0]), rest + one[1] + two[1]), (m, s, n, r)


def _exchange(row: Row, out: int, into: int) -> Row:
    changed = list(row)
    changed[out] -= 1
    changed[into] += 1
    return tuple(changed)


class _Costs:
    """beta_s^m (7) for servers of one size, from tables. Rows are cached, because a search repeats them."""

    def __init__(self, profile: JobProfile, gpu_share: float, intra: float, largest: int) -> None:
        share, links = profile.tensor * gpu_share, profile.tensor * intra
        self.known: dict[Row, tuple[float, float, int]] = {}
        self.base: list[list[float]] = []  # per stage and x_s^m: the time without the savings by neighbors
        self.saved: list[tuple[float, float]] = []  # seconds saved per replica of the previous and of the next stage
        gain = 1 / share - 1 / links
        self.stages = stages = profile.stages
        for s, stage in enumerate(stages):
            far = 2 * (stage.bytes_in * (s > 0) + stage.bytes_out * (s + 1 < len(stages))) / share
            fixed = stage.forward_s + profile.overlap.backward * stage.backward_s + far
            fixed += 2 * (profile.tensor - 1) / profile.tensor * stage.tensor_bytes / intra
            most = min(stage.replicas, largest)
            times = [allreduce_time(stage, x, share, links) for x in range(1, most + 1)]
            self.base.append([0.0, *(fixed + profile.overlap.allreduce * time for time in times)])
            before = 2 * stage.bytes_in * gain / stages[s - 1].replicas if s else 0.0
            after = 2 * stage.bytes_out * gain / stages[s + 1].replicas if s + 1 < len(stages) else 0.0
            self.saved.append((before, after))
        self.scale = 1 / max(row[1] for row in self.base)

    def floor(self) -> float:
        """A lower bound of alpha: for each stage, all its neighbors on its server."""
        stages, times = self.stages, []
        for s, (base, (before, after)) in enumerate(zip(self.base, self.saved, strict=True)):
            near = (before * stages[s - 1].replicas if s else 0.0) + (
                after * stages[s + 1].replicas if s + 1 < len(stages) else 0.0
            )
            times.append(min(base[1:]) - near)
        return max(times)

    def of(self, row: Row) -> tuple[float, float, int]:
        """(the largest beta of the server, the tie-breaking sum, the stage of the largest beta)."""
        known = self.known.get(row)
        if known is None:
            known = self.known[row] = self._compute(row)
        return known

    def _compute(self, row: Row) -> tuple[float, float, int]:
        worst, tie, slowest = 0.0, 0.0, 0
        last = len(row) - 1
        for s, x in enumerate(row):
            if not x:
                continue
            before, after = self.saved[s]
            beta = self.base[s][x] - before * row[s - 1] - (after * row[s + 1] if s < last else 0.0)
            tie += (beta * self.scale) ** POWER
            if beta > worst:
                worst, slowest = beta, s
        return worst, tie, slowest
