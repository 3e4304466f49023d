"""asrpt-status with a real Slurm: what-if start times are right, and arrays are found by task id."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import COMMANDS, Cluster, wait_for

pytestmark = pytest.mark.e2e

SCRIPT = """\
#!/bin/sh
#SBATCH -J whatif
#SBATCH -n4 --gpus-per-task=1
#SBATCH --comment=asrpt:profile=vgg19-dp4
until [ -e go-status ]; do sleep 0.2; done
"""


def as_user(cluster: Cluster, *words: str) -> Any:
    """The output of asrpt-status --json for a user."""
    done = cluster.lab.run([COMMANDS / "asrpt-status", "--json", *words], user="asrpt1", timeout_s=60)
    return json.loads(done.stdout)


def what_if(cluster: Cluster, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def published() -> bool:  # asrptd publishes its data at startup and then once a minute
        found.update(as_user(cluster, "--what-if", "whatif.sh", "--", *words))
        return not found["trouble"]

    wait_for(published, "asrptd has published its snapshot", 30)
    return found


def test_a_what_if_start_time_is_right_and_arrays_are_found_by_task_id(cluster: Cluster) -> None:
    asrpt = cluster
    asrpt.start_forecasting_daemon()
    home = asrpt.lab.home("asrpt1")
    (home / "whatif.sh").write_text(SCRIPT)
    found = what_if(asrpt)
    assert sum(found["placement"].values()) == found["gpus"] == 4
    job = asrpt.lab.run(["sbatch", "--parsable", "whatif.sh"], user="asrpt1").stdout.strip()
    asrpt.wait(job, "RUNNING", timeout=60)
    wait_for(lambda: asrpt.state_of(job) == "running", "the status shows it as running", 30)
    row = asrpt.status()[job]
    assert (row["group"], row["nodes"]) == (found["group"], found["placement"])
    assert what_if(asrpt, "--contiguous")["slurm_chooses"] == "it asks for contiguous nodes"

    array = asrpt.submit("--array=1-4", "-n1", "--gpus-per-task=1", "--hold", script="sleep 1")
    wait_for(lambda: asrpt.state_of(array), "the array is in the status", 30)
    assert [row["job_id"] for row in as_user(asrpt, f"{array}_[2-3]", job)["jobs"]] == [job, array]
    said = as_user(asrpt, "--explain", array)
    assert (said["state"], said["reason"]) == ("waiting", "held")
    assert said["changes"]
    (home / "go-status").touch()
    asrpt.wait(job, "COMPLETED", timeout=60)
