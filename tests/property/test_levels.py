"""A fabric with levels above the server (docs/decisions/0038): timing, Heavy-Edge and the exact oracle."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.asrpt.oracle import RELATIVE_GAP, optimal_placement
from papers.asrpt.refine import heavy_edge_plus
from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import JobProfile, Overlap, Pipeline, Stage
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time, stage_costs, worst_iteration_time
from slurm_asrpt.core.topology import blocks_of
from tests.examples import examples
from tests.reference import levels as reference
from tests.reference.placements import least_alpha

TWO_LEVELS = Fabric(1.25e9, 300e9)
seconds, sizes = st.floats(0.001, 1), st.floats(0, 1e9)
stages = st.builds(Stage, st.integers(1, 3), seconds, seconds, sizes, sizes, sizes, sizes)
CLOSE = {"rel": 10 * RELATIVE_GAP, "abs": 1e-5}


@st.composite
def experts(draw):
    stage = draw(stages)
    weights = [draw(st.floats(0.1, 1)) for _ in range(stage.replicas)]
    return replace(stage, routed_bytes=draw(sizes), routing=tuple(weight / sum(weights) for weight in weights))


@st.composite
def cases(draw, kinds=stages, most=4, depth=2):
    """A profile, GPUs on each server, the servers' sizes, their switches, and a fabric whose levels slow down."""
    profile = JobProfile(
        "p",
        tuple(draw(st.lists(kinds, min_size=1, max_size=most))),
        tensor=draw(st.sampled_from([1, 1, 2])),
        overlap=Overlap(draw(st.floats(0, 2)), draw(st.floats(0, 1))),
    )
    counts, left = [], profile.replicas
    while left:
        counts.append(draw(st.integers(1, min(left, 3))))
        left -= counts[-1]
    counts = tuple(count * profile.tensor for count in counts)
    servers = tuple(count + draw(st.integers(0, 2)) for count in counts)
    pods = [tuple(f"{level} {draw(st.integers(0, 2))}" for level in range(depth)) for _ in counts]
    nodes = [Node(f"n{n}", 1, n, switches=(str(pod), *pod[1:])) for n, pod in enumerate(pods)]
    factors = draw(st.lists(st.floats(1, 10), min_size=1, max_size=2))
    beyond = [1.25e9 / factors[0], 1.25e9 / factors[0] / factors[-1]]
    return profile, counts, servers, blocks_of(nodes), replace(TWO_LEVELS, beyond=tuple(beyond[: len(factors)]))


@given(cases(stages | experts()))
def test_the_times_are_those_of_the_decision_computed_pair_by_pair(case):
    profile, counts, servers, blocks, fabric = case
    ranks = heavy_edge(profile, counts)
    expected = reference.alpha(profile, ranks, servers, fabric, blocks)
    assert iteration_time(profile, ranks, servers, fabric, blocks) == pytest.approx(expected, rel=1e-9)


@given(cases(stages | experts()))
def test_with_one_bandwidth_for_all_levels_the_times_are_those_of_the_paper(case):
    profile, counts, servers, blocks, _ = case
    ranks = heavy_edge(profile, counts)
    paper = iteration_time(profile, ranks, servers, TWO_LEVELS)
    assert reference.alpha(profile, ranks, servers, TWO_LEVELS, ()) == pytest.approx(paper, rel=1e-9)
    for fabric in (TWO_LEVELS, replace(TWO_LEVELS, beyond=(TWO_LEVELS.inter,))):
        assert iteration_time(profile, ranks, servers, fabric, blocks) == pytest.approx(paper, rel=1e-9)


@given(cases(stages | experts()))
def test_without_blocks_the_levels_do_not_count(case):
    profile, counts, servers, _, fabric = case
    ranks = heavy_edge(profile, counts)
    assert iteration_time(profile, ranks, servers, fabric) == iteration_time(profile, ranks, servers, TWO_LEVELS)
    assert stage_costs(profile, ranks, servers, fabric) == stage_costs(profile, ranks, servers, TWO_LEVELS)


@given(cases(stages | experts()), st.sampled_from(Pipeline), st.floats(1, 10))
def test_a_slower_level_never_makes_a_job_faster(case, pipeline, factor):
    profile, counts, servers, blocks, fabric = case
    profile = replace(profile, pipeline=pipeline)
    ranks = heavy_edge(profile, counts, blocks=blocks)
    alpha = iteration_time(profile, ranks, servers, fabric, blocks)
    for level in range(len(fabric.beyond)):
        beyond = [speed / factor if n >= level else speed for n, speed in enumerate(fabric.beyond)]
        slower = replace(fabric, beyond=tuple(beyond))
        assert iteration_time(profile, ranks, servers, slower, blocks) >= alpha * (1 - 1e-12)


@given(cases())
def test_no_placement_on_servers_of_one_size_is_slower_than_alpha_max(case):
    profile, counts, servers, blocks, fabric = case
    gpus = max(servers)
    ranks = heavy_edge(profile, counts, blocks=blocks)
    worst = worst_iteration_time(profile, gpus, fabric, len(blocks) + 1)
    assert iteration_time(profile, ranks, [gpus] * len(counts), fabric, blocks) <= worst * (1 + 1e-12)


@given(cases())
def test_heavy_edge_divides_replicas_over_blocks_as_over_servers(case):
    profile, counts, _, blocks, _ = case
    ranks = heavy_edge(profile, counts, blocks=blocks)
    assert Counter(ranks) == dict(enumerate(counts))
    if blocks:
        found = [{gpu for gpu, server in enumerate(ranks) if blocks[-1][server] == block} for block in set(blocks[-1])]
        assert found == reference.heavy_edge_by_blocks(profile, counts, blocks)


@given(cases())
def test_heavy_edge_on_one_server_per_switch_is_heavy_edge_on_servers(case):
    profile, counts, *_ = case
    assert heavy_edge(profile, counts, blocks=(tuple(range(len(counts))),)) == heavy_edge(profile, counts)


@settings(deadline=None, max_examples=examples(60))
@given(cases(most=3))
def test_the_oracle_with_levels_equals_brute_force(case):
    profile, counts, servers, blocks, fabric = case
    least = least_alpha(profile, counts, servers, fabric, blocks)
    known = iteration_time(profile, heavy_edge(profile, counts, blocks=blocks), servers, fabric, blocks)
    for at_most in (float("inf"), known):
        found = optimal_placement(profile, counts, servers, fabric, at_most=at_most, blocks=blocks)
        assert found.proven
        assert Counter(found.ranks) == dict(enumerate(counts))
        assert found.alpha == pytest.approx(least, **CLOSE)
        assert found.bound <= found.alpha + CLOSE["abs"]


@settings(deadline=None)
@given(cases(), st.sampled_from(Pipeline))
def test_heavy_edge_plus_is_between_the_optimum_and_heavy_edge(case, pipeline):
    profile, counts, servers, blocks, fabric = case
    profile = replace(profile, pipeline=pipeline, micro_batches=3)
    ranks = heavy_edge_plus(profile, counts, servers, fabric, blocks)
    assert Counter(ranks) == dict(enumerate(counts))
    alpha = iteration_time(profile, ranks, servers, fabric, blocks)
    plain = iteration_time(profile, heavy_edge(profile, counts, blocks=blocks), servers, fabric, blocks)
    assert alpha <= plain
    if len(profile.stages) < 4:
        assert alpha >= least_alpha(profile, counts, servers, fabric, blocks) * (1 - 1e-9)
