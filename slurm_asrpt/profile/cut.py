"""A model's blocks cut into the stages of a job: data, pipeline, tensor and expert parallel."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise

from slurm_asrpt.core.job import JobProfile, Pipeline, Stage
from slurm_asrpt.profile.blocks import Block, UncutFile
from slurm_asrpt.profile.head import Provenance
from slurm_asrpt.profile.schema import ProfileFile


@dataclass(frozen=True)
class Cut:
    """Where stages end (exclusive block numbers), their replicas, tensor slices of each, and how the pipeline runs."""

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
        """Its shape in words: pp4dp2, tp8, pp2dp7-1."""
        stages, widths = len(self.ends), sorted(set(self.replicas), reverse=True)
        parts = ([f"tp{self.tensor}"] if self.tensor > 1 else []) + ([f"pp{stages}"] if stages > 1 else [])
        parts += [f"dp{'-'.join(map(str, self.replicas if len(widths) > 1 else widths))}"] if max(widths) > 1 else []
        return "".join(parts) or "1gpu"


def even_cut(document: UncutFile, tensor: int, stages: int, replicas: int) -> Cut:
    """``stages`` stages of ``replicas`` replicas each, their work balanced. Raises ValueError where that is impossible.

    Their mini-batch goes through in micro-batches of one sample each, or twice as many as there are stages, whichever
    are fewer.
    """
    work = tuple(divided(block.forward_s + block.backward_s, block, tensor) for block in document.blocks)
    ends = balanced_ends(work, (replicas,) * stages)
    if replicas > document.head.batch:
        raise ValueError(f"a mini-batch of {document.head.batch} cannot be split over {replicas} replicas")
    share = document.head.batch // replicas
    pieces = max(q for q in range(1, min(share, 2 * stages) + 1) if share % q == 0) if stages > 1 else 1
    return Cut(ends, (replicas,) * stages, tensor, Pipeline.SYNCHRONOUS, pieces)


def balanced_ends(work: tuple[float, ...], replicas: tuple[int, ...]) -> tuple[int, ...]:
    """Where each stage ends (exclusive) so that the largest work per replica is least; the earliest such cuts.

    No stage is without work: an embedding alone would be a GPU for nothing. Raises ValueError where that is impossible.
    """
    before = [0.0]
    for amount in work:
        before.append(before[-1] + amount)

    @cache
    def best(stage: int, start: int) -> tuple[float, tuple[int, ...]]:
        left = len(replicas) - stage - 1
        ends = range(start + 1, len(work) - left + 1) if left else [len(work)]
        choices = [choice for end in ends if (choice := candidate(stage, start, end)) is not None]
        return min(choices, default=(float("inf"), ()))

    def candidate(stage: int, start: int, end: int) -> tuple[float, tuple[int, ...]] | None:
        amount = (before[end] - before[start]) / replicas[stage]
        if amount <= 0:
            return None
        if stage == len(replicas) - 1:
            return amount, (end,)
        rest, ends = best(stage + 1, end)
        return max(amount, rest), (end, *ends)

    bottleneck, ends = best(0, 0)
    if bottleneck == float("inf"):
        raise ValueError(f"{len(work)} layers cannot be cut into {len(replicas)} stages")
    return ends


def divided(amount: float, block: Block, tensor: int) -> float:
    """What a tensor slice has of an amount of the block: its share, or all where the block is not sliced."""
    return amount / tensor if block.tensor_bytes else amount


def job_profile(document: UncutFile, cut: Cut, name: str) -> JobProfile:
    """The stages under ``cut``."""
    starts = (0, *cut.ends[:-1])
    stages = tuple(
        make_stage(document.blocks, start, end, replicas, cut.tensor)
        for start, end, replicas in zip(starts, cut.ends, cut.replicas, strict=True)
    )
    pipeline = cut.pipeline if len(stages) > 1 else Pipeline.ASYNCHRONOUS
    return JobProfile(name, stages, tensor=cut.tensor, pipeline=pipeline, micro_batches=cut.micro_batches)


def make_stage(blocks: Sequence[Block], start: int, end: int, replicas: int, tensor: int) -> Stage:
    """The stage of ``blocks[start:end]``; seconds and bytes of one replica's share of the mini-batch.

    The optimiser's step counts with the backward pass and is not shared among replicas. A block that is not sliced is
    whole on each tensor slice, so that its gradients are all-reduced once per slice. Each replica holds its part of the
    experts alone: they are all-reduced with nobody, and tokens are taken to go to all alike.
    """
    inside = blocks[start:end]
    routed = sum(block.routed_bytes for block in inside) / replicas if replicas > 1 else 0.0
    return Stage(
        replicas=replicas,
        forward_s=sum(divided(b.forward_s, b, tensor) for b in inside) / replicas,
        backward_s=sum(divided(b.backward_s / replicas + b.update_s, b, tensor) for b in inside),
        bytes_in=blocks[start - 1].bytes_out / replicas if start else 0.0,
        bytes_out=blocks[end - 1].bytes_out / replicas if end < len(blocks) else 0.0,
        param_bytes=sum(tensor * divided(reduced_bytes(b, start > 0), b, tensor) for b in inside),
        tensor_bytes=sum(b.tensor_bytes for b in inside) / replicas if tensor > 1 else 0.0,
        routed_bytes=routed,
        routing=(1 / replicas,) * replicas if routed else (),
    )


def reduced_bytes(block: Block, copies: bool) -> float:
    """Gradients that replicas all-reduce. copies: the stage has its own copy of what is tied to the first block."""
    shared = 1 - block.expert_bytes / block.param_bytes if block.param_bytes else 1.0
    return block.grad_bytes * shared + (block.tied_bytes if copies else 0.0)


def cut_file(document: UncutFile, cut: Cut, name: str = "") -> ProfileFile:
    """The file of the stages under ``cut``, its provenance that of the blocks and how they were cut."""
    head = document.head
    profile = job_profile(document, cut, name or f"{head.name}-{cut.suffix}")
    after = [document.blocks[end - 1].name for end in cut.ends[:-1]]
    how = f"stages end after {', '.join(after)}" if after else "one stage"
    formula = f"{head.provenance.formula}; seconds and activations divided by replicas and tensor slices; {how}"
    provenance = Provenance(head.provenance.kind, head.provenance.origin, formula)
    return ProfileFile(profile, dataclasses.replace(head, name=profile.name, provenance=provenance))


def block_ranges(cut: Cut) -> list[tuple[int, int]]:
    """(start, end) of each stage."""
    return list(pairwise((0, *cut.ends)))


def prefix(values: Sequence[float]) -> list[float]:
    """Sums of the first 0, 1, ... values."""
    return list(accumulate(values, initial=0.0))
