"""The planner against exhaustive search, on small models and machines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from math import inf
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import Pipeline
from slurm_asrpt.profile import planner
from slurm_asrpt.profile.blocks import Block, UncutFile
from slurm_asrpt.profile.cut import Cut, divisors, memory_bytes, micro_batches
from slurm_asrpt.profile.header import Head, Provenance
from slurm_asrpt.profile.plan_costs import Costs, Machines
from slurm_asrpt.profile.planner import evaluate_cut, plans

SECONDS, BYTES = st.sampled_from([0.0, 0.25, 1.0, 3.0]), st.sampled_from([0.0, 1e9, 4e9])


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    params = draw(BYTES)
    routed = draw(st.sampled_from([0.0, 0.0, 1e9]))
    return Block(
        name="b",
        forward_s=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        backward_s=draw(SECONDS),
        update_s=draw(st.sampled_from([0.0, 0.1])),
        launch_s=draw(st.sampled_from([0.0, 0.0, 0.5])),
        bytes_out=draw(BYTES),
        kept_bytes=draw(BYTES),
        param_bytes=params,
        grad_bytes=params,
        optimiser_bytes=2 * params,
        expert_bytes=params / 2 if routed else 0.0,
        routed_bytes=routed,
        tied_bytes=draw(st.sampled_from([0.0, 1e9])),
        tensor_bytes=draw(st.sampled_from([0.0, 2e9])),
    )


def model(some: list[Block], batch: int) -> UncutFile:
    return UncutFile(Head("n", "m", batch, "d", Provenance("analytic", "o", "f")), tuple(some))


models = st.builds(model, st.lists(blocks(), min_size=1, max_size=4), st.sampled_from([4, 6, 8]))
memories = st.sampled_from([4e9, 10e9, 30e9, 1e12])


def shapes(document: UncutFile, machines: Machines) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """All (ends, replicas, tensor) in which each stage computes something and shares the mini-batch evenly."""
    count = len(document.blocks)
    for tensor in divisors(machines.per_node):
        if tensor > 1 and not any(block.tensor_bytes for block in document.blocks):
            continue
        widths = [k for k in divisors(document.head.batch) if k * tensor <= machines.gpus]
        for cuts in (c for n in range(count) for c in combinations(range(1, count), n)):
            ends = (*cuts, count)
            works = [document.blocks[a:b] for a, b in zip((0, *cuts), ends, strict=True)]
            if all(any(b.forward_s + b.backward_s for b in work) for work in works):
                for replicas in product(widths, repeat=len(ends)):
                    if tensor * sum(replicas) <= machines.gpus:
                        yield ends, replicas, tensor


def fits(document: UncutFile, cut: Cut, machines: Machines) -> bool:
    return max(memory_bytes(document.blocks, cut)) <= machines.memory


def asynchronous(document: UncutFile, machines: Machines) -> Iterator[Cut]:
    for ends, replicas, tensor in shapes(document, machines):
        cut = Cut(ends, replicas, tensor, Pipeline.ASYNCHRONOUS)
        if fits(document, cut, machines):
            yield cut


def synchronous(document: UncutFile, machines: Machines) -> Iterator[Cut]:
    """Equal replicas, and at least the planner's smallest number of micro-batches."""
    for ends, replicas, tensor in shapes(document, machines):
        share = document.head.batch // replicas[0]
        if len(set(replicas)) == 1:
            least = micro_batches(share, len(ends))
            for pieces in divisors(share):
                cut = Cut(ends, replicas, tensor, Pipeline.SYNCHRONOUS, pieces)
                if pieces >= least and fits(document, cut, machines):
                    yield cut


def best(document: UncutFile, cuts: Iterator[Cut], machines: Machines) -> float:
    return min((evaluate_cut(document, cut, machines).iteration_s for cut in cuts), default=float("inf"))


@given(models, memories)
def test_the_fastest_asynchronous_plan_on_one_server_is_found(document: UncutFile, memory: float) -> None:
    assume(document.blocks_s > 0)
    machines = Machines(4, 4, memory, Fabric(1e9, 10e9))
    found = plans(document, machines, Pipeline.ASYNCHRONOUS)
    least = best(document, asynchronous(document, machines), machines)
    assert (found[0].iteration_s if found else float("inf")) == pytest.approx(least)


@given(models, memories)
def test_plans_respect_memory_and_gpus_and_describe_their_stages(document: UncutFile, memory: float) -> None:
    assume(document.blocks_s > 0)
    machines = Machines(6, 2, memory, Fabric(1e9, 10e9))
    for pipeline in Pipeline:
        for plan in plans(document, machines, pipeline):
            assert max(plan.memory) <= memory
            assert plan.profile.gpus == plan.cut.gpus <= 6
            assert plan.compute + plan.communication + plan.bubble == pytest.approx(1)
            assert plan.iteration_s == evaluate_cut(document, plan.cut, machines).iteration_s


@given(models, memories)
def test_plan_costs_equal_those_of_the_cut_profile(document: UncutFile, memory: float) -> None:
    """The planner's arrays agree with core/timing and memory_bytes for each plan on one server."""
    assume(document.blocks_s > 0)
    machines = Machines(4, 4, memory, Fabric(1e9, 10e9))
    for cut in asynchronous(document, machines):
        costs, slots, slowest = Costs(document.blocks, cut.tensor, machines), 0, 0.0
        for start, end, k in reversed(list(zip((0, *cut.ends), cut.ends, cut.replicas, strict=False))):
            slowest = max(slowest, float(costs.stage(k, costs.links(slots, k))[start, end]))
            slots += k
        assert slowest == pytest.approx(evaluate_cut(document, cut, machines).iteration_s)


@given(models, memories)
def test_synchronous_plans_on_one_server_are_near_optimal(document: UncutFile, memory: float) -> None:
    """The planner minimizes the slowest stage or the sum; the true iteration time is between the two."""
    assume(document.blocks_s > 0)
    machines = Machines(4, 4, memory, Fabric(1e9, 10e9))
    found = plans(document, machines, Pipeline.SYNCHRONOUS)
    least = best(document, synchronous(document, machines), machines)
    assert bool(found) == (least < float("inf"))
    assert not found or least <= found[0].iteration_s * 1.000001 <= 1.1 * least


def recurrence(costs: Costs, batch: int) -> list[float]:
    """The slowest stage of the best cut for each number of stages and replicas, directly from the recurrence."""
    count, widths = len(costs.blocks), [k for k in divisors(batch) if k <= costs.slots]

    @cache
    def best(n: int, start: int, slots: int) -> float:
        if n == 0:
            return 0.0 if start == count and slots == 0 else inf
        found = inf
        for k in (k for k in widths if k <= slots):
            stage, fits = costs.stage(k, costs.links(slots - k, k)), costs.fits(k, min(n, 2), float(n))
            for end in (end for end in range(start + 1, count + 1) if fits[start, end]):
                found = min(found, max(float(stage[start, end]), best(n - 1, end, slots - k)))
        return found

    found = [best(n, 0, slots) for n in range(1, count + 1) for slots in range(n, costs.slots + 1)]
    return [seconds for seconds in found if seconds < inf]


@given(
    st.builds(model, st.lists(blocks(), min_size=1, max_size=7), st.sampled_from([1, 2, 4])),
    memories,
    st.sampled_from([1, 2, 10]),
)
def test_asynchronous_plans_match_the_recurrence(document: UncutFile, memory: float, few: int) -> None:
    """Also on several servers; the plans that are left out are slower."""
    assume(document.blocks_s > 0)
    machines = Machines(12, 4, memory, Fabric(1e9, 10e9))
    sliced = any(block.tensor_bytes for block in document.blocks)
    slicings = [Costs(document.blocks, tensor, machines) for tensor in ((1, 2, 4) if sliced else (1,))]
    wanted = sorted(seconds for costs in slicings for seconds in recurrence(costs, document.head.batch))
    with patch.object(planner, "SEARCH_FACTOR", 1e9), patch.object(planner, "MAX_EVALUATED", few):
        found = planner.asynchronous_drafts(slicings, document.head.batch)
        drafts = sorted(found, key=lambda draft: draft.seconds)[:few]
    assert [draft.seconds for draft in drafts] == pytest.approx(wanted[:few])
    for draft in drafts:
        cut = draft.cut()
        assert (cut.gpus, len(cut.ends), cut.tensor) == (draft.gpus, draft.stages, draft.tensor)
        assert max(memory_bytes(document.blocks, cut)) <= memory * 1.000001
