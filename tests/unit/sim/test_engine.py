"""The event engine step by step, with faulty policies and invalid input."""

import gc
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from slurm_asrpt.core.cluster import Fabric, Node, Placement
from slurm_asrpt.core.job import Job, JobId, JobProfile, Stage, unprofiled
from slurm_asrpt.core.placement.splitter import Split
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.sim import job_table
from slurm_asrpt.sim.engine import PolicyError, simulate, simulate_named
from slurm_asrpt.sim.job_table import JobTable

FABRIC = Fabric(1.25e9, 300e9)
NODES = [Node("n0", 2, 0), Node("n1", 2, 1)]


def table(*rows, sizes=(1, 2, 4, 9)):
    """rows: (submit, GPUs, seconds)."""
    submit = np.array([row[0] for row in rows], dtype=float)
    profile = np.array([sizes.index(row[1]) for row in rows], dtype=int)
    seconds = np.array([row[2] for row in rows], dtype=float)
    return JobTable(tuple(map(unprofiled, sizes)), submit, profile, seconds, seconds)


class Fixed:
    """A policy that returns preset decisions."""

    split = Split.SLURM

    def __init__(self, decide=lambda jobs: [], wake=None):
        self.jobs, self._decide, self.wake = [], decide, wake

    def cluster_changed(self, nodes, now): ...
    def finished(self, job_id, now): ...
    def submitted(self, job, now):
        self.jobs.append(job)

    def decide(self, cluster, now):
        return self._decide(self.jobs)

    def next_wakeup(self, now):
        return None if self.wake is None else self.wake(now)


def start(job, gpus):
    return Start(job, Placement(gpus, tuple(gpus), 1.0))


def test_jobs_that_request_their_fewest_nodes_are_not_scattered():
    """With one GPU free on each server, a job of two starts at once, unless it requests one node."""
    rows = table((0, 1, 5), (0, 1, 9), (1, 2, 4))
    busy = [Node("n0", 2, 0), Node("n1", 2, 1)]
    anywhere = simulate_named("wcs-subtime", busy, rows, FABRIC)
    fewest = simulate_named("wcs-subtime", busy, rows, FABRIC, {"nodes": "fewest"})
    assert (anywhere.start.tolist(), anywhere.nodes.tolist()) == ([0, 0, 1], [1, 1, 2])
    assert (fewest.start.tolist(), fewest.nodes.tolist()) == ([0, 0, 5], [1, 1, 1])


@pytest.mark.parametrize(
    ("policy", "settings", "expected"),
    [
        *((name, {}, "paper") for name in ("asrpt", "spjf", "spwf", "wcs-duration", "wcs-workload", "wcs-subtime")),
        ("easy-backfill", {}, "slurm"),
        ("asrpt", {"split": "slurm"}, "slurm"),
        ("asrpt-perfect", {"split": "slurm"}, "slurm"),
        ("easy-backfill", {"split": "paper"}, "paper"),
    ],
)
def test_each_policy_has_its_split_unless_told_otherwise(policy, settings, expected):
    """12 GPUs of servers of 6 and 8 in node-table order, in a job whose ring is as slow as the smaller part."""
    ring = JobProfile("ring", (Stage(12, 1.0, 0.0, param_bytes=1e9),))
    jobs = JobTable((ring,), np.zeros(1), np.zeros(1, dtype=int), np.ones(1), np.ones(1))
    result = simulate_named(policy, [Node("n0", 6, 0), Node("n1", 8, 1)], jobs, FABRIC, settings)
    counts = {"paper": [(4, 6), (8, 8)], "slurm": [(6, 6), (6, 8)]}[expected]
    share = min(x * FABRIC.inter / g for x, g in counts)
    assert result.alpha.tolist() == pytest.approx([1 + 2 * 11 / 12 * 1e9 / share])


def test_the_fewest_nodes_of_each_size():
    asked = table((0, 1, 5)).on_fewest_nodes(NODES).requests
    assert [(each.min_nodes, each.max_nodes) for each in asked] == [(1, None), (1, 1), (2, 2), (1, None)]


def test_the_placement_determines_the_run_time():
    result = simulate_named("fifo", NODES, table((1, 4, 10), (2, 1, 5), (3, 1, 1)), FABRIC)
    assert result.start.tolist() == [1, 11, 11]
    assert result.end.tolist() == [11, 16, 12]
    assert result.nodes.tolist() == [2, 1, 1]
    assert result.completion_times.tolist() == [10, 14, 9]
    assert result.waits.tolist() == [0, 9, 8]
    assert (result.clock, result.interrupted) == (16, False)


def test_jobs_that_never_start_are_reported():
    result = simulate_named("wcs-duration", NODES, table((0, 9, 10), (0, 1, 5)), FABRIC)
    assert result.never_started.tolist() == [0]
    assert result.ended.tolist() == [1]


def test_an_empty_table_is_an_empty_result():
    result = simulate_named("fifo", NODES, table(), FABRIC)
    assert (len(result.ended), result.events) == (0, 0)


def test_a_policy_with_endless_wakeups_does_not_delay_the_end():
    result = simulate(Fixed(wake=lambda now: now + 1), NODES, table((0, 1, 5)))
    assert result.never_started.tolist() == [0]
    assert simulate(Fixed(wake=lambda now: now), NODES, table((0, 1, 5))).events == 1


def test_a_policy_is_not_called_for_arrivals_that_change_nothing():
    class Behind(Fixed):
        def submitted(self, job, now):
            super().submitted(job, now)
            return len(self.jobs) > 1

    asked = []

    def first_then_all(jobs):
        asked.append(len(jobs))
        return [start(jobs[0], {"n0": 1})] if len(asked) == 1 else [start(job, {"n1": 1}) for job in jobs[1:]]

    result = simulate(Behind(first_then_all), NODES, table((0, 1, 5), (1, 1, 1), (2, 1, 1)))
    assert asked == [1, 3]
    assert (result.start.tolist(), result.events) == ([0, 5, 5], 5)


@pytest.mark.parametrize(
    ("decide", "error"),
    [
        (lambda jobs: [start(jobs[0], {"n0": 1}), start(jobs[0], {"n0": 1})], "not pending"),
        (lambda jobs: [start(jobs[0], {"n0": 2})], "requests 1 GPUs"),
        (lambda jobs: [start(job, {"n0": 1}) for job in jobs], "n0 would have -1"),
    ],
)
def test_invalid_decisions_are_caught(decide, error):
    with pytest.raises(ValueError, match=error):
        simulate(Fixed(decide), NODES, table((0, 1, 5), (0, 1, 5), (0, 1, 5)))
    assert issubclass(PolicyError, ValueError)


def test_ctrl_c_keeps_completed_jobs_only_if_asked():
    def stop_at_the_third(row, now, placement):
        if row == 2:
            raise KeyboardInterrupt

    rows = [(10 * i, 1, 5) for i in range(6)]
    with pytest.raises(KeyboardInterrupt):  # figures of a part would look like those of the whole
        simulate(make_policy("fifo", fabric=FABRIC), NODES, table(*rows), on_start=stop_at_the_third)
    policy = make_policy("fifo", fabric=FABRIC)
    result = simulate(policy, NODES, table(*rows), on_start=stop_at_the_third, partial=True)
    assert result.interrupted
    assert result.ended.tolist() == [0, 1]
    assert result.never_started.tolist() == [3, 4, 5]


def test_progress_includes_the_end():
    calls = []
    rows = [(i, 1, 1) for i in range(2500)]
    simulate_named("fifo", NODES, table(*rows), FABRIC, progress=lambda *call: calls.append(call))
    assert [call[0] for call in calls] == [1000, 2000, 2500]
    assert calls[-1] == (2500, 2500, 2500.0)


def test_perfect_prediction_uses_the_true_iterations_of_the_table():
    jobs = table((0, 4, 10), (1, 4, 8), (1, 4, 2))
    blind = JobTable(jobs.profiles, jobs.submit, jobs.profile, jobs.iterations, np.zeros(3))
    assert simulate_named("spjf", NODES, blind, FABRIC).start.tolist() == [0, 10, 18]
    assert simulate_named("spjf-perfect", NODES, blind, FABRIC).start.tolist() == [0, 12, 10]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("iterations", [-1.0]),
        ("predicted", [np.nan]),
        ("profile", [4]),
        ("iterations", [1.0, 2.0]),
        ("users", ["a"] * 2),
    ],
)
def test_an_invalid_table_is_rejected(column, value):
    good = {"submit": [0.0], "profile": [0], "iterations": [1.0], "predicted": [1.0]}
    columns = {k: v if k == "users" else np.array(v) for k, v in {**good, column: value}.items()}
    with pytest.raises(ValueError, match="column"):
        JobTable((unprofiled(1),), **columns)


def test_unordered_jobs_are_rejected():
    with pytest.raises(ValueError, match="order of submission"):
        table((1, 1, 1), (0, 1, 1))


def test_jobs_of_a_table_equal_constructed_jobs(monkeypatch):
    monkeypatch.setattr(job_table, "_CHUNK", 2)
    rows = table((0, 1, 10), (1, 2, 5), (2, 4, 7))
    limits = np.array([1.0, 2.0, np.inf])
    more = JobTable(
        rows.profiles, rows.submit, rows.profile, rows.iterations, rows.predicted, limits, ["a", "b", "c"], ["x"] * 3
    )
    for jobs, users, groups, times in ((rows, [""] * 3, [""] * 3, [np.inf] * 3), (more, "abc", "xxx", limits)):
        expected = [
            Job(
                JobId(str(i)), users[i].strip(), gpus, unprofiled(gpus), seconds, i, groups[i].strip(), time_limit=limit
            )
            for i, (gpus, seconds, limit) in enumerate(zip([1, 2, 4], [10.0, 5.0, 7.0], times, strict=True))
        ]
        assert list(jobs.jobs()) == expected
        assert list(jobs.jobs(1)) == expected[1:]
        assert jobs.job(2) == expected[2]
    with pytest.raises(FrozenInstanceError):
        jobs.job(0).gpus = 5


def test_a_run_restores_the_garbage_collector():
    before = gc.get_threshold()
    simulate_named("fifo", NODES, table((0, 1, 5)), FABRIC)
    with pytest.raises(PolicyError):
        simulate(Fixed(lambda jobs: [start(jobs[0], {"n0": 2})]), NODES, table((0, 1, 5)))
    assert gc.get_threshold() == before
