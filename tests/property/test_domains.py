"""NVLink domains smaller than a server (docs/decisions/0046): timing and the GPUs that Slurm gives."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.domains import layout_of, layouts_of, lowest, packed
from slurm_asrpt.core.free_index import Plan, quick_place
from slurm_asrpt.core.job import Job, JobId, JobProfile, Pipeline, Stage, unprofiled
from slurm_asrpt.core.placement.best_alpha import best_alpha, fits
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.placement.selection import Strategy, place, undivided_servers
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


@st.composite
def views(draw, size=8):
    """A cluster with jobs on it, and the indexes that Slurm has given to them."""
    nodes = [Node(f"n{at}", draw(st.sampled_from([size, size, 4])), at) for at in range(draw(st.integers(1, 4)))]
    free = {node.name: mask(draw(st.sets(st.integers(0, node.gpus - 1)))) for node in nodes}
    return ClusterView(nodes, {name: each.bit_count() for name, each in free.items()}, indexes=free)


def tight(gpus):
    """A job whose GPUs communicate much."""
    return Job(JobId("1"), "u", gpus, JobProfile("tight", (Stage(gpus, 0.1, 0.1, param_bytes=1e9),)), 10.0)


PAIRS = Fabric(1.25e9, 300e9, domain=2, across=2e10)


@given(views(), st.integers(1, 12), st.integers(1, 4), st.sampled_from(Strategy))
def test_a_placement_is_timed_with_the_gpus_that_slurm_would_give(view, gpus, domain, strategy):
    job, fabric = tight(gpus), replace(PAIRS, domain=domain)
    found = quick_place(view, job, strategy, fabric)
    assert found == Plan(view).place(job, strategy, fabric) == place(view, job, strategy, fabric)
    if found is None:
        assert view.total_free < gpus or strategy is not Strategy.TIGHTEST
        return
    servers = [view.by_name[name] for name in found.nodes]
    taken = [set(range(node.gpus)) - set(indexes_of(view.indexes[node.name])) for node in servers]
    triples = zip(taken, found.gpus.values(), servers, strict=True)
    given_ = [reference.gpus_given(used, count, node.gpus) for used, count, node in triples]
    ranks = [found.nodes.index(name) for name in found.ranks]
    expected = reference.alpha(job.profile, ranks, given_, [node.gpus for node in servers], fabric, ())
    assert found.alpha == pytest.approx(expected, rel=1e-9)
    view.take(found.gpus)
    assert all(
        indexes_of(view.indexes[node.name]) == sorted(set(range(node.gpus)) - used - set(now))
        for node, used, now in zip(servers, taken, given_, strict=True)
    )


@given(views(), st.integers(2, 8), st.integers(1, 4), st.sampled_from(Strategy))
def test_a_job_that_communicates_starts_in_as_few_domains_as_it_can(view, gpus, domain, strategy):
    job, fabric = tight(gpus), replace(PAIRS, domain=domain)
    undivided = {
        node.name
        for node in view.nodes
        if view.free[node.name] >= gpus
        and len({index // domain for index in indexes_of(view.indexes[node.name])[:gpus]}) <= -(-gpus // domain)
    }
    assert undivided_servers(view, job, fabric) == undivided
    found = place(view, job, strategy, fabric)
    if found is not None and len(found.gpus) == 1 and undivided:
        assert found.alpha == min(
            place(view, limited, strategy, fabric).alpha for limited in each_alone(job, undivided)
        )
    silent = Job(JobId("2"), "u", gpus, unprofiled(gpus), 10.0)
    with_, without = place(view, silent, strategy, fabric), place(view, silent, strategy, replace(fabric, domain=0))
    assert (with_ and replace(with_, layouts=())) == without


def each_alone(job, names):
    return [replace(job, request=replace(job.request, candidates=frozenset([name]))) for name in names]


@given(views(), st.integers(1, 12), st.sampled_from(Strategy))
def test_with_domains_as_large_as_the_servers_placements_do_not_change(view, gpus, strategy):
    job, whole = tight(gpus), replace(PAIRS, domain=8)
    expected = place(ClusterView(view.nodes, view.free), job, strategy, replace(whole, domain=0))
    assert place(view, job, strategy, whole) == expected
    assert best_alpha_or_none(job, view.nodes, whole) == best_alpha_or_none(job, view.nodes, replace(whole, domain=0))


def best_alpha_or_none(job, nodes, fabric):
    return best_alpha(job, nodes, fabric) if fits(job, nodes) else None


def indexes_of(found):
    return [index for index in range(found.bit_length()) if found >> index & 1]


@given(
    views(), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=6), st.randoms(use_true_random=False)
)
def test_gpus_that_jobs_take_and_give_back_are_those_with_their_indexes(view, starts, random):
    before, held = dict(view.indexes), []
    for at, gpus in starts:
        name = view.nodes[at % len(view.nodes)].name
        if view.free[name] >= gpus:
            held.append(({name: gpus}, view.next_indexes({name: gpus})))
            view.take({name: gpus})
        assert {name: each.bit_count() for name, each in view.indexes.items()} == view.free
    random.shuffle(held)
    for gpus, indexes in held:
        view.give(gpus, indexes=indexes)
        assert {name: each.bit_count() for name, each in view.indexes.items()} == view.free
    assert view.indexes == before


def test_gpus_that_are_given_back_without_indexes_are_the_lowest_in_use():
    view = ClusterView([Node("n1", 4)], {"n1": 1}, indexes={"n1": 0b1000})
    other = view.copy()
    view.give({"n1": 2})
    assert (view.indexes, other.indexes) == ({"n1": 0b1011}, {"n1": 0b1000})
