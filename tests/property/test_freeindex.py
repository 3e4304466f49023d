"""The indexed view chooses what a look at every node would choose."""

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.freeindex import IndexedView, quick_place
from slurm_asrpt.core.job import Job, JobId, JobProfile, Request, Stage
from slurm_asrpt.core.placement.selection import Strategy, place

FABRIC = Fabric(1.25e9, 300e9)


@st.composite
def states(draw):
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=9))
    nodes = [Node(f"n{i}", size, 3 * i) for i, size in enumerate(sizes)]
    return nodes, {n.name: draw(st.integers(0, n.gpus)) for n in nodes}


def job(gpus, request):
    return Job(JobId("1"), "ann", gpus, JobProfile("p", (Stage(gpus, 1, 1, param_bytes=1e8),)), request=request)


@settings(max_examples=300)
@given(
    states(),
    st.integers(1, 24),
    st.sampled_from(Strategy),
    st.sampled_from([Request(), Request(max_nodes=2), Request(candidates=frozenset({"n0", "n2"}))]),
)
def test_the_index_chooses_as_selection_does(state, gpus, strategy, request):
    nodes, free = state
    plain, indexed = ClusterView(nodes, free), IndexedView(nodes, free)
    expected = place(plain, job(gpus, request), strategy, FABRIC)
    assert quick_place(indexed, job(gpus, request), strategy, FABRIC) == expected
    assert quick_place(plain, job(gpus, request), strategy, FABRIC) == expected


@given(states(), st.lists(st.tuples(st.integers(1, 12), st.sampled_from(Strategy), st.booleans()), max_size=15))
def test_the_index_follows_what_is_taken_and_given(state, steps):
    nodes, free = state
    view, held = IndexedView(nodes, free, free_cpus={n.name: 99 for n in nodes}), []
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
        fresh = IndexedView(nodes, view.free)
        assert fresh.masks == view.masks
