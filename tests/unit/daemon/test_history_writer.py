"""How runs are recorded, however they end, and when the history cannot be written."""

import logging

import pytest

from slurm_asrpt.daemon.jobs import managed_job
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.record.history import HistoryWriter
from slurm_asrpt.history import store as module
from slurm_asrpt.history.store import HistoryError, Origin, Run, Source
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.predict.conformal import RunConformal
from tests.benches.fake_slurm import GROUP


@pytest.mark.parametrize(
    "state",
    ["COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"],
)
def test_every_end_state_is_recorded_with_the_iterations_done(bench, state):
    job_id = bench.slurm.submit(4, profile="flat")
    bench.cycle(10)
    bench.report(job_id, "3 1000\n")
    bench.slurm.end(job_id, state)
    bench.cycle()
    run = bench.runs()[job_id]
    assert (run.state, run.iterations, run.reported_total, run.origin) == (state, 3, 1000, Origin.ASRPTD)
    assert run.end_time - run.start_time == 10


@pytest.mark.parametrize(
    ("asked", "nodes"),
    [
        ({}, (1, 0)),
        ({"min_nodes": 1, "max_nodes": 2}, (1, 2)),
        ({"tres_per_job": "", "tres_per_node": "gres:gpu:4", "min_nodes": 1, "max_nodes": 1}, (1, 1)),
    ],
)
def test_a_run_has_its_time_limit_and_the_nodes_that_its_owner_asked_for(bench, asked, nodes):
    job_id = bench.slurm.submit(4, time_limit=7200.0, **asked)
    bench.cycle(10)
    bench.slurm.change(job_id, min_nodes=1, max_nodes=7)  # of a running job, Slurm shows the allocation
    bench.slurm.end(job_id)
    bench.cycle()
    run = bench.runs()[job_id]
    assert (run.time_limit_s, run.min_nodes, run.max_nodes) == (7200, *nodes)


def test_a_run_that_started_and_ended_unseen_has_its_gpus(bench):
    bench.stop()
    job_id = bench.slurm.submit(4)
    bench.slurm.change(job_id, state="RUNNING", start_time=bench.slurm.now + 1, nodes="n1", tres="cpu=4,gres/gpu=4")
    bench.slurm.tick(10)
    bench.slurm.end(job_id)
    bench.start()
    bench.cycle(1)
    assert bench.runs()[job_id].gpus == 4


def test_a_job_cancelled_while_pending_is_not_recorded(bench):
    bench.slurm.submit(12)
    waiting = bench.slurm.submit(4)
    bench.cycle(2)
    bench.slurm.end(waiting, "CANCELLED")
    bench.cycle()
    assert waiting not in bench.runs()


def test_both_runs_of_a_requeued_job_are_kept(bench):
    job_id = bench.slurm.submit(4)
    bench.cycle(10)
    first = bench.slurm.records[job_id].start_time
    bench.slurm.requeue(job_id)
    cut_at = bench.slurm.now
    bench.cycle(130)
    second = bench.slurm.records[job_id].start_time
    bench.slurm.end(job_id)
    bench.cycle()
    runs = sorted(bench.history.runs(), key=lambda run: run.start_time)
    assert [(run.job_id, run.state, run.start_time) for run in runs] == [
        (job_id, "REQUEUED", first),
        (job_id, "COMPLETED", second),
    ]
    assert (runs[0].end_time, runs[0].iterations, runs[0].iterations_source) == (cut_at, 10, Source.ELAPSED)
    assert runs[0].gpus == runs[1].gpus == 4
    assert [entry["until"] for entry in bench.audit("cut", job_id)] == [cut_at]


def test_a_requeue_seen_while_it_ends_the_run_does_not_change_the_runs_start(bench):
    job_id = bench.slurm.submit(4)
    bench.cycle(10)
    first = bench.slurm.records[job_id].start_time
    bench.slurm.change(job_id, state="COMPLETING", start_time=bench.slurm.now, restarts=1)
    bench.cycle(2)
    assert bench.runs() == {}
    bench.slurm.requeue(job_id)
    bench.cycle()
    (run,) = bench.runs().values()
    assert (run.state, run.start_time) == ("REQUEUED", first)


def test_a_requeued_job_pauses_before_it_starts_again(bench, monkeypatch):
    monkeypatch.setattr(managed_job, "REQUEUE_PAUSE_S", 10.0)
    job_id = bench.slurm.submit(4)
    bench.cycle(10)
    bench.slurm.requeue(job_id)
    bench.slurm.change(job_id, eligible_time=bench.slurm.now + 1)  # scontrol update StartTime=now+1
    bench.cycle(8)
    assert bench.job_state(job_id) is JobState.INELIGIBLE
    bench.cycle(5)
    assert bench.slurm.records[job_id].state == "RUNNING"


def test_a_second_run_without_reports_does_not_inherit_the_first_ones_iterations(bench):
    job_id = bench.slurm.submit(4, profile="flat")
    bench.cycle(10)
    bench.report(job_id, "700 1000\n")
    bench.slurm.requeue(job_id)
    bench.cycle(130)
    bench.cycle(10)
    bench.slurm.end(job_id)
    bench.cycle()
    last = max(bench.history.runs(), key=lambda run: run.start_time)
    assert (last.state, last.iterations_source, last.reported_total) == ("COMPLETED", Source.ELAPSED, 0)


def test_requeueing_a_job_that_never_ran_records_no_run(bench):
    bench.slurm.submit(12)
    waiting = bench.slurm.submit(4)
    bench.cycle(2)
    bench.slurm.requeue(waiting)
    bench.cycle(2)
    assert bench.runs() == {}


def test_asrptds_row_replaces_one_imported_from_sacct(bench):
    job_id = bench.slurm.submit(4, profile="flat")
    bench.cycle(10)
    start = int(bench.slurm.records[job_id].start_time)
    bench.history.add([Run(job_id, start, origin=Origin.SACCT, state="COMPLETED")])
    bench.report(job_id, "3 1000\n")
    bench.slurm.end(job_id)
    bench.cycle()
    assert (bench.runs()[job_id].origin, bench.runs()[job_id].iterations) == (Origin.ASRPTD, 3)


def test_runs_are_kept_until_the_history_can_be_written(bench, monkeypatch, caplog):
    def refuse(self, runs):
        raise HistoryError("database is locked")

    jobs = [bench.slurm.submit(4) for _ in range(3)]
    bench.cycle(3)
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "asrptd"):
        patch.setattr(module.History, "record", refuse)
        for job_id in jobs[:2]:
            bench.slurm.end(job_id)
            bench.cycle()
        assert bench.runs() == {}
    assert len(caplog.records) == 1
    assert "database is locked; ended runs are kept" in caplog.text
    bench.slurm.end(jobs[2])
    bench.cycle()
    assert bench.runs().keys() == set(jobs)


def test_runs_lost_at_shutdown_are_logged(bench, monkeypatch, caplog):
    recorder = bench.history_writer
    monkeypatch.setattr(recorder, "unwritten", [Run("1", 5), Run("2", 5)])
    monkeypatch.setattr(recorder.history, "record", lambda runs: (_ for _ in ()).throw(HistoryError("gone")))
    with caplog.at_level(logging.ERROR, "asrptd"):
        recorder.close()
    assert "2 runs could not be written and are lost" in caplog.text


def test_a_history_locked_at_startup_is_opened_later_and_its_rows_are_kept(bench, caplog):
    """After a restart less is known of a run than when it ended: rows in the history are not overwritten."""
    known, new = bench.slurm.submit(4, profile="flat"), bench.slurm.submit(4)
    bench.cycle(5)
    bench.report(known, "77 100\n")
    bench.slurm.end(known)
    bench.cycle()
    history, refused = bench.history, [HistoryError("database is locked")] * 3

    def open_late():
        if refused:
            raise refused.pop()
        return history

    bench.restart()
    bench.history_writer.__init__(open_late, bench.settings.paths.spool, bench.profiles)
    bench.slurm.end(new)
    bench.cycle()
    assert bench.runs().keys() == {known}
    assert "database is locked; ended runs are kept" in caplog.text
    bench.cycle(3)
    assert bench.runs().keys() == {known, new}
    assert bench.runs()[known].iterations == 77


@pytest.mark.parametrize("kind", [module.DamagedError, module.ReadOnlyError])
def test_a_history_that_becomes_damaged_or_read_only_is_reopened(bench, tmp_path, kind):
    opened = []

    def open_next():
        opened.append(module.History(tmp_path / f"{len(opened)}.sqlite"))
        return opened[-1]

    recorder = HistoryWriter(open_next, tmp_path, bench.profiles)
    recorder.unwritten = [Run("1", 5)]
    opened[0].record = lambda runs: (_ for _ in ()).throw(kind("malformed"))
    recorder.flush()
    assert recorder.unwritten == [Run("1", 5)]
    recorder.flush()
    assert [run.job_id for run in opened[1].runs()] == ["1"]
    recorder.close()


def test_ended_runs_adjust_the_intervals_of_current_jobs(make_bench):
    """The latest runs of a job's user tell more than the day-old table."""
    bench = make_bench(policy="asrpt-gated")
    tag = Tag(GROUP, 100, low=80, high=120).format()
    told = list[tuple[int | None, int | None]]()
    for _ in range(12):
        job_id = bench.slurm.submit(4, admin_comment=tag)
        bench.cycle(2)
        row = next(row for row in bench.status(bench.slurm.now).jobs if row.job_id == job_id)
        told.append((row.predicted_low, row.predicted_high))
        bench.cycle(2)
        bench.slurm.tick(400)
        bench.slurm.end(job_id)
        bench.cycle()
    assert told[0] == (80, 120)
    assert told[-1][0] <= 100
    assert 380 < told[-1][1] < 420
    assert bench.runs()["1"].predicted_high == 120, (
        "the history keeps what the tag said: intervals are recomputed from it"
    )
    assert RunConformal.of_history(bench.history, bench.slurm.now).adjusted(1001, 80, 100, 120) == pytest.approx(
        bench.recent.run_adjustment.adjusted(1001, 80, 100, 120)
    )
