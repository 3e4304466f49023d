"""``turns``: whatever the jobs' own priorities, Slurm gives all starts of a cycle the GPUs that were planned."""

from hypothesis import event, given
from hypothesis import strategies as st

from slurm_asrpt.core.placement.splitter import fill
from slurm_asrpt.slurm.writeback import MOST_TURNS, turns

NODES = 4
starts = st.lists(
    st.tuples(st.sets(st.integers(0, NODES - 1), min_size=1, max_size=3), st.integers(1, 9), st.integers(0, 9)),
    min_size=3,
    max_size=10,
)


def start(free, nodes, gpus):
    """The GPUs that a job gets on its nodes, in the order of the node table; () if it cannot start there."""
    split = fill([free[node] for node in sorted(nodes)], gpus) or ()
    for node, count in zip(sorted(nodes), split, strict=False):
        free[node] -= count
    return split


@given(st.lists(st.integers(4, 8), min_size=NODES, max_size=NODES), starts)
def test_each_start_gets_what_was_planned_for_it(sizes, wanted):
    free, planned = list(sizes), []
    for nodes, gpus, priority in wanted:
        split = start(free, nodes, gpus)
        if split:
            planned.append((nodes, gpus, priority, split))
    order = turns([set(map(str, nodes)) for nodes, *_ in planned], [])
    event(f"the last turn: {max(order, default=0)}")
    if MOST_TURNS in order:
        return
    free = list(sizes)
    for _, (nodes, gpus, _, split) in sorted(zip(order, planned, strict=True), key=lambda each: (each[0], -each[1][2])):
        assert start(free, nodes, gpus) == split


def test_only_jobs_that_share_nodes_with_one_on_several_wait_for_their_turn():
    assert turns([{"n1"}, {"n1"}, {"n1", "n2"}, {"n3"}, {"n2"}, {"n2", "n3"}, set()], []) == [0, 0, 1, 0, 2, 3, 0]
    assert turns([{"n1"}, {"n2", "n1"}, {"n3"}], [{"n2"}, {"n3", "n4"}]) == [0, 1, 1]
    assert max(turns([{"n1", "n2"}] * 9, [])) == MOST_TURNS
