"""The figures of benchmarks.rules, and its scenarios; the measuring itself needs a lab."""

import json
import math
import subprocess

import pytest

from benchmarks.rules import figures
from benchmarks.rules.__main__ import main
from benchmarks.rules.compare import compare, measured, shadow_report
from benchmarks.rules.figures import NEVER, Limit, Played, Run
from benchmarks.rules.play import Job, Side, an_hour_ago, lab_spec, parse_runs
from benchmarks.rules.scenario import Work
from benchmarks.rules.scenarios import BY_NAME, SCENARIOS


def run(role: str, since: float, start: float, end: float, gpus: int = 1) -> Run:
    return Run(f"{role}{since}{start}", role, gpus, since, start, end)


def test_a_job_is_pending_again_two_minutes_after_a_run_that_was_requeued():
    runs = figures.in_order("1", "scavenger", 2, 100.0, [(300.0, 310.0), (101.0, 120.0)])
    assert [(r.since, r.start, r.end) for r in runs] == [(100, 101, 120), (241, 300, 310)]
    assert figures.in_order("2", "never", 2, 100.0, []) == [Run("2", "never", 2, 100, NEVER, NEVER)]


def test_the_runs_that_teach_ended_an_hour_ago_whatever_their_labs_clock_showed():
    """Two runs of a lab whose clock was ahead: the next lab must not take them for its own, or for future ones."""
    runs = [
        {"submit_time": 5000, "start_time": 5010, "end_time": 5100, "forecast_low": 0},
        {"submit_time": 8000, "start_time": 8010, "end_time": 9000, "forecast_low": 8005},
    ]
    moved = an_hour_ago("".join(json.dumps(run) + "\n" for run in runs), 7000.5)
    assert [json.loads(line) for line in moved.splitlines()] == [
        {"submit_time": -600, "start_time": -590, "end_time": -500, "forecast_low": 0},
        {"submit_time": 2400, "start_time": 2410, "end_time": 3400, "forecast_low": 2405},
    ]
    assert an_hour_ago("", 7000.0) == ""


def test_utilisation_counts_the_time_in_which_jobs_are_pending():
    runs = [run("a", 0, 0, 10, gpus=4), run("a", 0, 15, 20, gpus=4), run("a", 0, 20, 100, gpus=1)]
    assert figures.utilisation(list(figures.steps(Played(runs, 4, 0, 100)))) == pytest.approx((10 + 5) / 20)


def test_gpus_that_a_limit_keeps_free_are_not_lost():
    runs = [run("limited", 0, 0, 10), run("limited", 0, 10, 20), run("limited", 0, NEVER, NEVER)]
    played = Played(runs, 8, 0, 20)
    assert figures.utilisation(list(figures.steps(played, [Limit(("limited",), 1)]))) == 1.0
    assert figures.utilisation(list(figures.steps(played, [Limit(("limited",), 2)]))) == pytest.approx(20 / 40)


def test_gpus_that_no_whole_job_within_a_limit_fills_are_not_lost():
    runs = [run("large", 0, 0, 10, gpus=16), run("large", 0, 10, 20, gpus=16), run("small", 0, 15, 20, gpus=2)]
    found = list(figures.steps(Played(runs, 32, 0, 20), [Limit(("large", "small"), 24)]))
    assert [(step.begin, step.usable) for step in found] == [(0, 18), (10, 18), (15, 18)]


def test_a_job_that_may_not_start_yet_leaves_no_gpus_idle():
    runs = [run("a", 0, 0, 10), run("a", 0, 12, 20)._replace(able=10.0)]
    found = list(figures.steps(Played(runs, 4, 0, 20)))
    assert [(step.begin, step.used, step.usable) for step in found] == [(0, 1, 1), (10, 0, 1), (12, 1, 1)]
    assert figures.utilisation(found) == 0.0  # only while it is pending and able


def test_a_job_may_start_when_its_begin_time_has_come_and_the_job_that_it_needs_has_ended():
    text = "1|a|u|FAILED|100|100|101|110|n1\n2|b|u|PENDING|100|100|Unknown|Unknown|\n3|c|u|PENDING|100|100|||\n"
    jobs = {"1": Job("a", 2, 99.7), "2": Job("b", 2, 99.8, able=105.0, needs="1"), "3": Job("c", 2, 99.9, needs="2")}
    runs, _ = parse_runs(text, jobs)
    assert [each.able for each in runs] == [0.0, 110.0, NEVER]


def test_a_limit_that_is_raised_no_longer_counts():
    runs = [run("limited", 0, 0, 20), run("limited", 0, 20, 30)]
    found = list(figures.steps(Played(runs, 8, 0, 30), [Limit(("limited",), 1, until_s=10)]))
    assert [(step.begin, step.usable) for step in found] == [(0, 1), (10, 2), (20, 1)]


def test_the_longest_idle_time_begins_at_the_event_at_the_earliest():
    runs = [run("a", 0, 0, 10, gpus=4), run("a", 0, 50, 60, gpus=4), run("a", 0, 65, 70, gpus=4)]
    found = list(figures.steps(Played(runs, 4, 0, 70)))
    assert figures.longest_idle_s(found, 0) == 40
    assert figures.longest_idle_s(found, 20) == 30
    assert figures.longest_idle_s(found, 70) == 0


def test_a_pair_is_decided_when_both_are_pending_and_kept_when_the_first_role_starts_first():
    before = [("high", "low")]
    low = run("low", 0, 20, 30)
    assert figures.order_kept([run("high", 5, 10, 20), low], before) == (1, 1)
    assert figures.order_kept([run("high", 5, 21, 30), low], before) == (1, 1)  # together
    assert figures.order_kept([run("high", 5, 30, 40), low], before) == (0, 1)
    assert figures.order_kept([run("high", 5, NEVER, NEVER), low], before) == (0, 1)
    assert figures.order_kept([run("high", 19, 30, 40), low], before) == (0, 0)  # not yet known
    assert figures.order_kept([run("high", 5, 30, 40), low], before, since=19) == (0, 0)


def test_a_job_that_may_preempt_others_does_not_wait_for_their_end():
    preempts, victim = [("normal", "scavenger")], run("scavenger", 0, 0, 60)
    assert figures.preemption_kept([victim, run("normal", 10, 12, 20)], preempts) == (1, 1)
    assert figures.preemption_kept([victim, run("normal", 10, 30, 40)], preempts) == (0, 1)
    assert figures.preemption_kept([victim, run("normal", 55, 70, 80)], preempts) == (1, 1)  # it ended in time
    assert figures.preemption_kept([victim, run("normal", 60, 70, 80)], preempts) == (0, 0)


def test_a_start_beyond_the_limit_is_not_kept():
    runs = [run("limited", 0, 0, 10), run("limited", 0, 5, 15), run("limited", 0, 15, 20)]
    assert figures.limits_kept(Played(runs, 8, 0, 20), [Limit(("limited",), 1)]) == (2, 3)
    assert figures.limits_kept(Played(runs, 8, 0, 20), [Limit(("limited",), 1, until_s=5)]) == (1, 1)
    assert figures.share(0, 0) is None


def test_jobs_that_do_not_end_count_until_the_end_of_the_observation():
    requeued = figures.in_order("1", "a", 1, 0.0, [(0.0, 10.0), (140.0, 150.0)])
    played = Played([*requeued, run("b", 50, NEVER, NEVER)], 8, 0, 200)
    assert figures.makespan_s(played) == 200
    assert figures.mean_completion_s(played) == 150
    assert figures.mean_completion_s(played, ["a"]) == 150
    assert figures.mean_waits_s(played) == {"a": pytest.approx((0 + 9) / 2), "b": 150}


def test_runs_are_read_from_sacct_and_a_job_without_a_start_is_pending():
    text = """1|a|asrpt1|PREEMPTED|100|100|101|120|n1
1|a|asrpt1|COMPLETED|120|241|242|250|n1
2|a|asrpt1|CANCELLED by 0|100|100|130|140|n1
3|a|asrpt1|PENDING|100|Unknown|Unknown|Unknown|None assigned
4|a|asrpt1|RUNNING|100|100|130|Unknown|n1
9|other|asrpt1|RUNNING|100|100|130|Unknown|n1
"""
    runs, states = parse_runs(text, {name: Job("a", 2, 99.7) for name in "1234"})
    assert [(r.job_id, r.since, r.start, r.end) for r in runs] == [
        ("1", 100, 101, 120),
        ("1", 241, 242, 250),
        ("2", 100, 130, 140),
        ("3", 99, NEVER, NEVER),
        ("4", 100, 130, NEVER),
    ]
    assert states == {"PREEMPTED": 1, "COMPLETED": 1, "CANCELLED": 1, "RUNNING": 1}


def test_the_keys_of_a_scenario():
    plain = {"seconds": 0.4, "utilisation": 0.8, "refused_share": 0.0, "obeyed": 1.0, "mean_completion_s": 10.0}
    ours = {**plain, "seconds": 2.0, "utilisation": 0.4, "obeyed": None, "mean_completion_s": 5.0, "unfinished": 3}
    found = compare(plain, ours)
    assert found["ratio"] == 2.0  # seconds are whole
    assert (found["utilisation_ratio"], found["mean_ratio"], found["obeyed"]) == (0.5, 0.5, None)


def test_a_job_that_never_starts_by_its_rule_does_not_count_for_the_completion():
    scenario = BY_NAME["limits_too_big"]
    runs = [run("asrpt1", 0, 0, 10, gpus=2), run("too_big", 0, NEVER, NEVER, gpus=12)]
    side = Side(Played(runs, 32, 0, 60), 0.0, {}, {"start": 10, "not-started": 1})
    found = measured(scenario, side)
    assert (found["seconds"], found["unfinished"], found["refused_share"], found["obeyed"]) == (10, 0, 0.1, 1.0)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_each_scenario_submits_the_same_jobs_each_time_and_names_only_roles_that_it_has(scenario):
    roles = {work.role for work in scenario.works}
    named = [*scenario.measured, *scenario.never, *(role for limit in scenario.limits for role in limit.roles)]
    assert roles >= {*named, *(role for pair in scenario.before for role in pair)}
    for role in roles:
        assert len({work.gpus for work in scenario.works if work.role == role}) == 1
    assert scenario.submissions(1.0) == scenario.submissions(1.0)
    assert len(scenario.submissions(0.1)) < len(scenario.submissions(1.0)) or all(w.fixed for w in scenario.works)
    assert lab_spec(scenario, 27000).accounting


def test_a_job_names_its_role_its_limit_and_what_it_asks_for():
    command = Work("high", "asrpt1", 1, 40, 2, options="--qos=high").command(stamp=False)
    assert command[2:] == [
        "--job-name=high",
        "--time=2",
        "--output=/dev/null",
        "--gpus=2",
        "--qos=high",
        "--wrap",
        "sleep 40",
    ]
    assert Work("cpu", "asrpt1", 1, 10, 0, ask="-c4").command(stamp=True)[-3:-1] == ["-c4", "--wrap"]


def test_lengths_vary_by_the_number_of_the_job_within_their_share():
    script = Work("a", "asrpt1", 1, 20, vary=0.3).command(stamp=False)[-1]
    shell = ["sh", "-c", "sleep() { echo $1; }; " + script]
    lengths = [
        float(subprocess.run(shell, env={"SLURM_JOB_ID": str(n)}, capture_output=True, text=True, check=True).stdout)
        for n in range(1, 30)
    ]
    assert 14 <= min(lengths) < 16 < 24 < max(lengths) <= 26


def test_what_shadow_report_says_of_a_side():
    side = Side(Played([], 32, 0, 60), 0.0, {}, {})
    assert shadow_report(side) == {}
    rows = [
        {},
        {"policy": "slurm-backfill", "jct_over_real": 1.01},
        {"policy": "asrpt-gated", "jobs": 3, "mean_jct_s": 8.0, "jct_over_real": 0.8},
    ]
    side.report = {"rows": rows, "notes": {"predicted_zero": 0.0}}
    found = shadow_report(side)["shadow"]
    assert (found["mean_ratio"], found["slurm_ratio"]) == (0.8, 1.01)
    assert (found["jobs"], found["predicted_zero"]) == (3, 0.0)


def test_an_unknown_name_lists_the_valid_ones(capsys):
    assert main(["--only", "limits"]) == 2
    assert "limits_user" in capsys.readouterr().err


def test_the_list_has_every_scenario_and_its_seconds(capsys):
    assert main(["--list"]) == 0
    shown = capsys.readouterr().out
    assert all(scenario.name in shown for scenario in SCENARIOS)
    assert all(math.isfinite(scenario.takes_s) for scenario in SCENARIOS)
