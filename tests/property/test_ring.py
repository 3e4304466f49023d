"""Rings under contention: equations (6)-(9), and exact integration against small time steps."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.sjf_bco.workload import time_range
from slurm_asrpt.core.timing.contention import ContendingJobs
from slurm_asrpt.core.timing.ring import (
    Linear,
    Links,
    Ring,
    Table,
    bandwidth,
    iteration_time,
    iterations_per_slot,
)
from tests.examples import examples

degradations = st.one_of(
    st.builds(Linear, st.floats(0, 3)),
    st.lists(st.tuples(st.floats(0.1, 4), st.floats(0.1, 4)), min_size=1, max_size=5).map(
        lambda steps: Table(tuple((1 + sum(s[0] for s in steps[:i]), 1 + sum(s[1] for s in steps[:i]))
                                  for i in range(len(steps) + 1)))
    ),
)  # fmt: skip
links = st.builds(
    Links, st.floats(1, 10), st.floats(100, 1000), st.floats(1, 100), st.floats(0.05, 1), st.floats(0, 1), degradations
)
rings = st.builds(Ring, st.integers(1, 16), st.floats(0, 50), st.floats(0, 1), st.integers(1, 8), st.floats(0, 1))


@given(degradations, st.floats(1, 40), st.floats(0.01, 5))
def test_f_is_1_for_a_single_ring_and_increases(f, contending, more):
    assert f(1.0) == 1
    assert f(contending + more) > f(contending)


def test_f_is_interpolated_and_extrapolated():
    f = Table(((1, 1), (2, 3), (4, 4)))
    assert [f(k) for k in (1, 1.5, 2, 3, 4, 6)] == [1, 2, 3, 3.5, 4, 5]
    assert [Linear(0.5)(k) for k in (1, 2, 3)] == [1, 2.5, 4]


@pytest.mark.parametrize("points", [(), ((1, 1),), ((1, 2), (2, 3)), ((1, 1), (2, 1)), ((1, 1), (3, 2), (2, 3))])
def test_an_invalid_degradation_table_is_rejected(points):
    with pytest.raises(ValueError, match="begins with"):
        Table(points)


@pytest.mark.parametrize("speeds", [(0.5, 0.5, 0.5), (1e-9, 1e9, 1.0)])
def test_any_speed_above_0_is_valid(speeds):
    assert Links(*speeds).reduce == speeds[2]


@pytest.mark.parametrize(
    "invalid",
    [{"inter": 0}, {"intra": 0}, {"reduce": 0}, {"intra": -1}, {"xi1": 0}, {"xi1": 1.001}, {"xi2": -0.001}],
)
def test_links_are_within_their_bounds(invalid):
    with pytest.raises(ValueError, match="must be"):
        Links(**{"inter": 1.0, "intra": 1.0, **invalid})


@given(rings, links, st.integers(1, 30), st.integers(2, 16))
def test_tau_is_the_sum_of_equation_8(ring, shared, others, servers):
    piece = ring.gradient / ring.gpus * (ring.gpus - 1)
    k = max(1.0, shared.xi1 * others)
    fixed = piece / shared.reduce + ring.forward * ring.samples + ring.backward
    on_several = 2 * piece * shared.degradation(k) / shared.inter + fixed + shared.xi2 * servers
    assert iteration_time(ring, servers, others, shared) == pytest.approx(on_several)
    assert iteration_time(ring, 1, 0, shared) == pytest.approx(2 * piece / shared.intra + fixed + shared.xi2)


@given(rings, links, st.integers(1, 30), st.integers(2, 16))
def test_tau_increases_with_every_neighbor_and_server(ring, shared, others, servers):
    tau = iteration_time(ring, servers, others, shared)
    assert iteration_time(ring, servers, others + 1, shared) >= tau
    assert iteration_time(ring, servers + 1, others, shared) >= tau


@given(links, st.integers(1, 30))
def test_no_ring_gets_more_than_the_bandwidth_of_the_link(shared, others):
    """As printed, k = xi1 p < 1 would give a ring b/f(k) > b."""
    assert bandwidth(others, shared) <= shared.inter
    assert bandwidth(0, shared) == shared.intra


def test_as_printed_one_ring_would_exceed_its_link():
    assert Linear()(0.5) < 1  # xi1 = 0.5, p = 1: twice the bandwidth of the link


@given(rings, links, st.lists(st.integers(1, 8), min_size=1, max_size=6), st.data())
def test_tau_stays_within_its_bounds_for_every_placement(ring, shared, sizes, data):
    if ring.gpus > sum(sizes):
        with pytest.raises(ValueError, match="do not fit"):
            time_range(ring, sizes, shared)
        return
    left, counts = ring.gpus, []
    for at, size in enumerate(sizes):
        counts.append(data.draw(st.integers(max(0, left - sum(sizes[at + 1 :])), min(size, left))))
        left -= counts[-1]
    used = sum(count > 0 for count in counts)
    others = data.draw(st.integers(1, max(sizes))) if used > 1 else 0
    least, most = time_range(ring, sizes, shared)
    assert least * (1 - 1e-9) <= iteration_time(ring, used, others, shared) <= most * (1 + 1e-9)


def test_a_slot_has_a_whole_number_of_iterations():
    assert [iterations_per_slot(tau) for tau in (0.01, 0.03, 0.05, 0.1, 0.3, 1.0, 1.5)] == [100, 33, 20, 10, 3, 1, 0]
    assert iterations_per_slot(0.1, 0.3) == 3


# integration

jobs = st.lists(
    st.tuples(
        st.integers(0, 6).map(lambda slot: 2 * slot),  # start
        st.sets(st.integers(0, 3), min_size=1, max_size=3).map(sorted),  # servers
        st.integers(0, 40),  # iterations
        st.sampled_from([0.1, 0.13, 0.2, 0.25]),  # time per iteration alone
        st.sampled_from([0.0, 0.05, 0.1, 0.3]),  # and the cost of each further ring
    ),
    min_size=1,
    max_size=8,
)


def slower_by(alone, each):
    """Iteration times that grow with the bottleneck, as in (6)."""
    return lambda rings: alone + each * (max(rings, default=1) - 1)


def played(rows, slot=0.0):
    """The ends according to ContendingJobs."""
    crossing, ends = ContendingJobs(slot), {}
    for row in sorted(range(len(rows)), key=lambda row: rows[row][0]):
        start, servers, iterations, alone, each = rows[row]
        while crossing.next_end() <= start:
            end, which = crossing.pop()
            ends[which] = end
        crossing.start(row, servers, iterations, slower_by(alone, each), start)
    while len(crossing):
        end, which = crossing.pop()
        ends[which] = end
    assert crossing.next_end() == math.inf
    assert not any(crossing.leaving(server) for server in range(4))
    return [ends[row] for row in range(len(rows))]


def stepped(rows, step, whole):
    """The end times by brute force: in each step, every job runs at its speed at the start of the step."""
    left, ends, time = [float(row[2]) for row in rows], [None] * len(rows), 0.0
    number = 0
    while None in ends:
        time = number * step
        running = [i for i, row in enumerate(rows) if row[0] <= time and ends[i] is None]
        for i in [i for i in running if left[i] <= 1e-9]:
            ends[i] = time
            running.remove(i)
        leaving = Counter(s for i in running if len(rows[i][1]) > 1 for s in rows[i][1])
        for i in running:
            servers = rows[i][1] if len(rows[i][1]) > 1 else []
            tau = slower_by(*rows[i][3:])([leaving[s] for s in servers])
            left[i] -= math.floor(step / tau + 1e-9) if whole else step / tau
        number += 1
    return ends


@settings(max_examples=examples(60))
@given(jobs)
def test_the_continuous_form_is_the_limit_of_small_steps(rows):
    step = 0.01
    # an end is noticed up to a step late; until then the neighbors stay slow
    assert played(rows) == pytest.approx(stepped(rows, step, whole=False), abs=10 * step)


@given(jobs)
def test_the_slotted_form_is_equation_9_slot_by_slot(rows):
    assert played(rows, slot=2.0) == stepped(rows, 2.0, whole=True)


@given(jobs)
def test_neighbors_never_make_a_job_end_sooner(rows):
    for end, (start, _, iterations, alone, _) in zip(played(rows), rows, strict=True):
        assert end >= start + iterations * alone - 1e-9


def test_two_rings_on_one_link_take_turns_at_half_speed():
    """10 and 30 iterations of 1 s, all of it on the link: 20 s together, then 20 alone."""
    crossing = ContendingJobs()
    pace = lambda rings: float(max(rings))  # noqa: E731
    crossing.start("short", "ab", 10, pace, 0.0)
    crossing.start("long", "bc", 30, pace, 0.0)
    crossing.start("inside", "b", 5, lambda rings: 1.0, 0.0)
    assert [crossing.pop() for _ in range(3)] == [(5, "inside"), (20, "short"), (40, "long")]


def test_a_job_that_is_cancelled_frees_the_link():
    crossing = ContendingJobs()
    for name in ("one", "other"):
        crossing.start(name, "ab", 10, lambda rings: float(max(rings)), 0.0)
    crossing.end("one", 4.0)
    assert crossing.pop() == (12.0, "other")
    with pytest.raises(KeyError):
        crossing.end("one", 12.0)


def test_what_cannot_run_is_refused():
    crossing = ContendingJobs(slot=1.0)
    crossing.start("slow", "ab", 1, lambda rings: 1.0 if max(rings) == 1 else 1.5, 0.0)
    crossing.start("other", "ab", 1, lambda rings: 1.5, 0.0)
    with pytest.raises(ValueError, match="none of 2 jobs ever ends"):
        crossing.pop()
    crossing.end("other", 3.0)
    assert crossing.pop() == (4.0, "slow")  # it stood still
    again = ContendingJobs()
    again.start("a", "x", 1, lambda rings: 1.0, 0.0)
    with pytest.raises(ValueError, match="runs already"):
        again.start("a", "x", 1, lambda rings: 1.0, 0.0)
