"""The exact oracle equals brute force, and heavy-edge+ is between Heavy-Edge and the oracle, on random small jobs."""

import random
from collections import Counter
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.asrpt.oracle import RELATIVE_GAP, optimal_placement
from papers.asrpt.refine import heavy_edge_plus
from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile, Overlap, Pipeline, Stage
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time
from tests.examples import examples
from tests.reference.placements import least_alpha

FABRIC = Fabric(1.25e9, 300e9)
seconds = st.floats(0.001, 1)
sizes = st.floats(0, 1e9)
stages = st.builds(Stage, st.integers(1, 3), seconds, seconds, sizes, sizes, sizes, sizes)
# tolerances of the solver are absolute, about 1e-6 s
CLOSE = {"rel": 10 * RELATIVE_GAP, "abs": 1e-5}


@st.composite
def cases(draw, kinds=stages, most=4):
    """A profile, GPUs on each server, and the servers' sizes."""
    profile = JobProfile(
        "p",
        tuple(draw(st.lists(kinds, min_size=1, max_size=most))),
        tensor=draw(st.sampled_from([1, 1, 2])),
        overlap=Overlap(draw(st.floats(0, 2)), draw(st.floats(0, 1))),
    )
    counts, left = [], profile.replicas
    while left:
        counts.append(draw(st.integers(1, left)))
        left -= counts[-1]
    counts = tuple(count * profile.tensor for count in counts)
    return profile, counts, tuple(count + draw(st.integers(0, 8)) for count in counts)


@settings(deadline=None, max_examples=examples(60))
@given(cases(most=3))
def test_the_oracle_equals_brute_force(case):
    profile, counts, servers = case
    found = optimal_placement(profile, counts, servers, FABRIC)
    assert found.proven
    assert Counter(found.ranks) == dict(enumerate(counts))
    assert found.alpha == pytest.approx(iteration_time(profile, found.ranks, servers, FABRIC))
    assert found.alpha == pytest.approx(least_alpha(profile, counts, servers, FABRIC), **CLOSE)
    assert found.bound <= found.alpha + CLOSE["abs"]


@settings(deadline=None, max_examples=examples(60))
@given(cases(most=3))
def test_a_known_alpha_does_not_change_the_optimum(case):
    profile, counts, servers = case
    known = iteration_time(profile, heavy_edge(profile, counts), servers, FABRIC)
    bounded = optimal_placement(profile, counts, servers, FABRIC, at_most=known)
    assert bounded.alpha == pytest.approx(least_alpha(profile, counts, servers, FABRIC), **CLOSE)


@settings(deadline=None)
@given(cases(), st.sampled_from(Pipeline))
def test_heavy_edge_plus_is_no_worse_than_heavy_edge(case, pipeline):
    profile, counts, servers = case
    profile = JobProfile("p", profile.stages, tensor=profile.tensor, pipeline=pipeline, micro_batches=3)
    ranks = heavy_edge_plus(profile, counts, servers, FABRIC)
    assert Counter(ranks) == dict(enumerate(counts))
    plain = iteration_time(profile, heavy_edge(profile, counts), servers, FABRIC)
    assert iteration_time(profile, ranks, servers, FABRIC) <= plain


@settings(deadline=None)
@given(cases(most=3))
def test_heavy_edge_plus_is_never_below_the_optimum(case):
    profile, counts, servers = case
    alpha = iteration_time(profile, heavy_edge_plus(profile, counts, servers, FABRIC), servers, FABRIC)
    assert alpha >= least_alpha(profile, counts, servers, FABRIC) * (1 - 1e-9)


def drawn(rng: random.Random, tensor: int, most: int) -> tuple[JobProfile, tuple[int, ...]]:
    """A profile in which communication counts, and its GPUs on each server: at most so many replicas."""
    number, counts = rng.randint(2, 4), list[int]()
    profile = JobProfile(
        "drawn",
        tuple(
            Stage(
                *(rng.randint(1, 3), rng.choice([0.005, 0.02]), rng.choice([0.01, 0.04])),
                bytes_in=rng.choice([0, 2e7, 1e8, 4e8]) * (at > 0),
                bytes_out=rng.choice([0, 2e7, 1e8, 4e8]) * (at + 1 < number),
                param_bytes=rng.choice([0, 2e8, 1e9]),
                tensor_bytes=rng.choice([0, 2e9, 3e10]),
            )
            for at in range(number)
        ),
        tensor=tensor,
    )
    left = profile.replicas
    while left:
        counts.append(rng.randint(1, min(left, most)))
        left -= counts[-1]
    return profile, tuple(count * tensor for count in counts)


@pytest.mark.parametrize(
    ("racks", "tensor", "most", "jobs", "optimal"),
    [(0, 1, 4, 100, 100), (0, 2, 8, 250, 249), (2, 1, 4, 50, 48), (2, 2, 4, 80, 80)],
)
def test_heavy_edge_plus_finds_the_optimum_of_nearly_all_small_jobs(racks, tensor, most, jobs, optimal):
    """On servers of 8 or 16 GPUs under one switch, or in racks with a quarter of the bandwidth between them."""
    rng, ratios = random.Random(1), list[float]()
    fabric = Fabric(1.25e9, 300e9, (0.3e9,)) if racks else FABRIC
    for _ in range(jobs):
        profile, counts = drawn(rng, tensor, most)
        blocks = (tuple(rng.randrange(racks) for _ in counts),) if racks else ()
        servers = (8 * tensor,) * len(counts)
        ranks = heavy_edge_plus(profile, counts, servers, fabric, blocks)
        least = least_alpha(profile, counts, servers, fabric, blocks)
        ratios.append(iteration_time(profile, ranks, servers, fabric, blocks) / least)
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= optimal
    assert fmean(ratios) <= 1.01
