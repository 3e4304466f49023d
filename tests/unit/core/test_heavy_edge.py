"""Heavy-Edge and the job graph: the paper's Fig. 2 and hand-made cases."""

from collections import Counter

import networkx as nx
import pytest

from slurm_asrpt.core.job import AllReduce, JobProfile, Stage
from slurm_asrpt.core.placement.graph import double_tree, job_graph
from slurm_asrpt.core.placement.heavy_edge import heavy_edge

MB = 1e6
# Fig. 2: three stages of two replicas; 20 MB between the replicas of stage 1, 1 MB from stage to stage
FIG2 = JobProfile(
    "fig2",
    (
        Stage(2, 1, 1, bytes_out=1 * MB, param_bytes=20 * MB),
        Stage(2, 1, 1, bytes_in=1 * MB, bytes_out=1 * MB, param_bytes=0.5 * MB),
        Stage(2, 1, 1, bytes_in=1 * MB, param_bytes=0.25 * MB),
    ),
)


def test_figure_2_four_one_one():
    ranks = heavy_edge(FIG2, (4, 1, 1))
    assert ranks[:4] == (0, 0, 0, 0)  # S1-R1, S1-R2, S2-R1, S2-R2 share the first server
    assert sorted(ranks[4:]) == [1, 2]


def test_figure_2_edge_weights():
    graph = job_graph(FIG2)
    assert graph.edges[0, 1]["weight"] == 20 * MB
    assert {graph.edges[a, b]["weight"] for a in (0, 1) for b in (2, 3)} == {1 * MB}
    assert not graph.has_edge(0, 4)
    assert graph.nodes[5]["stage"] == 2


def test_servers_are_filled_in_descending_order_of_gpus():
    assert heavy_edge(FIG2, (1, 4, 1))[:4] == (1, 1, 1, 1)


def test_single_gpu_servers_get_the_lightest_replica():
    profile = JobProfile("p", (Stage(1, 1, 1, bytes_out=9), Stage(2, 1, 1, bytes_in=9, bytes_out=1), Stage(1, 1, 1)))
    assert heavy_edge(profile, (1, 1, 1, 1))[3] == 0  # no edge: first


def test_without_edges_the_choice_depends_only_on_the_seed():
    profile = JobProfile("free", (Stage(6, 1, 1),))
    assert heavy_edge(profile, (3, 3), seed=1) == heavy_edge(profile, (3, 3), seed=1)
    assert len({heavy_edge(profile, (3, 3), seed=s) for s in range(20)}) > 1


def test_a_ring_is_cut_into_runs():
    profile = JobProfile("ring", (Stage(8, 1, 1, param_bytes=MB),))
    ranks = heavy_edge(profile, (4, 4))
    cuts = sum(ranks[i] != ranks[(i + 1) % 8] for i in range(8))
    assert cuts == 2


def test_among_equal_edges_single_gpus_get_the_ends_of_the_pipeline():
    chain = JobProfile("chain", tuple(Stage(1, 1, 1, bytes_in=MB * (s > 0), bytes_out=MB * (s < 5)) for s in range(6)))
    assert heavy_edge(chain, (4, 1, 1)) == (1, 0, 0, 0, 0, 2)


def test_among_equal_edges_the_vertex_with_most_edges_into_the_set_is_first():
    # every cut edge is 2 MB, the last stage's two replicas are joined by 1 MB more: they go with stage 2, not stage 1
    last = Stage(2, 1, 1, bytes_in=MB, param_bytes=MB)
    profile = JobProfile("p", (Stage(1, 1, 1, bytes_out=MB), Stage(1, 1, 1, bytes_in=MB, bytes_out=2 * MB), last))
    assert heavy_edge(profile, (3, 1)) == (1, 0, 0, 0)


@pytest.mark.parametrize("k", [2, 3, 4, 5, 8, 13])
def test_double_tree_is_two_spanning_trees_of_half_the_ring_weight(k):
    profile = JobProfile("tree", (Stage(k, 1, 1, param_bytes=MB),), AllReduce.TREE)
    graph = job_graph(profile)
    assert sum(w for _, _, w in graph.edges(data="weight")) == pytest.approx(2 * (k - 1) * (k - 1) / k * MB)
    assert max(dict(graph.degree()).values()) <= 6  # at most three neighbors in each tree


def test_the_heaviest_edge_into_the_set_decides_and_not_the_sum_of_a_vertexs_edges():
    """A ring of four, 3 MB between two; the last stage has 2 MB to each of them, so 4 MB into the first two."""
    ring = Stage(4, 1, 1, bytes_out=1 * MB, param_bytes=2 * MB)
    profile = JobProfile("ring", (ring, Stage(1, 1, 1, bytes_in=4 * MB)))
    weights = job_graph(profile).edges(data="weight")
    assert {(a, b): w for a, b, w in weights if 0 in (a, b)} == {(0, 1): 3 * MB, (0, 3): 3 * MB, (0, 4): 2 * MB}
    assert heavy_edge(profile, (3, 2)) == (0, 0, 0, 1, 1)


def test_a_last_place_goes_to_one_vertex_although_two_are_joined():
    """Two stages without a link between them: the first pair leaves one place, and nothing is joined to it."""
    pair = Stage(2, 1, 1, param_bytes=MB)
    assert Counter(heavy_edge(JobProfile("pairs", (pair, pair)), (3, 1))) == {0: 3, 1: 1}


def neighbors(tree):
    """The numbers of edges of the ranks, those with any."""
    return Counter(rank for edge in tree for rank in edge)


@pytest.mark.parametrize("k", range(2, 65))
def test_no_rank_is_inner_in_both_trees(k):
    first, second = (neighbors(tree) for tree in double_tree(k))
    assert all(min(first[rank], second[rank]) == 1 for rank in range(k))
    assert max(first[rank] + second[rank] for rank in range(k)) <= 4


@pytest.mark.parametrize("k", range(2, 65))
def test_both_trees_span_all_ranks(k):
    for tree in double_tree(k):
        assert len(tree) == k - 1
        assert nx.is_tree(nx.Graph(tree))
        assert len({child for _, child in tree}) == k - 1, "each rank but the root has one parent"


def test_the_trees_are_nccls():
    """As drawn in NCCL's src/graph/trees.cc, for an even and an odd number of ranks; children are in order there."""
    twelve, mirrored = (sorted(tree) for tree in double_tree(12))
    assert twelve == [(0, 8), (2, 1), (2, 3), (4, 2), (4, 6), (6, 5), (6, 7), (8, 4), (8, 10), (10, 9), (10, 11)]
    assert mirrored == [(1, 0), (1, 2), (3, 1), (3, 7), (5, 4), (5, 6), (7, 5), (7, 9), (9, 8), (9, 10), (11, 3)]
    thirteen, shifted = (sorted(tree) for tree in double_tree(13))
    assert thirteen == [*twelve[:8], (8, 12), (10, 9), (10, 11), (12, 10)]
    assert shifted == sorted(((a + 1) % 13, (b + 1) % 13) for a, b in thirteen)


def test_the_graph_of_an_all_reduce_by_trees_has_the_edges_of_both():
    graph = job_graph(JobProfile("tree", (Stage(5, 1, 1, param_bytes=MB),), AllReduce.TREE))
    expected = {frozenset(edge) for tree in double_tree(5) for edge in tree}
    assert {frozenset(edge) for edge in graph.edges} == expected


@pytest.mark.parametrize("counts", [(4, 1), (4, 1, 1, 1), (5, 1, 0)])
def test_counts_must_hold_the_job(counts):
    with pytest.raises(ValueError, match="do not hold"):
        heavy_edge(FIG2, counts)
