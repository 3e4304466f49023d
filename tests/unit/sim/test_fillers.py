"""Fillers of asrpt-gated: who may use GPUs that are kept for another job, and when they are given back."""

import json

import numpy as np
import pytest

from slurm_asrpt.core.cluster import ClusterView, Node
from slurm_asrpt.core.job import Job, JobId, unprofiled
from slurm_asrpt.core.policies.base import Preempt, PreemptibleRun, Start
from slurm_asrpt.core.preemption_costs import PreemptionCosts
from slurm_asrpt.sim.engine import simulate
from slurm_asrpt.sim.interruptions import interrupting
from slurm_asrpt.sim.job_table import JobTable
from tests.benches.gated import unchecked_policy

SIZES = (1, 2, 4, 8)
COSTS = PreemptionCosts(checkpoint_s=30.0, requeue_s=121.0, restart_s=60.0)
NODES = [Node("n0", 4, 0), Node("n1", 4, 1)]
FIRST, WIDE, LONG = (0.0, 4, 5000.0), (10.0, 8, 6000.0), (20.0, 4, 24_000.0)
"""FIRST runs on n0. WIDE waits for both servers, which it has reserved from 5000 s on. LONG fits on n1."""


def table(*rows, predicted=None):
    """rows: submission, GPUs, seconds. predicted: seconds, if these are wrong."""
    submit, gpus, seconds = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    profile = np.array([SIZES.index(int(each)) for each in gpus])
    expected = seconds.copy() if predicted is None else np.array(predicted, dtype=float)
    return JobTable(tuple(map(unprofiled, SIZES)), submit, profile, seconds, expected)


def play(jobs, consenting, **settings):
    """The result, the run, and the starts of each job."""
    runs, starts = [], {}

    def runner(*parts):
        runs.append(interrupting(consenting, COSTS)(*parts))
        return runs[0]

    def started(row, now, _):
        starts.setdefault(row, []).append(now)

    policy = unchecked_policy("asrpt-gated", interrupts=True, **{"fills": True, "interruption_gain": 2.0, **settings})
    return simulate(policy, NODES, jobs, on_start=started, runner=runner), runs[0], starts


def test_a_job_that_consents_runs_on_kept_gpus_until_they_are_needed():
    found, run, starts = play(table(FIRST, WIDE, LONG), {2})
    assert starts == {0: [0.0], 1: [5030.0], 2: [60.0, 11_030.0]}, "WIDE starts after the checkpoint of LONG"
    assert run.interruptions == {2: 1}
    assert found.end[2] == 11_030 + 60 + 24_000 - 4940


def test_a_filler_that_ends_before_it_is_needed_delays_nobody():
    jobs = table(FIRST, WIDE, (20.0, 4, 3000.0), predicted=[5000, 6000, 24_000])
    _, run, starts = play(jobs, {2})
    assert starts == {0: [0.0], 1: [5000.0], 2: [60.0]}
    assert run.interruptions == {}


@pytest.mark.parametrize(
    ("consenting", "settings"),
    [
        ({0, 1}, {}),  # it does not consent
        ({2}, {"fills": False}),
        ({2}, {"max_interruptions": 0}),
        ({2}, {"interruption_s": 2500.0}),  # it would lose too much
        ({2}, {"patience_s": 10.0}),  # it is late, so nobody may preempt it
    ],
)
def test_others_do_not_fill(consenting, settings):
    _, run, starts = play(table(FIRST, WIDE, LONG), consenting, **settings)
    assert starts[2][0] > 5000.0 or settings.get("patience_s")
    assert run.interruptions == {}


def test_a_filler_is_preempted_no_more_often_than_allowed():
    again = [(time, gpus, seconds) for time in (9000.0, 20_000.0, 31_000.0) for _, gpus, seconds in (FIRST, WIDE)]
    _, run, _ = play(table(FIRST, WIDE, (20.0, 4, 90_000.0), *again), {2}, max_interruptions=2)
    assert run.interruptions == {2: 2}


def test_a_filler_goes_on_like_any_other_job_once_nobody_waits_for_servers():
    policy, view = unchecked_policy("asrpt-gated", interrupts=True, fills=True), ClusterView(NODES)
    start = begin(policy, view)
    assert (start.job.id, start.filling.id) == ("2", "1")
    assert list(policy.jobs.interruptions.fillers.running) == ["2"]
    policy.finished(JobId("1"), 100.0)
    policy.decide(view, 100.0)
    assert not policy.jobs.interruptions.fillers.running
    assert policy.jobs.running.free_at[1] > 24_000.0


def begin(policy, view):
    """FIRST runs, WIDE waits, LONG has just started as a filler. Returns its start."""
    policy.cluster_changed(NODES, 0.0)
    for at, (submit, gpus, seconds) in enumerate([FIRST, WIDE, LONG]):
        job = Job(JobId(str(at)), "ann", gpus, unprofiled(gpus), seconds, submit, interruptible=at == 2)
        policy.submitted(job, submit)
        policy.served({}, [], submit)
        decisions = policy.decide(view, submit + 60 * at)
        starts = [each for each in decisions if isinstance(each, Start)]
        for start in starts:
            view.take(start.placement.gpus)
    (start,) = starts
    policy.served({}, [PreemptibleRun(start.job.id, start.placement.gpus, 0.0, 4.0, 140.0)], 150.0)
    return start


@pytest.mark.parametrize("restarts", [False, True])
def test_a_filler_is_known_after_a_restart(restarts):
    policy, view = unchecked_policy("asrpt-gated", interrupts=True, fills=True), ClusterView(NODES)
    start = begin(policy, view)
    if restarts:
        state = json.loads(json.dumps(policy.dump(), allow_nan=False))
        waiting = {job_id: policy.jobs.queue.entries[job_id].job for job_id, _ in policy.queue(150.0)}
        policy = unchecked_policy("asrpt-gated", interrupts=True, fills=True)
        policy.cluster_changed(NODES, 150.0)
        policy.load(state, waiting)
    view.give({"n0": 4})
    policy.finished(JobId("0"), 3000.0)
    policy.served({}, [PreemptibleRun(start.job.id, start.placement.gpus, 0.0, 4.0, 140.0)], 3000.0)
    (preempt,) = (each for each in policy.decide(view, 3000.0) if isinstance(each, Preempt))
    assert (preempt.job_id, preempt.head.id) == ("2", "1")


def test_a_filler_whose_owner_no_longer_consents_is_a_job_like_any_other():
    policy, view = unchecked_policy("asrpt-gated", interrupts=True, fills=True), ClusterView(NODES)
    begin(policy, view)
    policy.served({}, [], 200.0)
    assert not policy.jobs.interruptions.fillers.running


def test_a_filler_that_slurm_rejects_waits_again():
    policy, view = unchecked_policy("asrpt-gated", interrupts=True, fills=True), ClusterView(NODES)
    start = begin(policy, view)
    policy.returned(start.job, 160.0)
    assert not policy.jobs.interruptions.fillers.running
    assert "2" in dict(policy.queue(160.0))


def test_giving_gpus_back_is_no_privilege():
    """A job that was preempted only as a filler is not favored like one that a shorter job has preempted."""
    policy, view = unchecked_policy("asrpt-gated", interrupts=True, fills=True), ClusterView(NODES)
    start = begin(policy, view)
    view.give({"n0": 4})
    policy.finished(JobId("0"), 3000.0)
    policy.served({}, [PreemptibleRun(start.job.id, start.placement.gpus, 0.0, 4.0, 140.0)], 3000.0)
    policy.decide(view, 3000.0)
    policy.finished(start.job.id, 3030.0)
    policy.served({start.job.id: 4 * 2900.0}, [], 3060.0)
    policy.submitted(start.job, 3060.0)
    key = policy.jobs.queue.entries[start.job.id].key
    assert key[1] > 0.9 * 4 * (24_000 - 2900)
    assert policy.jobs.queue.entries[start.job.id].since == LONG[0]
