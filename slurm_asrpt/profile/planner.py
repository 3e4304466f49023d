"""How GPUs best share a model: dynamic programs over its blocks, as PipeDream has them, judged by core/timing.

Asynchronous: each stage has replicas of its own, and the slowest stage is to be the fastest possible (Narayanan et al.,
PipeDream, SOSP 2019, section 3.1), within memory. With T[n, i, m] for the blocks from i on in n stages of m replicas,

    T[n, i, m] = min over end j and replicas k of max(cost(i, j, k), T[n-1, j, m-k])

Synchronous: the same number of replicas in each stage, as Megatron-LM and DeepSpeed have them, and q micro-batches: the
slowest stage is to be the fastest possible, which is what counts with many of them, or the stages together, which is
what counts with one. All that for each number of tensor slices and of stages. The best of what the programs find is
placed by Heavy-Edge on the fewest servers and listed by the iteration time that core/timing says: that of asrptd.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.job import JobProfile, Pipeline
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time, stage_costs
from slurm_asrpt.profile.blocks import UncutFile
from slurm_asrpt.profile.cut import Cut, divisors, job_profile, memory_bytes, micro_batches
from slurm_asrpt.profile.plancosts import Array, Costs, Links, Machines

SINGLE = np.float32
Singles = NDArray[np.float32]
"""Half the bytes are half the time; core/timing has the last word on the digits."""

SPARED = 1.5
"""Plans that are so many times slower than one with like stages are not looked for."""

JUDGED = 40
"""So many of the programs' plans are placed and timed, the most promising first."""


@dataclass(frozen=True)
class Plan:
    """A way to share the GPUs. Seconds per iteration; shares of the GPUs' time; bytes on a GPU of each stage.

    compute, communication, bubble: shares that make 1 together; a bubble is time in which a GPU waits for others.
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
    """What a dynamic program found, and about how long an iteration takes."""

    seconds: float
    cut: Cut


def plans(document: UncutFile, machines: Machines, pipeline: Pipeline, most: int = 5) -> list[Plan]:
    """The best plans, the fastest first; none if the model does not fit."""
    drafts: list[Draft] = []
    for tensor in divisors(machines.per_node):
        if tensor == 1 or (tensor <= machines.gpus and any(block.tensor_bytes for block in document.blocks)):
            costs = Costs(document.blocks, tensor, machines)
            program = _synchronous if pipeline is Pipeline.SYNCHRONOUS else _asynchronous
            drafts += program(costs, document.head.batch)
    drafts.sort(key=lambda draft: (draft.seconds, draft.cut.gpus, len(draft.cut.ends)))
    cuts = list(dict.fromkeys(draft.cut for draft in drafts))
    found = [judge(document, cut, machines) for cut in cuts[:JUDGED]]
    return sorted(found, key=lambda plan: (plan.iteration_s, plan.cut.gpus))[:most]


def judge(document: UncutFile, cut: Cut, machines: Machines) -> Plan:
    """A plan as asrptd would run it: Heavy-Edge on the fewest servers."""
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
    """Replica counts that share the mini-batch evenly."""
    return [k for k in divisors(batch) if k <= most]


def _synchronous(costs: Costs, batch: int) -> Iterator[Draft]:
    """The best cut for each number of replicas and stages, with the fewest micro-batches that fit."""
    for replicas in _widths(batch, costs.slots):
        deepest = min(costs.slots // replicas, len(costs.blocks))
        open_depths = set(range(1, deepest + 1))
        for pieces in divisors(batch // replicas):
            wanted = {n for n in open_depths if pieces >= micro_batches(batch // replicas, n)}
            for draft in _even_cuts(costs, replicas, pieces, wanted):
                open_depths.discard(len(draft.cut.ends))
                yield draft


def _even_cuts(costs: Costs, replicas: int, pieces: int, depths: set[int]) -> Iterator[Draft]:
    """Two cuts into each of these numbers of stages: the least slowest stage, and the least of all stages together.

    An iteration takes about (sum + (q-1) slowest) / q. Nothing where memory does not suffice.
    """
    arrays: list[Array] = []
    for n in range(1, max(depths, default=0) + 1):
        stage = costs.stage(replicas, costs.links((n - 1) * replicas, replicas))
        memory = costs.memory(replicas, 1, min(pieces, n) / pieces)
        arrays.append(np.where(memory <= costs.machines.memory, stage, np.inf))
    for join in (np.maximum, np.add):
        rows = [_at_the_end(costs)]
        for n, array in enumerate(arrays, 1):
            rows.append(np.append(join(array, rows[-1][None, :]).min(axis=1), np.inf))
            if n in depths and np.isfinite(rows[n][0]):
                ends, times = _walk(arrays[:n], rows, join)
                cut = Cut(ends, (replicas,) * n, costs.tensor, Pipeline.SYNCHRONOUS, pieces)
                yield Draft((sum(times) + (pieces - 1) * max(times)) / pieces, cut)


def _walk(arrays: list[Array], rows: list[Array], join: np.ufunc) -> tuple[tuple[int, ...], list[float]]:
    """Ends and costs of the stages behind the first entry of the last row."""
    ends, times, start = [], [], 0
    for left in range(len(arrays), 0, -1):
        end = int(join(arrays[left - 1][start], rows[left - 1]).argmin())
        times.append(float(arrays[left - 1][start, end]))
        ends.append(end)
        start = end
    return tuple(ends), times


def _at_the_end(costs: Costs) -> Array:
    """Of no stages: nothing to do at the end of the model, impossible before."""
    row = np.full(len(costs.blocks) + 1, np.inf)
    row[-1] = 0.0
    return row


def _asynchronous(costs: Costs, batch: int) -> Iterator[Draft]:
    """The best cuts, of those for each number of stages and replicas."""
    program = _PipeDream(costs, _widths(batch, costs.slots))
    values: list[tuple[float, int, int]] = []
    for n in range(1, min(costs.slots, len(costs.blocks)) + 1):
        program.deepen()
        values += [(value, slots, n) for slots, value in enumerate(program.tables[n][:, 0].tolist()) if value < np.inf]
    for value, slots, n in sorted(values)[:JUDGED]:
        yield Draft(value, program.cut(n, slots))


def _even_bottleneck(costs: Costs, replicas: int) -> float:
    """The slowest stage of the best cut with so many replicas in every stage; infinite where none fits."""
    row, least = _at_the_end(costs), np.inf
    for n in range(1, min(costs.slots // replicas, len(costs.blocks)) + 1):
        stage = costs.stage(replicas, costs.links((n - 1) * replicas, replicas))
        memory = costs.memory(replicas, min(n, 2), float(n))
        array = np.where(memory <= costs.machines.memory, stage, np.inf)
        row = np.append(np.maximum(array, row[None, :]).min(axis=1), np.inf)
        least = min(least, float(row[0]))
    return least


class _PipeDream:
    """T[n][m, i] above, stage by stage from the end. Not infinite only where exactly m replicas are used."""

    def __init__(self, costs: Costs, widths: list[int]) -> None:
        self.costs, self.widths = costs, widths
        first = np.full((costs.slots + 1, len(costs.blocks) + 1), np.inf, SINGLE)
        first[0] = _at_the_end(costs)
        self.tables = [first]
        self.limit = SPARED * min((_even_bottleneck(costs, k) for k in widths), default=np.inf)
        self._stages: dict[tuple[int | Links, int], Singles] = {}

    def deepen(self) -> None:
        """One stage more."""
        n, before = len(self.tables), self.tables[-1]
        table = np.full_like(before, np.inf)
        for replicas in self.widths:
            allowed = self._allowed(n, replicas)
            fitting: dict[int, tuple[Singles, list[int]]] = {}  # by the stage's costs, of which there are few
            for slots in range(replicas + n - 1, self.costs.slots + 1):
                ends = np.flatnonzero(before[slots - replicas] < np.inf)
                if ends.size:
                    stage = self._stage(slots, replicas)
                    if id(stage) not in fitting:
                        fitting[id(stage)] = self._fitting(np.maximum(stage, allowed))
                    costs, starts = fitting[id(stage)]
                    low, high = int(ends[0]), int(ends[-1]) + 1
                    rows = slice(starts[low], high)
                    best = np.maximum(costs[rows, low:high], before[slots - replicas, low:high]).min(
                        axis=1, initial=np.inf
                    )
                    np.minimum(table[slots, rows], best, out=table[slots, rows])
        table[table > self.limit] = np.inf
        self.tables.append(table)

    def _fitting(self, costs: Singles) -> tuple[Singles, list[int]]:
        """The costs with a last row for no blocks, and for each end the first start within the limit that ends there
        or later."""
        good = costs <= self.limit
        first = np.where(good.any(axis=0), good.argmax(axis=0), len(costs))
        return np.vstack([costs, np.full_like(costs[:1], np.inf)]), np.minimum.accumulate(first[::-1])[::-1].tolist()

    def _allowed(self, n: int, replicas: int) -> Singles:
        """0 where a stage with n - 1 behind it fits into memory, else infinite."""
        memory = self.costs.memory(replicas, min(n, 2), float(n))
        return np.where(memory <= self.costs.machines.memory, SINGLE(0), SINGLE(np.inf))

    def _stage(self, slots: int, replicas: int) -> Singles:
        if (slots, replicas) not in self._stages:
            links = self.costs.links(slots - replicas, replicas)
            if (links, replicas) not in self._stages:
                self._stages[links, replicas] = self.costs.stage(replicas, links).astype(SINGLE)
            self._stages[slots, replicas] = self._stages[links, replicas]
        return self._stages[slots, replicas]

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
        """End and replicas of the stage from ``start`` on."""
        choices = []
        for replicas in self.widths:
            if replicas <= slots:
                allowed = self._allowed(n, replicas)[start]
                costs = np.maximum(
                    np.maximum(self._stage(slots, replicas)[start], allowed), self.tables[n - 1][slots - replicas]
                )
                choices.append((float(costs.min()), int(costs.argmin()), replicas))
        _, end, replicas = min(choices)
        return end, replicas
