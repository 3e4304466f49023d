"""The free resources of a cluster: what is checked, set aside and kept, and when two views are the same."""

from __future__ import annotations

import pytest

from slurm_asrpt.core.cluster import ClusterView, Node, spread


def view(**more: dict[str, float]) -> ClusterView:
    return ClusterView([Node("n1", 4, 1), Node("n2", 4, 2)], {"n1": 4, "n2": 2}, **more)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_the_speed_of_a_gpu_is_finite_and_above_zero(speed: float) -> None:
    with pytest.raises(ValueError, match="finite number above 0"):
        Node("n1", 4, speed=speed)


@pytest.mark.parametrize("free", [-1, 5])
def test_a_node_has_no_more_free_gpus_than_gpus(free: int) -> None:
    with pytest.raises(ValueError, match=f"{free} of 4"):
        ClusterView([Node("n1", 4)], {"n1": free})


def test_each_change_gives_a_version_that_no_other_state_had() -> None:
    cluster = view(free_cpus={"n1": 8.0})
    versions = [cluster.version]
    for change in (
        lambda: cluster.take({"n1": 1}),
        lambda: cluster.take({"n2": 1}),
        lambda: cluster.give({"n1": 1}),
        lambda: cluster.give({"n2": 1}),
        lambda: cluster.set_aside("n1", 1.0, 0.0),
        lambda: cluster.keep({"n1": (1.0, 0.0)}),
    ):
        change()
        versions.append(cluster.version)
    assert len(set(versions)) == len(versions)


def test_what_is_set_aside_is_taken_down_to_nothing() -> None:
    cluster = view(free_cpus={"n1": 8.0, "n2": -2.0}, free_memory={"n1": 100.0})
    cluster.set_aside("n1", 5.0, 400.0)
    cluster.set_aside("n2", 5.0, 0.0)
    cluster.set_aside("n9", 5.0, 5.0)
    assert (cluster.free_cpus, cluster.free_memory) == ({"n1": 3.0, "n2": -2.0}, {"n1": 0.0})


def test_no_more_is_kept_than_is_free() -> None:
    cluster = view(free_cpus={"n1": 8.0, "n2": -2.0}, free_memory={"n1": 100.0, "n2": 50.0})
    cluster.keep({"n1": (5.0, 400.0), "n2": (5.0, 20.0), "n9": (1.0, 1.0)})
    assert cluster.kept == {"n1": (5.0, 100.0), "n2": (0.0, 20.0)}


def test_kinds_are_mixed_as_evenly_as_possible() -> None:
    assert spread([1, 2]) == [1, 0, 1]
    assert spread([2, 4, 0]) == [1, 0, 1, 1, 0, 1]
