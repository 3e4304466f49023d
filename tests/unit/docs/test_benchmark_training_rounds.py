"""Rounds of training jobs: figures from made-up records."""

import pytest

from benchmarks.training_rounds import Round, TrainingJob, measure
from slurm_asrpt.errors import MachineError
from slurm_asrpt.slurm.records import JobRecord


def job(name, gpus=4, iterations=100, ideal_s=10.0):
    return TrainingJob(name, "asrpt1", gpus, "vgg19-dp4", iterations, 0.0, ideal_s)


def record(name, submit, start, end, state="COMPLETED", predicted=0):
    tag = f"asrpt1:g={'0' * 16};n={predicted}"
    return JobRecord(
        "1", name, "asrpt1", 1, "gpu", state, "None", submit, start_time=start, end_time=end, admin_comment=tag
    )


def records(*found):
    return {r.name: r for r in found}


def test_the_figures_of_a_round_are_computed_from_its_records():
    found = measure(
        [job("a"), job("b")],
        records(record("a", 0, 5, 15, predicted=110), record("b", 10, 10, 40, predicted=50)),
        predicted=True,
    )
    assert found == Round(
        completed=2,
        avg_jct_s=22.5,
        total_jct_s=45,
        makespan_s=40,
        lost_gpu_hours=4 * 20 / 3600,
        prediction_error=pytest.approx(0.3),
    )


def test_the_learning_round_has_no_prediction_error():
    assert measure([job("a")], records(record("a", 0, 1, 2)), predicted=False).prediction_error is None


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "RUNNING", "PENDING", "TIMEOUT", "NODE_FAIL"])
def test_jobs_that_did_not_complete_do_not_count(state):
    found = measure([job("a"), job("b")], records(record("a", 0, 0, 10), record("b", 0, 0, 99, state)), predicted=False)
    assert (found.completed, found.avg_jct_s, found.makespan_s) == (1, 10, 10)


def test_a_job_that_was_never_submitted_does_not_count():
    assert measure([job("a"), job("b")], records(record("b", 0, 0, 9)), predicted=False).completed == 1


def test_a_job_without_a_prediction_has_an_error_of_one():
    found = record("a", 0, 0, 9)
    assert measure([job("a")], records(found), predicted=True).prediction_error == 1.0


def test_a_run_faster_than_ideal_loses_no_gpu_hours():
    assert measure([job("a")], records(record("a", 0, 0, 9)), predicted=False).lost_gpu_hours == 0


def test_a_round_without_completed_jobs_is_an_error():
    with pytest.raises(MachineError, match="no job completed"):
        measure([job("a")], records(record("a", 0, 0, 9, "FAILED")), predicted=False)
