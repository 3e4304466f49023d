"""The free-GPU index selects the same nodes as a full scan."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.free_index import Plan, quick_place
from slurm_asrpt.core.job import Job, JobId, JobProfile, Request, Stage
from slurm_asrpt.core.placement.selection import Strategy, has_room, place
from slurm_asrpt.core.placement.splitter import Split
from tests.examples import examples

FABRIC = Fabric(1.25e9, 300e9)


@st.composite
def states(draw):
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=9))
    known = draw(st.booleans())  # whether the switches are known: leaves, and some nodes below none
    paths = [(f"s{draw(st.integers(0, 2))}", "top")[: draw(st.integers(1, 2))] if known else () for _ in sizes]
    nodes = [Node(f"n{i}", size, 3 * i, switches=path) for i, (size, path) in enumerate(zip(sizes, paths, strict=True))]
    return nodes, {n.name: draw(st.integers(0, n.gpus)) for n in nodes}


@settings(max_examples=examples(100))
@given(states(), st.data(), st.integers(2, 24), st.sampled_from(Strategy))
def test_the_index_computes_the_same_alpha_under_several_switches(state, data, gpus, strategy):
    nodes, free = state
    pods = data.draw(st.lists(st.sampled_from(["a1", "a2", "b1"]), min_size=len(nodes), max_size=len(nodes)))
    view = ClusterView([replace(n, switches=(pod, pod[0])) for n, pod in zip(nodes, pods, strict=True)], free)
    fabric, asked = replace(FABRIC, beyond=(5e8, 1e8)), job(gpus, Request())
    while (found := quick_place(view, asked, strategy, fabric)) is not None:
        assert found == place(view, asked, strategy, fabric)
        view.take({name: min(count, 1) for name, count in found.gpus.items()})  # other servers next time


def job(gpus, request):
    return Job(JobId("1"), "ann", gpus, JobProfile("p", (Stage(gpus, 1, 1, param_bytes=1e8),)), request=request)


@settings(max_examples=examples(300))
@given(
    states(),
    st.integers(1, 24),
    st.sampled_from(Strategy),
    st.sampled_from([Request(), Request(max_nodes=2), Request(candidates=frozenset({"n0", "n2"}))]),
    st.sampled_from(Split),
)
def test_the_index_selects_the_same_servers_as_a_full_scan(state, gpus, strategy, request, split):
    nodes, free = state
    view, asked = ClusterView(nodes, free, split=split), job(gpus, request)
    assert quick_place(view, asked, strategy, FABRIC) == place(view, asked, strategy, FABRIC)


@given(states(), st.lists(st.tuples(st.integers(1, 12), st.sampled_from(Strategy), st.booleans()), max_size=15))
def test_the_index_follows_allocations_and_releases(state, steps):
    nodes, free = state
    view, held = ClusterView(nodes, free, free_cpus={n.name: 99 for n in nodes}), []
    for gpus, strategy, give in steps:
        if give and held:
            view.give(held.pop())
        placement = quick_place(view, job(gpus, Request()), strategy, FABRIC)
        if placement is not None:
            untouched, before = view.copy(), list(view.masks)
            view.take(placement.gpus)
            held.append(placement.gpus)
            assert untouched.masks == before
            assert untouched.free != view.free
        fresh = ClusterView(nodes, view.free)
        assert fresh.masks == view.masks


REQUESTS = [Request(), Request(memory_per_gpu=3.0, memory_per_node=4.0), Request(max_nodes=1)]


@given(
    states(),
    st.none() | st.integers(0, 9),
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from(Strategy), st.sampled_from(REQUESTS)), max_size=8),
)
def test_a_plan_selects_servers_as_if_its_jobs_had_started(state, memory, wanted):
    nodes, free = state
    view = ClusterView(nodes, free, free_memory=None if memory is None else {n.name: memory for n in nodes})
    plan, played = Plan(view), view.copy()
    for gpus, strategy, request in wanted:
        asked = job(gpus, request)
        placement = plan.place(asked, strategy, FABRIC)
        assert placement == place(played, asked, strategy, FABRIC)
        if placement is not None:
            plan.add(asked, placement)
            played.take(placement.gpus, request)
        assert plan.has_room(asked) == has_room(played, asked)
        names = played.free if request.candidates is None else request.candidates
        counts = [count for name, count in played.free.items() if name in names]
        assert plan.free_for(request) == (sum(counts), max(counts, default=0))
    assert plan.view().free == played.free
    assert view.free == free


@given(states(), st.dictionaries(st.sampled_from(["n0", "n1", "n2", "x"]), st.integers(0, 9)), st.booleans())
def test_an_allocation_is_all_or_nothing(state, gpus, back):
    nodes, free = state
    view = ClusterView(nodes, free)
    try:
        (view.give if back else view.take)(gpus)
    except (KeyError, ValueError):
        assert view.free == free
    else:
        assert view.free == {n: f + gpus.get(n, 0) * (1 if back else -1) for n, f in free.items()}
        assert all(0 <= view.free[n.name] <= n.gpus for n in nodes)
    assert view.masks == ClusterView(nodes, view.free).masks
    assert view.total_free == sum(view.free.values())
