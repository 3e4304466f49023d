"""Heavy-Edge and the job graph: the paper's Fig. 2 and hand-made cases."""

import pytest

from slurm_asrpt.core.job import AllReduce, JobProfile, Stage
from slurm_asrpt.core.placement.graph import job_graph
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


@pytest.mark.parametrize("counts", [(4, 1), (4, 1, 1, 1), (5, 1, 0)])
def test_counts_must_hold_the_job(counts):
    with pytest.raises(ValueError, match="do not hold"):
        heavy_edge(FIG2, counts)
