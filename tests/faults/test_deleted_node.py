"""A pending job whose node list names a node removed from slurm.conf: a loss that ``deleted`` can cause."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import own_cluster
from tests.faults.faults import without_last_node

pytestmark = pytest.mark.e2e


def test_slurm_fails_a_pending_job_that_is_pinned_to_a_deleted_node() -> None:
    """With a pin of asrptd between its write and the start, and with the owner's -w without asrptd.

    A job that names no node, or another node, is kept.
    """
    with own_cluster(40, "2x4") as cluster:
        words = ["-n1", "--gpus-per-task=1", "--begin=now+1hour"]
        free, here, gone = (cluster.submit(*words) for _ in range(3))
        chosen = cluster.submit(*words, "-w", "n2")
        cluster.scontrol("update", f"JobId={here}", "NumNodes=1-1", "ReqNodeList=n1")
        cluster.scontrol("update", f"JobId={gone}", "NumNodes=1-1", "ReqNodeList=n2")
        with without_last_node(cluster.lab):
            states = {job_id: record.state for job_id, record in cluster.jobs().items()}
            tries = [f"update JobId={gone} Requeue=1", f"requeue {gone}"]
            refused = [cluster.lab.run(["scontrol", *line.split()], check=False).stderr for line in tries]
        assert states == {free: "PENDING", here: "PENDING", gone: "NODE_FAIL", chosen: "NODE_FAIL"}
        assert "Job has already finished" in refused[0]
        assert "Requested operation is presently disabled" in refused[1]  # so that asrptd cannot give it back
