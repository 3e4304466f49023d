"""The demo's jobs: determined by the seed, with the trace's order and sizes, recurring, with the requested load."""

import hashlib
from collections import Counter
from dataclasses import replace

import pandas as pd
import pytest

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.lab.workload import JITTER, LONGEST_S, SHORTEST_S, Shape, make_workload
from slurm_asrpt.profile.schema import load_profile
from slurm_asrpt.traces import clean, read_trace
from slurm_asrpt.traces.samples import PHILLY

NODES = [Node(f"n{i}", 8, i) for i in range(8)]
FABRIC = Fabric(12.5e9, 300e9)
USERS = ("a", "b", "c")
TRACE = read_trace(PHILLY)
SHAPE = Shape()


def make(shape=SHAPE, trace=TRACE, nodes=NODES):
    return make_workload(trace, nodes, FABRIC, USERS, shape)


@pytest.fixture(scope="module")
def jobs():
    return make()


def test_the_demo_has_the_jobs_of_its_published_figures(jobs):
    """With other jobs, a demo could not be compared with the figures in the README."""
    told = [(job.name, job.gpus, job.user, job.iterations, round(job.submit_s, 6)) for job in jobs]
    assert hashlib.sha256(repr(told).encode()).hexdigest()[:16] == "19f5ae74bc5bd585"


def test_the_same_seed_gives_the_same_jobs(jobs):
    assert make() == jobs


def test_another_seed_changes_models_and_keeps_sizes(jobs):
    other = make(replace(SHAPE, seed=2))
    assert [job.profile for job in other] != [job.profile for job in jobs]
    assert [job.gpus for job in other] == [job.gpus for job in jobs]


def test_sizes_and_arrivals_are_those_of_the_trace(jobs):
    first = TRACE.jobs[TRACE.jobs["gpus"] <= 32][: SHAPE.jobs]
    assert [job.gpus for job in jobs] == first["gpus"].tolist()
    times = [job.submit_s for job in jobs]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (0, pytest.approx(SHAPE.span_s))
    submit = first["submit_s"].tolist()
    assert times[40] / SHAPE.span_s == pytest.approx((submit[40] - submit[0]) / (submit[-1] - submit[0]))


def test_no_job_is_larger_than_half_the_cluster():
    small = make(nodes=NODES[:2])
    assert max(job.gpus for job in small) <= 8


def test_most_jobs_recur(jobs):
    groups = Counter((job.user, job.profile) for job in jobs)
    assert sum(count for count in groups.values() if count >= 2) > len(jobs) / 2


def test_jobs_of_one_group_have_similar_iterations():
    ids = [str(i) for i in range(10)]
    submits = [10.0 * i for i in range(10)]
    raw = {"job_id": ids, "submit_s": submits, "gpus": 4, "duration_s": 3600.0, "queue": "a1"}
    trace = clean("t", pd.DataFrame(raw))
    jobs = make(Shape(jobs=10), trace)
    assert len({job.profile for job in jobs}) == 1
    counts = [job.iterations for job in jobs]
    assert len(set(counts)) > 1
    assert max(counts) <= min(counts) * (1 + JITTER) / (1 - JITTER) + 2


@pytest.mark.parametrize("load", [0.6, 1.0, 1.2])
def test_the_load_is_close_to_the_requested_one(load):
    jobs = make(replace(SHAPE, load=load))
    assert sum(job.gpus * job.ideal_s for job in jobs) / (64 * SHAPE.span_s) == pytest.approx(load, rel=0.1)


def test_profiles_match_the_gpus_of_their_jobs(jobs):
    assert all(load_profile(job.profile, []).gpus == job.gpus for job in jobs)


def test_runtimes_are_bounded_and_names_distinct(jobs):
    assert all(SHORTEST_S * 0.9 <= job.ideal_s <= LONGEST_S * 1.1 and job.iterations >= 1 for job in jobs)
    assert len({job.name for job in jobs}) == len(jobs)
    assert {job.user for job in jobs} <= set(USERS)


def test_a_workload_may_have_one_job():
    (job,) = make(Shape(jobs=1))
    assert job.submit_s == 0


def test_a_trace_with_too_few_jobs_is_refused():
    with pytest.raises(ValueError, match="only 400 jobs"):
        make(Shape(jobs=100_000))


@pytest.mark.parametrize("bad", [{"jobs": 0}, {"load": 0}, {"load": -1}, {"load": float("nan")}, {"span_s": 0}])
def test_invalid_workload_options_are_refused(bad):
    with pytest.raises(ValueError, match="--"):
        Shape(**bad).check()
