"""Jobs without GPUs beside GPU jobs: neither kind takes the CPUs of the other's next jobs."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_asrpt.daemon.jobs.saved_state import JobState
from tests.benches.daemon import Bench


def cpu_job(bench: Bench, cpus: int, **fields: Any) -> str:
    return bench.slurm.submit(1, tres_per_task="", cpus=cpus, **fields)


def gpu_job(bench: Bench, cpus: int) -> str:
    return bench.slurm.submit(1, cpus=cpus)


def nodes_of(bench: Bench, job_id: str) -> str:
    return bench.slurm.records[job_id].nodes


def test_a_job_without_gpus_starts_on_nodes_of_its_own(bench: Bench) -> None:
    first, wide = cpu_job(bench, 48), cpu_job(bench, 100, min_nodes=2)
    bench.cycle(2)
    assert bench.job_state(first) is bench.job_state(wide) is JobState.RUNNING
    assert nodes_of(bench, first) not in nodes_of(bench, wide).split(",")
    assert bench.audit("start-cpus", first)[0]["cpus"] == 48


def test_waiting_gpu_jobs_keep_cpus_from_younger_jobs_without_gpus(bench: Bench) -> None:
    running = [cpu_job(bench, 60) for _ in range(3)]
    bench.cycle(4)
    assert {bench.job_state(job_id) for job_id in running} == {JobState.RUNNING}
    gpu = gpu_job(bench, 8)
    bench.slurm.tick(1.0)
    small = [cpu_job(bench, 2) for _ in range(6)]
    bench.cycle(3)
    assert bench.job(gpu).state is JobState.QUEUED
    waiting = [job_id for job_id in small if bench.job_state(job_id) is not JobState.RUNNING]
    assert waiting == small[4:]  # four CPUs of one node are kept
    assert {bench.job(job_id).reason.kind for job_id in waiting} == {"cpus"}
    kept = next(n for n in ("n1", "n2", "n3") if n not in {nodes_of(bench, job_id) for job_id in small})
    bench.slurm.end(next(job_id for job_id in running if nodes_of(bench, job_id) == kept))
    bench.cycle(3)
    assert {bench.job_state(job_id) for job_id in (gpu, *small)} == {JobState.RUNNING}


def test_gpu_jobs_keep_the_room_of_the_oldest_job_without_gpus(bench: Bench) -> None:
    running = [gpu_job(bench, 40) for _ in range(3)]
    bench.cycle(2)
    oldest = cpu_job(bench, 60, max_nodes=1)
    bench.slurm.tick(1.0)
    later = [gpu_job(bench, 20) for _ in range(6)]
    bench.cycle(2)
    waiting = [job_id for job_id in later if bench.job_state(job_id) is JobState.QUEUED]
    assert len(waiting) == 4  # one node is kept
    bench.slurm.end(next(job_id for job_id in running if nodes_of(bench, job_id) == "n1"))
    bench.cycle(3)
    assert nodes_of(bench, oldest) == "n1"


def test_a_job_without_gpus_that_slurm_does_not_start_waits_with_its_lease(bench: Bench) -> None:
    bench.slurm.starts_jobs = False
    job_id = cpu_job(bench, 4)
    bench.cycle(24)
    assert bench.audit("not-started", job_id)
    assert bench.slurm.records[job_id].required_nodes == ""
    assert bench.slurm.records[job_id].cpus == 4
    bench.slurm.starts_jobs = True
    bench.cycle(10)
    assert bench.job_state(job_id) is JobState.RUNNING


@pytest.mark.parametrize("mode", ["shadow", "order"])
def test_other_modes_leave_jobs_without_gpus_to_slurm(make_bench: Any, mode: str) -> None:
    bench = make_bench(mode=mode)
    job_id = cpu_job(bench, 4, leased=False)
    bench.cycle(2)
    assert not [w for w in bench.writes(job_id) if "ReqNodeList" in w]


def test_a_job_without_gpus_that_fits_nowhere_is_left_to_slurm(bench: Bench) -> None:
    job_id = cpu_job(bench, 100, max_nodes=1)
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.LEFT_TO_SLURM
