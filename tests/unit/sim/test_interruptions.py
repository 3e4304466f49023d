"""Simulated preemption: what it costs, whom it concerns, and that no work is lost."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobId, Request, unprofiled
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import Preempt, PreemptibleRun, Start
from slurm_asrpt.core.preemption_costs import PreemptionCosts
from slurm_asrpt.sim.engine import PolicyError, Simulation, simulate
from slurm_asrpt.sim.interruptions import InterruptedRun, interrupting
from slurm_asrpt.sim.job_table import JobTable
from tests.benches.gated import unchecked_policy

FABRIC = Fabric(1.25e9, 300e9)
SIZES = (1, 2, 4, 8)
COSTS = PreemptionCosts(checkpoint_s=30.0, requeue_s=121.0, restart_s=60.0)
LONG, SHORT = (0.0, 1, 100_000.0), (1000.0, 1, 100.0)


def table(*rows):
    """rows: submission, GPUs, seconds."""
    submit, gpus, seconds = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    profile = np.array([SIZES.index(int(each)) for each in gpus])
    return JobTable(tuple(map(unprofiled, SIZES)), submit, profile, seconds, seconds.copy())


def play(jobs, consenting, sizes=(1,), policy="asrpt-gated", made=None, **settings):
    """The result, and the run."""
    runs = []

    def runner(*parts):
        runs.append(interrupting(consenting, COSTS)(*parts))
        return runs[0]

    if policy == "asrpt-gated":
        settings.setdefault("interrupts", True)
    made = made or unchecked_policy(policy, **settings)
    nodes = [Node(f"n{at}", gpus, at) for at, gpus in enumerate(sizes)]
    return simulate(made, nodes, jobs, runner=runner), runs[0]


def test_a_short_job_takes_the_gpu_of_a_long_one_which_continues_from_its_checkpoint():
    found, run = play(table(LONG, SHORT), {0, 1})
    assert run.interruptions == {0: 1}
    assert found.end[1] == 1000 + 30 + 100
    assert found.end[0] == (1000 + 30 + 121) + 60 + 99_000
    assert found.start.tolist() == [0.0, 1030.0]
    assert run.lost_gpu_s == {0: 90.0}
    assert run.between == [(1, 1030.0, 1151.0)]


@pytest.mark.parametrize(
    ("consenting", "settings"),
    [
        ({0}, {}),  # who may not be preempted may not preempt
        ({1}, {}),
        ({0, 1}, {"interrupts": False}),
        ({0, 1}, {"max_interruptions": 0}),
        ({0, 1}, {"min_run_s": 2000.0}),
        ({0, 1}, {"interruption_s": 60_000.0}),  # it would not pay
    ],
)
def test_nobody_is_preempted_without_consent_or_gain(consenting, settings):
    _, run = play(table(LONG, SHORT), consenting, **settings)
    assert run.interruptions == {}


def test_nobody_is_preempted_for_a_job_that_finds_room_soon():
    """Another job ends 50 s later."""
    found, run = play(table(LONG, (0.0, 2, 100_000.0), (0.0, 1, 1050.0), SHORT), {0, 1, 2, 3}, sizes=(4,))
    assert run.interruptions == {}
    assert found.end[3] == 1050 + 100


@pytest.mark.parametrize(("long", "short", "times"), [(0, 1, 0), (1, 1, 1), (1, 0, 1)])
def test_a_job_preempts_none_of_a_higher_priority(long, short, times):
    policy = unchecked_policy("asrpt-gated", interrupts=True)
    nodes = [Node("n0", 1, 0)]
    view = ClusterView(nodes)
    policy.cluster_changed(nodes, 0.0)
    one = Job(JobId("0"), "ann", 1, unprofiled(1), 100_000.0, 0.0, band=long, interruptible=True)
    two = Job(JobId("1"), "ann", 1, unprofiled(1), 100.0, 1000.0, band=short, interruptible=True)
    policy.submitted(one, 0.0)
    (start,) = policy.decide(view, 0.0)
    view.take(start.placement.gpus)
    policy.submitted(two, 1000.0)
    policy.served({}, [PreemptibleRun(one.id, start.placement.gpus, 0.0, 1.0, 0.0)], 1000.0)
    assert sum(isinstance(each, Preempt) for each in policy.decide(view, 1000.0)) == times


def test_nothing_else_starts_on_idle_servers_of_a_claim():
    """A wide job preempts the job on n0; until that has ended, a job that fits on n1 would take the other half."""
    policy = unchecked_policy("asrpt-gated", interrupts=True)
    nodes = [Node("n0", 4, 0), Node("n1", 4, 1)]
    view = ClusterView(nodes)
    policy.cluster_changed(nodes, 0.0)
    long, wide, other = (
        Job(JobId(str(at)), "ann", gpus, unprofiled(gpus), seconds, 0.0, interruptible=True)
        for at, (gpus, seconds) in enumerate([(4, 100_000.0), (8, 100.0), (4, 1000.0)])
    )
    policy.submitted(long, 0.0)
    (start,) = policy.decide(view, 0.0)
    view.take(start.placement.gpus)
    policy.submitted(wide, 1000.0)
    policy.served({}, [PreemptibleRun(long.id, start.placement.gpus, 0.0, 1.0, 0.0)], 1000.0)
    assert [each.job_id for each in policy.decide(view, 1000.0) if isinstance(each, Preempt)] == [long.id]
    policy.submitted(other, 1010.0)
    assert not [each for each in policy.decide(view, 1010.0) if isinstance(each, Start)]
    view.give(start.placement.gpus)
    policy.finished(long.id, 1040.0)
    assert [each.job.id for each in policy.decide(view, 1040.0) if isinstance(each, Start)] == [wide.id]


@pytest.mark.parametrize(("patience_s", "times"), [(500.0, {}), (5000.0, {1: 1})])
def test_a_job_that_has_waited_for_its_patience_is_never_preempted(patience_s, times):
    _, run = play(table((0.0, 1, 600.0), LONG, SHORT), {0, 1, 2}, patience_s=patience_s)
    assert run.interruptions == times


def test_a_job_is_preempted_no_more_often_than_allowed():
    stream = [(1000.0 + 5000.0 * number, 1, 100.0) for number in range(8)]
    _, run = play(table(LONG, *stream), set(range(9)), max_interruptions=3)
    assert run.interruptions == {0: 3}


def test_a_wide_job_preempts_narrow_ones_on_the_fewest_servers():
    narrow = [(0.0, 1, 50_000.0 + number) for number in range(8)]
    found, run = play(table(*narrow, (1000.0, 4, 100.0)), set(range(9)), sizes=(4, 4))
    assert run.interruptions == dict.fromkeys(range(4), 1) or run.interruptions == dict.fromkeys(range(4, 8), 1)
    assert found.end[8] == 1130.0


def test_without_consent_it_is_the_plain_simulation():
    jobs = table(*[(10.0 * number, SIZES[number % 4], 100.0 + 37 * number) for number in range(40)])
    nodes = [Node("n0", 8, 0), Node("n1", 8, 1)]
    plain = simulate(make_policy("asrpt-gated", fabric=FABRIC), nodes, jobs)
    found, run = play(jobs, set(), sizes=(8, 8))
    assert np.array_equal(plain.end, found.end)
    assert run.interruptions == {}


def test_hlas_preempts_too():
    _, run = play(table(LONG, (5000.0, 1, 100.0)), {0, 1}, policy="hlas", first_gpu_s=1000.0)
    assert run.interruptions == {0: 1}


def test_a_policy_that_preempts_others_than_it_may_is_an_error():
    run = InterruptedRun(Simulation(unchecked_policy("hlas"), [Node("n0", 1, 0)], table(LONG)), {5}, COSTS)
    run.run_to_end()
    with pytest.raises(PolicyError, match="does not consent"):
        run._interrupt(0, 1.0)


def reasons(policy, now):
    """Why each job waits: "room", if it waits for those that it has preempted."""
    return {job_id: why.kind for job_id, why in policy.queue(now)}


class Restarted:
    """A policy that is saved and loaded before each decision, as when the daemon restarts in each cycle."""

    def __init__(self, **settings):
        self.settings, self.policy, self.jobs = settings, unchecked_policy("asrpt-gated", **settings), {}
        self.interrupts = True

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def cluster_changed(self, nodes, now):
        self.nodes = nodes
        self.policy.cluster_changed(nodes, now)

    def submitted(self, job, now):
        self.jobs[job.id] = job
        return self.policy.submitted(job, now)

    def served(self, waiting, runs, now):
        state = json.loads(json.dumps(self.policy.dump(), allow_nan=False))
        queue = reasons(self.policy, now)
        fresh = unchecked_policy("asrpt-gated", **self.settings)
        fresh.cluster_changed(self.nodes, now)
        fresh.load(state, {job_id: self.jobs[job_id] for job_id in queue})
        found = reasons(fresh, now)
        assert found.keys() == queue.keys()
        assert [each for each in found if found[each] == "room"] == [each for each in queue if queue[each] == "room"]
        self.policy = fresh
        self.policy.served(waiting, runs, now)


workloads = st.lists(
    st.tuples(st.integers(0, 3000), st.sampled_from(SIZES), st.integers(1, 20_000), st.booleans()),
    min_size=2,
    max_size=25,
)


@given(workloads, st.sampled_from([1e6, 4000.0]), st.integers(0, 3), st.booleans())
def test_every_job_ends_once_with_all_its_work(rows, patience_s, most, restarts):
    rows = sorted(rows)
    jobs = table(*[row[:3] for row in rows])
    consenting = {at for at, row in enumerate(rows) if row[3]}
    settings = {"patience_s": patience_s, "max_interruptions": most, "min_run_s": 300.0, "interruption_gain": 1.0}
    made = Restarted(interrupts=True, **settings) if restarts else None
    found, run = play(jobs, consenting, sizes=(8, 4), made=made, **settings)
    assert len(found.ended) == len(rows)
    times = run.interruptions
    assert times.keys() <= consenting
    assert all(count <= most for count in times.values())
    for row in range(len(rows)):
        again = times.get(row, 0)
        least = jobs.iterations[row] + again * (COSTS.checkpoint_s + COSTS.requeue_s)
        assert found.end[row] - found.start[row] >= least - 1e-6
        if not again:
            assert found.end[row] - found.start[row] == pytest.approx(jobs.iterations[row])
    assert run.view.total_free == 12
    assert not [job_id for job_id, _ in run.policy.queue(found.clock)]
    assert JobId("0") not in run.runs


def interrupted_for_a_short_job():
    """A policy that has preempted job 0 for job 1, on the only GPU; its view of the cluster, and both jobs."""
    policy, nodes = unchecked_policy("asrpt-gated", interrupts=True), [Node("n0", 1, 0)]
    view = ClusterView(nodes)
    policy.cluster_changed(nodes, 0.0)
    long, short = (
        Job(JobId(str(at)), "ann", 1, unprofiled(1), seconds, submit, interruptible=True)
        for at, (seconds, submit) in enumerate([(100_000.0, 0.0), (100.0, 1000.0)])
    )
    policy.submitted(long, 0.0)
    (start,) = policy.decide(view, 0.0)
    view.take(start.placement.gpus)
    policy.submitted(short, 1000.0)
    policy.served({}, [PreemptibleRun(long.id, start.placement.gpus, 0.0, 1.0, 0.0)], 1000.0)
    assert [type(each) for each in policy.decide(view, 1000.0)] == [Preempt]
    return policy, view, long, short


def test_a_job_for_which_others_were_preempted_gets_their_gpus_although_it_has_changed():
    """Its weight changes with its age, and others that want the GPU are there."""
    policy, view, long, short = interrupted_for_a_short_job()
    policy.submitted(replace(short, id=JobId("2"), predicted_iterations=10.0), 1010.0)
    policy.changed(replace(short, weight=2.0), 1020.0)
    view.give({"n0": 1})
    policy.finished(long.id, 1040.0)
    assert [each.job.id for each in policy.decide(view, 1040.0) if isinstance(each, Start)] == [short.id]


def test_a_job_that_asks_for_something_else_waits_like_any_other():
    policy, view, long, short = interrupted_for_a_short_job()
    policy.submitted(replace(short, id=JobId("2"), predicted_iterations=10.0), 1010.0)
    policy.changed(replace(short, request=Request(min_nodes=1, max_nodes=1)), 1020.0)
    view.give({"n0": 1})
    policy.finished(long.id, 1040.0)
    assert [each.job.id for each in policy.decide(view, 1040.0) if isinstance(each, Start)] == ["2"]


def test_nobody_is_preempted_while_there_are_no_nodes():
    policy, _, _, short = interrupted_for_a_short_job()
    policy.cluster_changed([], 1060.0)
    policy.served({}, [PreemptibleRun(JobId("0"), {"n0": 1}, 0.0, 1.0, 0.0)], 1200.0)
    policy.submitted(replace(short, id=JobId("2")), 1200.0)
    assert policy.decide(ClusterView([]), 1200.0) == []
