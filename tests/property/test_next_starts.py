"""``Policy.next_starts`` of asrpt-gated: whichever job ends first, the named job is the one that starts there."""

import copy
from dataclasses import replace

from hypothesis import event, example, given
from hypothesis import strategies as st

from slurm_asrpt.core.job import Job, JobId, PreemptionClass, Request, unprofiled
from slurm_asrpt.core.limits import Headroom
from slurm_asrpt.core.slurm_preemption import Preemptable, PreemptableJob
from tests.benches.gated import Bench

sizes = st.lists(st.sampled_from([2, 4]), min_size=1, max_size=4)
jobs = st.lists(
    st.tuples(st.sampled_from([1, 1, 1, 2, 4]), st.integers(1, 1000), st.integers(0, 1)), min_size=2, max_size=24
)


def job(number: int, gpus: int, seconds: int, band: int) -> Job:
    """A job like no other one, so that the end of another one says nothing about it. Slurm may not scatter it."""
    one = Job(JobId(str(number)), f"user{number}", gpus, unprofiled(gpus), float(seconds), float(number), band=band)
    return replace(one, request=Request(max_nodes=1))


def the_first_of(named, fits, started):
    """The servers on which the policy has started the first named job, if there was room for one. fits: those."""
    if not fits:
        event("the end makes no room for a named job")
        assert not set(started) & set(named)
        return ()
    assert fits[0] == named[0], "Slurm passes nobody"
    assert next(iter(started), None) == named[0]
    return started[named[0]]


@given(sizes, jobs)
def test_the_first_named_job_starts_whichever_job_ends(sizes, jobs):
    bench = Bench(*sizes)
    waiting = [job(number, *each) for number, each in enumerate(jobs)]
    gpus = {each.id: each.gpus for each in waiting}
    bench.submit(*waiting)
    bench.decide()
    named = bench.policy.next_starts(4)
    event(f"named: {len(named)}")
    assert len(set(named)) == len(named) <= 4
    assert set(named) <= bench.policy.jobs.queue.entries.keys()
    for running in list(bench.placed) if named else ():
        after = copy.deepcopy(bench)
        freed = set(after.placed[running].placement.gpus)
        after.end(running, 1.0)
        fits = [each for each in named if max(after.view.free[name] for name in freed) >= gpus[each]]
        started = the_first_of(named, fits, after.decide(1.0))
        assert not fits or set(started) <= freed


@given(sizes, jobs)
def test_a_start_by_slurm_is_like_a_start_of_the_policy(sizes, jobs):
    """The next decision is the same, whether the policy or Slurm has started the named job."""
    bench = Bench(*sizes)
    bench.submit(*[job(number, *each) for number, each in enumerate(jobs)])
    bench.decide()
    named = bench.policy.next_starts(1)
    if not named:
        return
    running = next(iter(bench.placed))
    by_policy, by_slurm = copy.deepcopy(bench), copy.deepcopy(bench)
    by_policy.end(running, 1.0)
    started = by_policy.decide(1.0)
    if named[0] not in started:  # the end makes no room for it
        return
    by_slurm.end(running, 1.0)
    by_slurm.view.take(started[named[0]])
    by_slurm.policy.started_by_slurm(named[0], started[named[0]], 1.0)
    by_slurm.policy.running(named[0], started[named[0]], 1e9, 1.0)
    assert by_slurm.decide(1.0) == {each: gpus for each, gpus in started.items() if each != named[0]}
    assert by_slurm.policy.dump()["runs"] == by_policy.policy.dump()["runs"]
    assert by_slurm.policy.dump()["started"] == by_policy.policy.dump()["started"]


charged = st.lists(st.tuples(st.integers(1, 100), st.sampled_from(["ann", "bob", "eve"])), min_size=1, max_size=24)


@given(charged, st.integers(1, 3), st.sampled_from([0, 1, 6, 6]))
def test_jobs_that_a_limit_holds_are_named_for_the_end_of_the_job_that_frees_it(jobs, most_jobs, most):
    """Whichever job ends, the first named job that the limits then allow is the one that starts first."""
    bench = Bench(4, 4)
    rooms = {user: float(most_jobs) for user in ("ann", "bob", "eve")}
    waiting = {}
    for number, (seconds, user) in enumerate(jobs):
        one = replace(job(number, 1, seconds, 0), charges=((user, 1.0),))
        waiting[one.id] = one
        bench.submit(one)
    bench.view.headroom = Headroom(rooms)
    started = bench.decide()
    for job_id in started:
        bench.view.headroom.take(waiting[job_id].charges)
    named = bench.policy.next_starts(most)
    users = [waiting[each].charges for each in named]
    over = [bool(bench.view.headroom.exceeded(each)) for each in users]
    assert sum(over) <= most >= over.count(False)
    assert all(users.count(each) <= 2 for each, held in zip(users, over, strict=True) if held)
    for running in started if most == 6 else ():  # two of each user are named
        after = copy.deepcopy(bench)
        after.end(running, 1.0)
        after.view.headroom.give(waiting[running].charges)
        able = [each for each in named if not after.view.headroom.exceeded(waiting[each].charges)]
        assert next(iter(after.decide(1.0)), None) == next(iter(able), None)


def test_free_gpus_that_a_job_waits_for_are_not_offered_to_one_that_a_limit_holds():
    """Whether the running job ends or not, the job of two GPUs is next on them."""
    bench = Bench(3)
    limited = [replace(job(number, gpus, 1000, 0), charges=(("ann", 1.0),)) for number, gpus in ((1, 2), (3, 1))]
    bench.view.headroom = Headroom({"ann": 1.0})
    bench.submit(limited[0])
    assert list(bench.decide()) == ["1"]
    bench.view.headroom.take(limited[0].charges)
    bench.submit(job(2, 2, 100, 0), limited[1])
    assert bench.decide() == {}
    assert bench.policy.next_starts(4) == ["2"]


parts = st.sampled_from(["left", "right", "left", "right", "both"])
placed = st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 4]), st.integers(1, 1000), parts), min_size=2, max_size=24)


@given(sizes, sizes, placed)
def test_each_of_two_partitions_starts_its_own_first_job(left, right, jobs):
    """The same with jobs that may run on the servers of a partition only, or on those of both."""
    bench = Bench(*left, *right)
    names = [node.name for node in bench.view.nodes]
    able = {"left": frozenset(names[: len(left)]), "right": frozenset(names[len(left) :]), "both": frozenset(names)}
    waiting = {}
    for number, (gpus, seconds, part) in enumerate(jobs):
        if gpus <= max(node.gpus for node in bench.view.nodes if node.name in able[part]):
            one = replace(job(number, gpus, seconds, 0), request=Request(candidates=able[part], max_nodes=1))
            waiting[one.id] = one
            bench.submit(one)
    bench.decide()
    named = bench.policy.next_starts(6)
    event(f"partitions: {len({waiting[each].request for each in named})}")
    for running in list(bench.placed) if named else ():
        after = copy.deepcopy(bench)
        after.end(running, 1.0)
        free = after.view.free
        fits = [
            each for each in named if any(free[name] >= waiting[each].gpus for name in waiting[each].request.candidates)
        ]
        started = after.decide(1.0)
        if not fits:
            assert not set(started) & set(named)
            continue
        here = waiting[fits[0]].request.candidates
        assert next(each for each, gpus in started.items() if set(gpus) & here) == fits[0]
        same = [each for each in named if waiting[each].request == waiting[fits[0]].request]
        assert same[0] == fits[0], "Slurm passes nobody of the partition"


@given(sizes, jobs)
def test_jobs_that_slurm_could_scatter_are_named_like_others(sizes, jobs):
    """asrptd releases them for one node."""
    named, jobs = [], [each for each in jobs if each[0] <= min(sizes)]
    for most in (1, None):
        bench = Bench(*sizes)
        bench.submit(*[replace(job(n, *each), request=Request(max_nodes=most)) for n, each in enumerate(jobs)])
        bench.decide()
        named.append(bench.policy.next_starts(4))
    assert named[0] == named[1]


either = st.lists(
    st.tuples(st.sampled_from([1, 1, 2, 3, 4, 6]), st.integers(1, 1000), st.integers(0, 1), st.sampled_from([1, None])),
    min_size=2,
    max_size=24,
)


@given(sizes, either)
def test_with_scatter_the_first_named_job_starts_on_whatever_servers_have_room(sizes, jobs):
    """asrptd releases the jobs that may be scattered without a limit on their nodes."""
    bench = Bench(*sizes, scatter=True)
    able = [each for each in jobs if each[0] <= (max(sizes) if each[3] else sum(sizes))]
    waiting = {one.id: one for one in (confined(number, *each) for number, each in enumerate(able))}
    bench.submit(*waiting.values())
    bench.decide()
    named = bench.policy.next_starts(4)
    event(f"named: {len(named)}, of several GPUs: {sum(bench.policy.scatters(waiting[each]) for each in named)}")
    for running in list(bench.placed) if named else ():
        after = copy.deepcopy(bench)
        after.end(running, 1.0)
        free = after.view.free.values()
        room = {each: sum(free) if bench.policy.scatters(waiting[each]) else max(free) for each in named}
        fits = [each for each in named if room[each] >= waiting[each].gpus]
        the_first_of(named, fits, after.decide(1.0))


def confined(number: int, gpus: int, seconds: int, band: int, most: int | None) -> Job:
    return replace(job(number, gpus, seconds, band), request=Request(max_nodes=most))


SCAVENGER = PreemptionClass("scavenger")
NORMAL = PreemptionClass("normal", frozenset({"scavenger"}))
ranked = st.lists(
    st.tuples(st.sampled_from([1, 1, 2, 4]), st.integers(1, 1000), st.sampled_from([NORMAL, SCAVENGER, None])),
    min_size=2,
    max_size=24,
)


NEVER_STARTS = (4, 1, NORMAL)
"""A job that fits nowhere: scavengers do not wait behind it."""


@given(sizes, ranked)
@example([2, 2], [*3 * [(1, 1, NORMAL)], (1, 2, SCAVENGER), (2, 1, None), NEVER_STARTS])
@example([2, 2], [*3 * [(1, 1, None)], *3 * [(1, 2, SCAVENGER)], NEVER_STARTS])
def test_jobs_that_may_preempt_are_named_behind_whom_they_may_not_preempt(sizes, jobs):
    """If one of them may preempt a job that runs, none is named: Slurm would choose the node."""
    bench = Bench(*sizes)
    waiting = {}
    for number, (gpus, seconds, preemption) in enumerate(jobs):
        one = replace(job(number, gpus, seconds, 0), preemption=preemption)
        waiting[one.id] = one
        bench.submit(one)
    bench.decide()
    named = bench.policy.next_starts(6)
    kinds = [waiting[each].preemption for each in bench.placed]
    event(f"scavengers run: {SCAVENGER in kinds}, named: {len(named)}")
    able = [each for each, entry in bench.policy.jobs.queue.entries.items() if entry.choices]
    if SCAVENGER in kinds and any(waiting[each].preemption is NORMAL for each in able):
        assert not named
    for running in list(bench.placed) if named else ():
        after = copy.deepcopy(bench)
        after.end(running, 1.0)
        fits = [each for each in named if max(after.view.free.values()) >= waiting[each].gpus]
        after.view.preemptable = scavengers_of(after, waiting)
        the_first_of(named, fits, after.decide(1.0))


def scavengers_of(bench: Bench, jobs: dict) -> Preemptable | None:
    """Those of the jobs running on a bench."""
    held = {each: start.placement.gpus for each, start in bench.placed.items()}
    rows = [(each, "scavenger", gpus) for each, gpus in held.items() if jobs[each].preemption is SCAVENGER]
    return Preemptable(tuple(PreemptableJob(*each, 1.0) for each in rows)) if rows else None
