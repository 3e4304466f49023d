"""heavy-edge+: Heavy-Edge and a few other initial placements, improved by Kernighan-Lin swaps that minimize alpha.

Heavy-Edge cuts the job graph by bytes, but alpha (7) is the time of the slowest stage on the slowest server: it also
depends on computation, and the server with the fewest replicas of a stage limits a split all-reduce (6). The search
therefore minimizes alpha over x_s^m, the replicas of each stage on each server. beta_s^m depends only on server m and
on the replicas in its blocks, if there are levels above the servers (docs/decisions/0038).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from random import Random

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile, Pipeline
from slurm_asrpt.core.placement.heavy_edge import gpu_ranks, groups, heavy_edge, replica_counts
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.timing.stage import allreduce_bytes, allreduce_time
from slurm_asrpt.core.topology import Blocks

# Swaps without an improvement before a search ends: enough to merge a split stage one replica at a time.
PATIENCE = 4
# The same for a search over blocks: as many as a stage has replicas, but at most this number.
OUTLINE_PATIENCE = 8
# How many of the initial placements are improved, the best ones first.
SEARCHES = 2
# With levels above the servers: OUTLINES over blocks, fewer for jobs of more than OUTLINED / OUTLINES replicas, so that
# the time grows slowly. For each of them SHUFFLES initial placements in random order, and half a search over servers.
OUTLINES, OUTLINED, SHUFFLES = 8, 128, 4
# The sum of beta^POWER breaks ties between placements of equal alpha: it counts the second and third slowest stages.
POWER = 8

Row = tuple[int, ...]
"""x_s^m of one server, for every stage; or of a block of servers."""
Around = tuple[Row, ...]
"""The rows of a server's blocks, from level 1."""
Beta = tuple[float, float, int]
"""The largest beta of a server, the tie-breaking sum, the stage of the largest beta."""
Score = tuple[float, float]
"""alpha, and the tie-breaking sum over all stages and servers."""
Swap = tuple[int, int, int, int]
"""(server, stage there, other server, stage there): one replica of each moves to the other server."""


@lru_cache(maxsize=65536)
def heavy_edge_plus(
    profile: JobProfile, counts: tuple[int, ...], server_gpus: tuple[int, ...], fabric: Fabric, blocks: Blocks = ()
) -> tuple[int, ...]:
    """The server of each GPU of the job, as an index into ``counts``; alpha is never above that of heavy_edge.

    counts: GPUs allocated on each server. server_gpus: all GPUs of each server. blocks: the switch of each server at
    the levels above (``blocks_of``). Deterministic.
    Synchronous pipelines and experts get the best initial placement, without swaps.
    Raises ValueError for the same counts as heavy_edge.
    """
    plain = heavy_edge(profile, counts, blocks=blocks)
    if len(counts) == 1 or (len(profile.stages) == 1 and not profile.stages[0].routing):
        return plain  # all replicas are equivalent: there is only one placement
    room = replica_counts(profile, counts)
    starts = [_rows(profile, plain, len(room)), *_starts(profile, room, blocks)]
    if profile.pipeline is Pipeline.ASYNCHRONOUS and not any(stage.routing for stage in profile.stages):
        if blocks:
            searches = max(1, min(OUTLINES, OUTLINED // profile.replicas))
            outline = _outline(profile, starts, server_gpus, fabric, blocks, searches)
            starts += _divided(profile, room, blocks, outline)
            search: _Search = _BlockSearch(profile, room, server_gpus, fabric, blocks)
            (alpha, _), rows = search.best(starts, -(-searches // 2))
        else:
            search = _Search(profile, _costs(profile, room, server_gpus, fabric.inter, fabric.intra))
            (alpha, _), rows = search.best(starts, SEARCHES)
        if len(set(server_gpus)) == 1 and alpha < search.score(starts[0])[0] * (1 - 1e-9):
            return _ranks(profile, rows)
        found = [rows]
    else:
        found = starts
    # compare by iteration_time, so that rounding in the search cannot make the result worse than Heavy-Edge
    candidates = [plain, *(_ranks(profile, rows) for rows in found)]
    return min(candidates, key=lambda ranks: iteration_time(profile, ranks, server_gpus, fabric, blocks))


def _rows(profile: JobProfile, ranks: Sequence[int], servers: int) -> list[Row]:
    counts = [[0] * len(profile.stages) for _ in range(servers)]
    for stage, server in zip(profile.stage_of_replica, ranks[:: profile.tensor], strict=True):
        counts[server][stage] += 1
    return [tuple(row) for row in counts]


def _ranks(profile: JobProfile, rows: Sequence[Row]) -> tuple[int, ...]:
    stages = range(len(profile.stages))
    return gpu_ranks(profile, [m for s in stages for m, row in enumerate(rows) for _ in range(row[s])])


def _starts(profile: JobProfile, room: Sequence[int], blocks: Blocks) -> Iterator[list[Row]]:
    """Initial placements: stages in pipeline order over several orders of the servers, and whole stages if they fit.

    A stage alone on a server uses the NIC for both neighbors, unless it is the first or the last. Small servers
    therefore go to the ends of the pipeline. The servers of a block stay together.
    """
    largest, peak = (_ordered(range(len(room)), room, blocks, arrange) for arrange in (list, _peak))
    for servers in (largest, peak, peak[::-1]):
        rows = [[0] * len(profile.stages) for _ in room]
        _fill(rows, iter(profile.stage_of_replica), room, servers)
        yield [tuple(row) for row in rows]
    whole = _whole_stages(profile, [stage.replicas for stage in profile.stages], largest, room, blocks)
    yield [whole[m] for m in range(len(room))]


Arrange = Callable[[list[list[int]]], list[list[int]]]
"""The order of servers or blocks, given from large to small."""


def _ordered(servers: Sequence[int], room: Sequence[int], blocks: Blocks, arrange: Arrange) -> list[int]:
    """The servers in an order of the blocks of the highest level, then of the blocks in each, then of the servers."""
    parts = arrange(sorted(groups(servers, blocks), key=lambda some: -sum([room[m] for m in some])))
    if not blocks:
        return [part[0] for part in parts]
    return [m for part in parts for m in _ordered(part, room, blocks[:-1], arrange)]


def _peak(largest: list[list[int]]) -> list[list[int]]:
    """The large ones in the middle."""
    return [*largest[1::2][::-1], *largest[::2]]


def _fill(rows: list[list[int]], stages: Iterator[int], room: Sequence[int], servers: Sequence[int]) -> None:
    """Add replicas of these stages to the rows, in this order of the servers."""
    for m in servers:
        for _ in range(room[m]):
            rows[m][next(stages)] += 1


def _whole_stages(
    profile: JobProfile, todo: Sequence[int], servers: Sequence[int], room: Sequence[int], blocks: Blocks
) -> dict[int, Row]:
    """Whole stages on blocks of the highest level, then on the blocks in each, then on servers. todo: replicas."""
    if len(servers) == 1:
        return {servers[0]: tuple(todo)}
    parts = groups(servers, blocks)
    rows = _packed(todo, [sum([room[m] for m in part]) for part in parts], _heaviest(profile))
    if not blocks:
        return {part[0]: row for part, row in zip(parts, rows, strict=True)}
    found: dict[int, Row] = {}
    for part, row in zip(parts, rows, strict=True):
        found |= _whole_stages(profile, row, part, room, blocks[:-1])
    return found


@lru_cache(maxsize=4096)
def _heaviest(profile: JobProfile) -> tuple[int, ...]:
    """The stages by the bytes of their all-reduce, the most first."""
    return tuple(sorted(range(len(profile.stages)), key=lambda s: (-allreduce_bytes(profile.stages[s]), s)))


def _packed(todo: Sequence[int], room: Sequence[int], stages: Sequence[int]) -> list[Row]:
    """Each stage in turn on the fullest server that can hold it, else on several. todo: replicas of every stage."""
    rows = [[0] * len(todo) for _ in room]
    left = list(room)
    for s in stages:
        more = todo[s]
        if not more:
            continue
        fitting = [m for m in range(len(room)) if left[m] >= more]
        order = [min(fitting, key=lambda m: left[m])] if fitting else sorted(range(len(room)), key=lambda m: -left[m])
        for m in order:
            here = min(more, left[m])
            rows[m][s] += here
            left[m] -= here
            more -= here
    return [tuple(row) for row in rows]


def _outline(
    profile: JobProfile,
    starts: Sequence[list[Row]],
    server_gpus: Sequence[int],
    fabric: Fabric,
    blocks: Blocks,
    searches: int,
) -> list[Row]:
    """The rows of the blocks of the highest level, by searches with each block as one server.

    Which stages to split over blocks is a knapsack problem, and swaps of single replicas hardly change that choice. The
    search therefore also starts from stages in random order, which costs little, as there are few blocks.
    """
    parts = groups(range(len(server_gpus)), blocks)
    outlines = [[_sum([rows[m] for m in part]) for part in parts] for rows in starts]
    sizes = [min([server_gpus[m] for m in part]) for part in parts]
    room = [sum(row) for row in outlines[0]]
    replicas = [stage.replicas for stage in profile.stages]
    random = Random(0)  # noqa: S311  (not for secrets)
    for _ in range(SHUFFLES * searches):
        outlines.append(_packed(replicas, room, random.sample(range(len(replicas)), len(replicas))))
    costs = _costs(profile, room, sizes, fabric.through(len(blocks) + 1), fabric.intra)
    return _Search(profile, costs, min(OUTLINE_PATIENCE, max(replicas))).best(outlines, searches)[1]


def _divided(profile: JobProfile, room: Sequence[int], blocks: Blocks, outline: Sequence[Row]) -> Iterator[list[Row]]:
    """Placements with these rows of the highest blocks: whole stages if they fit, and stages in pipeline order."""
    parts = groups(range(len(room)), blocks)
    found: dict[int, Row] = {}
    for part, row in zip(parts, outline, strict=True):
        found |= _whole_stages(profile, row, part, room, blocks[:-1])
    yield [found[m] for m in range(len(room))]
    for arrange in (list, _peak):
        rows = [[0] * len(profile.stages) for _ in room]
        for part, row in zip(parts, outline, strict=True):
            order = (s for s, x in enumerate(row) for _ in range(x))
            _fill(rows, order, room, _ordered(part, room, blocks[:-1], arrange))
        yield [tuple(row) for row in rows]


def _sum(rows: Sequence[Row]) -> Row:
    return rows[0] if len(rows) == 1 else tuple(map(sum, zip(*rows, strict=True)))


def _costs(
    profile: JobProfile, room: Sequence[int], server_gpus: Sequence[int], inter: float, intra: float
) -> list[_Costs]:
    kinds = {gpus: _Costs(profile, inter / gpus, intra, max(room)) for gpus in set(server_gpus)}
    return [kinds[gpus] for gpus in server_gpus]


class _Search:
    """Swaps between servers for one job. costs: of each server, the same object for servers of the same size."""

    def __init__(self, profile: JobProfile, costs: Sequence[_Costs], patience: int = PATIENCE) -> None:
        self.profile, self.costs, self.patience = profile, costs, patience
        self.stages = range(len(profile.stages))
        self.floor = min(cost.floor() for cost in set(costs)) * (1 + 1e-9)

    def best(self, starts: Sequence[list[Row]], searches: int) -> tuple[Score, list[Row]]:
        ranked = sorted({tuple(rows): self.score(rows) for rows in starts}.items(), key=lambda item: item[1])
        return min([self.improve(list(rows), score) for rows, score in ranked[:searches]])

    def score(self, rows: Sequence[Row]) -> Score:
        betas = [cost.of(row) for cost, row in zip(self.costs, rows, strict=True)]
        return max(beta for beta, _, _ in betas), sum(tie for _, tie, _ in betas)

    def improve(self, rows: list[Row], score: Score) -> tuple[Score, list[Row]]:
        """Repeat the best swap at the bottleneck, even if it is worse, and return the best placement found."""
        best, best_rows = score, list(rows)
        settled: set[tuple[int, int]] = set()  # (server, stage) moved there by a swap: fixed until an improvement
        stale = 0
        while stale < self.patience and best[0] > self.floor:
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
        """Swaps between the server of the slowest stage and another that involve this stage or a neighboring one.

        Without most swaps that are worse than a previous one.
        """
        now = [cost.of(row) for cost, row in zip(self.costs, rows, strict=True)]
        m = max(range(len(rows)), key=lambda m: now[m][0])
        near = (now[m][2] - 1, now[m][2], now[m][2] + 1)
        here = [s for s in self.stages if rows[m][s] and (m, s) not in settled]
        ties, best = sum([tie for _, tie, _ in now]), (math.inf, 0.0)
        second, third = sorted([*(beta for beta, _, _ in now), 0.0, 0.0], reverse=True)[1:3]
        mine: dict[tuple[int, int], Beta] = {}  # of server m after it has exchanged one stage for another
        seen: set[tuple[Row, _Costs]] = set()  # equivalent servers give equivalent swaps
        for n, row in enumerate(rows):
            cost = self.costs[n]
            if n == m or (row, cost) in seen:
                continue
            seen.add((row, cost))
            others = second if now[n][0] < second else third
            rest = ties - now[m][1] - now[n][1]
            there = [r for r in self.stages if row[r] and (n, r) not in settled]
            for s, r in ((s, r) for s in here for r in there if r != s and (s in near or r in near)):
                one = mine.get((s, r))
                if one is None:
                    one = mine[s, r] = self.costs[m].of(_exchange(rows[m], s, r))
                if max(others, one[0]) > best[0]:
                    continue
                two = cost.of(_exchange(row, r, s))
                score = max(others, one[0], two[0]), rest + one[1] + two[1]
                if score <= best:
                    best = score
                    yield score, (m, s, n, r)


class _BlockSearch(_Search):
    """The same for servers under several switches: a swap between blocks changes the times of all servers in them."""

    def __init__(
        self, profile: JobProfile, room: Sequence[int], server_gpus: Sequence[int], fabric: Fabric, blocks: Blocks
    ) -> None:
        kinds = {gpus: _BlockCosts(profile, max(room), gpus, fabric, len(blocks)) for gpus in set(server_gpus)}
        super().__init__(profile, [kinds[gpus] for gpus in server_gpus])
        self.within = [kinds[gpus].within for gpus in server_gpus]
        self.paths = list(zip(*blocks, strict=True))  # the block of each server at each level
        self.members = [_members(switches) for switches in blocks]

    def score(self, rows: Sequence[Row]) -> Score:
        betas = self.betas(rows, self.around(rows))
        return max(beta for beta, _, _ in betas), sum(tie for _, tie, _ in betas)

    def betas(self, rows: Sequence[Row], around: Sequence[Around]) -> list[Beta]:
        return [within(row, near) for within, row, near in zip(self.within, rows, around, strict=True)]

    def around(self, rows: Sequence[Row]) -> list[Around]:
        """The rows of each server's blocks."""
        sums = [{switch: _sum([rows[m] for m in some]) for switch, some in members.items()} for members in self.members]
        return [tuple([level[switch] for level, switch in zip(sums, path, strict=True)]) for path in self.paths]

    def moves(self, rows: Sequence[Row], settled: set[tuple[int, int]]) -> Iterator[tuple[Score, Swap]]:
        """As in ``_Search``, without most swaps that are worse than a previous one."""
        around = self.around(rows)
        now = self.betas(rows, around)
        m = max(range(len(rows)), key=lambda m: now[m][0])
        near = (now[m][2] - 1, now[m][2], now[m][2] + 1)
        here = [s for s in self.stages if rows[m][s] and (m, s) not in settled]
        best: Score = (float("inf"), 0.0)
        seen: set[tuple[Row, Callable[..., Beta], tuple[int, ...]]] = set()  # equivalent servers give equivalent swaps
        for n, row in enumerate(rows):
            if n == m or (row, self.within[n], self.paths[n]) in seen:
                continue
            seen.add((row, self.within[n], self.paths[n]))
            changed = self.changed(m, n)
            kept = [now[o] for o in range(len(rows)) if o not in changed]
            rest = max([beta for beta, _, _ in kept], default=0.0), sum([tie for _, tie, _ in kept])
            there = [r for r in self.stages if row[r] and (n, r) not in settled]
            for s, r in ((s, r) for s in here for r in there if r != s and (s in near or r in near)):
                score = self.after((m, s, n, r), rows, around, changed, rest, best)
                if score < best:
                    best = score
                    yield score, (m, s, n, r)

    def changed(self, m: int, n: int) -> list[int]:
        """The servers whose times change by a swap, m and n first."""
        apart = sum([one != other for one, other in zip(self.paths[m], self.paths[n], strict=True)])
        if not apart:
            return [m, n]
        members = self.members[apart - 1]
        both = members[self.paths[m][apart - 1]] + members[self.paths[n][apart - 1]]
        return [m, n, *[o for o in both if o not in (m, n)]]

    def after(
        self,
        swap: Swap,
        rows: Sequence[Row],
        around: Sequence[Around],
        changed: Sequence[int],
        rest: Score,
        best: Score,
    ) -> Score:
        """The score after a swap, or a lower bound of it that is not below ``best``. rest: of servers not changed."""
        m, s, n, r = swap
        worst, ties = rest
        new: dict[tuple[int, ...], Around] = {}
        for o in changed:
            row = _exchange(rows[m], s, r) if o == m else _exchange(rows[n], r, s) if o == n else rows[o]
            path = self.paths[o]
            if path not in new:
                new[path] = self.around_after(swap, path, around[o])
            beta, tie, _ = self.within[o](row, new[path])
            worst, ties = max(worst, beta), ties + tie
            if (worst, ties) >= best:
                break
        return worst, ties

    def around_after(self, swap: Swap, path: tuple[int, ...], around: Around) -> Around:
        """The rows of a server's blocks after a swap. path: the server's blocks."""
        m, s, n, r = swap
        found = []
        for row, here, one, other in zip(around, path, self.paths[m], self.paths[n], strict=True):
            if one == other or here not in (one, other):
                found.append(row)
            else:
                found.append(_exchange(row, s, r) if here == one else _exchange(row, r, s))
        return tuple(found)


def _members(switches: Sequence[int]) -> dict[int, list[int]]:
    """The servers under each switch of a level."""
    found: dict[int, list[int]] = {}
    for server, switch in enumerate(switches):
        found.setdefault(switch, []).append(server)
    return found


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
        self.fixed: list[float] = []  # per stage: the same without the all-reduce
        gain = 1 / share - 1 / links
        self.stages = stages = profile.stages
        for s, stage in enumerate(stages):
            far = 2 * (stage.bytes_in * (s > 0) + stage.bytes_out * (s + 1 < len(stages))) / share
            fixed = stage.forward_s + profile.overlap.backward * stage.backward_s + far
            fixed += 2 * (profile.tensor - 1) / profile.tensor * stage.tensor_bytes / intra
            self.fixed.append(fixed)
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


class _BlockCosts(_Costs):
    """The same for servers in blocks, exact if all servers of a block are of one size."""

    def __init__(self, profile: JobProfile, largest: int, gpus: int, fabric: Fabric, levels: int) -> None:
        super().__init__(profile, fabric.inter / gpus, fabric.intra, largest)
        self.known_within: dict[tuple[Row, Around], Beta] = {}
        self.lost = [0.0] * len(self.stages)  # seconds of each stage with all neighbors through the highest level
        # per level, as in ``saved`` and ``base`` of the server: savings by neighbors in the block, and the time of a
        # stage with some of its replicas there
        self.levels: list[tuple[list[tuple[float, float]], list[list[float]]]] = []
        for level in range(1, levels + 1):
            share, out = [profile.tensor * fabric.through(n) / gpus for n in (level, level + 1)]
            self.levels.append((self._saved_in_block(1 / out - 1 / share), self._split(profile, out)))

    def _saved_in_block(self, gain: float) -> list[tuple[float, float]]:
        found = []
        for s, stage in enumerate(self.stages):
            before = 2 * stage.bytes_in * gain if s else 0.0
            after = 2 * stage.bytes_out * gain if s + 1 < len(self.stages) else 0.0
            self.lost[s] += before + after
            next_one = self.stages[(s + 1) % len(self.stages)]
            found.append((before / self.stages[s - 1].replicas, after / next_one.replicas))
        return found

    def _split(self, profile: JobProfile, out: float) -> list[list[float]]:
        found = []
        for stage, fixed in zip(self.stages, self.fixed, strict=True):
            volume = profile.overlap.allreduce * allreduce_bytes(stage)
            found.append([0.0, *(fixed + volume / (x * out) for x in range(1, stage.replicas)), 0.0])
        return found

    def within(self, row: Row, around: Around) -> Beta:
        """As ``of``. around: the rows of the server's blocks, this server's replicas included."""
        known = self.known_within.get((row, around))
        if known is None:
            known = self.known_within[row, around] = self._compute_within(row, around)
        return known

    def _compute_within(self, row: Row, around: Around) -> Beta:
        worst, tie, slowest = 0.0, 0.0, 0
        last = len(row) - 1
        for s, x in enumerate(row):
            if not x:
                continue
            before, after = self.saved[s]
            time, near = self.base[s][x], before * row[s - 1] + (after * row[s + 1] if s < last else 0.0)
            for wide, (saved, split) in zip(around, self.levels, strict=True):
                before, after = saved[s]
                near += before * wide[s - 1] + (after * wide[s + 1] if s < last else 0.0)
                time = max(time, split[s][wide[s]])
            beta = time + self.lost[s] - near
            tie += (beta * self.scale) ** POWER
            if beta > worst:
                worst, slowest = beta, s
        return worst, tie, slowest
