"""The event engine and every policy on random workloads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import JobProfile, Stage, unprofiled
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.sim.engine import simulate, simulate_named
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.metrics import sound_bound
from tests.examples import examples

FABRIC = Fabric(1.25e9, 300e9)
POLICIES = [
    "asrpt",
    "asrpt-perfect",
    "spjf",
    "spwf",
    "wcs-duration",
    "wcs-workload",
    "wcs-subtime",
    "fifo",
    "easy-backfill",
    "slurm-backfill",
    "sjf-bco-online",
]
NODES = [Node(f"n{i}", 4, i) for i in range(3)]
PROFILES = (
    *(unprofiled(gpus) for gpus in (1, 2, 5, 12)),
    JobProfile("heavy", (Stage(4, 0.5, 0.5, param_bytes=1e9),)),
    JobProfile("pipeline", (Stage(2, 0.1, 0.2, 0, 1e7, 1e8), Stage(1, 0.2, 0.2, 1e7, 0, 1e8))),
)


@st.composite
def tables(draw, profiles=PROFILES, limits=False):
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 60),
                st.integers(0, len(profiles) - 1),
                st.integers(0, 40),
                st.sampled_from([0.0, 0.5, 1.0, 2.0]),
            ),
            min_size=1,
            max_size=25,
        )
    )
    submit, profile, iterations, error = (np.array(column) for column in zip(*sorted(rows), strict=True))
    iterations = iterations.astype(float)
    # no placement of these profiles has iterations longer than 12 s, so runs stay within the time limit, as in Slurm
    slack = np.array(draw(st.lists(st.sampled_from([1.0, 3.0]), min_size=len(rows), max_size=len(rows))))
    limit = 12 * iterations * slack + 1 if limits else np.empty(0)
    return JobTable(profiles, submit.astype(float), profile, iterations, iterations * error, limit)


class Ledger:
    """Observes all starts: which job holds which GPUs, and when."""

    def __init__(self):
        self.starts = []

    def __call__(self, row, now, placement):
        self.starts.append((row, now, dict(placement.gpus)))

    def most_held(self, result):
        """The maximum of GPUs in use at once on any node."""
        worst = 0
        for node in NODES:
            moves = []
            for row, now, gpus in self.starts:
                count = gpus.get(node.name, 0)
                moves += [(now, 1, count), (result.end[row], 0, -count)]  # ends first
            held = 0
            for _, _, change in sorted(moves):
                held += change
                worst = max(worst, held)
        return worst


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=examples(40), deadline=None)
@given(table=tables(limits=True))
def test_every_job_runs_once_and_no_gpu_is_shared(name, table):
    ledger = Ledger()
    table = table.perfect() if name == "asrpt-perfect" else table
    policy = make_policy(name.removesuffix("-perfect"), fabric=FABRIC)
    result = simulate(policy, NODES, table, on_start=ledger)
    assert sorted(row for row, _, _ in ledger.starts) == list(range(len(table)))
    assert len(result.ended) == len(table)
    assert not len(result.never_started)
    assert np.all(result.start >= table.submit)
    assert result.end == pytest.approx(result.start + table.iterations * result.alpha)
    assert ledger.most_held(result) <= 4
    assert policy.queue(result.clock) == []
    assert result.end.sum() >= sound_bound(table, NODES, FABRIC) * (1 - 1e-9)


@settings(max_examples=examples(15), deadline=None)
@given(table=tables())
def test_the_same_table_gives_the_same_result(table):
    for name in POLICIES:
        first, second = (simulate_named(name, NODES, table, FABRIC) for _ in range(2))
        assert first.start.tolist() == second.start.tolist()


@given(table=tables())
def test_fifo_starts_jobs_in_the_order_of_submission(table):
    result = simulate_named("fifo", NODES, table, FABRIC)
    assert np.all(np.diff(result.start) >= 0)


@given(table=tables())
def test_strict_orders_start_the_least_pending_job(table):
    """By predicted workload: no job that was pending at a start and had less work starts later."""
    result = simulate_named("spwf", NODES, table, FABRIC)
    value = table.gpus * table.predicted * table.best_alphas(NODES, FABRIC)
    for row in range(len(table)):
        waited = (table.submit <= result.start[row]) & (result.start > result.start[row])
        assert np.all(value[waited] >= value[row] * (1 - 1e-9))


@given(table=tables())
def test_work_conserving_orders_leave_no_pending_job_that_fits(table):
    ledger = Ledger()
    result = simulate(make_policy("wcs-duration", fabric=FABRIC), NODES, table, on_start=ledger)
    for now in {*table.submit.tolist(), *result.end.tolist()}:
        busy = table.gpus[(result.start <= now) & (result.end > now)].sum()
        waiting = table.gpus[(table.submit <= now) & (result.start > now)]
        assert np.all(waiting > 12 - busy)


class WatchedBackfill:
    """easy-backfill that records every reservation."""

    def __init__(self):
        self.inner = make_policy("easy-backfill", fabric=FABRIC)
        self.promised = {}

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def decide(self, cluster, now):
        decisions = self.inner.decide(cluster, now)
        kept = self.inner.reservation
        if kept is not None:
            self.promised.setdefault(int(kept.job.id), kept.time)
        return decisions


@settings(max_examples=examples(200), deadline=None)
@given(table=tables(limits=True))
def test_backfill_never_delays_the_reservation_of_the_head(table):
    policy = WatchedBackfill()
    result = simulate(policy, NODES, table)
    for row, time in policy.promised.items():
        assert result.start[row] <= time + 1e-6


@settings(deadline=None)
@given(table=tables(limits=True))
def test_backfill_is_fifo_unless_a_job_is_blocked(table):
    policy = WatchedBackfill()
    backfilled = simulate(policy, NODES, table)
    fifo = simulate_named("fifo", NODES, table, FABRIC)
    if not policy.promised:
        assert backfilled.start.tolist() == fifo.start.tolist()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=20),
    st.sampled_from([2, 4, 8]),
)
def test_asrpt_on_single_gpu_jobs_equals_a_brute_force_simulation(rows, gpus):
    rows = sorted(rows)
    submit, true, predicted = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    table = JobTable((unprofiled(1),), submit, np.zeros(len(rows), dtype=int), true, predicted)
    nodes = [Node(f"n{i}", gpus // 2, i) for i in range(2)]
    result = simulate_named("asrpt", nodes, table, FABRIC)
    assert result.start.tolist() == _brute_force(rows, gpus)


def _brute_force(rows, gpus):
    """Algorithm 1 in ticks of 1/G s: each is one GPU-second of the virtual machine. Start times in seconds."""
    virtual, fifo, running, starts = {}, [], [], [None] * len(rows)
    tick = 0
    while None in starts:
        running = [end for end in running if end > tick]
        for row, (submit, _, predicted) in enumerate(rows):
            if submit * gpus == tick:
                if predicted:
                    virtual[row] = predicted
                else:
                    fifo.append(row)
        while fifo and len(running) < gpus:
            row = fifo.pop(0)
            starts[row] = tick / gpus
            if rows[row][1]:
                running.append(tick + rows[row][1] * gpus)
        if virtual:
            served = min(virtual, key=lambda r: (virtual[r], rows[r][0], r))
            virtual[served] -= 1
            if not virtual[served]:
                del virtual[served]
                fifo.append(served)
        tick += 1
    return starts
