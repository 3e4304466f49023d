"""policy.scatter on a real Slurm: a job of several GPUs starts on more nodes than it needs, rather than wait."""

from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

SETTINGS: dict[str, dict[str, Any]] = {
    "daemon": {"interval_s": 1.0, "lease_s": 3600, "release_ahead": 2},
    "policy": {"scatter": True},
}
LONG = ("-t", "60", "-J", "long")


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    with own_cluster(1040, "2x2", SETTINGS, multifactor=True) as cluster:
        yield cluster


def test_a_job_starts_on_gpus_of_two_nodes_unless_its_owner_asks_for_one(lab: Cluster) -> None:
    lab.start_daemon()
    running = {node: lab.submit("--gpus=1", "-w", node, *LONG, script="sleep 600") for node in ("n1", "n2")}
    lab.wait_all(list(running.values()), "RUNNING")
    together = lab.submit("--gpus=2", "-N1", *LONG, script="sleep 600")
    wait_for(lambda: lab.order() == [together], lambda: f"the order is {lab.order()}", 30)
    assert lab.job(together).state == "PENDING"
    lab.cancel(together)
    scattered = lab.submit("--gpus=2", *LONG, script="sleep 600")
    lab.wait(scattered, "RUNNING")
    assert lab.job(scattered).gpus_by_node == {"n1": 1, "n2": 1}
    lab.cancel(*running.values(), scattered)
    assert lab.stop_daemon() == 0


def test_a_released_job_starts_where_gpus_become_free(lab: Cluster) -> None:
    """In the moment in which the second GPU is free, on whichever nodes: it gets no limit of one node."""
    lab.start_daemon()
    running = {
        node: [lab.submit("--gpus=1", "-w", node, *LONG, script="sleep 600") for _ in range(2)] for node in ("n1", "n2")
    }
    lab.wait_all([job_id for some in running.values() for job_id in some], "RUNNING")
    lab.cancel(running["n1"][0])
    wait_for(lambda: lab.job(running["n1"][0]).has_ended, "it has ended", 15)
    scattered = lab.submit("--gpus=2", *LONG, script="sleep 600")
    wait_for(lambda: lab.audit(scattered, "released-ahead"), "it is released ahead", 30)
    assert lab.job(scattered).max_nodes != 1
    lab.cancel(running["n2"][0])
    lab.wait(scattered, "RUNNING")
    assert lab.job(scattered).gpus_by_node == {"n1": 1, "n2": 1}
    lab.cancel(running["n1"][1], running["n2"][1], scattered)
    assert lab.stop_daemon() == 0
