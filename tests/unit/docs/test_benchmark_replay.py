"""The replay benchmark: which jobs it replays, and how it counts completion times."""

import pytest

from benchmarks import replay
from benchmarks.training_rounds import TrainingJob
from slurm_asrpt.slurm.records import JobRecord

HOUR = 3600.0


def job(submit_h: float, run_h: float, gpus: int = 8, vc: str = "") -> replay.Submitted:
    return replay.Submitted(submit_h * HOUR, gpus, run_h * HOUR, vc)


def test_the_busiest_hours_have_most_multi_gpu_work():
    jobs = [job(0, 100, gpus=1), job(10, 1), job(11, 1), job(20, 1.5), job(30, 0.5)]
    assert replay.busiest(jobs, 2 * HOUR) == jobs[1:3]


def test_run_times_are_limited_to_the_span():
    (found,) = replay.busiest([job(0, 100)], 2 * HOUR)
    assert found.run_s == 2 * HOUR


def test_jobs_running_at_the_start_are_carried_in_with_their_remaining_time():
    jobs = [job(0, 2, vc="over"), job(1, 100, vc="long"), job(2, 9, vc="left"), job(10, 1, vc="now")]
    found = replay.carried_in(jobs, 10 * HOUR, 2 * HOUR)
    assert [(each.vc, each.submit_s, each.run_s) for each in found] == [
        ("long", 10 * HOUR, 2 * HOUR),
        ("left", 10 * HOUR, 1 * HOUR),
    ]


def test_in_a_folded_trace_a_run_continues_after_the_fold():
    (found,) = replay.carried_in([job(166, 5)], 1 * HOUR, 9 * HOUR, fold_s=168 * HOUR)
    assert found.run_s == 2 * HOUR


def test_without_a_fold_no_later_job_is_carried_in():
    assert replay.carried_in([job(166, 5)], 1 * HOUR, 9 * HOUR) == []


def lab_job(name: str, submit_s: float) -> TrainingJob:
    return TrainingJob(name, "asrpt1", 8, "vgg19-dp8", 10, submit_s, 5.0)


def record(name: str, submit: float, start: float, end: float) -> JobRecord:
    return JobRecord(name, name, "asrpt1", 1, "batch", "COMPLETED", "", submit, start_time=start, end_time=end)


def test_completion_times_count_from_the_due_time_however_slow_sbatch_is():
    jobs = [lab_job("a", 0.0), lab_job("b", 1.0)]
    played = replay.Round(100.0, {"a": record("a", 97, 100, 105), "b": record("b", 109, 109, 115)})
    found = replay.figures(jobs, played, 16, learned=False)
    assert found["avg_jct_s"] == pytest.approx((5 + 14) / 2)
    assert found["avg_wait_s"] == pytest.approx((0 + 8) / 2)
    assert found["avg_sbatch_late_s"] == pytest.approx((0 + 8) / 2)
    assert found["makespan_s"] == 15
