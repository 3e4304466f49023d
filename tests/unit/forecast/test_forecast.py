"""Start time forecasts: drawn lengths, single futures, and quantiles over many."""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import Job, JobId, Request, unprofiled
from slurm_asrpt.core.policies import make_policy, policy_names
from slurm_asrpt.daemon.forecasts.forecaster import Process
from slurm_asrpt.forecast.__main__ import SLICE_S, paced
from slurm_asrpt.forecast.conformal import (
    KEPT,
    MIN_STARTS,
    NEIGHBORS,
    ConformityScore,
    OpenEnd,
    StartConformal,
    StartInterval,
)
from slurm_asrpt.forecast.estimate import forecast
from slurm_asrpt.forecast.sampling import UNKNOWN_S, LogNormals, Quantiles, remaining_length
from slurm_asrpt.forecast.snapshot import Running, Snapshot, Waiting, from_json, to_json
from slurm_asrpt.forecast.survival import MIN_ENDED, typical_run_time

FABRIC = Fabric(1.25e9, 300e9)
NODES = (Node("n1", 2), Node("n2", 2, 1))
NOW = 1000.0
FACTOR = st.floats(1.1, 20)
SPANS = st.builds(lambda m, low, high: Quantiles(m / low, m, m * high), st.floats(10, 1e6), FACTOR, FACTOR)


def job(number: int, gpus: int = 2, seconds: float = 100.0, submit: float = 0.0) -> Job:
    return Job(JobId(str(number)), "u", gpus, unprofiled(gpus), seconds, submit)


def waiting(number: int, seconds: float = 100.0, spread: float = 2.0, submit: float = 0.0, **fields: float) -> Waiting:
    each = replace(job(number, seconds=seconds, submit=submit), **fields)
    return Waiting(each, Quantiles(seconds / spread, seconds, seconds * spread))


def snapshot(queue: list[Waiting], policy: str = "asrpt-gated", **fields: object) -> Snapshot:
    """Two servers of two GPUs, each used by a job of 100 s that has just started; all queued jobs are pending."""
    brain = make_policy(policy, fabric=FABRIC)
    brain.cluster_changed(NODES, NOW)
    for each in queue:
        brain.submitted(each.job, NOW)
    running = tuple(
        Running(JobId(f"90{n}"), {node.name: 2}, Request(), 0.0, Quantiles(50.0, 100.0, 200.0), math.inf)
        for n, node in enumerate(NODES)
    )
    free = {node.name: 0 for node in NODES}
    state = json.loads(json.dumps(brain.dump()))
    made = Snapshot(NOW, policy, {}, state, FABRIC, NODES, free, None, None, running, tuple(queue))
    return replace(made, **fields)


@given(SPANS, st.integers(0, 2**32 - 1))
def test_draws_match_their_interval(span: Quantiles, seed: int) -> None:
    drawn = LogNormals([span] * 2000).draw(np.random.default_rng(seed))
    for share, bound in ((0.1, span.low), (0.5, span.middle), (0.9, span.high)):
        assert abs(float((drawn <= bound).mean()) - share) < 0.05


@given(SPANS, st.floats(0, 1e7), st.floats(0.01, 0.98))
def test_the_remaining_length_falls_with_the_probability(span: Quantiles, ran: float, chance: float) -> None:
    assert remaining_length(span, ran, chance) >= remaining_length(span, ran, chance + 0.01) >= 0
    assert math.isfinite(remaining_length(span, ran, chance))


@given(SPANS)
def test_at_the_start_the_whole_length_remains(span: Quantiles) -> None:
    found = [remaining_length(span, 0.0, chance) for chance in (0.9, 0.5, 0.1)]
    assert found == pytest.approx([span.low, span.middle, span.high], rel=1e-6)


def test_a_job_that_outlives_its_interval_is_expected_to_run_long() -> None:
    assert remaining_length(Quantiles(90.0, 100.0, 110.0), 1e6, 0.5) > 1e5


@pytest.mark.parametrize("policy", policy_names())
def test_estimates_are_ordered_and_in_the_future_under_every_policy(policy: str) -> None:
    found = forecast(snapshot([waiting(1), waiting(2), waiting(3), waiting(4)], policy), 0)
    assert len(found) == 4
    for start in found.values():
        assert NOW < start.earliest <= start.median <= start.latest
    medians = sorted(start.median for start in found.values())
    assert medians[0] < medians[-1]


def test_the_head_of_the_queue_starts_when_a_job_ends() -> None:
    full = snapshot([waiting(1)])
    found = forecast(full, 1, samples=399)[JobId("1")]
    lengths = LogNormals([run.span for run in full.running])
    ends = [lengths.draw(np.random.default_rng(seed)).max() for seed in range(2000)]
    # asrpt-gated reserves one of the two servers, so it is between the first and the last end
    assert NOW + 30 < found.earliest < found.latest < NOW + float(np.quantile(ends, 0.95))


def test_a_time_limit_ends_running_jobs() -> None:
    full = snapshot([waiting(1)])
    soon = replace(full, running=tuple(replace(run, limit_s=10.0) for run in full.running))
    assert forecast(soon, 0)[JobId("1")].latest == NOW + 10


def test_shorter_later_arrivals_delay_a_long_job() -> None:
    queue = [waiting(1, seconds=5000.0)]
    short = tuple(waiting(number, 50.0, submit=NOW - 40 * number) for number in range(1, 25))
    blind = forecast(snapshot(queue, "spjf"), 0)[JobId("1")]
    aware = forecast(snapshot(queue, "spjf", recent=short, window_s=1000.0), 0)[JobId("1")]
    assert aware.median > blind.median
    assert aware.latest > blind.latest


def test_starts_beyond_the_horizon_have_no_upper_bound_or_no_estimate() -> None:
    queue = [waiting(1), waiting(2, 1e6), waiting(3, 2e6), waiting(4, 3e6)]
    found = forecast(snapshot(queue), 0, horizon_s=250.0)
    assert found[JobId("1")].latest < NOW + 250
    assert JobId("4") not in found


def test_the_same_state_and_seed_give_the_same_forecast_also_through_json() -> None:
    recent = (waiting(7, submit=NOW - 50),)
    full = snapshot([waiting(1), waiting(2)], recent=recent, window_s=100.0)
    again = from_json(to_json(full))
    assert again == full
    assert forecast(again, 3) == forecast(full, 3) != forecast(full, 4)


def test_too_small_a_budget_gives_no_estimates() -> None:
    ticks = iter(range(10**6))
    assert forecast(snapshot([waiting(1)]), 0, budget_s=15, clock=lambda: float(next(ticks))) == {}


@pytest.mark.parametrize("share", [0.25, 0.1])
def test_a_forecast_uses_no_more_than_its_share_of_a_core(share) -> None:
    spent, rests = [5.0], []  # the CPU time to start Python is not recovered
    clock = paced(share, lambda: spent[0], lambda: spent[0] + sum(rests), rests.append)
    for _ in range(1000):
        spent[0] += 0.01
        assert clock() == spent[0]
        assert spent[0] - 5.0 <= share * (spent[0] - 5.0 + sum(rests)) + share * SLICE_S
    assert 10.0 < sum(rests) + 10.0 <= 10.0 / share


def test_a_forecast_exits_when_asrptd_is_gone() -> None:
    """As after a SIGKILL of asrptd: it is no longer the parent process."""

    def run_forecast(asker: int) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-P", "-m", "slurm_asrpt.forecast", "15", "1", str(asker)]
        return subprocess.run(command, input=to_json(snapshot([waiting(1)])), capture_output=True, timeout=60)

    assert json.loads(run_forecast(os.getpid()).stdout)["starts"]
    orphan = run_forecast(os.getppid())
    assert (orphan.returncode, orphan.stdout) == (1, b"")
    assert b"is gone" in orphan.stderr


def test_on_a_slow_machine_a_forecast_does_not_pause() -> None:
    spent = [0.0]
    clock = paced(0.25, lambda: spent[0], lambda: 4 * spent[0], lambda seconds: pytest.fail(f"{seconds} s"))
    for _ in range(100):
        spent[0] += 0.1
        clock()


def test_in_too_long_a_queue_the_next_jobs_still_get_estimates() -> None:
    short = [waiting(number, 50.0) for number in range(10, 210)]
    ticks = iter(range(10**6))  # one for every event; no future has enough of them for the whole queue
    queue = snapshot([waiting(1, 5.0), *short, waiting(2, 1e6)], "spjf")
    found = forecast(queue, 0, budget_s=19 * 50, clock=lambda: float(next(ticks)))
    assert JobId("2") not in found
    assert found[JobId("1")].latest < math.inf


def test_a_burst_of_more_work_than_fits_does_not_go_on_for_ever() -> None:
    """Its short jobs alone would keep all GPUs busy if they kept coming at this rate."""
    burst = tuple(waiting(n, 10.0 if n % 2 else 1000.0, submit=NOW - n) for n in range(10, 110))
    found = forecast(snapshot([waiting(1)], "spjf", recent=burst, window_s=100.0), 0)
    assert found[JobId("1")].latest < math.inf


def test_an_invalid_snapshot_is_rejected() -> None:
    with pytest.raises(ValueError, match="now"):
        from_json(b"{}")


def answer_of(process: Process) -> bytes:
    """Its answer, as soon as there is one."""
    deadline = time.monotonic() + 120
    while (answer := process.answer()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return answer


def test_a_separate_process_gives_the_same_result_as_json() -> None:
    data = to_json(snapshot([waiting(1), waiting(2, 1e9)]))
    first, second = (json.loads(answer_of(Process(data, 60.0))) for _ in range(2))
    assert first["starts"] == second["starts"]
    earliest, median, latest = first["starts"]["1"]
    assert NOW < earliest <= median <= latest


def test_a_failed_process_reports_the_cause() -> None:
    with pytest.raises(OSError, match="exit code 1"):
        answer_of(Process(b"{}", 1.0))


def test_conformal_adjustment_brings_wrong_intervals_to_5_percent_before_and_10_after() -> None:
    rng, margins, beyond = np.random.default_rng(0), StartConformal(), []
    for wait in rng.lognormal(math.log(300), 1.0, 3000).tolist():  # far wider and later than simulated
        simulated = StartInterval(190.0, 200.0, 210.0)
        shown = margins.adjusted(simulated, 100.0)
        beyond.append((100 + wait < shown.earliest, 100 + wait > shown.latest))
        margins = margins.updated(simulated, shown, 100.0, 100 + wait)
    assert np.mean(beyond[1000:], axis=0) == pytest.approx([0.05, 0.1], abs=0.02)


def test_an_interval_without_an_upper_end_does_not_adjust_the_upper_end() -> None:
    start = StartInterval(100.0, 200.0, math.inf)
    margins = StartConformal().updated(start, start, 0.0, 300.0)
    assert margins.low > StartConformal().low
    assert margins.high == StartConformal().high
    assert margins.misses[0].latest is None


MISSES = st.lists(st.builds(ConformityScore, *[st.floats(-5, 5)] * 3), max_size=60)


@given(MISSES, st.floats(0, 1), st.floats(0, 1), st.floats(1, 1e6), FACTOR, FACTOR)
def test_conformal_adjustment_keeps_the_order_of_the_quantiles(
    misses: list[ConformityScore], down: float, up: float, wait: float, low: float, high: float
) -> None:
    start, margins = StartInterval(wait / low, wait, wait * high), StartConformal(tuple(misses), down, up)
    moved = margins.adjusted(start, 0.0)
    assert 0 < moved.earliest <= moved.median <= moved.latest
    assert (moved.latest < math.inf) == (len(misses) >= MIN_STARTS)
    assert margins.adjusted(StartInterval(wait, math.inf, math.inf), 0.0).latest == math.inf


SCORE = st.floats(-5, 5)
WAITING = st.lists(st.builds(ConformityScore, SCORE, SCORE, SCORE, SCORE, st.just(True)), max_size=60)


@given(MISSES, WAITING, st.floats(0, 1), st.floats(1, 1e6))
def test_there_is_always_an_earliest_start(
    misses: list[ConformityScore], waiting: list[ConformityScore], level: float, wait: float
) -> None:
    """Also in a rush in which all jobs with such a wait still wait: the 5% quantile does not exist then."""
    margins = StartConformal(tuple(misses), level, waiting=tuple(waiting))
    moved = margins.adjusted(StartInterval(wait, 2 * wait, math.inf), 0.0)
    assert 0 < moved.earliest < math.inf
    assert moved.earliest <= moved.median <= moved.latest


def test_in_a_rush_the_earliest_start_is_as_late_as_the_longest_wait_so_far() -> None:
    margins = StartConformal().with_waiting(800.0, [(StartInterval(100.0, 200.0, 300.0), 0.0)] * NEIGHBORS)
    moved = margins.adjusted(StartInterval(900.0, 1000.0, 1100.0), 800.0)
    assert (moved.earliest, moved.median) == (pytest.approx(800 + 100 * 8), math.inf)


def test_old_conformity_scores_are_forgotten() -> None:
    """As many accurate starts as are stored remove the effect of 200 waits 50 times as long as simulated."""
    margins = StartConformal()
    for factor in [50.0] * 200 + [1.0] * (KEPT + 20):
        simulated = StartInterval(90.0, 100.0, 110.0)
        margins = margins.updated(simulated, margins.adjusted(simulated, 0.0), 0.0, 100.0 * factor)
    assert margins.adjusted(simulated, 0.0).latest < 120.0


def test_without_enough_starts_there_is_no_upper_end() -> None:
    """Nine starts are needed for a 90% bound; pending jobs do not count. The lower end is available at once."""
    simulated, margins = StartInterval(90.0, 100.0, 110.0), StartConformal()
    for _ in range(MIN_STARTS):
        shown = margins.with_waiting(9.0, [(simulated, 0.0)] * NEIGHBORS).adjusted(simulated, 0.0)
        assert (shown.earliest, shown.latest) == (pytest.approx(90.0), math.inf)
        assert shown.open_end == OpenEnd.FEW_STARTS
        margins = margins.updated(simulated, simulated, 0.0, 100.0)
    assert margins.adjusted(simulated, 0.0).latest < math.inf
    assert margins.adjusted(simulated, 0.0).open_end == ""


def test_jobs_that_still_wait_after_their_upper_end_remove_the_upper_end() -> None:
    """Ten jobs with this estimate started in time; the others have already waited ten times as long."""
    simulated, margins = StartInterval(90.0, 100.0, 110.0), StartConformal()
    for _ in range(10):
        margins = margins.updated(simulated, simulated, 0.0, 100.0)
    assert margins.adjusted(simulated, 0.0).latest < math.inf
    assert (
        margins.with_waiting(50.0, [(simulated, 0.0)] * 3).adjusted(simulated, 0.0).latest < math.inf
    )  # this estimate may still come true
    later = margins.with_waiting(1000.0, [(simulated, 0.0)] * 3).adjusted(simulated, 0.0)
    assert (later.latest, later.open_end) == (math.inf, OpenEnd.LATE_STARTS)
    assert later.earliest == pytest.approx(margins.adjusted(simulated, 0.0).earliest)


@pytest.mark.parametrize("starts", [0, 2 * MIN_STARTS])
def test_beyond_the_horizon_more_starts_do_not_help(starts: int) -> None:
    margins = StartConformal(starts * (ConformityScore(0.0, 0.0, 0.0),))
    shown = margins.adjusted(StartInterval(90.0, 100.0, math.inf), 0.0)
    assert (shown.latest, shown.open_end) == (math.inf, OpenEnd.HORIZON)


def test_long_waits_do_not_adjust_short_ones() -> None:
    short, long, margins = StartInterval(9.0, 10.0, 11.0), StartInterval(9e4, 1e5, 1.1e5), StartConformal()
    for _ in range(NEIGHBORS):
        margins = margins.updated(short, short, 0.0, 10.0).updated(long, long, 0.0, 5e5)
    assert margins.adjusted(short, 0.0).latest < 12.0
    assert margins.adjusted(long, 0.0).latest > 4e5


def test_gpus_are_idle_for_a_moment_between_two_jobs() -> None:
    """Both servers are in use for about 100 s: pending jobs start after that plus the idle time."""
    found = forecast(snapshot([waiting(1), waiting(2), waiting(3)]), 7)
    rested = forecast(snapshot([waiting(1), waiting(2), waiting(3)], rest_s=1000.0), 7)
    later = [rested[JobId(n)].median - found[JobId(n)].median for n in "123"]
    assert later == pytest.approx([1000.0, 1000.0, 2000.0], abs=100.0)


def test_many_simultaneous_starts_move_no_end_beyond_the_observed_misses() -> None:
    simulated, margins = StartInterval(90.0, 100.0, 110.0), StartConformal()
    for _ in range(300):
        margins = margins.updated(simulated, simulated, 0.0, 220.0)
    assert margins.adjusted(simulated, 0.0).latest <= 220.0 + 1e-6


@given(st.lists(st.floats(1, 1e6), min_size=MIN_ENDED, max_size=80))
def test_the_typical_run_time_is_within_the_observed_range(runs: list[float]) -> None:
    found = typical_run_time(runs, [])
    assert min(runs) <= found.low <= found.middle <= found.high <= max(runs)
    assert found.middle == sorted(runs)[(len(runs) - 1) // 2]


def test_running_jobs_count_as_censored_observations() -> None:
    ended = [float(n) for n in range(1, 21)]
    assert typical_run_time(ended, [50.0] * 10).middle > typical_run_time(ended, []).middle
    assert typical_run_time(ended, [50.0] * 100) == typical_run_time(ended[: MIN_ENDED - 1], []) == UNKNOWN_S


def test_without_gpus_there_are_no_estimates() -> None:
    down = replace(snapshot([waiting(1)], recent=(waiting(2),), window_s=1000.0), nodes=(), running=(), free={})
    assert forecast(down, 0) == {}
