"""SJF-BCO: the planners against a second implementation of the paper's algorithms, and its lemmas.

docs/theory.md lists the results; each statement that fails as printed has a counterexample here.
"""

import math
from functools import partial
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.sjf_bco import idle
from papers.sjf_bco.planners import at_random, evaluate, first_fit, list_scheduling
from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.policies.sjf_bco import planner
from slurm_asrpt.core.policies.sjf_bco.evaluation import Plan, Servers
from slurm_asrpt.core.policies.sjf_bco.planner import QueueBatch, sjf_bco, thresholds
from tests.examples import examples
from tests.reference.batches import (
    as_printed,
    busy_times,
    exhaustive_search,
    idle_as_printed,
    least_makespan,
    overlaps,
    toy,
)

toys = st.builds(
    toy,
    st.sampled_from([1, 1, 2, 3, 4]),
    st.integers(1, 30),
    st.sampled_from([0.1, 0.2, 0.25]),
    st.sampled_from([0.0, 0.05, 0.2]),
    st.sampled_from([0.0, 0.02]),
)
batches = st.lists(toys, min_size=1, max_size=8)
clusters = (
    st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda sizes: sum(sizes) >= 4).map(Servers.of_sizes)
)
PLANNERS = [
    sjf_bco,
    first_fit,
    list_scheduling,
    at_random,
    idle.sjf_bco,
    idle.first_fit,
    idle.list_scheduling,
    idle.at_random,
]


def horizon_of(jobs, servers):
    """Twice the bound of the corrected Lemma 4, so that Algorithm 2 meets the first theta."""
    worst = sum(job.gpus * job.estimate for job in jobs) + max(job.estimate for job in jobs)
    return 2 * math.ceil(worst) + 100


@pytest.mark.parametrize("planner", PLANNERS)
@given(jobs=batches, servers=clusters, slot=st.sampled_from([0.0, 1.0]))
def test_every_job_runs_on_gpus_of_its_own(planner, jobs, servers, slot):
    found = planner(jobs, servers, 4 * horizon_of(jobs, servers), slot=slot)
    start, end = found.schedule.start, found.schedule.end
    for number, job in enumerate(jobs):
        assert len(set(found.plan.gpus[number])) == job.gpus
        assert end[number] - start[number] >= job.estimate * (1 - 1e-9)
    assert not list(overlaps(found.plan, start, end))
    assert found.schedule.makespan == max(end)
    assert min(start) == 0


@given(jobs=batches, servers=clusters, data=st.data())
def test_no_job_waits_while_all_its_gpus_are_idle(jobs, servers, data):
    numbers = range(len(jobs))
    gpus = [data.draw(st.permutations(range(servers.gpus)))[: job.gpus] for job in jobs]
    plan = Plan(data.draw(st.permutations(numbers)), gpus)
    found = evaluate(plan, jobs, servers)
    for number in numbers:
        if found.start[number] > 0:
            others = [found.end[other] for other in numbers if other != number and set(gpus[other]) & set(gpus[number])]
            assert found.start[number] in others


@settings(max_examples=examples(60))
@given(jobs=batches, servers=clusters, factor=st.sampled_from([1.0, 1.5, 4.0]), slot=st.sampled_from([0.0, 1.0]))
def test_the_search_equals_algorithm_1(jobs, servers, factor, slot):
    """Algorithm 1 tries every kappa up to the largest job; the planner tries only those that matter."""
    horizon = horizon_of(jobs, servers)
    found, expected = (
        sjf_bco(jobs, servers, horizon, factor, slot=slot),
        as_printed(jobs, servers, horizon, factor, slot),
    )
    if expected is None:
        assert found is None
        return
    makespan, theta, kappa, plan = expected
    assert found.schedule.makespan == pytest.approx(makespan, rel=1e-12)
    assert (found.theta, found.kappa) == (theta, kappa)
    assert [sorted(gpus) for gpus in found.plan.gpus] == [sorted(gpus) for gpus in plan.gpus]


# the other reading: jobs choose among idle GPUs


def by_size(kappa, factor=1.0):
    """The rules of Algorithm 1 for one kappa."""
    large = partial(idle.least_busy_servers, factor=factor)
    return lambda job: idle.least_loaded if job.gpus <= kappa else large


@given(
    jobs=batches,
    servers=clusters,
    theta=st.sampled_from([3.0, 6.0, 12.0, 100.0]),
    kappa=st.integers(1, 4),
    factor=st.sampled_from([1.0, 1.5, 4.0]),
    slot=st.sampled_from([0.0, 1.0]),
)
def test_jobs_that_wait_for_idle_gpus_are_scheduled_as_printed(jobs, servers, theta, kappa, factor, slot):
    order = planner.smallest_first(jobs)
    found = idle.schedule(jobs, servers, order, by_size(kappa, factor), theta, slot)
    expected = idle_as_printed(jobs, servers, order, theta, kappa, factor, slot)
    if expected is None:
        assert found is None
        return
    gpus, starts, ends = expected
    for job in order:
        assert sorted(found.plan.gpus[job]) == sorted(gpus[job])
        assert found.schedule.start[job] == pytest.approx(starts[job], rel=1e-12)
        assert found.schedule.end[job] == pytest.approx(ends[job], rel=1e-12)


runs = st.tuples(
    st.dictionaries(st.sampled_from(["n0", "n1", "n2"]), st.integers(1, 2), min_size=1), st.integers(1, 60)
)


@given(
    jobs=batches,
    running=st.lists(runs, max_size=4),
    sizes=st.lists(st.integers(2, 4), min_size=3, max_size=3),
    data=st.data(),
)
def test_stopping_plans_early_does_not_change_what_starts_now(jobs, running, sizes, data):
    """No plan ends before the longest running job, so the search stops at a plan that ends with it."""
    free = dict(zip(["n0", "n1", "n2"], sizes, strict=True))
    begun = []
    for counts, seconds in running:
        if all(free[name] >= gpus for name, gpus in counts.items()):
            free.update({name: free[name] - gpus for name, gpus in counts.items()})
            begun.append((counts, float(seconds)))
    free["n2"] -= data.draw(st.integers(0, free["n2"]))  # used by unknown jobs
    late = data.draw(st.lists(st.integers(0, len(jobs) - 1), unique=True, max_size=2))
    nodes = [Node(name, gpus) for name, gpus in zip(["n0", "n1", "n2"], sizes, strict=True)]
    found = QueueBatch(nodes, free, begun, jobs, late).best()
    with patch.object(planner, "search", exhaustive_search):
        expected = QueueBatch(nodes, free, begun, jobs, late).best()
    assert (found.plan, found.schedule) == (expected.plan, expected.schedule)
    assert (found.theta, found.kappa) == (expected.theta, expected.kappa)


def test_a_horizon_that_no_schedule_meets_gives_none():
    jobs = [toy(1, 10, 1.0)] * 3
    assert sjf_bco(jobs, Servers.of_sizes([1]), 20) is None
    assert first_fit(jobs, Servers.of_sizes([1]), 5) is None
    with pytest.raises(ValueError, match="finds no GPUs"):
        at_random(jobs, Servers.of_sizes([1]), 5)


def test_only_the_job_sizes_matter_as_kappa():
    assert thresholds([toy(4, 1, 1), toy(32, 1, 1), toy(4, 1, 1)]) == [1, 4, 32]


# Lemmas 2 to 4 and Theorem 5


@given(jobs=batches, servers=clusters)
def test_lemma_2_no_gpu_is_used_longer_than_theta(jobs, servers):
    found = sjf_bco(jobs, servers, horizon_of(jobs, servers))
    if found is not None:
        taken = busy_times(found.plan, jobs, [job.estimate for job in jobs], servers)
        assert max(taken) <= found.theta * (1 + 1e-9)


def test_lemma_2_as_printed_fails_theta_is_not_reached():
    """The bisection goes on only while the makespan falls, not until theta is tight."""
    jobs, servers = [toy(1, 10, 1.0)], Servers.of_sizes([1])
    found = sjf_bco(jobs, servers, 100)
    taken = max(busy_times(found.plan, jobs, [10.0], servers))
    assert (taken, found.theta) == (10, 50)
    assert as_printed(jobs, servers, 100)[1] == 50


@given(jobs=batches, servers=clusters, data=st.data())
def test_lemma_3_holds_with_true_run_times(jobs, servers, data):
    """For any plan: while the last job to end is pending, one of its GPUs is busy."""
    gpus = [data.draw(st.permutations(range(servers.gpus)))[: job.gpus] for job in jobs]
    plan = Plan(data.draw(st.permutations(range(len(jobs)))), gpus)
    found = evaluate(plan, jobs, servers)
    real = [end - start for start, end in zip(found.start, found.end, strict=True)]
    last = max(range(len(jobs)), key=lambda number: found.end[number])
    longest = max(busy_times(plan, jobs, real, servers))
    assert found.makespan <= (jobs[last].gpus * longest - (jobs[last].gpus - 1) * real[last]) * (1 + 1e-9)


def test_lemma_3_as_printed_fails_estimates_are_not_times():
    """W is summed over rho_hat/u, a lower bound of what a job takes: one job on two servers exceeds it."""
    jobs, servers = [toy(2, 10, 1.0, server=2.0)], Servers.of_sizes([1, 1])
    found = sjf_bco(jobs, servers, 100)
    taken = max(busy_times(found.plan, jobs, [job.estimate for job in jobs], servers))
    assert found.schedule.makespan == 30 > 2 * taken


@given(jobs=batches, servers=clusters, kappa=st.integers(1, 4), theta=st.sampled_from([8.0, 20.0, 1e9]))
def test_lemma_3_with_true_run_times_when_jobs_wait_for_idle_gpus(jobs, servers, kappa, theta):
    """Not proved: no counterexample was found."""
    found = idle.schedule(jobs, servers, planner.smallest_first(jobs), by_size(kappa), theta)
    if found is not None:
        real = [end - start for start, end in zip(found.schedule.start, found.schedule.end, strict=True)]
        longest = max(busy_times(found.plan, jobs, real, servers))
        assert found.schedule.makespan <= widest(jobs) * longest * (1 + 1e-9)


@given(jobs=batches, servers=clusters)
def test_algorithm_2_among_idle_gpus_is_list_scheduling(jobs, servers):
    """While a job waits, at least N-n_g+1 GPUs are busy."""
    found = idle.schedule(jobs, servers, planner.smallest_first(jobs), by_size(4), 1e9).schedule
    real = [end - start for start, end in zip(found.start, found.end, strict=True)]
    work = sum(job.gpus * seconds for job, seconds in zip(jobs, real, strict=True))
    assert found.makespan <= (work / (servers.gpus - widest(jobs) + 1) + max(real)) * (1 + 1e-9)


def test_lemma_3_step_a_fails_if_jobs_wait_for_idle_gpus():
    """The last job waits from 5 to 7 while both of its GPUs are idle: it waits for an earlier one."""
    jobs = [toy(2, 5, 1.0), toy(1, 3, 1.0), toy(2, 2, 1.0), toy(2, 8, 1.0)]
    servers = Servers.of_sizes([1, 1, 2])
    found = idle.schedule(jobs, servers, planner.smallest_first(jobs), by_size(1), 1000)
    used = busy_times(found.plan, jobs, [5, 3, 2, 0], servers)
    assert (found.schedule.start[3], sum(used[gpu] for gpu in found.plan.gpus[3])) == (7, 5)
    longest = max(busy_times(found.plan, jobs, [5, 3, 2, 8], servers))
    assert found.schedule.makespan == 15 > 2 * longest - 8


def widest(jobs):
    return max(job.gpus for job in jobs)


def factor_of_algorithm_2(jobs, servers):
    """1 + N/(N-n_g+1): the n_g least used GPUs are used no longer than the others on average."""
    return 1 + servers.gpus / (servers.gpus - widest(jobs) + 1)


@given(jobs=batches, servers=clusters)
def test_lemma_4_holds_with_another_factor(jobs, servers):
    """With kappa = n_g: theta <= total/(N-n_g+1) + longest is enough, and no plan has less than total/N or longest."""
    total, longest = sum(job.gpus * job.estimate for job in jobs), max(job.estimate for job in jobs)
    found = sjf_bco(jobs, servers, 8 * horizon_of(jobs, servers), kappas=[widest(jobs)])
    taken = max(busy_times(found.plan, jobs, [job.estimate for job in jobs], servers))
    assert taken <= (total / (servers.gpus - widest(jobs) + 1) + longest) * (1 + 1e-9)
    assert taken <= factor_of_algorithm_2(jobs, servers) * max(total / servers.gpus, longest) * (1 + 1e-9)


def test_lemma_4_and_theorem_5_as_printed_fail_least_taken_first_is_not_optimal():
    """Three jobs on one GPU each, times exact, so n_g = phi = u = l = 1: they would have SJF-BCO be optimal."""
    jobs, servers = [toy(1, 4, 1.0), toy(1, 4, 1.0), toy(1, 8, 1.0)], Servers.of_sizes([2])
    found = sjf_bco(jobs, servers, 100)
    assert found.schedule.makespan == 12 == max(busy_times(found.plan, jobs, [4, 4, 8], servers))
    assert least_makespan(jobs, [2]) == 8


tiny = st.builds(
    toy, st.integers(1, 3), st.integers(1, 6), st.sampled_from([0.25, 0.5]), st.sampled_from([0.0, 0.25]), st.just(0.0)
)


@settings(max_examples=examples(25))
@given(jobs=st.lists(tiny, min_size=1, max_size=3), sizes=st.sampled_from([(3,), (2, 1), (2, 2), (1, 1, 1)]))
def test_theorem_5_holds_with_the_factor_of_list_scheduling(jobs, sizes):
    """T <= n_g (u/l) (1 + N/(N-n_g+1)) T*, u/l being the most that a job can take over its estimate."""
    servers = Servers.of_sizes(sizes)
    found = sjf_bco(jobs, servers, 8 * horizon_of(jobs, servers), slot=1.0)
    least = least_makespan(jobs, sizes)
    slowest = [math.ceil(job.iterations / math.floor(1 / job.time((1, 1), (len(jobs),)))) for job in jobs]
    over = max(most / job.estimate for most, job in zip(slowest, jobs, strict=True))
    assert found.schedule.makespan >= least
    assert found.schedule.makespan <= widest(jobs) * over * factor_of_algorithm_2(jobs, servers) * least * (1 + 1e-9)


def test_leaving_gpus_idle_can_shorten_the_makespan():
    """Two rings of three GPUs share the middle one of three servers of two GPUs: in sequence they end sooner.

    Starting a job as soon as its GPUs are idle may be worse, so the oracle tries every start time.
    """
    jobs, servers = [toy(3, 8, 0.25, neighbor=0.75)] * 2, Servers.of_sizes([2, 2, 2])
    at_once = evaluate(Plan([0, 1], [[0, 1, 2], [3, 4, 5]]), jobs, servers, slot=1.0)
    in_turn = evaluate(Plan([0, 1], [[0, 1, 2], [0, 1, 2]]), jobs, servers, slot=1.0)
    assert (at_once.makespan, in_turn.makespan) == (8, 4)
    assert least_makespan(jobs, [2, 2, 2]) == 4
