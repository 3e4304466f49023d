"""Simulations without reserved bandwidth: work adds up, and policies count neighbors correctly."""

import json
from collections import Counter
from itertools import pairwise
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.job import Job, JobId, JobProfile, Stage, unprofiled
from slurm_asrpt.core.placement.mapping import placement_on
from slurm_asrpt.core.placement.nic_sharing import SharedTimes
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.core.policies.nic_contention import NicContention
from slurm_asrpt.core.timing.ring import Linear, Links, Ring, iteration_time
from slurm_asrpt.errors import InputError
from slurm_asrpt.sim.contention import runner_of, sharing
from slurm_asrpt.sim.description import Cluster
from slurm_asrpt.sim.engine import simulate, simulate_named
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.recorder import Recorder, simulate_recorded
from slurm_asrpt.sim.scenario import make_scenario, parse_policy, scenario_of
from tests.examples import examples
from tests.property.test_simulation import NODES, PROFILES, Ledger, tables

FABRIC = Fabric(1.25e9, 300e9)
POLICIES = ["asrpt", "asrpt-gated", "wcs-subtime", "sjf-bco-online"]
f_values = st.sampled_from([Linear(), Linear(0.7)])


def placed(counts, profile, sizes=None):
    nodes = [Node(f"n{i}", size, i) for i, size in enumerate(sizes or counts)]
    return placement_on(nodes, tuple(counts), profile, FABRIC)


def ring(gpus, gradient=1e9):
    return JobProfile(f"ring{gpus}", (Stage(gpus, 0.25, 0.25, param_bytes=gradient),))


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.data(), f_values)
def test_a_single_stage_follows_equation_8(counts, data, f):
    rings = data.draw(st.lists(st.integers(1, 9), min_size=len(counts), max_size=len(counts)))
    profile = ring(sum(counts))
    alpha = SharedTimes(FABRIC, f).alpha(placed(counts, profile), profile, rings)
    as_paper = Ring(sum(counts), 1e9, forward=0.25, samples=1, backward=0.25)
    links = Links(FABRIC.inter, FABRIC.intra, degradation=f)
    assert alpha == pytest.approx(iteration_time(as_paper, len(counts), max(rings), links))


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), f_values, st.sampled_from(PROFILES[4:]))
def test_alone_is_no_slower_than_with_reserved_bandwidth_and_neighbors_slow_a_job_down(counts, f, profile):
    counts = counts[: profile.gpus - 1] or [1]
    counts = [*counts[:-1], profile.gpus - sum(counts[:-1])]
    if min(counts) < 1 or len(counts) < 2:
        return
    times, placement = SharedTimes(FABRIC, f), placed(counts, profile, [8] * len(counts))
    by_rings = [times.alpha(placement, profile, [k] * len(counts)) for k in (1, 2, 3)]
    assert by_rings == sorted(by_rings)
    assert by_rings[0] <= placement.alpha * (1 + 1e-9)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=examples(25))
@given(table=tables(), f=f_values)
def test_work_between_events_adds_up_to_the_iterations(name, table, f):
    ledger, where = Ledger(), {}

    def started(row, now, placement):
        ledger(row, now, placement)
        where[row] = placement

    policy = make_policy(name, fabric=FABRIC)
    result = simulate(policy, NODES, table, on_start=started, runner=sharing(FABRIC, f))
    assert len(result.ended) == len(table)
    assert ledger.most_held(result) <= 4
    assert policy.queue(result.clock) == []
    done = _done(table, result, where, SharedTimes(FABRIC, f))
    assert done == pytest.approx(table.iterations, rel=1e-6, abs=1e-6)
    assert result.end == pytest.approx(result.start + table.iterations * result.alpha)


def _done(table, result, where, times):
    """Iterations of each job, summed over the intervals between starts and ends."""
    done = np.zeros(len(table))
    changes = sorted({*result.start.tolist(), *result.end.tolist()})
    for begin, end in pairwise(changes):
        running = [row for row in where if result.start[row] <= begin and result.end[row] > begin]
        leaving = Counter(name for row in running if len(where[row].gpus) > 1 for name in where[row].gpus)
        for row in running:
            profile = table.profiles[table.profile[row]]
            done[row] += (end - begin) / times.alpha(where[row], profile, [leaving[name] for name in where[row].gpus])
    return done


@given(table=tables(profiles=PROFILES[:2]))
def test_jobs_on_one_server_are_not_affected(table):
    plain, shared = (
        simulate_named("asrpt-gated", NODES, table, FABRIC, runner=r) for r in (None, sharing(FABRIC, Linear()))
    )
    assert shared.start.tolist() == plain.start.tolist()
    assert shared.end == pytest.approx(plain.end)


@pytest.mark.parametrize(("name", "contention"), [("asrpt", "contention"), ("asrpt-gated", "jobs.contention")])
@settings(max_examples=examples(40))
@given(table=tables())
def test_contention_aware_policies_run_every_job_once(name, contention, table):
    ledger = Ledger()
    policy = make_policy(name, fabric=FABRIC, contention=True)
    result = simulate(policy, NODES, table, on_start=ledger, runner=sharing(FABRIC, Linear()))
    assert sorted(row for row, _, _ in ledger.starts) == list(range(len(table)))
    assert ledger.most_held(result) <= 4
    assert len(result.ended) == len(table)
    assert attrgetter(contention)(policy).servers_in_use(ClusterView(NODES)) == 0


def test_an_interrupted_simulation_returns_the_jobs_that_ended():
    def stop(row, now, placement):
        if row == 2:
            raise KeyboardInterrupt

    table = JobTable(
        (unprofiled(4),), np.array([0.0, 1.0, 9.0]), np.zeros(3, dtype=int), np.full(3, 5.0), np.full(3, 5.0)
    )
    nodes = [Node("a", 4, 0), Node("b", 4, 1)]
    fifo = make_policy("fifo", fabric=FABRIC)
    result = simulate(fifo, nodes, table, on_start=stop, runner=sharing(FABRIC, Linear()), partial=True)
    assert result.interrupted
    assert result.ended.tolist() == [0, 1]


def test_a_cluster_says_whether_bandwidth_is_reserved():
    assert runner_of(Cluster()) is None
    busy = {"single_gpu": 0.0, "load": 1.5}
    shared = make_scenario("pai-like:300", parse_policy("wcs-subtime"), {"servers": 8, "contention": 0.5}, busy)
    assert scenario_of(json.loads(json.dumps(shared.document()))) == shared
    reserved = scenario_of({**shared.document(), "cluster": {"servers": 8}})
    ends = [_played(one).end.tolist() for one in (shared, reserved)]
    assert ends[0] != ends[1]
    with pytest.raises(InputError, match="contention must be"):
        make_scenario("pai-like:300", None, {"contention": -1.0})


def _played(scenario):
    made = scenario.workload()
    return simulate_recorded(scenario.spec, made, Recorder(made.cluster.nodes))


# neighbors

SIX = [Node(f"n{i}", 6, i) for i in range(4)]


def spread(profile, **gpus):
    names = list(gpus)
    ranks = tuple(name for name, count in gpus.items() for _ in range(count))
    return Placement(dict(zip(names, gpus.values(), strict=True)), ranks[: profile.gpus], 1.0)


def test_neighbors_are_counted_and_slowed_down():
    known, eight = NicContention(FABRIC), ring(8)
    known.started(JobId("a"), spread(eight, n0=6, n1=2), eight)
    known.seen(JobId("b"), {"n1": 1, "n2": 1})
    known.seen(JobId("c"), {"n1": 1})  # on one server: no neighbors
    beside = spread(eight, n1=2, n2=6)
    exchange = 2 * 7 / 8 * 1e9 / FABRIC.inter
    assert known.shared(beside, eight).alpha == pytest.approx(0.5 + 3 * exchange)
    assert known.slowdown_of_neighbors(beside) == pytest.approx((0.5 + 3 * exchange) / (0.5 + exchange))
    view = ClusterView(SIX)
    assert known.servers_in_use(view) == 0b111
    known.seen(JobId("a"), {"n0": 6, "n1": 2})  # where it was
    known.ended(JobId("b"))
    assert known.shared(beside, eight).alpha == pytest.approx(0.5 + 2 * exchange)
    known.ended(JobId("a"))
    assert (known.servers_in_use(view), known.slowdown_of_neighbors(beside)) == (0, 1.0)


@pytest.mark.parametrize(("contention", "meet"), [(False, True), (True, False)])
def test_the_gate_separates_the_remainders_of_two_jobs(contention, meet):
    """Two jobs of 8 GPUs on servers of 6: without the gate, both remainders of 2 would share a server."""
    policy = make_policy("asrpt-gated", fabric=FABRIC, contention=contention)
    policy.cluster_changed(SIX, 0.0)
    view, starts = ClusterView(SIX), []
    for number in range(2):
        policy.submitted(Job(JobId(str(number)), "ann", 8, ring(8), 100.0), 0.0)
        for decision in policy.decide(view, 0.0):
            view.take(decision.placement.gpus)
            starts.append(set(decision.placement.gpus))
    assert len(starts) == 2
    assert bool(starts[0] & starts[1]) == meet


PIPELINE = JobProfile("pipeline", tuple(Stage(1, 0.01, 0.01, 1e8 * (n > 0), 1e8 * (n < 7)) for n in range(8)))
"""Eight stages with much traffic: if each has its own NIC, an iteration takes less than half as long."""


@pytest.mark.parametrize(("contention", "others", "servers"), [(True, 0, 8), (True, 1, 2), (False, 0, 2)])
def test_with_shared_nics_and_no_other_pending_jobs_a_job_uses_more_servers_if_faster(contention, others, servers):
    nodes = [Node(f"n{i}", 6, i) for i in range(10)]
    policy = make_policy("asrpt-gated", fabric=FABRIC, contention=contention)
    policy.cluster_changed(nodes, 0.0)
    view = ClusterView(nodes, free={node.name: 1 if node.index < 8 else 6 for node in nodes})
    policy.submitted(Job(JobId("1"), "ann", 8, PIPELINE, 100.0), 0.0)
    for number in range(others):
        policy.submitted(Job(JobId(f"2{number}"), "ann", 60, unprofiled(60), 1e6), 0.0)
    start = next(decision for decision in policy.decide(view, 0.0) if isinstance(decision, Start))
    assert (start.job.id, len(start.placement.gpus)) == ("1", servers)
