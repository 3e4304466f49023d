"""Classes and weights under every policy that has them: lower classes never influence the starts of higher ones."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.policies import banded_policies, make_policy
from slurm_asrpt.core.policies.base import Start
from tests.unit.core.test_baselines import FABRIC, cluster, job

NAMES = [name for name in banded_policies() if name != "users-in-turn"]
NOW = 50_000.0
ROWS = st.tuples(
    st.integers(1, 8), st.sampled_from([0.0, 20.0, 300.0, 9000.0]), st.integers(0, 2), st.sampled_from([1.0, 4.0, 64.0])
)
FREE = st.lists(st.integers(0, 4), min_size=2, max_size=4)


def jobs_of(rows):
    return [
        job(at, gpus, iterations, band=band, weight=weight) for at, (gpus, iterations, band, weight) in enumerate(rows)
    ]


def decided(name, free, jobs, late=()):
    """The decisions for these jobs; those in ``late`` have been submitted long ago. The other GPUs run until later."""
    view = cluster(*free)
    policy = make_policy(name, fabric=FABRIC)
    policy.cluster_changed(view.nodes, 0.0)
    busy = {f"n{at}": 4 - count for at, count in enumerate(free, start=1) if count < 4}
    if busy and hasattr(policy, "running"):
        policy.running(JobId("99"), busy, NOW + 100.0, NOW - 10.0)
    for one in sorted(jobs, key=lambda one: (one.id not in late, one.submit_time)):
        policy.submitted(one, one.submit_time if one.id in late else NOW)
    return policy, policy.decide(view, NOW)


def starts(decisions):
    return {d.job.id: dict(d.placement.gpus) for d in decisions if isinstance(d, Start)}


@pytest.mark.parametrize("name", NAMES)
@given(
    free=FREE,
    rows=st.lists(ROWS, min_size=1, max_size=12),
    late=st.sets(st.integers(0, 11).map(str)),
    turns=st.dictionaries(st.integers(0, 11).map(str), st.sampled_from([1.0, 2.0, 3.0])),
)
def test_lower_classes_never_influence_the_starts_of_higher_ones(name, free, rows, late, turns):
    jobs = [replace(one, turn=turns.get(one.id)) for one in jobs_of(rows)]
    _, decisions = decided(name, free, jobs, late)
    for band in range(3):
        higher = [one for one in jobs if one.band <= band]
        _, alone = decided(name, free, higher, late)
        ids = {one.id for one in higher}
        assert {job_id: gpus for job_id, gpus in starts(decisions).items() if job_id in ids} == starts(alone)


@pytest.mark.parametrize("name", NAMES)
@given(
    free=FREE,
    rows=st.lists(ROWS, min_size=1, max_size=12),
    late=st.sets(st.integers(0, 11).map(str)),
    band=st.integers(0, 3),
    weight=st.sampled_from([1.0, 2.0, 0.25]),
)
def test_equal_classes_and_weights_change_nothing(name, free, rows, late, band, weight):
    plain = [replace(one, band=0, weight=1.0) for one in jobs_of(rows)]
    equal = [replace(one, band=band, weight=weight) for one in plain]
    before, after = decided(name, free, plain, late), decided(name, free, equal, late)
    assert starts(before[1]) == starts(after[1])
    assert before[0].queue(NOW) == after[0].queue(NOW)


@pytest.mark.parametrize("name", NAMES)
@given(rows=st.lists(ROWS, min_size=1, max_size=12), late=st.sets(st.integers(0, 11).map(str)))
def test_the_queue_is_sorted_by_class(name, rows, late):
    jobs = {one.id: one for one in jobs_of(rows)}
    policy, _ = decided(name, [0, 0], list(jobs.values()), late)
    bands = [jobs[job_id].band for job_id, _ in policy.queue(NOW)]
    assert bands == sorted(bands)


@pytest.mark.parametrize("name", ["asrpt-gated", "spwf", "wcs-workload", "spjf", "wcs-duration"])
def test_work_counts_by_weight(name):
    heavy, light = job(1, 1, 300.0, weight=64.0), job(2, 1, 20.0)
    policy, _ = decided(name, [0, 0], [light, heavy])
    assert [job_id for job_id, _ in policy.queue(NOW)] == ["1", "2"]
