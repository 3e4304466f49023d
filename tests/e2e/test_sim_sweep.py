"""asrpt-sim sweep as a job array on a real Slurm gives the same results as one process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import COMMANDS, Cluster, wait_for

pytestmark = pytest.mark.e2e

SWEEP = ["pai-like:500:4", "--servers", "8", "--jobs", "80", "--load", "0.8", "-p", "fifo,asrpt", "--grid", "seed=0..1"]


def sim(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **cluster.lab.env}
    command = [str(COMMANDS / "asrpt-sim"), "sweep", *arguments, "--json"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_sweep_as_a_job_array(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "a sweep; $(false)"
    options = ["--backend", "slurm", "--sbatch=--partition=other", "--sbatch=--cpus-per-task=1"]
    done = sim(cluster, *SWEEP, "-o", str(folder), *options)
    assert done.returncode == 0, done.stderr
    submitted = json.loads(done.stdout)
    assert submitted["tasks"] == 4

    def collected() -> Any:
        found = sim(cluster, "--collect", str(folder))
        return json.loads(found.stdout) if found.returncode == 0 else None

    wait_for(collected, "every cell has its result", 90)
    logs = list((folder / "logs").glob(f"{submitted['job']}_*.log"))
    assert len(logs) == 4
    here = sim(cluster, *SWEEP, "-o", str(tmp_path / "here"), "-j", "1")
    assert collected()["cells"] == json.loads(here.stdout)["cells"]
    again = sim(cluster, *SWEEP, "-o", str(folder), *options)
    assert json.loads(again.stdout)["job"] is None  # nothing left to do


def test_a_submission_that_slurm_refuses_is_a_one_line_error(cluster: Cluster, tmp_path: Path) -> None:
    done = sim(cluster, *SWEEP, "-o", str(tmp_path / "s"), "--backend", "slurm", "--sbatch=--partition=nonsense")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "invalid partition" in done.stderr
