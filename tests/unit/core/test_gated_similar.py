"""Similar jobs: what the neighbors of a waiting job tell about its runtime."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.policies.gated.similar import MAX_CHANGED, MAX_RUNTIMES, SimilarJobs
from tests.benches.gated import Bench, job, restarted


def run(similar, job, seconds, start=0.0):
    """A job starts and ends. Returns the waiting jobs that are to be estimated again."""
    similar.started(job, start, 1.0, start + 1e9)
    return similar.ended(job.id, seconds)


def test_the_runtime_is_that_of_the_neighbor_submitted_nearest_in_time():
    similar = SimilarJobs()
    run(similar, job("1", submit=0.0), 100.0)
    run(similar, job("5", submit=50.0), 500.0)
    assert [similar.runtime(job("3", submit=at)) for at in (10.0, 40.0, 60.0)] == [100.0, 500.0, 500.0]
    assert similar.runtime(job("3", submit=25.0)) == 100.0  # the earlier one of two as near


@pytest.mark.parametrize("other", [{"user": "bob"}, {"group": "g2"}, {"time_limit": 60.0}])
def test_jobs_of_another_user_group_size_or_limit_are_not_similar(other):
    similar = SimilarJobs()
    run(similar, job("1"), 100.0)
    assert similar.runtime(job("2")) == 100.0
    assert similar.runtime(replace(job("2"), **other)) == similar.runtime(job("2", 2)) == 0.0


def test_only_waiting_jobs_between_the_neighbors_are_estimated_again():
    similar = SimilarJobs()
    for number in range(2, 10):
        similar.waits(job(str(number), submit=float(number)))
    assert run(similar, job("1", submit=1.0), 10.0) == [str(number) for number in range(2, 10)]
    similar.left(job("5", submit=5.0))
    assert run(similar, job("5", submit=5.0), 10.0) == ["2", "3", "4", "6", "7", "8", "9"]
    similar.left(job("8", submit=8.0))
    assert run(similar, job("8", submit=8.0), 10.0) == ["6", "7", "9"]


def test_a_job_that_outlives_its_estimate_counts_with_its_expected_runtime():
    similar = SimilarJobs()
    similar.waits(job("2"))
    similar.started(job("1"), 0.0, 2.0, 100.0)
    assert similar.outlived(99.0) == []
    assert similar.outlived(100.0) == ["2"]
    assert similar.runtime(job("2")) == pytest.approx(151 / 2)  # half as long again, in the best placement
    assert similar.outlived(150.0) == []
    assert similar.outlived(151.0) == ["2"]
    similar.ended("1", 90.0)
    assert similar.runtime(job("2")) == 90.0
    assert similar.outlived(1e6) == []


def test_a_job_that_was_requeued_says_nothing():
    similar = SimilarJobs()
    similar.started(job("1"), 0.0, 1.0, 100.0)
    similar.stopped("1")
    assert similar.outlived(200.0) == similar.ended("1", 5.0) == []
    assert similar.runtime(job("2")) == 0.0


def test_the_runtimes_of_neighbors_are_kept_and_few_others():
    similar = SimilarJobs()
    similar.waits(job("2", submit=2.0))
    for number in range(4, 10 * MAX_RUNTIMES):
        run(similar, job(str(number), submit=float(number)), 10.0 + number)
        if number == 300:
            run(similar, job("1", submit=1.0), 10.0)
    assert similar.runtime(job("2", submit=2.0)) == 10.0  # job 1 is nearer than job 4
    assert similar.runtime(job("3", submit=3.0)) == 14.0
    assert similar.runtime(job("9999", submit=1e6)) == 10.0 + 10 * MAX_RUNTIMES - 1
    ((waiting, rows, running),) = similar.dump()
    assert (waiting, running) == ("2", {})
    assert [row[0] for row in rows] == [1.0, 4.0, 10.0 * MAX_RUNTIMES - 1]
    similar.left(job("2", submit=2.0))
    assert similar.dump() == []


def test_only_the_waiting_jobs_nearest_to_it_are_estimated_again():
    similar = SimilarJobs()
    for number in range(3 * MAX_CHANGED):
        similar.waits(job(str(number), submit=float(number)))
    middle = job(str(MAX_CHANGED), submit=float(MAX_CHANGED))
    similar.left(middle)
    assert len(run(similar, middle, 10.0)) == 2 * MAX_CHANGED
    assert similar.runtime(job("999", submit=999.0)) == 10.0


events = st.lists(
    st.tuples(
        st.sampled_from(["wait", "start", "end", "stop", "look"]),
        st.integers(0, 11),
        st.integers(1, 2),
        st.floats(0.5, 1e4),
    ),
    max_size=60,
)


@given(events=events)
def test_a_waiting_job_has_the_runtime_of_its_nearest_neighbor_and_hears_of_every_change(events):
    """``seen``: the runtimes of the waiting jobs when they were last told to look again."""
    similar, waiting, running, now = SimilarJobs(), {}, {}, 0.0
    known, seen = {}, {}  # runtimes by kind and submission
    for what, number, gpus, seconds in events:
        now += seconds
        one = job(str(number), gpus, submit=float(number // 2))
        free = one.id not in waiting and one.id not in running
        again = []
        if what == "wait" and free:
            waiting[one.id] = one
            similar.waits(one)
            again = [one.id]
        elif what == "start" and one.id in waiting:
            running[one.id] = (waiting.pop(one.id), now)
            seen.pop(one.id)
            similar.left(running[one.id][0])
            similar.started(running[one.id][0], now, 1.0, now + seconds)
        elif what == "end" and one.id in running:
            gone, start = running.pop(one.id)
            again = similar.ended(one.id, now - start)
            known[gone.gpus, gone.submit_time, int(gone.id)] = max(1.0, now - start)
        elif what == "stop" and running.pop(one.id, None):
            similar.stopped(one.id)
        elif what == "look":
            again = similar.outlived(now)
        assert set(again) <= waiting.keys()
        seen |= {job_id: similar.runtime(waiting[job_id]) for job_id in again}
        assert seen == {job_id: similar.runtime(each) for job_id, each in waiting.items()}
        restored = SimilarJobs()
        restored.load(json.loads(json.dumps(similar.dump(), allow_nan=False)), waiting)
        for each in waiting.values():
            assert restored.runtime(each) == similar.runtime(each)
            times = [(abs(at - each.submit_time), at) for size, at, _ in known if size == each.gpus]
            assert (similar.runtime(each) > 0) or not times


# in asrpt-gated


def sweep(bench, seconds, number=40):
    """Jobs without a prediction of which each runs for as long as the one before it; then all GPUs are in use."""
    for at in range(number):
        pair = job(str(2 * at + 1), submit=100.0 * at), job(str(2 * at + 2), submit=100.0 * at)
        lasts = seconds[at % len(seconds)]
        now = 1e5 * (at + 1)
        for each in pair:
            bench.submit(replace(each, group=f"g{at}"), now=now)
            bench.decide(now)
            now += lasts
            bench.end(each.id, now)


def test_a_job_goes_first_when_its_neighbors_turn_out_to_be_short():
    bench = Bench(1)
    sweep(bench, (100.0, 10_000.0))
    now = 1e7
    first = [replace(job(number, submit=5e6), group=group) for number, group in (("101", "a"), ("201", "b"))]
    after = [replace(job(number, submit=6e6), group=group) for number, group in (("102", "a"), ("202", "b"))]
    for one, lasts in zip(first, (10_000.0, 100.0), strict=True):
        bench.submit(one, now=now)
        assert one.id in bench.decide(now)
        now += lasts
        bench.end(one.id, now)
    bench.occupy("x", now + 1e5, now, n0=1)
    bench.submit(*after, now=now)
    assert [job_id for job_id, _ in bench.policy.queue(now)] == ["202", "102"]
    before, then = (
        {row[0]: row[3] for row in each.dump()["order"]} for each in (bench.policy, restarted(bench, after).policy)
    )
    assert before == then
    assert before["102"] > 3 * before["202"]


def test_waiting_jobs_move_when_a_neighbor_ends():
    bench = Bench(2)
    sweep(bench, (100.0, 10_000.0))
    now = 1e7
    jobs = [replace(job(number, submit=6e6), group=group) for number, group in (("101", "a"), ("102", "a"))]
    other = replace(job("201", submit=6.1e6), group="b")
    bench.occupy("x", now + 1e6, now, n0=1)
    bench.submit(*jobs, other, now=now)
    assert bench.decide(now) == {"101": {"n0": 1}}
    assert [job_id for job_id, _ in bench.policy.queue(now)] == ["102", "201"]  # nothing is known: the oldest first
    bench.decide(now + 50_000.0)
    assert [job_id for job_id, _ in bench.policy.queue(now)] == ["201", "102"]  # job 101 runs for long
    bench.end("101", now + 50_000.0)
    assert [job_id for job_id, _ in bench.policy.queue(now)] == ["201", "102"]
