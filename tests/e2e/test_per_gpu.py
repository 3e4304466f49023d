"""CPUs that jobs get for their GPUs, which Slurm shows only once it starts them: no start fails for want of them."""

from collections import Counter

import pytest

from .conftest import own_cluster, quick

pytestmark = pytest.mark.e2e
SPEED = 10


def test_jobs_start_where_the_cpus_for_their_gpus_are_free() -> None:
    """Nodes of 8 GPUs and 16 CPUs: two jobs with --cpus-per-gpu=8, or four with DefCpuPerGPU."""
    settings = {**quick(SPEED), "policy": {"name": "asrpt-gated"}}
    with own_cluster(160, "2x8", settings, cpus=16, slurm_conf_extra="DefCpuPerGPU=4", speed=SPEED) as lab:
        lab.start_daemon()
        options = ("--cpus-per-gpu=8", "--cpus-per-gpu=8", "--comment=default")
        jobs = {lab.submit("--gpus=1", option, script="sleep 20"): option for _ in range(6) for option in options}
        done = lab.wait_all(list(jobs), "COMPLETED", timeout=60)
        assert Counter(job.cpus for job in done.values()) == {8: 12, 4: 6}
        failed = [entry for job_id in jobs for entry in lab.audit(job_id, "not-started")]
        assert not failed
        assert all(lab.audit(job_id, "start") or lab.audit(job_id, "released-ahead") for job_id in jobs)
