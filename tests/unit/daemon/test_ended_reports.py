"""What asrptd writes for the owners of ended jobs."""

from dataclasses import replace

import pytest

from slurm_asrpt.status.ended import read_ended
from slurm_asrpt.status.review import review


def reports(bench):
    """The ended jobs of all owners by number."""
    run = bench.settings.paths.run
    bench.scheduling.status.report_ended(run, bench.slurm.now)
    return {job.job_id: job for job in read_ended(run, 0)}


def watched(bench, cycles):
    """Cycles with a status after each, as in the daemon's loop."""
    for _ in range(cycles):
        bench.cycle()
        bench.status(bench.slurm.now)


def test_a_job_is_reported_with_what_it_waited_for(bench):
    first = bench.slurm.submit(12)
    watched(bench, 2)
    second = bench.slurm.submit(12, time_limit=7200.0)
    watched(bench, 10)
    bench.slurm.end(first)
    watched(bench, 5)
    bench.slurm.end(second, "FAILED")
    watched(bench, 1)
    found = reports(bench)
    job = found[second]
    assert (job.state, job.reason, job.rank) == ("ended", "failed", None)
    assert job.end_time - job.start_time == pytest.approx(job.facts["ran_s"])
    assert job.start_time - job.submit_time == pytest.approx(job.facts["waited_s"])
    assert sum(job.facts["waits"].values()) == pytest.approx(job.facts["waited_s"], abs=2.0)
    assert job.facts["waits"]["gpus"] >= 8
    assert sum(job.nodes.values()) == 12
    assert job.facts["time_limit_s"] == 7200
    assert found[first].facts["waited_s"] <= 2


def test_a_job_that_is_cancelled_before_it_starts(bench):
    bench.slurm.submit(12)
    waiting = bench.slurm.submit(4)
    watched(bench, 10)
    bench.slurm.end(waiting, "CANCELLED")
    watched(bench, 1)
    job = reports(bench)[waiting]
    assert (job.start_time, job.nodes, job.facts["ran_s"]) == (None, {}, 0.0)
    assert "before it started" in job.text


@pytest.mark.parametrize(
    "fields",
    [
        {"tres_per_task": "", "cpus": 4},  # no GPUs
        {"admin_comment": "", "leased": False},  # the hook has not tagged it
        {"partition": "gpu,other", "admin_comment": "", "leased": False},
    ],
)
def test_a_job_without_a_run_in_the_history_has_run_as_slurm_says(bench, fields):
    job_id = bench.slurm.submit(2, **fields)
    watched(bench, 3)
    bench.slurm.tick(100.0)
    began = bench.slurm.records[job_id].start_time
    bench.slurm.end(job_id)
    watched(bench, 1)
    assert not bench.runs()
    job = reports(bench)[job_id]
    assert began > 0
    assert (job.start_time, job.facts["ran_s"]) == (began, bench.slurm.records[job_id].end_time - began)
    assert job.facts["waited_s"] == began - job.submit_time
    assert job.facts["ran_on"] == bench.slurm.records[job_id].nodes
    assert "before it started" not in job.text


def test_a_job_is_reported_once_also_by_the_next_asrptd(bench):
    job_id = bench.slurm.submit(4)
    watched(bench, 3)
    bench.slurm.end(job_id)
    watched(bench, 3)
    assert list(reports(bench)) == [job_id]
    bench.restart()
    watched(bench, 3)
    path = next((bench.settings.paths.run / "ended").iterdir())
    reports(bench)
    assert path.read_text().count(f'"job_id": "{job_id}"') == 1


def test_nothing_is_lost_while_the_directory_cannot_be_written(bench):
    run = bench.settings.paths.run
    (run / "ended").write_text("in the way")
    job_id = bench.slurm.submit(4)
    watched(bench, 3)
    bench.slurm.end(job_id)
    watched(bench, 1)
    with pytest.raises(FileExistsError):
        bench.scheduling.status.report_ended(run, bench.slurm.now)
    (run / "ended").unlink()
    assert list(reports(bench)) == [job_id]


def test_the_waits_of_a_task_begin_with_those_of_its_array(bench):
    bench.slurm.submit(12)
    watched(bench, 2)
    array = bench.slurm.submit(12, array_tasks="0-1")
    watched(bench, 10)
    bench.slurm.end(next(r.job_id for r in bench.slurm.records.values() if r.state == "RUNNING"))
    watched(bench, 10)
    task = next(r.job_id for r in bench.slurm.records.values() if r.array_id == array and r.state == "RUNNING")
    bench.slurm.end(task)
    watched(bench, 1)
    job = reports(bench)[task]
    assert sum(job.facts["waits"].values()) == pytest.approx(job.facts["waited_s"], abs=2.0)
    assert job.facts["waited_s"] >= 9


@pytest.mark.parametrize(
    ("fields", "layout"),
    [
        ({"exclusive": "node", "tres_per_job": "gres:gpu:1", "tres_per_task": ""}, "--exclusive: all GPUs of its"),
        ({"tres_per_job": "", "tres_per_task": "", "tres_per_node": "gres:gpu:2", "min_nodes": 2, "max_nodes": 2},
         "2 on each of 2 nodes"),
        ({"required_nodes": "n1", "excluded_nodes": "n2"}, "all on one node, -w n1, -x n2"),
        ({}, ""),
    ],
)  # fmt: skip
def test_a_row_has_the_layout_in_words_of_the_request(bench, fields, layout):
    job_id = bench.slurm.submit(4, **fields)
    watched(bench, 2)
    (row,) = (row for row in bench.status(bench.slurm.now).jobs if row.job_id == job_id)
    assert row.layout.startswith(layout)
    assert bool(row.layout) == bool(layout)


def test_a_job_without_a_profile_shows_the_iterations_that_it_reported(bench):
    job_id = bench.slurm.submit(4)
    watched(bench, 11)
    bench.report(job_id, "600\n")
    watched(bench, 2)
    bench.slurm.end(job_id)
    watched(bench, 1)
    assert reports(bench)[job_id].iterations_done == 600


def test_the_signal_that_ended_a_job_is_named(bench):
    job_id = bench.slurm.submit(4)
    watched(bench, 4)
    bench.slurm.records[job_id] = replace(bench.slurm.records[job_id], signal=9)
    bench.slurm.end(job_id, "FAILED")
    watched(bench, 1)
    job = reports(bench)[job_id]
    assert job.text.startswith("FAILED, signal 9 (SIGKILL) after ")
    assert review(job).signal == 9
