"""what-if and shadow-report on jobs that waited for a limit of their QOS: the policies wait for it, too."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import COMMANDS, QUICK, Cluster, own_cluster

pytestmark = pytest.mark.e2e

ENFORCE = "AccountingStorageEnforce=associations,limits,qos"
SHADOW = {"daemon": {**QUICK["daemon"], "mode": "shadow"}}


@pytest.fixture
def limited() -> Iterator[Cluster]:
    """QOS normal allows each user two GPUs at a time. asrptd only watches."""
    with own_cluster(660, "2x4", SHADOW, accounting=True, slurm_conf_extra=ENFORCE) as cluster:
        cluster.lab.run(["sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxTRESPerUser=gres/gpu=2"])
        cluster.start_daemon()
        yield cluster


def what_if(cluster: Cluster, *words: str) -> dict[str, Any]:
    command = [COMMANDS / "asrpt-sim", "what-if", "--sacct", "--since", "1hours", "-p", "fifo", "--json", *words]
    return json.loads(cluster.lab.run(command, timeout_s=120).stdout)


def shadow_report(cluster: Cluster, *words: str) -> dict[str, Any]:
    return json.loads(cluster.admin("shadow-report", "--since", "1hours", "--json", *words))


def test_policies_wait_for_the_limit_as_the_jobs_did(limited: Cluster):
    """Three pairs of one user's jobs, one pair after the other, beside idle GPUs; and one job of another user."""
    ids = [limited.submit("--gpus=1", "-t5", script="sleep 6") for _ in range(6)]
    ids.append(limited.submit("--gpus=1", "-t5", script="sleep 6", user="asrpt2"))
    limited.wait_all(ids, "COMPLETED", timeout=120)
    limited.all_recorded(ids)
    saved = limited.lab.directory / "limits.txt"
    for replay in (what_if, shadow_report):
        real, *_, held = replay(limited)["rows"]
        free = replay(limited, "--no-limits")["rows"][-1]
        assert real["max_wait_s"] > 10
        assert free["max_wait_s"] < 5
        assert held["max_wait_s"] > 10
        assert held["jobs"] == 7
    words = ("show", "assoc_mgr", "flags=qos,assoc"), ("show", "partition"), ("show", "license")
    saved.write_text("\n".join(limited.scontrol("-o", *each) for each in words))
    found = what_if(limited, "--limits", str(saved))
    assert found["notes"]["site_limits"]["by_limit"] == {"MaxTRESPU=gres/gpu of QOS normal": 7}
    assert found["rows"][1]["max_wait_s"] > 10
