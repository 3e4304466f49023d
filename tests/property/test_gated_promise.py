"""asrpt-gated on random workloads: its invariants, and its guarantee to every job."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import UNPROFILED, Job, JobId, JobProfile, Request, Stage, unprofiled
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.sim.engine import simulate
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.metrics import latest_starts
from slurm_asrpt.status.reason_texts import text_of
from tests.benches.gated import unchecked_policy
from tests.examples import examples

FABRIC = Fabric(1.25e9, 300e9)
SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 12)
EQUAL = tuple(Node(f"n{i}", 4, i) for i in range(3))
UNEQUAL = tuple(Node(f"n{i}", gpus, i) for i, gpus in enumerate((2, 4, 1, 8, 4)))
PROFILES = (
    *map(unprofiled, SIZES),
    JobProfile("heavy", (Stage(6, 0.5, 0.5, param_bytes=1e9),)),
    JobProfile("pipeline", (Stage(3, 0.1, 0.2, 0, 1e7, 1e8), Stage(2, 0.2, 0.2, 1e7, 0, 1e8))),
    JobProfile("slices", (Stage(2, 0.5, 0.5, param_bytes=1e9),), tensor=2),
    JobProfile("nothing", (Stage(5, 0.0, 0.0),)),
)
WRONG = (0.0, 0.001, 0.5, 1.0, 2.0, 1000.0)  # predicted / true iterations

rows = st.tuples(
    st.integers(0, 40), st.integers(0, len(PROFILES) - 1), st.integers(0, 30), st.sampled_from(WRONG)
)  # submission, profile, iterations, error


def table_of(jobs):
    submit, profile, iterations, error = (np.array(column) for column in zip(*sorted(jobs), strict=True))
    iterations = iterations.astype(float)
    return JobTable(PROFILES, submit.astype(float), profile, iterations, iterations * error)


tables = st.lists(rows, min_size=1, max_size=40).map(table_of)
streams = st.lists(  # an endless stream of small jobs and a few wide ones
    st.tuples(st.integers(0, 60), st.sampled_from([0, 0, 0, 1, 2]), st.integers(5, 30), st.sampled_from(WRONG)),
    min_size=20,
    max_size=60,
).flatmap(
    lambda small: st.lists(
        st.tuples(st.integers(0, 10), st.sampled_from([6, 7, 8, 9]), st.integers(1, 9), st.sampled_from(WRONG)),
        max_size=4,
    ).map(lambda wide: table_of([*small, *wide]))
)
patience = st.sampled_from([0.0, 1.0, 7.5, 30.0])


def play(table, nodes, **settings):
    """The result, the placement of each start in order, and the policy."""
    placed = []
    policy = unchecked_policy("asrpt-gated", **settings)
    result = simulate(policy, nodes, table, on_start=lambda row, now, placement: placed.append((row, now, placement)))
    return result, placed, policy


@settings(max_examples=examples(150), deadline=None)
@given(
    table=tables | streams,
    nodes=st.sampled_from([EQUAL, UNEQUAL]),
    patience_s=patience,
    gate=st.sampled_from([1.0, 1.1]),
    scatter=st.booleans(),
)
def test_every_job_that_fits_starts_once_and_no_gpu_is_shared(table, nodes, patience_s, gate, scatter):
    result, placed, policy = play(table, nodes, patience_s=patience_s, gate=gate, scatter=scatter)
    fits = ~np.isnan(table.best_alphas(nodes, FABRIC))
    assert sorted(row for row, _, _ in placed) == np.flatnonzero(fits).tolist()
    assert len(result.ended) == fits.sum()
    assert [job_id for job_id, _ in policy.queue(result.clock)] == [
        job_id for job_id, why in policy.queue(result.clock) if why.kind == "capacity"
    ]
    for node in nodes:
        moves = [(now, 1, placement.gpus.get(node.name, 0)) for _, now, placement in placed]
        moves += [(result.end[row], 0, -placement.gpus.get(node.name, 0)) for row, _, placement in placed]  # ends first
        assert max(np.cumsum([change for _, _, change in sorted(moves)]), default=0) <= node.gpus


@settings(max_examples=examples(30), deadline=None)
@given(table=tables, patience_s=patience)
def test_the_same_workload_gives_the_same_starts(table, patience_s):
    first, second = (play(table, UNEQUAL, patience_s=patience_s)[0] for _ in range(2))
    assert first.start.tolist() == pytest.approx(second.start.tolist(), nan_ok=True, abs=0)


@settings(max_examples=examples(100), deadline=None)
@given(table=tables | streams, gate=st.sampled_from([1.0, 1.1, 2.0]))
def test_no_job_starts_outside_the_gate_before_its_patience_ends(table, gate):
    _, placed, _ = play(table, EQUAL, gate=gate)
    best = table.best_alphas(EQUAL, FABRIC)
    for row, _, placement in placed:
        assert placement.alpha <= gate * best[row]
        assert len(placement.gpus) == -(-table.gpus[row] // 4)


@settings(max_examples=examples(100), deadline=None)
@given(table=tables | streams)
def test_only_jobs_without_a_profile_are_scattered(table):
    _, placed, _ = play(table, EQUAL, scatter=True, gate=1000.0)
    for row, _, placement in placed:
        assert len(placement.gpus) == -(-table.gpus[row] // 4) or table.profiles[table.profile[row]].name == UNPROFILED


@settings(max_examples=examples(60), deadline=None)
@given(table=tables | streams, patience_s=patience)
def test_only_a_job_whose_patience_has_ended_starts_outside_the_gate(table, patience_s):
    _, placed, _ = play(table, EQUAL, patience_s=patience_s, gate=1.0)
    best = table.best_alphas(EQUAL, FABRIC)
    for row, now, placement in placed:
        assert placement.alpha <= best[row] or now >= table.submit[row] + patience_s


@settings(max_examples=examples(500), deadline=None)
@given(
    table=tables | streams,
    servers=st.sampled_from([(3, 4), (6, 4), (6, 3), (3, 8), (2, 12)]),
    patience_s=patience,
    late_share=st.sampled_from([0.1, 0.4, 1.0]),
    scatter=st.booleans(),
)
def test_every_job_starts_no_later_than_promised(table, servers, patience_s, late_share, scatter):
    number, gpus = servers
    nodes = [Node(f"n{i}", gpus, i) for i in range(number)]
    result, _, _ = play(table, nodes, patience_s=patience_s, late_share=late_share, scatter=scatter)
    latest = latest_starts(result, patience_s, late_share, number, gpus)
    assert np.all((result.start <= latest + 1e-6) | np.isnan(latest))


def test_a_stream_of_jobs_that_outlast_their_estimates_delays_a_wide_job_no_longer_than_promised():
    """Jobs of one GPU and 1 or 40 s, estimated at some seconds, which fit in before the reservation again and again."""
    small = [(0.7 * number, 0, 40 if number % 8 == 0 else 1) for number in range(1000)]
    submit, profile, iterations = (np.array(column) for column in zip(*sorted([*small, (100.0, 3, 5)]), strict=True))
    table = JobTable(PROFILES, submit, profile, iterations.astype(float), np.full(len(submit), 5.0))
    result, _, _ = play(table, EQUAL[:2], patience_s=50.0, late_share=1.0)
    wide = np.flatnonzero(table.gpus == 4)
    assert 150 < result.start[wide] <= latest_starts(result, 50.0, 1.0, 2, 4)[wide]


@settings(max_examples=examples(100), deadline=None)
@given(
    small=st.lists(
        st.tuples(st.integers(2, 100), st.just(0), st.integers(1, 20), st.sampled_from(WRONG)), min_size=30, max_size=80
    ),
    size=st.sampled_from([1, 2, 3]),
    patience_s=patience,
)
def test_a_job_waits_no_longer_than_its_patience_for_a_limit_that_smaller_jobs_keep_exceeded(small, size, patience_s):
    """An account may use 4 of 12 GPUs, and its jobs of one GPU come all the time. The other one needs 2, 3 or 4."""
    running = [(0, 0, 20, 1.0)] * 4
    table = table_of([*running, (1, size, 5, 1.0), *small])
    charges = [(("GrpTRES=gres/gpu of account lab", float(gpus)),) for gpus in table.gpus]
    table = replace(table, charges=charges, caps={"GrpTRES=gres/gpu of account lab": 4.0})
    result, _, _ = play(table, EQUAL, patience_s=patience_s, late_share=1.0)
    wide = table.gpus > 1
    longest = table.iterations.max()
    assert result.start[wide] <= 1 + patience_s + longest + 1e-6


@settings(max_examples=examples(200), deadline=None)
@given(table=tables | streams, patience_s=patience, late_share=st.sampled_from([0.1, 0.4]))
def test_late_jobs_hold_no_more_than_their_share_unless_it_is_one(table, patience_s, late_share):
    nodes = [Node(f"n{i}", 4, i) for i in range(6)]
    policy = unchecked_policy("asrpt-gated", patience_s=patience_s, late_share=late_share)
    seen = []
    simulate(policy, nodes, table, on_start=lambda row, now, placement: seen.append(policy.dump()["late"][3]))
    assert all(sum(running.values()) <= late_share * 24 or len(running) == 1 for running in seen)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "end", "return", "cancel", "change", "foreign", "nodes", "restart"]),
        st.integers(0, 1000),
        st.sampled_from([1, 2, 3, 4, 6]),
        st.sampled_from([0.0, 1.0, 10.0, 1000.0]),
        st.sampled_from(
            [
                *(Request(), Request(), Request(unit=2), Request(per_node=1), Request(candidates=frozenset({"n0"}))),
                Request(per_node=1, candidates=frozenset({"n0", "gone"})),  # this one does not fit the cluster
                *(Request(cpus_per_gpu=8.0), Request(memory_per_node=60.0), Request(gres_per_node=(("nvme", 1),))),
                Request(cpus_per_gpu=3.0, shares_per_gpu=(("share", 3.0),)),
            ]
        ),
    ),
    max_size=60,
)


class Site:
    """A cluster with random events and its own count of free GPUs."""

    def __init__(self, scatter):
        self.options = {"patience_s": 5.0, "scatter": scatter}
        self.policy = unchecked_policy("asrpt-gated", **self.options)
        self.nodes, self.running, self.waiting = EQUAL, {}, {}
        self.now, self.number, self.foreign = 0.0, 0, False
        self.policy.cluster_changed(self.nodes, 0.0)

    def happen(self, what, which, gpus, iterations, request):
        self.now += 1.0
        request = Request() if request is None or gpus % request.unit else request
        running, waiting = list(self.running), list(self.waiting)
        if what == "submit":
            self.number += 1
            self._submit(
                Job(JobId(str(self.number)), "ann", gpus, unprofiled(gpus), iterations, self.now, request=request)
            )
        elif what == "end" and running:
            self.running.pop(gone := running[which % len(running)])
            self.policy.finished(gone, self.now)
        elif what == "return" and running:
            job, _ = self.running.pop(running[which % len(running)])
            self.waiting[job.id] = job
            self.policy.returned(job, self.now)
        elif what == "cancel" and waiting:
            self.waiting.pop(gone := waiting[which % len(waiting)])
            self.policy.finished(gone, self.now)
        elif what == "change" and waiting:
            job = self.waiting[waiting[which % len(waiting)]]
            self.waiting[job.id] = Job(
                job.id, "ann", gpus, unprofiled(gpus), iterations, job.submit_time, request=request
            )
            self.policy.changed(self.waiting[job.id], self.now)
        elif what == "foreign" and waiting and self.view().free.get("n1"):
            job = self.waiting.pop(waiting[which % len(waiting)])
            gpus_by_node = {"n1": 1, "gone": 1} if which % 2 else {"n1": 1}
            self.running[job.id] = (job, gpus_by_node)  # Slurm started it by itself, on fewer GPUs
            self.foreign = True
            self.policy.running(job.id, gpus_by_node, self.now + 50.0, self.now)
        elif what == "nodes":
            self.nodes = EQUAL[: 1 + which % 3]
            self.policy.cluster_changed(self.nodes, self.now)
        elif what == "restart":
            state = json.loads(json.dumps(self.policy.dump(), allow_nan=False))
            self.policy = unchecked_policy("asrpt-gated", **self.options)
            self.policy.cluster_changed(self.nodes, self.now)
            self.policy.load(state, self.waiting)

    def _submit(self, job):
        self.waiting[job.id] = job
        self.policy.submitted(job, self.now)

    def view(self):
        names = [node.name for node in self.nodes]
        free = {"free_cpus": 32.0, "free_memory": 100.0}
        view = ClusterView(
            self.nodes,
            **{stock: dict.fromkeys(names, amount) for stock, amount in free.items()},
            free_gres={"nvme": dict.fromkeys(names, 1), "share": dict.fromkeys(names, 8)},
        )
        for job, gpus in self.running.values():
            view.take({name: count for name, count in gpus.items() if name in view.by_name}, job.request)
        return view

    def decide(self):
        view = self.view()
        for decision in self.policy.decide(view.copy(), self.now):  # the policy goes on looking at its own
            if isinstance(decision, Start):
                job = self.waiting.pop(decision.job.id)  # KeyError if the job was not pending
                assert job == decision.job
                assert sum(decision.placement.gpus.values()) == job.gpus
                view.take(decision.placement.gpus, job.request)  # ValueError if the GPUs were not free
                assert not view.overdrawn or self.foreign
                stocks = [view.free_cpus, *view.free_gres.values()]
                assert min(amount for stock in stocks for amount in stock.values()) >= 0 or self.foreign
                self.running[job.id] = (job, dict(decision.placement.gpus))
            else:
                assert decision.job.id in self.waiting
        assert sorted(job_id for job_id, _ in self.policy.queue(self.now)) == sorted(self.waiting)
        assert all(text_of(why) and json.dumps(why.facts, allow_nan=False) for _, why in self.policy.queue(self.now))
        wake = self.policy.next_wakeup(self.now)
        assert wake is None or wake > self.now


@settings(max_examples=examples(300), deadline=None)
@given(events=EVENTS, scatter=st.booleans())
def test_only_free_gpus_are_allocated_and_only_to_pending_jobs(events, scatter):
    site = Site(scatter)
    for event in events:
        site.happen(*event)
        site.decide()
    assert set(site.policy.dump()["runs"]) == set(site.running)
    site.nodes = EQUAL
    site.policy.cluster_changed(EQUAL, site.now)
    for _ in range(200):  # no new jobs, and running ones end: every job that fits starts
        site.happen("end", 0, 1, 0.0, None)
        site.decide()
    best = {job_id for job_id, why in site.policy.queue(site.now) if why.kind != "capacity"}
    assert not best
    assert not site.running
