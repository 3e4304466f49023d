"""benchmarks.site: its windows of logs, figures and records."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import numpy as np
import pandas as pd
import pytest

from benchmarks.real_windows import Log
from benchmarks.site import jobs
from benchmarks.site.__main__ import Cell, bearable, cells, late, late_share, main, parse, sides_of, warn_if_late
from benchmarks.site.side_by_side import results
from slurm_asrpt.errors import InputError, MachineError
from slurm_asrpt.lab.site import figures, sides
from slurm_asrpt.lab.site.jobs import POPULAR_MIN, SiteJob, Window
from slurm_asrpt.lab.site.simulated import bound, compare, play, play_draws, policy_of
from slurm_asrpt.sim.scenario import parse_policy
from slurm_asrpt.traces import Trace

JOBS = 3000
SERVERS = 20
LONGEST_S = 8 * 3600.0


def log(limits: bool = False) -> Log:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "job_id": [str(number) for number in range(JOBS)],
            "submit_s": np.sort(rng.uniform(0, 30 * 86400, JOBS)),
            "user": rng.choice(["ann", "bob", "eve"], JOBS),
            "group": "",
            "gpus": rng.choice([1, 2, 4, 8, 16], JOBS),
            "duration_s": rng.lognormal(8, 1.5, JOBS),
            "status": "",
            "time_limit_s": rng.choice([3600.0, 7200.0], JOBS) if limits else np.inf,
            "wait_s": np.nan,
            "queue": "q",
        }
    )
    edges = (0.0, 10 * 86400.0, 20 * 86400.0, math.inf)
    return Log("made-up", None, Trace("made-up", frame, JOBS), (4, 8), edges, held_out=1)


def window(regime: str = jobs.ORDER, held_out: bool = False, limits: bool = False, seed: int = 1) -> Window:
    return jobs.draw(log(limits), SERVERS, 1.0, 12.0, LONGEST_S, regime, seed, held_out)


def test_a_window_has_its_load_and_lasts_its_hours():
    found = window()
    assert found.jobs[0].submit_s == 0.0
    assert found.jobs[-1].submit_s == pytest.approx(12 * 3600)
    work = sum(job.gpus * job.run_s for job in found.jobs)
    assert work / (8 * SERVERS * 12 * 3600) == pytest.approx(1.0, abs=0.1)
    assert 0 < len(found.past) <= len(found.jobs)
    assert all(job.submit_s <= 0 for job in found.past)


def test_jobs_end_within_their_limits_and_these_are_popular_values():
    found = window()
    assert all(job.run_s <= 60 * job.limit_min <= LONGEST_S + 60 for job in found.jobs)
    assert {job.limit_min - 1 for job in found.jobs} <= set(POPULAR_MIN)


def test_limits_of_the_log_are_kept_unless_a_job_ran_longer():
    assert {61, 121} <= {job.limit_min for job in window(limits=True).jobs}


def test_windows_are_drawn_from_the_held_out_part_or_from_the_others():
    submit = log().trace.jobs["submit_s"].to_numpy()
    for held_out in (True, False):
        for seed in range(8):
            rng = np.random.default_rng(seed)
            first, _ = jobs.rows(log().trace.jobs, log(), SERVERS * 8 * 12 * 3600.0, rng, held_out)
            assert (log().edges[1] <= submit[first] < log().edges[2]) == held_out


def test_a_log_that_is_too_short_is_an_error():
    with pytest.raises(InputError, match="no window"):
        jobs.draw(log(), SERVERS, 1.0, 10000.0, LONGEST_S, jobs.ORDER, 1, False)


def test_models_are_trained_in_some_regimes_only():
    assert not any(job.profile for job in window().jobs)
    trained = [job for job in window(jobs.PLACEMENT).jobs if job.profile]
    some = [job for job in window(jobs.MIXED).jobs if job.profile]
    assert len(trained) > len(some) > 0
    assert all(f"asrpt:profile={job.profile}" in " ".join(job.command(fewest=False)) for job in trained)


def test_jobs_ask_for_their_fewest_nodes_or_for_none():
    sixteen = next(job for job in window().jobs if job.gpus == 16)
    assert "--nodes=2" in sixteen.command(fewest=True)
    assert not any(word.startswith("--nodes") for word in sixteen.command(fewest=False))


# figures


def record(due: float, start: float, end: float) -> sides.Record:
    return sides.Record(due, due, start, end, "COMPLETED")


def job(user: str, gpus: int, run: float, at: float) -> SiteJob:
    return SiteJob("g", user, gpus, 1, 60, run, at)


def two(*records: sides.Record) -> dict:
    rows = (job("ann", 8, 100.0, 0.0), job("bob", 1, 300.0, 200.0))
    made = Window("log", 1, rows, (), None, 1.0)
    return figures.figures(made, records)


def test_the_figures_of_two_jobs():
    found = two(record(0.0, 0.0, 100.0), record(200.0, 500.0, 800.0))
    assert found["completion_s"]["mean"] == 350.0
    assert found["wait_s"]["max"] == 300.0
    assert found["slowdown"]["mean"] == 1.5
    assert found["makespan_s"] == 800.0
    assert found["utilisation"] == pytest.approx(8 * 100 / (8 * 200))
    assert found["sizes"]["8"] == {"jobs": 1, "mean": 100.0}
    assert found["finish_time_fairness"]["bob"]["mean"] == 1.0


def test_ratios_name_the_worst_off_user_and_count_short_waits_as_a_minute():
    slow = two(record(0.0, 0.0, 100.0), record(200.0, 500.0, 800.0))
    fast = two(record(0.0, 20.0, 120.0), record(200.0, 200.0, 500.0))
    found = figures.ratios(fast, slow)
    assert found["jct_ratio"] == pytest.approx(420 / 700)
    assert found["worst_user_ratio"] == 1.2
    assert figures.ratios(slow, fast)["longest_wait_ratio"] == 5.0


@pytest.mark.parametrize(
    ("one", "other", "apart"), [([1, 2], [1, 2], 0.0), ([1, 2], [3, 4], 1.0), ([1, 3], [2, 3], 0.5)]
)
def test_the_distance_of_two_samples(one, other, apart):
    assert figures.distance(one, other) == apart


# records


class FakeLab:
    def __init__(self, directory):
        self.directory = directory


def test_records_are_the_last_lines_of_each_job(tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "RECORDED_S", -1.0)
    (tmp_path / "log").mkdir()
    times = ("StartTime=2026-01-01T00:00:10", "EndTime=2026-01-01T00:01:00", "SubmitTime=2026-01-01T00:00:05")
    line = " ".join(["JobId={} JobState={}", *times]) + "\n"
    lines = line.format(7, "NODE_FAIL") + line.format(7, "COMPLETED")
    (tmp_path / "log" / "jobcomp").write_text(lines)
    start = sides._instant("2026-01-01T00:00:00")
    (found,) = sides.records(FakeLab(tmp_path), [job("ann", 1, 50.0, 4.0)], ["7"], start)
    assert found == sides.Record(4.0, 5.0, 10.0, 60.0, "COMPLETED")
    with pytest.raises(MachineError, match="end of 1 jobs"):
        sides.records(FakeLab(tmp_path), [job("ann", 1, 50.0, 4.0)], ["8"], start)


def test_a_job_whose_last_run_was_requeued_has_not_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "RECORDED_S", -1.0)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "jobcomp").write_text("JobId=7 JobState=PENDING\n")
    assert len(sides.completed_runs(FakeLab(tmp_path))) == 1
    with pytest.raises(MachineError, match="end of 1 jobs"):
        sides.records(FakeLab(tmp_path), [job("ann", 1, 50.0, 4.0)], ["7"], 0.0)


# the command


def test_a_busy_log_is_played_more_slowly():
    day, burst = [30.0 * half for half in range(1440)], [1.0 * second for second in range(720)]
    assert bearable(burst, 4) < bearable(day, 4) < bearable(day[::10], 4) <= 240


def test_a_cell_says_how_late_its_jobs_were_submitted(capsys):
    sides = {
        name: {"submitted_late_s": {"p95": seconds, "mean": seconds / 2}, "completion_s": {"mean": mean}}
        for name, seconds, mean in (("age", 3.0, 10.0), ("asrptd", 5.0, 20.0))
    }
    assert (late(sides), late_share(sides)) == (5.0, 0.15)
    warn_if_late(Cell("log", 1.0, "order", 1), 0.02)
    assert capsys.readouterr().err == ""
    warn_if_late(Cell("log", 1.0, "order", 1), 0.15)
    assert "log 1.0 order 1: 15.0% of the mean completion time is the delay of submissions" in capsys.readouterr().err


def test_quick_plays_one_cell_of_each_regime():
    found = cells(parse(["--quick"]), ["philly", "philly/11cb48", "itp/cluster03", "itp/cluster02"])
    assert sorted(cell.regime for cell in found) == sorted(jobs.REGIMES)


def test_plain_slurms_have_slurmdbd_without_which_slurm_ignores_the_weight_of_age():
    assert [site.needs_accounting for site in (*sides.PLAIN, sides.SCATTERED, sides.OURS)] == [True] * 4 + [False]


def test_slurm_plays_without_n_only_where_placement_counts():
    options = parse([])
    names = {regime: [site.name for site in sides_of(Cell("log", 1.0, regime, 1), options)] for regime in jobs.REGIMES}
    assert sides.SCATTERED.name not in names[jobs.ORDER]
    assert sides.SCATTERED.name in names[jobs.PLACEMENT]


@pytest.mark.parametrize("site", [*sides.PLAIN, sides.OURS, sides.SCATTERED], ids=lambda site: site.name)
def test_the_simulator_has_each_site_but_that_with_fair_share(site):
    text = policy_of(site, LONGEST_S)
    assert bool(text) == (site.weights != sides.FAIR)
    if text:
        parse_policy(text)


def test_the_bound_is_not_above_the_mean_run_time_by_itself():
    found = window()
    assert bound(found) >= np.mean([job.run_s for job in found.jobs]) * 0.999


def test_the_simulator_is_compared_with_a_real_slurm_also_at_the_pace_of_its_machine():
    found = window()
    exact = play(sides.OURS, found, LONGEST_S)
    late = [replace(each, start=each.start + 20.0, end=each.end + 30.0) for each in exact.records]
    compared = compare(found, replace(exact, records=late), LONGEST_S)
    mean = np.mean([each.end - each.due for each in exact.records])
    assert compared["mean_ratio"] == pytest.approx(mean / (mean + 30.0), abs=1e-3)
    assert compared["pace_s"] == pytest.approx(30.0)
    least, most = compared["paced_s"]
    assert least < most
    assert mean < most  # jobs that take longer wait longer, but for accidents of single draws

    same = compare(found, exact, LONGEST_S)
    assert (same["mean_ratio"], same["wait_distance"], same["pace_s"]) == (1.0, 0.0, pytest.approx(0.0, abs=1e-6))
    assert same["paced_s"] == pytest.approx([mean, mean], abs=0.1)


def test_draws_play_the_same_jobs_with_other_seconds_the_same_for_each_side():
    found = window()
    one = play_draws(sides.OURS, found, LONGEST_S, 1).records
    assert one == play(sides.OURS, found, LONGEST_S).records
    three = play_draws(sides.OURS, found, LONGEST_S, 3).records
    assert len(three) == 3 * len(one)
    for draw in range(3):
        own = three[draw * len(one) : (draw + 1) * len(one)]
        longer = [each.end - each.start - job.run_s for each, job in zip(own, found.jobs, strict=True)]
        assert 0 <= min(longer) < max(longer) <= 20
    assert three == play_draws(sides.OURS, found, LONGEST_S, 3).records
    assert three[: len(one)] != three[len(one) : 2 * len(one)]


def test_an_unknown_log_is_an_error(tmp_path, capsys):
    assert main(["--logs", "nowhere", "--traces", str(tmp_path)]) == InputError.exit_code
    assert "no log nowhere" in capsys.readouterr().err


def test_a_side_that_fails_stops_the_others() -> None:
    stop = Event()

    def fails() -> int:
        raise MachineError("too slow")

    with ThreadPoolExecutor(2) as pool:
        assert results(pool, [pool.submit(int, "2"), pool.submit(int, "1")], stop) == [2, 1]
        assert not stop.is_set()
        waits = pool.submit(lambda: int(stop.wait(30)))
        with pytest.raises(MachineError, match="too slow"):
            results(pool, [waits, pool.submit(fails)], stop)
    assert waits.result() == 1
