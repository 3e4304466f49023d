"""Costs of every possible stage of a model, as arrays, for the planner's dynamic programs.

All arrays are indexed [start, end] by block numbers, and infinite if end <= start. The replicas of the stages occupy
slots side by side, beginning with the last stage. On one server the costs are exactly those of ``core/timing``. On
several servers a neighbor is assumed to be on the same server if the cut is not at a server's edge and the stage is on
one server, else on another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.profile.blocks import Block
from slurm_asrpt.profile.cut import divided, reduced_bytes, state_bytes

Array = NDArray[np.float64]
ALL = slice(None)


@dataclass(frozen=True)
class Machines:
    """GPUs that a plan may use: ``gpus`` in total, ``per_node`` on each server, each with ``memory`` bytes."""

    gpus: int
    per_node: int
    memory: float
    fabric: Fabric

    @property
    def counts(self) -> tuple[int, ...]:
        """GPUs of each server."""
        return self.filled(self.gpus)

    def filled(self, gpus: int) -> tuple[int, ...]:
        """``gpus`` of them on the fewest servers."""
        full, rest = divmod(gpus, self.per_node)
        return (self.per_node,) * full + ((rest,) if rest else ())


@dataclass(frozen=True)
class Links:
    """Seconds per byte: of a cut to the stage before, after; of gradients; of routed tokens, per replica."""

    before: float
    after: float
    gradients: float
    routed: float


class Costs:
    """Costs of the stages of one model with ``tensor`` slices per replica."""

    def __init__(self, blocks: Sequence[Block], tensor: int, machines: Machines) -> None:
        self.blocks, self.tensor, self.machines = blocks, tensor, machines
        self.slots = machines.gpus // tensor  # replicas that fit in total
        self.size = machines.per_node // tensor  # replicas that fit on a server
        self.compute = self._sums(lambda b: divided(b.forward_s + b.backward_s, b, tensor))
        self.update = self._sums(lambda b: divided(b.update_s, b, tensor))
        self.launch = self._sums(lambda b: b.launch_s)
        self.slices = self._sums(lambda b: 2 * (tensor - 1) / tensor * b.tensor_bytes / machines.fabric.intra)
        self.routed = self._sums(lambda b: b.routed_bytes)
        self.kept = self._sums(lambda b: divided(b.kept_bytes, b, tensor))
        self.gradients = self._sums(
            lambda b: tensor * divided(reduced_bytes(b, False), b, tensor),
            lambda b: tensor * divided(reduced_bytes(b, True), b, tensor),
        )
        sizes = [0.0, *(block.bytes_out for block in blocks[:-1]), 0.0]
        self.cuts = np.array(sizes)
        self._states: dict[tuple[int, int], Array] = {}
        self._stages: dict[tuple[int, Links, int], Array] = {}

    def _sums(self, first: Callable[[Block], float], later: Callable[[Block], float] | None = None) -> Array:
        """Sums over the blocks of each stage; ``later`` applies to stages without the first block."""
        before = np.cumsum([0.0, *map(later or first, self.blocks)])
        sums: Array = before[None, :] - before[:-1, None]
        sums[0] = np.cumsum([0.0, *map(first, self.blocks)])
        sums[np.tril(np.ones(sums.shape, dtype=bool))] = np.inf
        return sums

    def stage(self, replicas: int, links: Links, pieces: int = 1) -> Array:
        """Seconds per iteration of each stage, including communication; infinite for a stage without computation.

        pieces: number of micro-batches.
        """
        if (replicas, links, pieces) not in self._stages:
            compute = np.where(self.compute > 0, self.compute, np.inf)
            found: Array = np.maximum(compute / replicas + self.update, pieces * self.launch) + self.slices / replicas
            found += (links.before * self.cuts[:-1, None] + links.after * self.cuts[None, :]) / replicas
            if replicas > 1:
                found += links.gradients * self.gradients + links.routed * self.routed
            self._stages[replicas, links, pieces] = found
        return self._stages[replicas, links, pieces]

    def fits(self, replicas: int, versions: int, alive: float, starts: int | slice = ALL) -> NDArray[np.bool_]:
        """Which stages that begin at ``starts`` fit into a GPU's memory; bytes as in ``cut.memory_bytes``."""
        if (replicas, versions) not in self._states:
            self._states[replicas, versions] = self._sums(
                lambda b: divided(state_bytes(self.blocks, b, False, replicas, versions), b, self.tensor),
                lambda b: divided(state_bytes(self.blocks, b, True, replicas, versions), b, self.tensor),
            )
        needed = self._states[replicas, versions][starts] + alive * self.kept[starts] / replicas
        return np.asarray(needed <= self.machines.memory)

    def links(self, start: int, replicas: int) -> Links:
        """For a stage on the replica slots ``start`` to ``start + replicas``; the last stage begins at slot 0."""
        end = start + replicas
        first, last = start // self.size, (end - 1) // self.size
        fabric, tensor = self.machines.fabric, self.tensor
        inside, outside = tensor * fabric.intra, tensor * fabric.inter / self.machines.per_node
        alone = first == last
        ring = 2 * (replicas - 1) / replicas
        if alone:
            gradients, routed = ring / inside, 4 * ring / replicas / inside
        else:
            fewest = min((first + 1) * self.size - start, end - last * self.size, self.size)
            gradients = ring / (fewest * outside)
            far, near = 2 * (replicas - fewest) / replicas, 2 * (fewest - 1) / replicas
            routed = 4 * (far / outside + near / inside) / replicas
        return Links(
            before=2 / (inside if alone and end % self.size else outside),
            after=2 / (inside if alone and start % self.size else outside),
            gradients=gradients,
            routed=routed,
        )
