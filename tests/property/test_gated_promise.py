"""asrpt-gated on random workloads: what it must never do, and what it promises every job."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import JobProfile, Stage, unprofiled
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.sim.bound import latest_starts
from slurm_asrpt.sim.engine import simulate
from slurm_asrpt.sim.jobtable import JobTable

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
WRONG = (0.0, 0.001, 0.5, 1.0, 2.0, 1000.0)  # predicted over true iterations

rows = st.tuples(
    st.integers(0, 40), st.integers(0, len(PROFILES) - 1), st.integers(0, 30), st.sampled_from(WRONG)
)  # submission, profile, iterations, error


def table_of(jobs):
    submit, profile, iterations, error = (np.array(column) for column in zip(*sorted(jobs), strict=True))
    iterations = iterations.astype(float)
    return JobTable(PROFILES, submit.astype(float), profile, iterations, iterations * error)


tables = st.lists(rows, min_size=1, max_size=40).map(table_of)
streams = st.lists(  # small jobs without end beside a few wide ones
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
    policy = make_policy("asrpt-gated", fabric=FABRIC, **settings)
    result = simulate(policy, nodes, table, on_start=lambda row, now, placement: placed.append((row, now, placement)))
    return result, placed, policy


@settings(max_examples=150, deadline=None)
@given(
    table=tables | streams,
    nodes=st.sampled_from([EQUAL, UNEQUAL]),
    patience_s=patience,
    gate=st.sampled_from([1.0, 1.1]),
)
def test_everything_that_fits_starts_once_and_no_gpu_is_given_twice(table, nodes, patience_s, gate):
    result, placed, policy = play(table, nodes, patience_s=patience_s, gate=gate)
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


@settings(max_examples=30, deadline=None)
@given(table=tables, patience_s=patience)
def test_the_same_table_gives_the_same_starts(table, patience_s):
    first, second = (play(table, UNEQUAL, patience_s=patience_s)[0] for _ in range(2))
    assert first.start.tolist() == pytest.approx(second.start.tolist(), nan_ok=True, abs=0)


@settings(max_examples=100, deadline=None)
@given(table=tables | streams, gate=st.sampled_from([1.0, 1.1, 2.0]))
def test_no_job_that_has_patience_starts_outside_the_gate(table, gate):
    _, placed, _ = play(table, EQUAL, gate=gate)
    best = table.best_alphas(EQUAL, FABRIC)
    for row, _, placement in placed:
        assert placement.alpha <= gate * best[row]
        assert len(placement.gpus) == -(-table.gpus[row] // 4)


@settings(max_examples=60, deadline=None)
@given(table=tables | streams, patience_s=patience)
def test_only_a_job_without_patience_left_starts_outside_the_gate(table, patience_s):
    _, placed, _ = play(table, EQUAL, patience_s=patience_s, gate=1.0)
    best = table.best_alphas(EQUAL, FABRIC)
    for row, now, placement in placed:
        assert placement.alpha <= best[row] or now >= table.submit[row] + patience_s


@settings(max_examples=500, deadline=None)
@given(table=tables | streams, servers=st.integers(3, 6), patience_s=patience)
def test_every_job_starts_when_it_was_promised_to_at_the_latest(table, servers, patience_s):
    nodes = [Node(f"n{i}", 4, i) for i in range(servers)]
    result, _, _ = play(table, nodes, patience_s=patience_s)
    latest = latest_starts(result, patience_s)
    assert np.all((result.start <= latest + 1e-6) | np.isnan(latest))
