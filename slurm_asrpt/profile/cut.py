"""Cut a model's blocks into the stages of a job: data, pipeline, tensor and expert parallelism."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import inf

from slurm_asrpt.core.job import JobProfile, Pipeline, Stage
from slurm_asrpt.profile.blocks import Block, UncutFile
from slurm_asrpt.profile.header import Provenance
from slurm_asrpt.profile.schema import ProfileFile


@dataclass(frozen=True)
class Cut:
    """Ends of the stages (exclusive block numbers), replicas and tensor slices of each, and the kind of pipeline."""

    ends: tuple[int, ...]
    replicas: tuple[int, ...]
    tensor: int = 1
    pipeline: Pipeline = Pipeline.SYNCHRONOUS
    micro_batches: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * sum(self.replicas)

    @property
    def suffix(self) -> str:
        """The shape as text: pp4dp2, tp8; pp2dp7-1 and pp9dp2x4-1x5 if stages differ."""
        stages = len(self.ends)
        parts = ([f"tp{self.tensor}"] if self.tensor > 1 else []) + ([f"pp{stages}"] if stages > 1 else [])
        runs = [(width, len(list(run))) for width, run in groupby(self.replicas)]
        widths = "-".join(f"{k}x{n}" if n > 1 and len(runs) > 1 else str(k) for k, n in runs)
        return "".join([*parts, f"dp{widths}"] if widths != "1" else parts) or "1gpu"


def even_cut(document: UncutFile, tensor: int, stages: int, replicas: int) -> Cut:
    """``stages`` stages of ``replicas`` replicas each, with balanced work. Raises ValueError if that is impossible.

    The mini-batch is divided into about four micro-batches per stage (``micro_batches``).
    """
    work = tuple(divided(block.forward_s + block.backward_s, block, tensor) for block in document.blocks)
    ends = balanced_ends(work, (replicas,) * stages)
    if replicas > document.head.batch:
        raise ValueError(f"a mini-batch of {document.head.batch} cannot be split over {replicas} replicas")
    pieces = micro_batches(document.head.batch // replicas, stages)
    return Cut(ends, (replicas,) * stages, tensor, Pipeline.SYNCHRONOUS, pieces)


def micro_batches(share: int, stages: int) -> int:
    """Number of micro-batches of a replica's share of the mini-batch: all of one size, and at most four per stage,
    where GPipe found the bubble negligible (Huang et al., NeurIPS 2019, section 2.3); 1 without a pipeline."""
    return max(pieces for pieces in divisors(share) if pieces <= 4 * stages) if stages > 1 else 1


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def balanced_ends(work: tuple[float, ...], replicas: tuple[int, ...]) -> tuple[int, ...]:
    """End of each stage (exclusive) that minimizes the largest work per replica; ties go to the earliest cuts.

    No stage is without work: an embedding alone would waste a GPU. Raises ValueError if that is impossible.
    """
    if len(replicas) > len(work):
        raise ValueError(f"{len(work)} layers cannot be cut into {len(replicas)} stages")
    before = [0.0, *accumulate(work)]
    slowest, choices = [inf] * len(work) + [0.0], list[list[int]]()  # without stages: nothing left to do at the end
    for width in reversed(replicas):
        slowest, chosen = _one_stage_more(before, slowest, width)
        choices.append(chosen)
    if slowest[0] == inf:
        raise ValueError(f"{len(work)} layers cannot be cut into {len(replicas)} stages")
    ends = [0]
    for chosen in reversed(choices):
        ends.append(chosen[ends[-1]])
    return tuple(ends[1:])


def _one_stage_more(before: Sequence[float], slowest: Sequence[float], width: int) -> tuple[list[float], list[int]]:
    """Add one stage in front: for each start, the slowest stage from there on, and where the added stage ends."""
    values, ends = [inf] * len(slowest), [0] * len(slowest)
    for start in range(len(slowest) - 1):
        for end in range(start + 1, len(slowest)):
            amount = (before[end] - before[start]) / width
            if amount >= values[start]:  # and so for all later ends
                break
            if amount > 0 and max(amount, slowest[end]) < values[start]:
                values[start], ends[start] = max(amount, slowest[end]), end
    return values, ends


def divided(amount: float, block: Block, tensor: int) -> float:
    """A tensor slice's part of an amount of the block: its share, or all if the block is not sliced."""
    return amount / tensor if block.tensor_bytes else amount


def job_profile(document: UncutFile, cut: Cut, name: str) -> JobProfile:
    """The profile of the stages under ``cut``."""
    starts = (0, *cut.ends[:-1])
    stages = tuple(
        make_stage(document.blocks, start, end, replicas, cut.tensor, cut.micro_batches)
        for start, end, replicas in zip(starts, cut.ends, cut.replicas, strict=True)
    )
    pipeline = cut.pipeline if len(stages) > 1 or cut.micro_batches > 1 else Pipeline.ASYNCHRONOUS
    return JobProfile(name, stages, tensor=cut.tensor, pipeline=pipeline, micro_batches=cut.micro_batches)


def make_stage(
    blocks: Sequence[Block], start: int, end: int, replicas: int, tensor: int, micro_batches: int = 1
) -> Stage:
    """The stage of ``blocks[start:end]``; seconds and bytes of one replica's share of the mini-batch.

    The optimizer's step counts with the backward pass and is not divided among replicas. A block that is not sliced
    is complete on each tensor slice, so its gradients are all-reduced once per slice. Each replica only holds its
    share of the experts: their gradients are not all-reduced, and tokens are assumed to be spread evenly.

    The host launches the same for a share, a slice and each micro-batch as for the whole mini-batch. Where the GPU
    waits for that, both passes take longer.
    """
    inside = blocks[start:end]
    forward_s = sum(divided(b.forward_s, b, tensor) for b in inside) / replicas
    backward_s = sum(divided(b.backward_s / replicas + b.update_s, b, tensor) for b in inside)
    computes = forward_s + backward_s
    slower = max(1.0, micro_batches * sum(b.launch_s for b in inside) / computes) if computes else 1.0
    routed = sum(block.routed_bytes for block in inside) / replicas if replicas > 1 else 0.0
    return Stage(
        replicas=replicas,
        forward_s=slower * forward_s,
        backward_s=slower * backward_s,
        bytes_in=blocks[start - 1].bytes_out / replicas if start else 0.0,
        bytes_out=blocks[end - 1].bytes_out / replicas if end < len(blocks) else 0.0,
        param_bytes=sum(tensor * divided(reduced_bytes(b, start > 0), b, tensor) for b in inside),
        tensor_bytes=sum(b.tensor_bytes for b in inside) / replicas if tensor > 1 else 0.0,
        routed_bytes=routed,
        routing=(1 / replicas,) * replicas if routed else (),
    )


def reduced_bytes(block: Block, copies: bool) -> float:
    """Gradients that replicas all-reduce. copies: whether the stage has its own copy of what is tied to the first
    block."""
    shared = 1 - block.expert_bytes / block.param_bytes if block.param_bytes else 1.0
    return block.grad_bytes * shared + (block.tied_bytes if copies else 0.0)


def cut_file(document: UncutFile, cut: Cut, name: str = "") -> ProfileFile:
    """The profile file of the stages under ``cut``; its provenance is that of the blocks and of the cut."""
    head = document.head
    profile = job_profile(document, cut, name or f"{head.name}-{cut.suffix}")
    after = [document.blocks[end - 1].name for end in cut.ends[:-1]]
    how = f"stages end after {', '.join(after)}" if after else "one stage"
    formula = f"{head.provenance.formula}; seconds and activations divided by replicas and tensor slices; {how}"
    provenance = Provenance(head.provenance.kind, head.provenance.origin, formula)
    return ProfileFile(profile, dataclasses.replace(head, name=profile.name, provenance=provenance))


def memory_bytes(blocks: Sequence[Block], cut: Cut) -> list[float]:
    """Memory of a GPU of each stage: parameters, gradients, optimizer, and activations kept for the backward
    passes.

    A stage followed by n - 1 stages has n mini-batches (asynchronous) or micro-batches (synchronous, at most q) in
    flight, as in PipeDream's 1F1B schedule, which takes as long as GPipe's (Narayanan et al., ICML 2021). An
    asynchronous stage followed by others keeps a second version of its parameters (PipeDream-2BW, same paper).
    """
    found = []
    starts = (0, *cut.ends[:-1])
    for stage, (start, end, replicas) in enumerate(zip(starts, cut.ends, cut.replicas, strict=True)):
        behind = len(cut.ends) - stage
        versions, alive = in_flight(cut, behind)
        inside = blocks[start:end]
        state = sum(divided(state_bytes(blocks, b, start > 0, replicas, versions), b, cut.tensor) for b in inside)
        found.append(state + alive * sum(divided(b.kept_bytes / replicas, b, cut.tensor) for b in inside))
    return found


def in_flight(cut: Cut, behind: int) -> tuple[int, float]:
    """Versions of the parameters, and mini-batches whose activations are kept, with ``behind`` stages from here on."""
    if cut.pipeline is Pipeline.SYNCHRONOUS:
        return 1, min(cut.micro_batches, behind) / cut.micro_batches
    return min(behind, 2), float(behind)


def state_bytes(blocks: Sequence[Block], block: Block, copies: bool, replicas: int, versions: int) -> float:
    """Training state of a block on one GPU without slicing. copies: as in ``reduced_bytes``; a copy has gradients
    and optimizer state in the same proportion as the first block."""
    experts = block.expert_bytes / block.param_bytes if block.param_bytes else 0.0
    held = block.grad_bytes + block.optimiser_bytes + versions * block.param_bytes
    first = blocks[0]
    beside = (first.grad_bytes + first.optimiser_bytes) / first.param_bytes if first.param_bytes else 0.0
    return held * (1 - experts + experts / replicas) + (block.tied_bytes * (versions + beside) if copies else 0.0)
