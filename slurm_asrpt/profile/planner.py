"""Find the best ways to share GPUs: dynamic programs over a model's blocks, as in PipeDream, timed by core/timing.

Asynchronous: each stage has its own number of replicas; minimize the slowest stage (Narayanan et al., PipeDream, SOSP
2019, section 3.1), within memory. With T[n, i, m] for the blocks from i on in n stages of m replicas,

    T[n, i, m] = min over end j and replicas k of max(cost(i, j, k), T[n-1, j, m-k])

Synchronous: all stages have the same number of replicas, as in Megatron-LM and DeepSpeed, and q micro-batches. Minimize
the slowest stage, which dominates with many micro-batches, or the sum of the stages, which dominates with one. Both
programs run for each number of tensor slices and of stages. The best results are placed by Heavy-Edge on the fewest
servers and ranked by the iteration time of core/timing, as asrptd computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.job import JobProfile, Pipeline
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time, stage_costs
from slurm_asrpt.profile.blocks import UncutFile
from slurm_asrpt.profile.cut import Cut, divisors, job_profile, memory_bytes, micro_batches
from slurm_asrpt.profile.plan_costs import Array, Costs, Links, Machines

SINGLE = np.float32
Singles = NDArray[np.float32]
"""Half the bytes take half the time; core/timing computes the final figures."""

SEARCH_FACTOR = 1.5
"""Plans slower than the best one with equal stages by more than this factor are not searched for."""

MAX_EVALUATED = 40
"""Number of the programs' plans that are placed and timed, most promising first."""

MARGIN = 1e-4
"""More than the error of single precision."""


@dataclass(frozen=True)
class Plan:
    """A way to share the GPUs. Seconds per iteration; shares of the GPUs' time; bytes on a GPU of each stage.

    compute, communication, bubble: shares that sum to 1; a bubble is time in which a GPU waits for others.
    """

    cut: Cut
    profile: JobProfile
    iteration_s: float
    bottleneck: int
    compute: float
    communication: float
    bubble: float
    memory: tuple[float, ...]


@dataclass(frozen=True)
class Draft:
    """A result of a dynamic program: its estimated seconds per iteration; the cut is computed only for drafts to
    evaluate."""

    seconds: float
    gpus: int
    stages: int
    tensor: int
    cut: Callable[[], Cut]


def plans(document: UncutFile, machines: Machines, pipeline: Pipeline, most: int = 5) -> list[Plan]:
    """The best plans, fastest first; none if the model does not fit."""
    sliced = any(block.tensor_bytes for block in document.blocks)
    slicings = [n for n in divisors(machines.per_node) if n == 1 or (sliced and n <= machines.gpus)]
    program = synchronous_drafts if pipeline is Pipeline.SYNCHRONOUS else asynchronous_drafts
    found = program([Costs(document.blocks, tensor, machines) for tensor in slicings], document.head.batch)
    drafts = sorted(found, key=lambda draft: (draft.seconds, draft.gpus, draft.stages, draft.tensor))
    cuts = islice(_distinct(draft.cut() for draft in drafts), MAX_EVALUATED)
    judged = [evaluate_cut(document, cut, machines) for cut in cuts]
    return sorted(judged, key=lambda plan: (plan.iteration_s, plan.cut.gpus))[:most]


def _distinct(cuts: Iterable[Cut]) -> Iterator[Cut]:
    """Each cut once, in order."""
    known = set[Cut]()
    for cut in cuts:
        if cut not in known:
            known.add(cut)
            yield cut


def evaluate_cut(document: UncutFile, cut: Cut, machines: Machines) -> Plan:
    """The plan as asrptd would run it: Heavy-Edge on the fewest servers, under one switch."""
    profile = job_profile(document, cut, f"{document.head.name[:48]}-{cut.suffix}"[:64])
    counts = machines.filled(cut.gpus)
    ranks, servers = heavy_edge(profile, counts), (machines.per_node,) * len(counts)
    alpha = iteration_time(profile, ranks, servers, machines.fabric)
    costs = stage_costs(profile, ranks, servers, machines.fabric)
    weights = [stage.replicas / profile.replicas for stage in profile.stages]
    compute = sum(w * (c.forward + c.backward) for w, c in zip(weights, costs, strict=True)) / alpha
    busy = sum(w * c.total for w, c in zip(weights, costs, strict=True)) / alpha
    slowest = max(range(len(costs)), key=lambda s: costs[s].total)
    memory = tuple(memory_bytes(document.blocks, cut))
    return Plan(cut, profile, alpha, slowest, compute, busy - compute, max(0.0, 1 - busy), memory)


def _widths(batch: int, most: int) -> list[int]:
    """Replica counts that divide the mini-batch evenly."""
    return [k for k in divisors(batch) if k <= most]


def synchronous_drafts(slicings: Sequence[Costs], batch: int) -> Iterator[Draft]:
    """The best cut for each number of replicas and stages, with the fewest micro-batches that fit."""
    for costs, replicas in ((some, k) for some in slicings for k in _widths(batch, some.slots)):
        share, deepest = batch // replicas, min(costs.slots // replicas, len(costs.blocks))
        fewest = {n: micro_batches(share, n) for n in range(1, deepest + 1)}
        for pieces in divisors(share):
            wanted = {n for n, least in fewest.items() if pieces >= least}
            for draft in _even_cuts(costs, replicas, pieces, wanted):
                fewest.pop(draft.stages, None)
                yield draft


def _even_cuts(costs: Costs, replicas: int, pieces: int, depths: set[int]) -> Iterator[Draft]:
    """Two cuts into each of these numbers of stages: one minimizes the slowest stage, one the sum of all stages.

    An iteration takes about (sum + (q-1) slowest) / q. Yields nothing if memory does not suffice.
    """
    arrays: list[Array] = []
    for n in range(1, max(depths, default=0) + 1):
        stage = costs.stage(replicas, costs.links((n - 1) * replicas, replicas), pieces)
        arrays.append(np.where(costs.fits(replicas, 1, min(pieces, n) / pieces), stage, np.inf))
    for join in (np.maximum, np.add):
        rows = [_at_the_end(costs)]
        for n, array in enumerate(arrays, 1):
            rows.append(_one_more(array, rows[-1], join))
            if n in depths and np.isfinite(rows[n][0]):
                ends, times = _walk(arrays[:n], rows, join)
                cut = Cut(ends, (replicas,) * n, costs.tensor, Pipeline.SYNCHRONOUS, pieces)
                seconds = (sum(times) + (pieces - 1) * max(times)) / pieces
                yield Draft(seconds, cut.gpus, n, cut.tensor, partial(_found, cut))


def _found(cut: Cut) -> Cut:
    return cut


def _walk(arrays: list[Array], rows: list[Array], join: np.ufunc) -> tuple[tuple[int, ...], list[float]]:
    """Ends and costs of the stages behind the first entry of the last row."""
    ends, times, start = [], [], 0
    for left in range(len(arrays), 0, -1):
        end = int(join(arrays[left - 1][start], rows[left - 1]).argmin())
        times.append(float(arrays[left - 1][start, end]))
        ends.append(end)
        start = end
    return tuple(ends), times


def _one_more(stages: Array, behind: Array, join: np.ufunc) -> Array:
    """For each start, the best result with one of these stages in front; infinite without a block."""
    row = np.full_like(behind, np.inf)
    join(stages, behind).min(axis=1, out=row[:-1])
    return row


def _at_the_end(costs: Costs) -> Array:
    """Without stages: nothing to do at the end of the model, impossible before."""
    row = np.full(len(costs.blocks) + 1, np.inf)
    row[-1] = 0.0
    return row


def asynchronous_drafts(slicings: Sequence[Costs], batch: int) -> Iterator[Draft]:
    """The best cuts, out of those for each number of slices, stages and replicas."""
    bar = _Cutoff()
    evens = {costs: _even_bottlenecks(costs, _widths(batch, costs.slots)) for costs in slicings}
    for costs in slicings:
        for (n, replicas), value in evens[costs].items():
            bar.add(costs, n, n * replicas, value)
    for costs in reversed(slicings):  # fewer slots are searched faster, and their results prune the others
        limit = SEARCH_FACTOR * min(evens[costs].values(), default=np.inf)
        program = _PipeDream(costs, _widths(batch, costs.slots), min(limit, bar.height))
        for n in range(1, min(costs.slots, len(costs.blocks)) + 1):
            for slots, value in program.deepen(min(limit, bar.height)):
                bar.add(costs, n, slots, value)
                yield Draft(value, slots * costs.tensor, n, costs.tensor, partial(program.cut, n, slots))


class _Cutoff:
    """How slow a plan may be to rank among the MAX_EVALUATED best known ones, which differ in their numbers."""

    def __init__(self) -> None:
        self.best = dict[tuple[Costs, int, int], float]()

    @property
    def height(self) -> float:
        return max(self.best.values()) * (1 + MARGIN) if len(self.best) == MAX_EVALUATED else np.inf

    def add(self, costs: Costs, stages: int, slots: int, seconds: float) -> None:
        """Record such a plan."""
        key = costs, stages, slots
        self.best[key] = min(seconds, self.best.get(key, np.inf))
        if len(self.best) > MAX_EVALUATED:
            del self.best[max(self.best, key=lambda plan: self.best[plan])]


def _even_bottlenecks(costs: Costs, widths: Sequence[int]) -> dict[tuple[int, int], float]:
    """The slowest stage of the best cut, for each number of stages and of replicas per stage that fits."""
    found = {}
    for replicas in widths:
        row = _at_the_end(costs)
        for n in range(1, min(costs.slots // replicas, len(costs.blocks)) + 1):
            stage = costs.stage(replicas, costs.links((n - 1) * replicas, replicas))
            array = np.where(costs.fits(replicas, min(n, 2), float(n)), stage, np.inf)
            row = _one_more(array, row, np.maximum)
            if row[0] < np.inf:
                found[n, replicas] = float(row[0])
    return found


@dataclass(frozen=True, eq=False)
class _Stages:
    """Seconds of all stages with a number of replicas at one place; infinite beyond the limit.

    first: for each end, the first start of a stage that ends there or later.
    """

    costs: Singles
    first: list[int]


def _firsts(good: NDArray[np.bool_]) -> list[int]:
    """For each end, the first start of a valid stage that ends there or later."""
    first = np.where(good.any(axis=0), good.argmax(axis=0), len(good))
    found: list[int] = np.minimum.accumulate(first[::-1])[::-1].tolist()
    return found


class _PipeDream:
    """T[n][m, i] above, stage by stage from the end. Finite only if exactly m replicas are used and a plan within
    the limit leads there: most entries are infinite and are skipped."""

    def __init__(self, costs: Costs, widths: Sequence[int], limit: float) -> None:
        self.costs, self.widths = costs, widths
        first = np.full((costs.slots + 1, len(costs.blocks) + 1), np.inf, SINGLE)
        first[0] = _at_the_end(costs)
        self.tables = [first]
        self.stages = {replicas: self._cheap(replicas, limit) for replicas in widths}

    def _last_starts(self, limit: float) -> list[int]:
        """By the number of replicas of a stage and those after it, the last block that it may begin with: with
        more blocks before it, the remaining replicas could not meet the limit."""
        work = self.costs.compute[0, 1:] + self.costs.slices[0, 1:]
        needed = np.append(0.0, work) / limit * (1 - MARGIN)
        left = np.arange(self.costs.slots, -1, -1)
        found: list[int] = (np.searchsorted(needed, left, side="right") - 1).tolist()
        return found

    def _cheap(self, replicas: int, limit: float) -> list[_Stages]:
        """The stages within the limit, by the first of their replicas' slots; few of them differ."""
        known, found = dict[Links, _Stages](), list[_Stages]()
        for start in range(self.costs.slots - replicas + 1):
            links = self.costs.links(start, replicas)
            if links not in known:
                costs = self.costs.stage(replicas, links).astype(SINGLE)
                good = costs <= limit
                known[links] = _Stages(np.where(good, costs, SINGLE(np.inf)), _firsts(good))
            found.append(known[links])
        return found

    def deepen(self, limit: float) -> Iterator[tuple[int, float]]:
        """Add one stage; replicas and slowest stage of the best plans within the limit."""
        n, before = len(self.tables), self.tables[-1]
        table, ends, lasts = np.full_like(before, np.inf), _windows(before), self._last_starts(limit)
        for replicas in self.widths:
            fits = self.costs.fits(replicas, min(n, 2), float(n))
            firsts, fitting = _firsts(fits), dict[_Stages, Singles]()
            for rest, low, high in ends:
                slots = rest + replicas
                if slots > self.costs.slots:
                    break
                stages = self.stages[replicas][rest]
                first, last = max(stages.first[low], firsts[low]), min(high - 1, lasts[slots] + 1)
                if first < last:
                    if stages not in fitting:
                        fitting[stages] = np.where(fits, stages.costs, SINGLE(np.inf))
                    best = table[slots, first:last]
                    pairs = np.maximum(fitting[stages][first:last, low:high], before[rest, low:high])
                    np.minimum(best, pairs.min(axis=1), out=best)
        table[table > limit] = np.inf
        self.tables.append(table)
        return ((slots, value) for slots, value in enumerate(table[:, 0].tolist()) if value < np.inf)

    def cut(self, n: int, slots: int) -> Cut:
        """The cut behind tables[n][slots, 0]."""
        ends, widths, start = [], [], 0
        for left in range(n, 0, -1):
            start, replicas = self._choice(left, slots, start)
            slots -= replicas
            ends.append(start)
            widths.append(replicas)
        return Cut(tuple(ends), tuple(widths), self.costs.tensor, Pipeline.ASYNCHRONOUS)

    def _choice(self, n: int, slots: int, start: int) -> tuple[int, int]:
        """End and replicas of the stage that begins at ``start``."""
        best = (np.inf, 0, 0)
        for replicas in (k for k in self.widths if k <= slots):
            rest = slots - replicas
            costs = np.maximum(self.stages[replicas][rest].costs[start], self.tables[n - 1][rest])
            if costs.min() <= best[0]:
                fits = self.costs.fits(replicas, min(n, 2), float(n), start)
                costs = np.where(fits, costs, SINGLE(np.inf))
                best = min(best, (float(costs.min()), int(costs.argmin()), replicas))
        return best[1:]


def _windows(table: Singles) -> list[tuple[int, int, int]]:
    """The rows with finite entries, and the range of those."""
    finite = table < np.inf
    rows = np.flatnonzero(finite.any(axis=1))
    low, high = finite[rows].argmax(axis=1), table.shape[1] - finite[rows, ::-1].argmax(axis=1)
    return list(zip(rows.tolist(), low.tolist(), high.tolist(), strict=True))
