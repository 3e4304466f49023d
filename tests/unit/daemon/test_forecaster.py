"""Start-time estimates in the daemon: when they are made, shown, withdrawn, and judged."""

import json
import math
import time

import pytest

from slurm_asrpt import throttle
from slurm_asrpt.core.job import JobId, Request
from slurm_asrpt.daemon.forecasts.snapshot import with_room
from slurm_asrpt.forecast.calibration import Calibration, calibration
from slurm_asrpt.forecast.conformal import MIN_STARTS, ConformityScore, StartConformal, StartInterval
from slurm_asrpt.forecast.sampling import UNKNOWN_S
from slurm_asrpt.forecast.snapshot import MAX_JOBS, PUBLISHED, Running, from_json
from slurm_asrpt.history.store import Run
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.status.document import withdrawn_after
from tests.benches.fake_slurm import GROUP

EVERY_S = 60.0  # the default


class Works:
    """Computations that answer when they are told to."""

    def __init__(self):
        self.snapshots, self.answers, self.stopped, self.cpu_s = [], [], 0, 0.1

    def __call__(self, data, budget_s):
        self.snapshots.append(from_json(data))
        self.budget_s = budget_s
        return self

    def answer(self):
        found = self.answers.pop(0) if self.answers else None
        if isinstance(found, Exception):
            raise found
        return None if found is None else json.dumps({"cpu_s": self.cpu_s, "starts": found}).encode()

    def stop(self):
        self.stopped += 1


class Watched:
    """A bench with a forecaster beside it."""

    def __init__(self, bench, works):
        self.bench, self.works, self.slurm = bench, works, bench.slurm
        self.start()

    def start(self):
        self.forecaster = self.bench.forecaster(self.works)

    def cycle(self, seconds=1.0):
        now = self.slurm.now
        self.bench.scheduler.cycle(now)
        self.forecaster.step(now)
        self.slurm.tick(seconds)

    def row(self, job_id):
        status = self.bench.status(self.slurm.now, self.forecaster)
        return next(row for row in status.jobs if row.job_id == job_id)

    def tell(self, job_id, *times):
        """An estimate of a waiting job, made and picked up."""
        self.cycle()
        made = self.works.snapshots[-1].now
        self.works.answers.append({job_id: times})
        self.cycle()
        return made


@pytest.fixture
def works():
    return Works()


@pytest.fixture
def bench_gated(make_bench):
    return make_bench(policy="asrpt-gated")


@pytest.fixture
def watched(bench_gated, works):
    return Watched(bench_gated, works)


@pytest.fixture
def waiting(watched):
    """A job that waits until another one of all GPUs has ended."""
    watched.slurm.submit(12, 100)
    watched.cycle()
    job_id = watched.slurm.submit(4, 50, admin_comment=Tag(GROUP, 50, low=30, high=90).format())
    watched.cycle(0.0)
    return job_id


PROVEN = StartConformal(MIN_STARTS * (ConformityScore(0.0, 0.0, 0.0),))
"""So many starts as were foretold: there may be upper ends."""


def test_an_estimate_is_shown_and_the_first_one_is_judged(watched, waiting):
    begin = watched.slurm.now
    watched.bench.recent.start_adjustment = PROVEN
    made = watched.tell(waiting, begin + 80, begin + 100, begin + 200.5)
    row = watched.row(waiting)
    assert (row.start_earliest, row.start_median, row.start_latest) == (begin + 80, begin + 100, begin + 200.5)
    assert (row.start_made, row.start_unknown) == (made, "")
    watched.cycle(EVERY_S)
    watched.tell(waiting, begin + 90, begin + 100, None)
    assert watched.row(waiting).start_latest is None
    watched.slurm.end("1")
    watched.cycle()
    assert watched.row(waiting).start_earliest is None
    watched.cycle()
    watched.slurm.end(waiting)
    watched.cycle()
    run = watched.bench.runs()[waiting]
    told = (run.forecast_made, run.forecast_low, run.forecast_median, run.forecast_high)
    assert told == (made, begin + 80, begin + 100, begin + 201)


def test_the_snapshot_has_the_present_and_the_last_day(watched, works, waiting):
    watched.cycle()
    (snapshot,) = works.snapshots
    (run,), (each,) = snapshot.running, snapshot.waiting
    assert (run.job_id, sum(run.gpus.values()), run.span.middle) == ("1", 12, 100)
    assert (each.job.id, each.span.low, each.span.middle, each.span.high) == (waiting, 30, 50, 90)
    assert sum(snapshot.free.values()) == 0
    assert [job.job.id for job in snapshot.recent] == ["1", waiting]
    assert works.budget_s == EVERY_S / 4


@pytest.fixture
def untiring(monkeypatch):
    """Publishing, however long it takes here, is done again at once."""
    monkeypatch.setattr(throttle, "PAUSE_FACTOR", 0.0)


def test_what_ifs_get_another_snapshot_once_the_queue_has_changed(untiring, watched, waiting):
    published = watched.bench.settings.paths.run / PUBLISHED
    watched.cycle()
    first = from_json(published.read_bytes())
    watched.cycle()
    assert from_json(published.read_bytes()).now == first.now
    later = watched.slurm.submit(2, 50)
    watched.cycle()
    assert {each.job.id for each in from_json(published.read_bytes()).waiting} == {waiting, later}


def test_one_at_a_time_and_none_too_often(watched, works, waiting):
    for _ in range(10):
        watched.cycle(EVERY_S / 4)
    assert len(works.snapshots) == 1  # it has not answered
    works.answers.append({})
    for _ in range(3):
        watched.cycle(EVERY_S / 4)
    assert len(works.snapshots) == 2
    assert watched.row(waiting).start_unknown.startswith("not within 24 hours")


def test_what_takes_long_gets_a_tenth_of_a_core(watched, works, waiting):
    """A queue of thousands uses up all that a forecast may have."""
    works.cpu_s = 2 * EVERY_S / 10
    works.answers.append({})
    for _ in range(5):
        watched.cycle(EVERY_S / 2)
    assert len(works.snapshots) == 2
    works.answers.append({})
    for _ in range(3):
        watched.cycle(EVERY_S / 2)
    assert len(works.snapshots) == 2
    watched.cycle()
    assert len(works.snapshots) == 3


def test_an_old_estimate_is_withdrawn(watched, waiting):
    watched.tell(waiting, watched.slurm.now + 3000, None, None)
    watched.slurm.tick(withdrawn_after(EVERY_S) - 10)
    assert watched.row(waiting).start_earliest is not None
    watched.slurm.tick(20)
    assert watched.row(waiting).start_earliest is None


def changed(slurm, job_id):
    slurm.change(job_id, tasks=8, cpus=8)


def held(slurm, job_id):
    slurm.hold(job_id)


def left(slurm, job_id):
    slurm.change(job_id, contiguous=True)


def depends(slurm, job_id):
    slurm.change(job_id, dependency="afterok:1", reason="Dependency")


@pytest.mark.parametrize(
    ("what", "says"),
    [(changed, "no estimate yet"), (held, "held"), (left, "contiguous nodes"), (depends, "dependency")],
)
def test_what_no_longer_holds_is_withdrawn_and_not_judged(watched, waiting, what, says):
    watched.tell(waiting, watched.slurm.now + 80, None, None)
    assert watched.bench.job(waiting).forecast is not None
    what(watched.slurm, waiting)
    watched.cycle()
    row = watched.row(waiting)
    assert (row.start_earliest, watched.bench.job(waiting).forecast) == (None, None)
    assert says in row.start_unknown


def test_what_was_said_survives_a_restart(watched, waiting):
    begin = watched.slurm.now
    watched.tell(waiting, begin + 80, begin + 90, None)
    said = watched.bench.job(waiting).forecast
    watched.cycle()
    watched.bench.restart()
    watched.start()
    watched.cycle()
    assert watched.bench.job(waiting).forecast == said
    assert watched.row(waiting).start_unknown == f"no estimate yet; only the first {MAX_JOBS} jobs in the queue get one"


def test_a_process_that_fails_or_hangs_is_told_and_tried_again(watched, works, waiting, caplog):
    watched.cycle()
    works.answers.append(OSError("exit code 1: no memory"))
    watched.cycle(EVERY_S)
    assert "no memory" in caplog.text
    watched.cycle(EVERY_S * 11)
    watched.cycle()
    watched.cycle()
    assert (len(works.snapshots), works.stopped) == (3, 1)
    watched.forecaster.close()
    assert works.stopped == 2


@pytest.mark.parametrize("mode", ["shadow", "order"])
def test_where_slurm_decides_nothing_is_estimated(make_bench, works, mode):
    watched = Watched(make_bench(mode=mode), works)
    watched.slurm.submit(12, leased=False)
    job_id = watched.slurm.submit(12, leased=False)
    watched.cycle()
    assert works.snapshots == []
    assert watched.row(job_id).start_unknown.startswith("Slurm decides")


def test_a_prediction_shows_its_interval_also_of_what_is_left(watched, waiting):
    watched.slurm.end("1")
    watched.cycle()
    row = watched.row(waiting)
    assert (row.predicted_low, row.predicted_high) == (30, 90)
    assert (row.predicted_run_low_s, row.predicted_run_s, row.predicted_run_high_s) == (30, 50, 90)
    watched.cycle(40)
    row = watched.row(waiting)
    assert 0 < row.remaining_low_s <= row.remaining_s < row.remaining_high_s
    watched.cycle(100)
    row = watched.row(waiting)  # it has outrun its prediction: nobody knows but that it goes on
    assert row.remaining_s is None
    assert 0 < row.remaining_low_s < row.remaining_high_s


def run(number, start, made=10, low=20, high=30):
    return Run(str(number), start, end_time=1000, forecast_made=made, forecast_low=low, forecast_high=high)


def test_calibration_counts_inside_early_and_late(bench):
    assert calibration(bench.history, 0) == Calibration(0, 0.0, 0.0, 0.0)
    runs = [run(1, 20), run(2, 30), run(3, 19), run(4, 31), run(5, 99, high=0), run(6, 99, made=0)]
    bench.history.record([*runs, run(7, 25), run(8, 24)])
    assert calibration(bench.history, 0) == Calibration(7, 5 / 7, 1 / 7, 1 / 7, closed=6)
    assert calibration(bench.history, 0).closed_late == pytest.approx(1 / 6)
    assert calibration(bench.history, 1001).jobs == 0


def test_a_real_queue_through_the_real_process(bench_gated):
    """Jobs of all GPUs, one after the other: each starts later than the one before it, and at the end all is judged."""
    slurm, forecaster = bench_gated.slurm, bench_gated.forecaster()
    bench_gated.recent.start_adjustment = PROVEN
    jobs = [slurm.submit(12, 100, admin_comment=Tag(GROUP, 100, low=80, high=130).format()) for _ in range(4)]
    deadline = time.monotonic() + 120
    bench_gated.cycle()
    while not all(bench_gated.job(job_id).forecast for job_id in jobs[1:]):
        assert time.monotonic() < deadline
        bench_gated.scheduler.cycle(slurm.now)
        forecaster.step(slurm.now)
        time.sleep(0.05)
    forecaster.close()
    told = [bench_gated.job(job_id).forecast for job_id in jobs[1:]]
    assert [forecast.made for forecast in told] == [slurm.now] * 3
    assert slurm.now + 70 < told[0].earliest < told[0].latest < told[2].median < slurm.now + 500
    for job_id in jobs:
        bench_gated.cycle(100)
        slurm.end(job_id)
        bench_gated.cycle(2)
    assert calibration(bench_gated.history, 0) == Calibration(3, 1.0, 0.0, 0.0, closed=3)


def test_what_slurm_takes_between_two_jobs_is_in_the_forecasts(watched, waiting):
    assert watched.works.snapshots[-1].rest_s == 0
    watched.slurm.end("1")
    watched.slurm.tick(3)  # so late asrptd sees it
    watched.cycle(2)
    began = watched.slurm.now
    watched.cycle()
    record = watched.bench.job(waiting).record
    watched.cycle()
    gaps = watched.bench.recent.idle_gaps
    assert record.start_time <= began
    assert gaps.typical_s() == pytest.approx(record.start_time - (began - 5))


def test_who_waits_beyond_what_was_said_is_told_of_no_end(watched, waiting):
    begin = watched.slurm.now
    watched.tell(waiting, begin + 1, begin + 2, begin + 3)
    for _ in range(3):
        watched.cycle(EVERY_S)
    margins = watched.works.snapshots[-1].margins
    published = from_json((watched.bench.settings.paths.run / PUBLISHED).read_bytes()).margins
    assert margins == StartConformal()
    assert [miss.waits for miss in published.waiting] == [True]
    assert published.waiting[0].latest > 3


def test_a_start_that_is_seen_before_the_end_that_made_room_for_it(watched, waiting):
    nodes = watched.bench.scheduler.cluster.view.nodes
    first, second = (Running(JobId(n), {nodes[0].name: nodes[0].gpus}, Request(), 0.0, UNKNOWN_S, 9.0) for n in "12")
    assert with_room([first, second], nodes) == [first]


def test_starts_teach_margins_that_survive_a_restart(watched, waiting):
    begin = watched.slurm.now
    made = watched.tell(waiting, begin + 80, begin + 100, begin + 120)
    watched.slurm.end("1")  # far earlier than foretold
    watched.cycle()
    watched.cycle()
    watched.cycle()
    margins = watched.bench.recent.start_adjustment
    simulated, told = (
        StartInterval(begin + 80, begin + 100, begin + 120),
        StartInterval(begin + 80, begin + 100, math.inf),
    )
    assert margins == StartConformal().updated(simulated, told, made, watched.bench.job(waiting).record.start_time)
    assert margins.misses
    watched.bench.restart()
    watched.start()
    watched.cycle()
    assert watched.bench.recent.start_adjustment == margins
