"""NVLink domains smaller than a server (docs/decisions/0046): timing and the GPUs that Slurm gives."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.domains import layout_of, layouts_of, lowest, packed
from slurm_asrpt.core.job import JobProfile, Pipeline, Stage
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time, stage_costs, worst_iteration_time
from tests.property.test_levels import cases, experts, stages
from tests.reference import domains as reference


@st.composite
def domain_cases(draw, kinds=stages, most=4):
    """A case of levels, on servers that other jobs use, too: the indexes of the job's GPUs on each."""
    profile, counts, servers, blocks, fabric = draw(cases(kinds, most))
    domain = draw(st.integers(1, 4))
    across = draw(st.floats(fabric.inter, fabric.intra))
    indexes = []
    for count, size in zip(counts, servers, strict=True):
        taken = set(draw(st.permutations(range(size)))[: draw(st.integers(0, size - count))])
        indexes.append(reference.gpus_given(taken, count, size))
    return profile, counts, servers, blocks, replace(fabric, domain=domain, across=across), indexes


PROFILE = JobProfile("p", (Stage(2, 1.0, 1.0),))


def mask(indexes):
    return sum(1 << index for index in indexes)


def layouts(indexes, domain):
    return layouts_of(map(mask, indexes), domain)


@given(st.integers(1, 10), st.data())
def test_the_lowest_free_indexes_are_those_that_slurm_gives(size, data):
    taken = data.draw(st.sets(st.integers(0, size - 1)))
    gpus, domain = data.draw(st.integers(0, size)), data.draw(st.integers(1, size))
    given_ = reference.gpus_given(taken, gpus, size)
    found = lowest((1 << size) - 1 & ~mask(taken), gpus)
    assert found == mask(given_)
    used = [index // domain for index in given_]
    assert layout_of(found, domain) == tuple(used.count(at) for at in sorted(set(used)))


@given(domain_cases(stages | experts()))
def test_the_times_are_those_of_the_decision_computed_pair_by_pair(case):
    profile, counts, servers, blocks, fabric, indexes = case
    ranks = heavy_edge(profile, counts, blocks=blocks)
    expected = reference.alpha(profile, ranks, indexes, servers, fabric, blocks)
    found = iteration_time(profile, ranks, servers, fabric, blocks, layouts(indexes, fabric.domain))
    assert found == pytest.approx(expected, rel=1e-9)


@given(domain_cases(stages | experts()), st.sampled_from(Pipeline))
def test_where_each_server_is_one_domain_nothing_changes(case, pipeline):
    """To the last bit: by a domain as large as the server, and by GPUs that lie in one domain of each."""
    profile, counts, servers, blocks, fabric, indexes = case
    profile = replace(profile, pipeline=pipeline)
    ranks, paper = heavy_edge(profile, counts, blocks=blocks), replace(fabric, domain=0, across=0.0)
    expected = stage_costs(profile, ranks, servers, paper, blocks)
    whole = replace(fabric, domain=max(servers))
    assert stage_costs(profile, ranks, servers, whole, blocks, layouts(indexes, whole.domain)) == expected
    alone = tuple((count,) for count in counts)
    assert stage_costs(profile, ranks, servers, fabric, blocks, alone) == expected
    assert worst_iteration_time(profile, whole.domain, whole) == worst_iteration_time(profile, whole.domain, paper)


@given(domain_cases(stages | experts()))
def test_with_one_bandwidth_in_the_server_the_times_are_those_without_domains(case):
    profile, counts, servers, blocks, fabric, indexes = case
    ranks, same = heavy_edge(profile, counts, blocks=blocks), replace(fabric, across=fabric.intra)
    expected = iteration_time(profile, ranks, servers, fabric, blocks)
    found = iteration_time(profile, ranks, servers, same, blocks, layouts(indexes, fabric.domain))
    assert found == pytest.approx(expected, rel=1e-9)


@given(domain_cases(stages | experts()), st.sampled_from(Pipeline), st.floats(1, 10))
def test_a_slower_way_between_domains_never_makes_a_job_faster(case, pipeline, factor):
    profile, counts, servers, blocks, fabric, indexes = case
    profile, divided = replace(profile, pipeline=pipeline), layouts(indexes, fabric.domain)
    ranks, slower = heavy_edge(profile, counts, blocks=blocks), replace(fabric, across=fabric.across / factor)
    alpha = iteration_time(profile, ranks, servers, fabric, blocks, divided)
    assert iteration_time(profile, ranks, servers, slower, blocks, divided) >= alpha * (1 - 1e-12)
    assert alpha >= iteration_time(profile, ranks, servers, fabric, blocks) * (1 - 1e-12)


@given(domain_cases())
def test_no_placement_on_servers_of_one_size_is_slower_than_alpha_max(case):
    profile, counts, servers, blocks, fabric, indexes = case
    size, divided = max(*servers, fabric.domain + 1), layouts(indexes, fabric.domain)
    ranks = heavy_edge(profile, counts, blocks=blocks)
    worst = worst_iteration_time(profile, size, fabric, len(blocks) + 1)
    assert iteration_time(profile, ranks, [size] * len(counts), fabric, blocks, divided) <= worst * (1 + 1e-12)


def test_idle_servers_give_whole_domains_first():
    assert packed((6, 4, 2), 4) == ((4, 2), (4,), (2,))
    assert packed((4, 2), 4) == packed((6, 4), 0) == ()


def test_layouts_of_other_gpus_are_refused():
    profile = replace(PROFILE, tensor=2)
    with pytest.raises(ValueError, match="do not hold the 4 GPUs"):
        iteration_time(profile, (0, 0, 0, 0), (8,), Fabric(1e9, 3e11, domain=2, across=2e10), layouts=((2, 1),))


@pytest.mark.parametrize("values", [{"domain": 4}, {"domain": 4, "across": -1.0}, {"domain": -1, "across": 1.0}])
def test_a_fabric_refuses_impossible_domains(values):
    with pytest.raises(ValueError, match=r"above 0|at least one"):
        Fabric(1e9, 3e11, **values)
