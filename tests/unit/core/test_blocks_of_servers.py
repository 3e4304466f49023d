"""Switches above the servers: which blocks a job has, and alpha by the switches of its servers."""

from dataclasses import replace

import pytest

from papers.asrpt.oracle import optimal_placement
from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.free_index import quick_place
from slurm_asrpt.core.job import Job, JobId, JobProfile, Request, Stage
from slurm_asrpt.core.placement.best_alpha import best_alpha, packed_alpha, worst_alpha
from slurm_asrpt.core.placement.mapping import placement_on
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.topology import blocks_in, blocks_of

FLAT = Fabric(inter=8e6, intra=100e6)
TREE = replace(FLAT, beyond=(2e6, 1e6))  # 1 MB/s, 0.25 MB/s and 0.125 MB/s for each of 8 GPUs
RING = JobProfile("ring", (Stage(16, 1, 1, param_bytes=1e6),))
VOLUME = 2 * 15 / 16 * 1e6


def nodes(*switches, gpus=8):
    """Servers under these switches of level 1; the first letter is the switch of level 2."""
    return [Node(f"n{i}", gpus, i, switches=(name, name[:1], "top")) for i, name in enumerate(switches)]


def job(profile=RING, **request):
    return Job(JobId("1"), "ann", profile.gpus, profile, request=Request(**request))


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ((), ()),
        (("a1",), ()),
        (("a1", "a1"), ()),
        (("a1", "a2", "a1"), ((0, 1, 0),)),
        (("b1", "a2", "b2"), ((0, 1, 2), (0, 1, 0))),
    ],
)
def test_blocks_are_the_levels_at_which_servers_are_apart(switches, expected):
    assert blocks_of(nodes(*switches)) == expected


def test_a_server_that_names_no_switch_is_alone_under_one():
    some = [*nodes("a1"), Node("x", 8, 1), Node("y", 8, 2)]
    assert blocks_of(some) == ((0, 1, 2), (0, 1, 2), (0, 1, 2))


def test_levels_of_one_bandwidth_make_no_blocks():
    assert blocks_in(FLAT, nodes("a1", "a2")) == ()
    assert blocks_in(TREE, nodes("a1", "a2")) == ((0, 1),)


@pytest.mark.parametrize(
    ("switches", "bandwidth"),
    [
        (("a1", "a1"), 8e6),  # the NIC of a server with 8 replicas
        (("a1", "a2"), 2e6),
        (("a1", "b1"), 1e6),
    ],
)
def test_alpha_depends_on_the_lowest_switch_above_all_servers(switches, bandwidth):
    assert placement_on(nodes(*switches), (8, 8), RING, TREE).alpha == pytest.approx(2 + VOLUME / bandwidth)
    assert placement_on(nodes(*switches), (8, 8), RING, FLAT).alpha == pytest.approx(2 + VOLUME / 8e6)


def test_an_all_reduce_leaves_a_block_through_the_shares_of_all_its_servers():
    # in the first block 4 of 8 and 2 of 4 GPUs: 1/2 + 1/2 of 2 MB/s; in the second 1 + 1/4
    servers = [
        Node("n0", 8, 0, switches=("a",)),
        Node("n1", 4, 1, switches=("a",)),
        Node("n2", 8, 2, switches=("b",)),
        Node("n3", 8, 3, switches=("b",)),
    ]
    fabric = Fabric(inter=80e6, intra=100e6, beyond=(2e6,))
    assert placement_on(servers, (4, 2, 8, 2), RING, fabric).alpha == pytest.approx(2 + VOLUME / 2e6)


def test_the_index_of_free_gpus_distinguishes_placements_by_their_switches():
    view = ClusterView(nodes("a1", "a2", "b1", "a1"))
    seen = []
    for free in ({"n0": 8, "n1": 8}, {"n0": 8, "n3": 8}, {"n0": 8, "n2": 8}, {"n0": 8, "n1": 8}):
        held = {name: 8 for name in view.free if name not in free}
        view.take(held)
        found = quick_place(view, job(), Strategy.MOST_FREE, TREE)
        assert found == place(view, job(), Strategy.MOST_FREE, TREE)
        seen.append(found.alpha)
        view.give(held)
    assert seen == pytest.approx([2 + VOLUME / speed for speed in (2e6, 8e6, 1e6, 2e6)])


def test_the_best_alpha_is_that_under_the_lowest_switch_with_enough_servers():
    assert best_alpha(job(), nodes("a1", "b1", "a2", "b1"), TREE) == pytest.approx(2 + VOLUME / 8e6)
    assert best_alpha(job(), nodes("a1", "b1", "a2", "c1"), TREE) == pytest.approx(2 + VOLUME / 2e6)
    assert best_alpha(job(), nodes("a1", "b1", "c1"), TREE) == pytest.approx(2 + VOLUME / 1e6)
    assert best_alpha(job(), nodes("a1", "b1", "c1"), FLAT) == pytest.approx(2 + VOLUME / 8e6)


def test_the_best_alpha_is_on_the_fewest_servers_even_if_more_are_under_a_lower_switch():
    small = [Node(f"s{i}", 4, 9 + i, switches=("c1", "c", "top")) for i in range(4)]
    assert packed_alpha(job(), [*nodes("a1", "a2"), *small], TREE) == pytest.approx(2 + VOLUME / 2e6)


def test_the_best_alpha_over_several_switches_keeps_servers_of_a_switch_together():
    # 4 servers, of which no switch has as many: 3 and 1 of level 1, not one of each
    long_ring = JobProfile("long", (Stage(32, 1, 1, param_bytes=1e6),))
    cluster = nodes("a1", "b1", "a2", "b1", "a3", "b1")
    volume = 2 * 31 / 32 * 1e6
    assert packed_alpha(job(long_ring), cluster, TREE) == pytest.approx(2 + volume / 1e6)
    two_chains = nodes("a1", "a2", "a3", "a1", "a2", "a4")
    # 2 and 2 under a1 and a2: twice the share of one server
    assert packed_alpha(job(long_ring), two_chains, TREE) == pytest.approx(2 + volume / 4e6)


def test_requests_with_gpus_per_node_count_the_switches_too():
    assert best_alpha(job(per_node=4), nodes("a1", "a1", "a2", "a2"), TREE) == pytest.approx(2 + VOLUME / 2e6)
    assert best_alpha(job(per_node=4), nodes("a1", "a1", "a1", "a1"), TREE) == pytest.approx(2 + VOLUME / 4e6)


@pytest.mark.parametrize(
    ("switches", "fabric", "bandwidth"),
    [
        (("a1", "a1"), TREE, 8e6),  # no job can use a slower level
        (("a1", "a2"), TREE, 2e6),
        (("a1", "b1"), TREE, 1e6),
        (("a1", "b1"), FLAT, 8e6),
    ],
)
def test_the_worst_alpha_is_through_the_slowest_level_of_the_cluster(switches, fabric, bandwidth):
    assert worst_alpha(job(), nodes(*switches), fabric) == pytest.approx(2 + VOLUME / (bandwidth / 8))


def test_the_oracle_rejects_levels_that_are_faster_than_the_level_below():
    with pytest.raises(ValueError, match="no faster"):
        optimal_placement(RING, (8, 8), (8, 8), replace(FLAT, beyond=(9e6,)), blocks=((0, 1),))
