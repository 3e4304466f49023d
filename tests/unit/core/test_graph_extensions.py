"""The job graph and Heavy-Edge with tensor slices and experts, by hand."""

import pytest

from slurm_asrpt.core.job import JobProfile, Stage
from slurm_asrpt.core.placement.graph import edge_weights, job_graph
from slurm_asrpt.core.placement.heavy_edge import heavy_edge

MB = 1e6
TENSOR = JobProfile(
    "tp",
    (Stage(2, 1, 1, bytes_out=4 * MB, param_bytes=6 * MB, tensor_bytes=10 * MB), Stage(1, 1, 1, bytes_in=8 * MB)),
    tensor=2,
)
EXPERTS = JobProfile("moe", (Stage(4, 1, 1, routed_bytes=MB, routing=(0.4, 0.1, 0.4, 0.1)),))


def test_slices_are_vertices_with_edges_for_their_all_reduce():
    graph = job_graph(TENSOR)
    assert graph.number_of_nodes() == TENSOR.gpus == 6
    assert graph.edges[0, 1]["weight"] == 10 * MB  # 2 x 1/2 x 10 MB
    assert graph.nodes[3] == {"stage": 0, "replica": 1}


def test_slices_share_the_traffic_of_their_replicas():
    graph = job_graph(TENSOR)
    # gradients 2 x 1/2 x 6 MB over two slices; 8 MB to each replica of the previous stage, x 2 / 2, over two slices
    assert graph.edges[0, 2]["weight"] == graph.edges[1, 3]["weight"] == 3 * MB
    assert graph.edges[0, 4]["weight"] == graph.edges[3, 5]["weight"] == 4 * MB
    assert not graph.has_edge(0, 3)


def test_contracting_the_slices_gives_the_graph_that_heavy_edge_uses():
    graph, contracted = job_graph(TENSOR), edge_weights(TENSOR)
    for a, neighbours in enumerate(contracted):
        for b, weight in neighbours.items():
            between = [graph.edges[u, v]["weight"] for u, v in graph.edges if {u // 2, v // 2} == {a, b}]
            assert sum(between) == pytest.approx(weight)


def test_heavy_edge_keeps_slices_together():
    assert heavy_edge(TENSOR, (4, 2)) == (0, 0, 1, 1, 0, 0)
    with pytest.raises(ValueError, match="part the 2 tensor slices"):
        heavy_edge(TENSOR, (3, 3))


def test_edges_between_experts_are_the_exchanged_tokens():
    graph = job_graph(EXPERTS)
    assert graph.edges[0, 2]["weight"] == pytest.approx(4 * 0.8 * MB)
    assert graph.edges[1, 3]["weight"] == pytest.approx(4 * 0.2 * MB)
    assert graph.edges[0, 1]["weight"] == pytest.approx(4 * 0.5 * MB)


def test_heavy_edge_puts_the_busiest_experts_together():
    assert heavy_edge(EXPERTS, (2, 2)) == (0, 1, 0, 1)
