"""Start-time estimates in the daemon: when they are made, shown, withdrawn, and judged."""

import json
import math
import time

import pytest

from slurm_asrpt import throttle
from slurm_asrpt.core.job import JobId, Request
from slurm_asrpt.core.reasons import Phase, reason
from slurm_asrpt.daemon import job_rows
from slurm_asrpt.daemon.forecasts.forecaster import QUICK_JOBS
from slurm_asrpt.daemon.forecasts.snapshot import with_room
from slurm_asrpt.daemon.jobs.saved_state import Forecast
from slurm_asrpt.forecast.calibration import Calibration, calibration
from slurm_asrpt.forecast.conformal import MIN_STARTS, ConformityScore, OpenEnd, StartConformal, StartInterval
from slurm_asrpt.forecast.sampling import UNKNOWN_S
from slurm_asrpt.forecast.snapshot import MAX_JOBS, PUBLISHED, Running, from_json
from slurm_asrpt.history.store import Run
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.slurm.limits import Qos, SiteLimits
from slurm_asrpt.status.document import withdrawn_after
from slurm_asrpt.status.ended import read_ended
from tests.benches.fake_slurm import GROUP

EVERY_S = 60.0  # the default


class FakeComputations:
    """Forecast computations whose answers the test sets."""

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


class ForecastBench:
    """A bench and a forecaster."""

    def __init__(self, bench, computations):
        self.bench, self.computations, self.slurm = bench, computations, bench.slurm
        self.start()

    def start(self, saved=None):
        self.forecaster = self.bench.forecaster(self.computations, saved)

    def restart(self):
        """With what is saved, as JSON."""
        saved = json.loads(json.dumps(self.forecaster.dump()))
        self.bench.restart()
        self.start(saved)

    def cycle(self, seconds=1.0):
        now = self.slurm.now
        self.bench.scheduler.cycle(now)
        self.forecaster.step(now)
        self.slurm.tick(seconds)

    def row(self, job_id):
        status = self.bench.status(self.slurm.now, self.forecaster)
        return next(row for row in status.jobs if row.job_id == job_id)

    def estimate(self, job_id, *times):
        """Make and publish an estimate for a pending job. Returns when it was made."""
        self.cycle()
        made = self.computations.snapshots[-1].now
        self.computations.answers.append({job_id: times})
        self.cycle()
        return made


@pytest.fixture
def computations():
    return FakeComputations()


@pytest.fixture
def bench_gated(make_bench):
    return make_bench(policy="asrpt-gated", release_ahead=0)


@pytest.fixture
def forecasts(bench_gated, computations):
    return ForecastBench(bench_gated, computations)


@pytest.fixture
def waiting(forecasts):
    """A job that waits for another one, which has all GPUs."""
    forecasts.slurm.submit(12, 100)
    forecasts.cycle()
    job_id = forecasts.slurm.submit(4, 50, admin_comment=Tag(GROUP, 50, low=30, high=90).format())
    forecasts.cycle(0.0)
    return job_id


ENOUGH_STARTS = StartConformal(MIN_STARTS * (ConformityScore(0.0, 0.0, 0.0),))
"""As many predicted starts as upper ends require."""


def test_the_latest_estimate_is_shown_and_the_first_is_judged(forecasts, waiting):
    begin = forecasts.slurm.now
    forecasts.bench.recent.start_adjustment = ENOUGH_STARTS
    made = forecasts.estimate(waiting, begin + 80, begin + 100, begin + 200.5)
    row = forecasts.row(waiting)
    assert (row.start_earliest, row.start_median, row.start_latest) == (begin + 80, begin + 100, begin + 200.5)
    assert (row.start_made, row.start_unknown, row.start_open) == (made, "", "")
    forecasts.cycle(EVERY_S)
    forecasts.estimate(waiting, begin + 90, begin + 100, None)
    assert (forecasts.row(waiting).start_latest, forecasts.row(waiting).start_open) == (None, OpenEnd.HORIZON)
    forecasts.slurm.end("1")
    forecasts.cycle()
    assert forecasts.row(waiting).start_earliest is None
    forecasts.cycle()
    forecasts.slurm.end(waiting)
    forecasts.cycle()
    run = forecasts.bench.runs()[waiting]
    told = (run.forecast_made, run.forecast_low, run.forecast_median, run.forecast_high)
    assert told == (made, begin + 80, begin + 100, begin + 201)
    run_dir = forecasts.bench.settings.paths.run
    forecasts.bench.scheduling.status.report_ended(run_dir, forecasts.slurm.now)
    job = next(job for job in read_ended(run_dir, 0) if job.job_id == waiting)
    assert (job.start_made, job.start_earliest, job.start_latest) == (made, begin + 80, begin + 200.5)


def test_no_time_of_an_estimate_is_before_now(forecasts, waiting):
    begin = forecasts.slurm.now
    forecasts.bench.recent.start_adjustment = ENOUGH_STARTS
    forecasts.estimate(waiting, begin + 1, begin + 2, begin + 500)
    forecasts.cycle(10.0)
    row = forecasts.row(waiting)
    assert row.start_earliest == row.start_median >= begin + 10
    assert row.start_latest == begin + 500


def test_a_job_of_a_rush_ends_with_its_estimate_in_the_history(forecasts, waiting):
    """All jobs of its kind have waited longer than simulated: only the lower end is known, and it is a time."""
    begin = forecasts.slurm.now
    longer = ConformityScore(0.5, 0.5, 0.5, 4.0, waits=True)
    forecasts.bench.recent.start_adjustment = StartConformal(40 * (longer,))
    made = forecasts.estimate(waiting, begin + 80, begin + 100, begin + 200)
    row = forecasts.row(waiting)
    assert begin + 80 < row.start_earliest < begin + 300
    assert row.start_median is row.start_latest is None
    for ended in ("1", waiting):
        forecasts.slurm.end(ended)
        forecasts.cycle()
        forecasts.cycle()
    run = forecasts.bench.runs()[waiting]
    assert (run.forecast_made, run.forecast_low) == (made, int(row.start_earliest))


def test_a_snapshot_has_the_current_jobs_and_recent_arrivals(forecasts, computations, waiting):
    forecasts.cycle()
    (snapshot,) = computations.snapshots
    (run,), (each,) = snapshot.running, snapshot.waiting
    assert (run.job_id, sum(run.gpus.values()), run.span.middle) == ("1", 12, 100)
    assert (each.job.id, each.span.low, each.span.middle, each.span.high) == (waiting, 30, 50, 90)
    assert sum(snapshot.free.values()) == 0
    assert [job.job.id for job in snapshot.recent] == ["1", waiting]


def test_a_quick_computation_comes_first_and_where_most_jobs_are_new(forecasts, computations, waiting):
    """It does not wait until the pause after a long one is over, but that pause becomes longer by it."""
    budgets = []
    computations.cpu_s = 0.1 * 4 * EVERY_S
    for cycle in range(13):
        computations.answers.append({})
        if cycle == 5:
            forecasts.slurm.submit(4, 50)
            forecasts.slurm.submit(4, 50)
        before = len(computations.snapshots)
        forecasts.cycle(EVERY_S)
        budgets += [computations.budget_s if len(computations.snapshots) > before else None]
    made = [round(each.now - computations.snapshots[0].now) / EVERY_S for each in computations.snapshots]
    assert computations.snapshots[0].waiting[0].job.id == waiting
    assert made == [0, 4, 5, 12]
    assert [budget for budget in budgets if budget] == [EVERY_S / 4, EVERY_S / 20, EVERY_S / 4]


def test_a_quick_computation_has_the_head_of_the_queue_alone(forecasts, computations, waiting):
    for _ in range(QUICK_JOBS + 20):
        forecasts.slurm.submit(4, 50)
    computations.answers += [{}, {}, {}]
    for seconds in (EVERY_S, 10 * EVERY_S, EVERY_S):
        forecasts.cycle(seconds)
    quick, full = (each.waiting for each in computations.snapshots[-2:])
    assert len(full) > QUICK_JOBS
    assert quick == full[:QUICK_JOBS]


def test_a_quick_computation_keeps_the_estimates_that_it_does_not_make(forecasts, computations, waiting):
    forecasts.estimate(waiting, forecasts.slurm.now + 3000, None, None)
    forecasts.slurm.tick(EVERY_S)
    new = [forecasts.slurm.submit(4, 50) for _ in range(2)]
    forecasts.cycle()
    computations.answers.append({new[0]: [forecasts.slurm.now + 60, None, None]})
    forecasts.cycle()
    assert [forecasts.row(each).start_earliest is not None for each in (waiting, *new)] == [True, True, False]
    assert forecasts.row(new[1]).start_unknown.startswith("it starts in too few simulations")


@pytest.fixture
def no_pauses(monkeypatch):
    """Publishing is repeated without a pause, however long it takes here."""
    monkeypatch.setattr(throttle, "PAUSE_FACTOR", 0.0)


def test_a_new_snapshot_is_published_when_the_queue_has_changed(no_pauses, forecasts, waiting):
    published = forecasts.bench.settings.paths.run / PUBLISHED
    forecasts.cycle()
    first = from_json(published.read_bytes())
    forecasts.cycle()
    assert from_json(published.read_bytes()).now == first.now
    later = forecasts.slurm.submit(2, 50)
    forecasts.cycle()
    assert {each.job.id for each in from_json(published.read_bytes()).waiting} == {waiting, later}


def test_forecasts_run_one_at_a_time_and_not_too_often(forecasts, computations, waiting):
    for _ in range(10):
        forecasts.cycle(EVERY_S / 4)
    assert len(computations.snapshots) == 1  # it has not answered
    computations.answers.append({})
    for _ in range(3):
        forecasts.cycle(EVERY_S / 4)
    assert len(computations.snapshots) == 2
    assert forecasts.row(waiting).start_unknown.startswith("it starts in too few simulations (3 days")


def test_long_forecasts_take_at_most_a_tenth_of_a_core(forecasts, computations, waiting):
    """As with a queue of thousands of jobs."""
    computations.cpu_s = 2 * EVERY_S / 10
    computations.answers.append({})
    for _ in range(5):
        forecasts.cycle(EVERY_S / 2)
    assert len(computations.snapshots) == 2
    computations.answers.append({})
    for _ in range(3):
        forecasts.cycle(EVERY_S / 2)
    assert len(computations.snapshots) == 2
    forecasts.cycle()
    assert len(computations.snapshots) == 3


def test_an_old_estimate_is_withdrawn(forecasts, waiting):
    forecasts.estimate(waiting, forecasts.slurm.now + 3000, None, None)
    forecasts.slurm.tick(withdrawn_after(EVERY_S) - 10)
    assert forecasts.row(waiting).start_earliest is not None
    forecasts.slurm.tick(20)
    assert forecasts.row(waiting).start_earliest is None


def changed(slurm, job_id):
    slurm.change(job_id, tasks=8, cpus=8)


def held(slurm, job_id):
    slurm.hold(job_id)


def left(slurm, job_id):
    slurm.change(job_id, reservation="r")


def depends(slurm, job_id):
    slurm.change(job_id, dependency="afterok:1", reason="Dependency")


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (changed, "no estimate yet"),
        (held, "held"),
        (left, "does not plan in its reservation"),
        (depends, "waits for job 1"),
    ],
)
def test_an_estimate_of_a_changed_job_is_withdrawn_and_not_judged(forecasts, waiting, what, says):
    forecasts.estimate(waiting, forecasts.slurm.now + 80, None, None)
    assert forecasts.bench.job(waiting).forecast is not None
    what(forecasts.slurm, waiting)
    forecasts.cycle()
    row = forecasts.row(waiting)
    assert (row.start_earliest, forecasts.bench.job(waiting).forecast) == (None, None)
    assert says in row.start_unknown


def test_the_first_estimate_survives_a_restart(forecasts, waiting):
    begin = forecasts.slurm.now
    forecasts.estimate(waiting, begin + 80, begin + 90, None)
    said = forecasts.bench.job(waiting).forecast
    forecasts.cycle()
    forecasts.bench.restart()
    forecasts.start()
    forecasts.cycle()
    assert forecasts.bench.job(waiting).forecast == said
    why = forecasts.row(waiting).start_unknown
    assert why == "no estimate yet; the next ones include it"
    last = forecasts.forecaster.why_not(forecasts.bench.job(waiting), "", MAX_JOBS + 1)
    assert last == f"only the first {MAX_JOBS} jobs in the queue get an estimate"


def test_a_job_that_slurm_refuses_for_its_request_has_no_start(forecasts, waiting, monkeypatch):
    """Its partition's MaxTime, say: no end of another job lets it start."""
    forecasts.estimate(waiting, *(forecasts.slurm.now + later for later in (10, 20, 30)))
    assert forecasts.row(waiting).start_earliest is not None
    for why, known in (("PartitionTimeLimit (jobs in partition gpu)", False), ("QOSGrpGRES (jobs in QOS a)", True)):
        over = reason(Phase.WAITING, "over-limit", limit=why)
        monkeypatch.setattr(job_rows, "explain_wait", lambda *rest, over=over: over)
        row = forecasts.row(waiting)
        assert (row.start_earliest is not None) == known
        assert known or row.start_unknown == row.text


def test_estimates_are_shown_after_a_restart_until_there_are_new_ones(forecasts, computations, waiting):
    begin = forecasts.slurm.now
    forecasts.estimate(waiting, begin + 80, begin + 90, None)
    computations.budget_s = 0
    forecasts.restart()
    assert forecasts.forecaster.dump() != {}, "saved again before it is taken up"
    forecasts.cycle()
    row = forecasts.row(waiting)
    assert (row.start_earliest, row.start_median, row.start_latest, row.start_open) == (
        *(begin + 80, begin + 90, None),
        OpenEnd.HORIZON,
    )
    assert computations.budget_s == EVERY_S / 4, "nothing is new"
    forecasts.restart()
    forecasts.slurm.tick(withdrawn_after(EVERY_S))
    forecasts.cycle()
    assert forecasts.row(waiting).start_earliest is None


@pytest.mark.parametrize(
    "saved",
    [
        None,
        "",
        [],
        {"2": None},
        {"2": []},
        {"2": ["x", "", 1, 2, 3, 4]},
        {"2": [0.0, "", 1000001, 1000090, 1000100, None]},
        {"2": [1000001.0, "", None, 1000090, 1000100, None]},
        {"2": [1000001.0, "", 1000001, 1000090, 1000100, None, 7]},
    ],
    ids=str,
)
def test_estimates_of_other_jobs_or_that_are_damaged_are_not_taken_up(forecasts, waiting, saved):
    assert (waiting, forecasts.bench.job(waiting).record.submit_time) == ("2", 1000001.0)
    forecasts.bench.restart()
    forecasts.start(saved)
    forecasts.cycle()
    assert forecasts.row(waiting).start_earliest is None


def test_asrptd_saves_its_estimates(bench_gated):
    bench_gated.cycle(1)
    bench_gated.slurm.submit(12, 100)
    waiting = bench_gated.slurm.submit(12, 100)
    bench_gated.cycle(1)
    forecaster, job = bench_gated.scheduling.forecaster, bench_gated.job(waiting)
    now = bench_gated.slurm.now
    forecaster._known[waiting] = (job.made_from, Forecast(now, now + 60, None, None, (now + 60, None, None), "horizon"))
    bench_gated.cycle(1)
    bench_gated.restart()
    bench_gated.cycle(1)
    after = bench_gated.scheduling.forecaster
    after.step(bench_gated.slurm.now)
    after.close()
    assert after.current(bench_gated.job(waiting), bench_gated.slurm.now).earliest == round(now) + 60


def test_simulations_know_the_limits_of_the_site(forecasts, computations):
    """What running jobs use of them, managed or not, and that a job exceeds one by itself: it is not simulated."""
    small = SiteLimits(qos={"small": Qos("small", user={"MaxTRESPU=gres/gpu": 4.0})})
    forecasts.slurm.site_limits = small
    running = forecasts.slurm.submit(2, 100, qos="small")
    forecasts.cycle(3)
    forecasts.cycle(3)
    other = forecasts.slurm.submit(1, 100, qos="small", partition="other", state="RUNNING", leased=False)
    waiting, alone = (forecasts.slurm.submit(gpus, 50, qos="small") for gpus in (2, 5))
    forecasts.cycle()
    snapshot = computations.snapshots[-1]
    (name,) = snapshot.headroom
    assert name.startswith("MaxTRESPU=gres/gpu of QOS small")
    assert snapshot.headroom[name] == 1
    assert {run.job_id: run.charges for run in snapshot.running} == {
        running: ((name, 2.0),),
        other: ((name, 1.0),),
    }
    assert [each.job.id for each in snapshot.waiting] == [waiting]
    row = forecasts.row(alone)
    assert (row.rank, row.start_earliest, row.reason) == (None, None, "over-limit")
    assert row.start_unknown == row.text


def test_a_forecast_process_that_fails_or_hangs_is_logged_and_retried(forecasts, computations, waiting, caplog):
    forecasts.cycle()
    computations.answers.append(OSError("exit code 1: no memory"))
    forecasts.cycle(EVERY_S)
    assert "no memory" in caplog.text
    forecasts.cycle(EVERY_S * 11)
    forecasts.cycle()
    forecasts.cycle()
    assert (len(computations.snapshots), computations.stopped) == (3, 1)
    forecasts.forecaster.close()
    assert computations.stopped == 2


@pytest.mark.parametrize("mode", ["shadow", "order"])
def test_no_estimates_are_made_where_slurm_decides(make_bench, computations, mode):
    forecasts = ForecastBench(make_bench(mode=mode), computations)
    forecasts.slurm.submit(12, leased=False)
    job_id = forecasts.slurm.submit(12, leased=False)
    forecasts.cycle()
    assert computations.snapshots == []
    assert forecasts.row(job_id).start_unknown.startswith("Slurm decides")


def test_intervals_of_the_runtime_and_the_remaining_time_are_shown(forecasts, waiting):
    forecasts.slurm.end("1")
    forecasts.cycle()
    row = forecasts.row(waiting)
    assert (row.predicted_low, row.predicted_high) == (30, 90)
    assert (row.predicted_run_low_s, row.predicted_run_s, row.predicted_run_high_s) == (30, 50, 90)
    forecasts.cycle(40)
    row = forecasts.row(waiting)
    assert 0 < row.remaining_low_s <= row.remaining_s < row.remaining_high_s
    forecasts.cycle(100)
    row = forecasts.row(waiting)  # it has outrun its prediction: the median is unknown
    assert row.remaining_s is None
    assert 0 < row.remaining_low_s < row.remaining_high_s


def run(number, start, made=10, low=20, high=30):
    return Run(str(number), start, end_time=1000, forecast_made=made, forecast_low=low, forecast_high=high)


def test_calibration_counts_starts_inside_before_and_after_the_interval(bench):
    assert calibration(bench.history, 0) == Calibration(0, 0.0, 0.0, 0.0)
    runs = [run(1, 20), run(2, 30), run(3, 19), run(4, 31), run(5, 99, high=0), run(6, 99, made=0)]
    bench.history.record([*runs, run(7, 25), run(8, 24)])
    assert calibration(bench.history, 0) == Calibration(7, 5 / 7, 1 / 7, 1 / 7, closed=6)
    assert calibration(bench.history, 0).closed_late == pytest.approx(1 / 6)
    assert calibration(bench.history, 1001).jobs == 0


def test_the_real_forecast_process_estimates_a_queue(bench_gated):
    """Jobs that need all GPUs run one after the other: each starts later than the previous one, and all are judged."""
    slurm, forecaster = bench_gated.slurm, bench_gated.forecaster()
    bench_gated.recent.start_adjustment = ENOUGH_STARTS
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
    assert slurm.now + 60 < told[0].earliest < told[0].latest < told[2].median < slurm.now + 500
    for job_id in jobs:
        bench_gated.cycle(100)
        slurm.end(job_id)
        bench_gated.cycle(2)
    assert calibration(bench_gated.history, 0) == Calibration(3, 1.0, 0.0, 0.0, closed=3)


def test_forecasts_include_slurms_delay_between_two_jobs(forecasts, waiting):
    assert forecasts.computations.snapshots[-1].rest_s == 0
    forecasts.slurm.end("1")
    forecasts.slurm.tick(3)  # asrptd sees it this late
    forecasts.cycle(2)
    began = forecasts.slurm.now
    forecasts.cycle()
    record = forecasts.bench.job(waiting).record
    forecasts.cycle()
    gaps = forecasts.bench.recent.idle_gaps
    assert record.start_time <= began
    assert gaps.typical_s() == pytest.approx(record.start_time - (began - 5))


def test_jobs_that_wait_beyond_their_interval_widen_the_margins(forecasts, waiting):
    begin = forecasts.slurm.now
    forecasts.estimate(waiting, begin + 1, begin + 2, begin + 3)
    for _ in range(3):
        forecasts.cycle(EVERY_S)
    margins = forecasts.computations.snapshots[-1].margins
    published = from_json((forecasts.bench.settings.paths.run / PUBLISHED).read_bytes()).margins
    assert margins == StartConformal()
    assert [miss.waits for miss in published.waiting] == [True]
    assert published.waiting[0].latest > 3


def test_a_start_seen_before_the_end_that_made_room_fits_the_snapshot(forecasts, waiting):
    nodes = forecasts.bench.scheduler.decider.cluster.view.nodes
    first, second = (Running(JobId(n), {nodes[0].name: nodes[0].gpus}, Request(), 0.0, UNKNOWN_S, 9.0) for n in "12")
    assert with_room([first, second], nodes) == [first]


def test_conformal_margins_learned_from_starts_survive_a_restart(forecasts, waiting):
    begin = forecasts.slurm.now
    made = forecasts.estimate(waiting, begin + 80, begin + 100, begin + 120)
    forecasts.slurm.end("1")  # far earlier than predicted
    forecasts.cycle()
    forecasts.cycle()
    forecasts.cycle()
    margins = forecasts.bench.recent.start_adjustment
    simulated, told = (
        StartInterval(begin + 80, begin + 100, begin + 120),
        StartInterval(begin + 80, begin + 100, math.inf),
    )
    assert margins == StartConformal().updated(simulated, told, made, forecasts.bench.job(waiting).record.start_time)
    assert margins.misses
    forecasts.bench.restart()
    forecasts.start()
    forecasts.cycle()
    assert forecasts.bench.recent.start_adjustment == margins


def test_while_asrptd_is_disabled_there_are_no_estimates(forecasts, waiting):
    forecasts.estimate(waiting, *(forecasts.slurm.now + 80 * n for n in (1, 2, 3)))
    assert forecasts.row(waiting).start_earliest is not None
    forecasts.bench.mode.disabled = True
    forecasts.cycle()
    row = forecasts.row(waiting)
    assert (row.start_earliest, row.start_unknown) == (None, "Slurm decides: asrptd is disabled")
    forecasts.bench.mode.disabled = False
    forecasts.cycle()
    assert forecasts.row(waiting).start_earliest is None, "what was estimated before no longer holds"


def test_an_estimate_that_is_over_is_withdrawn(forecasts, waiting):
    begin = forecasts.slurm.now
    forecasts.bench.recent.start_adjustment = ENOUGH_STARTS
    forecasts.estimate(waiting, begin + 5, begin + 10, begin + 20)
    assert forecasts.row(waiting).start_latest is not None
    forecasts.slurm.tick(30.0)
    forecasts.cycle()
    assert forecasts.row(waiting).start_earliest is None
