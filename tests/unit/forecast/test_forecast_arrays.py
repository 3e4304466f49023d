"""Forecasts with array tasks that Slurm has not split off yet: they delay other jobs, and have estimates too."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count, repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.job import ARRAY_TASKS_AHEAD, Job, JobId
from slurm_asrpt.core.policies import policy_names
from slurm_asrpt.core.policies.base import Policy
from slurm_asrpt.daemon.forecasts.forecaster import Forecaster
from slurm_asrpt.daemon.forecasts.recent_jobs import Arrivals
from slurm_asrpt.forecast.arrays import PendingTasks, TaskFeed
from slurm_asrpt.forecast.estimate import MIN_SAMPLES, forecast
from slurm_asrpt.forecast.replay import Replay
from slurm_asrpt.forecast.sampling import TASK_CORRELATION, Quantiles, Sampler, array_tasks
from slurm_asrpt.forecast.snapshot import MAX_JOBS, PUBLISHED, Snapshot, Waiting, from_json, to_json
from slurm_asrpt.forecast.what_if import simulate_submission
from slurm_asrpt.status.document import JobStatus
from tests.benches.daemon import Bench
from tests.examples import examples
from tests.unit.daemon.test_forecaster import FakeComputations
from tests.unit.forecast.test_forecast import NODES, NOW, job, snapshot, waiting

GPUS = 12
"""GPUs of a bench."""
LENGTHS = st.integers(8, 80_000).map(lambda eighths: eighths / 8)
"""Seconds; their sums are exact."""


def task(number: int, seconds: float = 100.0, gpus: int = 1) -> Job:
    return replace(job(0, gpus, seconds), id=JobId(f"5_{number}"))


def with_array(
    tasks: int,
    others: list[Waiting],
    seconds: float = 100.0,
    most: int = 0,
    gpus: int = 1,
    policy: str = "asrpt-gated",
) -> Snapshot:
    """Array 5 with as many tasks queued as jobs as allowed, and other jobs."""
    span = Quantiles(seconds / 2, seconds, seconds * 2)
    ahead = min(tasks, ARRAY_TASKS_AHEAD, most or ARRAY_TASKS_AHEAD)
    jobs = [Waiting(task(number, seconds, gpus), span) for number in range(ahead)]
    rest = PendingTasks(replace(task(0, seconds, gpus), id=JobId("5")), span, ((ahead, tasks, 1),), ahead, 0, most)
    return snapshot([*jobs, *others], policy, arrays=(rest,) if tasks > ahead else ())


def played(full: Snapshot, lengths: Mapping[str, float], asked: list[JobId]) -> dict[JobId, float]:
    """The starts in a future in which each task runs 100 s, and jobs run for ``lengths``."""
    iterations = {each.job.id: lengths.get(each.job.id, 100.0) for each in full.waiting}
    following = TaskFeed(full.arrays, lambda rest: repeat(100.0))
    return Replay(full, [50.0] * len(full.running), iterations, iter(()), asked, following).until(math.inf)


@given(st.integers(1, 160), st.integers(0, 12), st.integers(1, 2), st.lists(LENGTHS, max_size=5, unique=True))
def test_in_a_future_tasks_run_once_in_order_and_within_the_task_limit(
    tasks: int, most: int, gpus: int, others: list[float]
) -> None:
    queue = [waiting(10 + number, seconds) for number, seconds in enumerate(others)]
    full = with_array(tasks, queue, most=most, gpus=gpus)
    asked = [task(number).id for number in range(tasks)] + [each.job.id for each in queue]
    starts = played(full, {str(each.job.id): seconds for each, seconds in zip(queue, others, strict=True)}, asked)
    assert starts.keys() == set(asked)
    times = [starts[task(number).id] for number in range(tasks)]
    assert times == sorted(times)
    for begin in times:
        at_once = sum(begin - 100.0 < other <= begin for other in times)
        assert at_once <= (most or math.inf)
        assert gpus * at_once <= sum(node.gpus for node in NODES)


@settings(max_examples=examples(40))
@given(st.integers(ARRAY_TASKS_AHEAD + 1, ARRAY_TASKS_AHEAD + 20), st.lists(LENGTHS, max_size=5, unique=True))
def test_other_jobs_start_as_if_all_tasks_were_jobs(tasks: int, others: list[float]) -> None:
    queue = [waiting(10 + number, seconds) for number, seconds in enumerate(others)]
    asked = [each.job.id for each in queue] + [task(tasks - 1).id]
    lengths = {str(each.job.id): seconds for each, seconds in zip(queue, others, strict=True)}
    span = Quantiles(50.0, 100.0, 200.0)
    every = [Waiting(task(number), span) for number in range(tasks)]
    assert played(with_array(tasks, queue), lengths, asked) == played(snapshot([*every, *queue]), lengths, asked)


def test_more_tasks_than_are_queued_at_a_time_start_at_once_if_gpus_are_free() -> None:
    full = with_array(3 * ARRAY_TASKS_AHEAD, [])
    wide = replace(NODES[0], name="wide", gpus=5 * ARRAY_TASKS_AHEAD)
    running = (replace(full.running[0], gpus={"wide": 5 * ARRAY_TASKS_AHEAD}),)
    full = replace(full, nodes=(wide,), free={"wide": 0}, running=running)
    starts = played(full, {}, [task(number).id for number in range(3 * ARRAY_TASKS_AHEAD)])
    assert set(starts.values()) == {NOW + 50}


def test_a_future_ends_if_an_array_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 300
    monkeypatch.setattr("slurm_asrpt.forecast.arrays.MAX_TASKS", most)
    full = with_array(100_000, [waiting(1, 1e5), waiting(2, 1.0)])
    submitted = Counter[int]()
    make = Snapshot.make_policy

    def counting(self: Snapshot) -> Policy:
        policy = make(self)
        real, number = policy.submitted, len(submitted)

        def submit(one: Job, now: float) -> bool:
            submitted[number] += 1
            return real(one, now)

        policy.submitted = submit  # type: ignore[method-assign]
        return policy

    monkeypatch.setattr(Snapshot, "make_policy", counting)
    found = forecast(full, 0, MIN_SAMPLES, horizon_s=1e9)
    assert set(submitted.values()) == {most}
    assert len(submitted) == MIN_SAMPLES
    assert JobId("1") not in found
    assert found[JobId("2")].latest < NOW + 1000
    assert found[JobId("5")].earliest > NOW  # the next task has an estimate, the last one has none
    assert [name for name in found if name.startswith("5_") and int(name[2:]) >= ARRAY_TASKS_AHEAD] == []


@pytest.mark.parametrize("policy", policy_names())
def test_the_next_and_the_last_task_get_estimates(policy: str) -> None:
    found = forecast(with_array(12, [waiting(1)], most=4, policy=policy), 0, MIN_SAMPLES)
    before, following, last = found[JobId("5_3")], found[JobId("5")], found[JobId("5_11")]
    assert before.median <= following.median < last.median
    assert before.latest <= following.latest < last.latest


def test_a_job_that_fits_when_a_task_ends_goes_before_the_next_task_of_a_limited_array() -> None:
    wide = Waiting(job(10, 4), Quantiles(50.0, 100.0, 200.0))
    starts = played(with_array(5, [wide], most=1), {"10": 30.0}, [wide.job.id, task(4).id])
    assert starts[wide.job.id] < starts[task(4).id] - 300


def test_the_next_task_may_be_the_last_one() -> None:
    one = forecast(with_array(ARRAY_TASKS_AHEAD + 1, []), 0, MIN_SAMPLES)
    assert one[JobId("5")] == one[JobId(f"5_{ARRAY_TASKS_AHEAD}")]


def test_with_an_array_the_same_state_and_seed_give_the_same_forecast_also_through_json() -> None:
    full = with_array(40, [waiting(1)], most=3)
    again = from_json(to_json(full))
    assert again == full
    assert forecast(again, 3, MIN_SAMPLES) == forecast(full, 3, MIN_SAMPLES) != forecast(full, 4, MIN_SAMPLES)


def test_a_new_job_starts_after_a_long_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_asrpt.forecast.what_if.SAMPLES", MIN_SAMPLES)
    long = job(0, 2, 5000.0)

    def start(tasks: int) -> float:
        found = simulate_submission(with_array(tasks, []), long, lambda alpha: Quantiles(4000.0, 5000.0, 6000.0)).start
        assert found is not None
        return found.median

    assert start(ARRAY_TASKS_AHEAD) + 0.8 * 150 * 100 / 4 < start(ARRAY_TASKS_AHEAD + 150)


def test_tasks_of_an_array_have_correlated_errors_and_each_keeps_its_interval() -> None:
    ids = [JobId(name) for name in ("5_0", "5_1", "6_0", "7")]
    tasks = array_tasks(ids)
    drawn = np.array([Sampler(np.random.default_rng(seed)).normals(4, tasks) for seed in range(4000)])
    assert drawn.std(axis=0) == pytest.approx(1.0, abs=0.05)
    alike = np.corrcoef(drawn.T)
    assert alike[0, 1] == pytest.approx(TASK_CORRELATION, abs=0.05)
    assert abs(alike[np.triu_indices(4, 1)][1:]).max() < 0.05
    chances = np.array([Sampler(np.random.default_rng(seed)).survival_probabilities(4, tasks) for seed in range(4000)])
    assert ((chances > 0) & (chances <= 1)).all()
    assert chances.mean(axis=0) == pytest.approx(0.5, abs=0.03)
    assert np.corrcoef(chances.T)[0, 1] > 0.5
    late = Sampler(np.random.default_rng(1))  # pending and future tasks share the common error
    assert (
        np.corrcoef(late.normals(2, ((0, "5"), (1, "6"))), [late.array_normals(a, 400).mean() for a in "56"])[0, 1]
        > 0.9
    )


# in the daemon


def rows(bench: Bench, forecaster: Forecaster) -> dict[str, JobStatus]:
    return {row.job_id: row for row in bench.status(bench.slurm.now, forecaster).jobs}


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Iterator[Bench]:
    """All GPUs run jobs of about 1000 s."""
    made = make_bench(policy="asrpt-gated")
    for _ in range(3):
        made.slurm.submit(4, 1000)
    made.cycle(2)
    return made


@pytest.mark.parametrize("most", [0, 3])
def test_a_long_job_behind_a_large_array_starts_late(bench: Bench, most: int) -> None:
    array = bench.slurm.submit(1, 50, array_tasks="0-299", array_most=most)
    long = bench.slurm.submit(12, 20_000)
    bench.cycle(3)
    full = bench.scheduling.snapshots.make(bench.slurm.now)
    found = forecast(full, 0, MIN_SAMPLES)
    if (
        most
    ):  # the array cannot fill the cluster: it leaves nine GPUs to the job, but holds three of the twelve it needs
        assert found[JobId(array)].earliest < found[JobId(f"{array}_299")].earliest
    else:
        whole, parted = (bench.slurm.now + 1000 + tasks * 50 / GPUS for tasks in (300, ARRAY_TASKS_AHEAD))
        assert found[JobId(long)].median > bench.slurm.now + 0.8 * (whole - bench.slurm.now)
        assert forecast(replace(full, arrays=()), 0, MIN_SAMPLES)[JobId(long)].median < 0.5 * (whole + parted)
        assert found[JobId(f"{array}_299")].median <= found[JobId(long)].median
    assert found[JobId(array)].latest < found[JobId(f"{array}_299")].latest


def test_an_unsplit_array_has_the_prediction_and_the_request_of_its_tasks(bench: Bench) -> None:
    array = bench.slurm.submit(2, 50, array_tasks="3-9:2,20", array_most=2)
    bench.cycle(3)
    full = bench.scheduling.snapshots.make(bench.slurm.now)
    (rest,) = full.arrays
    sibling = next(each for each in full.waiting if each.job.id == f"{array}_3")
    assert (rest.span, rest.job) == (sibling.span, replace(sibling.job, id=JobId(array)))
    assert [number for each in rest.tasks for number in range(*each)] == [7, 9, 20]
    assert (rest.waiting, rest.running, rest.most) == (2, 0, 2)


def test_in_a_long_queue_only_arrays_at_the_head_are_simulated(bench: Bench) -> None:
    first = bench.slurm.submit(1, 50, array_tasks="0-999")
    for number in range(MAX_JOBS):
        bench.slurm.submit(1, 100 + number)
    bench.slurm.submit(1, 5000, array_tasks="0-999")
    bench.cycle(4)
    assert [rest.job.id for rest in bench.scheduling.snapshots.make(bench.slurm.now).arrays] == [first]


def test_a_held_array_is_not_in_forecasts(bench: Bench) -> None:
    bench.slurm.hold(bench.slurm.submit(1, 50, array_tasks="0-999"))
    bench.cycle(3)
    assert bench.scheduling.snapshots.make(bench.slurm.now).arrays == ()


def test_tasks_have_the_submission_time_of_their_array(bench: Bench) -> None:
    submitted = bench.slurm.now
    bench.slurm.submit(1, 50, array_tasks="0-199")
    bench.cycle(3, 100.0)
    came, _ = bench.recent.arrivals.recent(bench.slurm.now)
    assert Counter(each.job.submit_time for each in came)[submitted] == ARRAY_TASKS_AHEAD


def test_earlier_submissions_come_first_whenever_they_were_seen() -> None:
    arrivals = Arrivals(since=NOW - 1000)
    for number, time in zip(count(), (NOW - 10, NOW - 900, NOW - 5), strict=False):
        arrivals.arrived(job(number), Quantiles(1.0, 2.0, 3.0), 1.0, time)
    assert [each.job.submit_time for each in arrivals.recent(NOW)[0]] == [NOW - 900, NOW - 10, NOW - 5]


def test_a_rest_shows_when_its_next_and_its_last_task_start(bench: Bench) -> None:
    computations = FakeComputations()
    forecaster = bench.forecaster(computations)

    def cycle() -> None:
        bench.cycle()
        forecaster.step(bench.slurm.now)

    array = bench.slurm.submit(1, 50, array_tasks="0-199")
    bench.cycle(2)
    cycle()
    assert rows(bench, forecaster)[array].start_unknown.startswith("no estimate yet")
    now = bench.slurm.now
    computations.answers.append(
        {array: [now + 10, now + 20, now + 30], f"{array}_199": [now + 100, now + 200, now + 300]}
    )
    cycle()
    row = rows(bench, forecaster)[array]
    assert (row.start_earliest, row.last_start_earliest) == (now + 10, now + 100)
    bench.slurm.end(f"{array}_4", "CANCELLED")  # another task is split off: the estimate is still for this array
    cycle()
    cycle()
    assert bench.slurm.records[array].array_tasks == "101-199"
    assert rows(bench, forecaster)[array].last_start_earliest == now + 100
    bench.slurm.change(array, time_limit=60.0)
    cycle()
    assert rows(bench, forecaster)[array].start_earliest is None
    published = from_json((bench.settings.paths.run / PUBLISHED).read_bytes())
    assert [(rest.job.user, rest.job.group) for rest in published.arrays] == [("", "")]


def test_of_an_array_too_long_only_the_next_task_is_told(bench: Bench) -> None:
    computations = FakeComputations()
    forecaster = bench.forecaster(computations)
    array = bench.slurm.submit(1, 50, array_tasks="0-2999")
    long = bench.slurm.submit(12, 20_000)
    bench.cycle(3)
    forecaster.step(bench.slurm.now)
    now = bench.slurm.now
    computations.answers.append({array: [now + 10, now + 20, None]})
    bench.cycle()
    forecaster.step(bench.slurm.now)
    found = rows(bench, forecaster)
    assert found[array].start_earliest is not None
    assert found[array].last_start_earliest is None
    assert found[long].start_unknown == "no estimate yet; the next ones include it", "a hundred tasks are before it"


def test_a_task_beyond_the_limit_of_its_array_has_an_estimate(make_bench: Callable[..., Bench]) -> None:
    bench, computations = make_bench(policy="asrpt-gated"), FakeComputations()
    forecaster = bench.forecaster(computations)
    array = bench.slurm.submit(1, 50, array_tasks="0-2", array_most=2)
    bench.cycle(4)
    forecaster.step(bench.slurm.now)
    last, now = f"{array}_2", bench.slurm.now
    assert rows(bench, forecaster)[last].reason == "array-limit"
    asked = computations.snapshots[-1]
    assert [(rest.asked, rest.waiting, rest.running) for rest in asked.arrays] == [({last: last}, 0, 2)]
    assert forecast(asked, 0, MIN_SAMPLES)[JobId(last)].earliest > now
    computations.answers.append({last: [now + 10, now + 20, now + 30]})
    bench.cycle()
    forecaster.step(bench.slurm.now)
    row = rows(bench, forecaster)[last]
    assert (row.start_earliest, row.last_start_earliest) == (now + 10, None)


def test_a_task_without_gpus_beyond_the_limit_of_its_array_needs_no_simulation(
    make_bench: Callable[..., Bench],
) -> None:
    bench, computations = make_bench(policy="asrpt-gated"), FakeComputations()
    forecaster = bench.forecaster(computations)
    bench.slurm.submit(1, 50, array_tasks="0-2", array_most=2, tres_per_task="", cpus=2)
    bench.cycle(4)
    forecaster.step(bench.slurm.now)
    assert "array-limit" in {row.reason for row in rows(bench, forecaster).values()}
    assert not computations.snapshots
