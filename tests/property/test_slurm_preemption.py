"""Starts on GPUs of jobs that may be preempted: no GPU counts twice, and only permitted jobs are victims."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobId, PreemptionClass, unprofiled
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.core.slurm_preemption import Preemptable, PreemptableJob, SlurmPreemptionPlan, precedence
from tests.examples import examples

FABRIC = Fabric(1.25e9, 300e9)
SIZES = (8, 8, 4, 8)
NODES = tuple(Node(f"n{i}", size, i) for i, size in enumerate(SIZES))
MAY = {"urgent": frozenset({"normal", "scavenger"}), "normal": frozenset({"scavenger"}), "scavenger": frozenset()}
CLASSES = {kind: PreemptionClass(kind, may) for kind, may in MAY.items()} | {"other": None}
KINDS = sorted(CLASSES)


@st.composite
def sites(draw):
    """Running jobs of all kinds on some of the GPUs, and jobs that wait."""
    free = {node.name: node.gpus for node in NODES}
    running = []
    for number in range(draw(st.integers(0, 20))):
        gpus = {}
        for name in draw(st.lists(st.sampled_from(list(free)), min_size=1, max_size=2, unique=True)):
            if free[name]:
                gpus[name] = draw(st.integers(1, free[name]))
                free[name] -= gpus[name]
        if gpus:
            kind, lost = draw(st.sampled_from(KINDS)), draw(st.floats(0, 100))
            running.append(PreemptableJob(JobId(f"9{number}"), kind, gpus, lost))
    waiting = [
        Job(JobId(str(n)), "u", g, unprofiled(g), float(work), preemption=CLASSES[kind])
        for n, (g, work, kind) in enumerate(
            draw(
                st.lists(
                    st.tuples(st.sampled_from([1, 2, 3, 4, 8, 12, 16]), st.integers(1, 99), st.sampled_from(KINDS)),
                    max_size=14,
                )
            ),
            1,
        )
    ]
    return free, [job for job in running if job.kind in MAY], running, waiting


def decide(free, preemptable, waiting, claimed=None, now=0.0, running=()):
    policy = make_policy("asrpt-gated", fabric=FABRIC)
    policy.cluster_changed(NODES, 0.0)
    for job in running:
        policy.running(job.id, job.gpus, 1000.0, 0.0)
    for job in waiting:
        policy.submitted(job, 0.0)
    view = ClusterView(NODES, free)
    view.preemptable = Preemptable(tuple(preemptable), claimed or {}) if preemptable else None
    return policy, [each for each in policy.decide(view, now) if isinstance(each, Start)]


@settings(max_examples=examples(300), deadline=None)
@given(site=sites())
def test_no_gpu_counts_twice_and_only_permitted_jobs_are_victims(site):
    free, preemptable, running, waiting = site
    _, starts = decide(free, preemptable, waiting, running=running)
    gone, by_id = set(), {job.id: job for job in preemptable}
    left = Counter(free)
    for start in starts:
        for victim in start.victims:
            assert victim.kind in start.job.preempts
            assert victim.id not in gone, "no job is preempted twice"
            gone.add(victim.id)
            left.update(by_id[victim.id].gpus)
        left.subtract(start.placement.gpus)
        assert sum(start.placement.gpus.values()) == start.job.gpus
        assert all(count >= 0 for count in left.values()), "victims free enough for the start"
        assert all(victim.gpus.keys() & start.placement.gpus.keys() for victim in start.victims)


@settings(max_examples=examples(150), deadline=None)
@given(site=sites())
def test_no_victim_is_superfluous(site):
    free, preemptable, running, waiting = site
    _, starts = decide(free, preemptable, waiting[:1], running=running)
    for start in starts:
        for spared in start.victims:
            left = Counter(free)
            for victim in start.victims:
                left.update(victim.gpus if victim is not spared else {})
            assert any(left[name] < count for name, count in start.placement.gpus.items())


def with_claims(free, preemptable, most):
    """Earlier starts claim up to ``most`` GPUs of the preemptable jobs on each node: those free, held and claimed."""
    held = Counter()
    for job in preemptable:
        held.update(job.gpus)
    claimed = {name: min(most, count) for name, count in held.items()}
    return {name: 0 if claimed.get(name) else count for name, count in free.items()}, held, claimed


@settings(max_examples=examples(150), deadline=None)
@given(site=sites(), most=st.integers(0, 4))
def test_claimed_gpus_are_left_to_the_jobs_that_claim_them(site, most):
    free, preemptable, running, waiting = site
    free, held, claimed = with_claims(free, preemptable, most)
    _, starts = decide(free, preemptable, waiting, claimed, running=running)
    used = Counter()
    for start in starts:
        used.update(start.placement.gpus)
    assert all(count <= free[name] + held[name] - claimed.get(name, 0) for name, count in used.items())


@settings(max_examples=examples(150), deadline=None)
@given(site=sites(), most=st.integers(0, 4))
def test_no_job_that_ends_for_an_earlier_start_is_a_victim_again(site, most):
    free, preemptable, running, waiting = site
    free, _, claimed = with_claims(free, preemptable, most)
    _, starts = decide(free, preemptable, waiting, claimed, running=running)
    ending = SlurmPreemptionPlan(ClusterView(NODES, free), Preemptable(tuple(preemptable), claimed)).victims
    left = Counter(free)
    left.subtract(claimed)
    for victim in ending.values():
        left.update(victim.gpus)
    assert all(count >= 0 for count in left.values()), "enough of them end"
    for start in starts:
        assert ending.keys().isdisjoint(victim.id for victim in start.victims)
        for victim in start.victims:
            left.update(victim.gpus)
        left.subtract(start.placement.gpus)
    assert all(count >= 0 for count in left.values()), "all starts together have enough"


def scavengers(*rows):
    return [PreemptableJob(JobId(f"9{n}"), "scavenger", {name: g}, lost) for n, (name, g, lost) in enumerate(rows)]


def normal(number, gpus, kind="normal", work=10.0):
    return Job(JobId(str(number)), "u", gpus, unprofiled(gpus), work, preemption=CLASSES[kind])


FULL = scavengers(("n0", 4, 90.0), ("n0", 4, 10.0), ("n1", 8, 80.0), ("n2", 2, 40.0), ("n2", 2, 1.0), ("n3", 8, 300.0))
NONE = dict.fromkeys(("n0", "n1", "n2", "n3"), 0)


def where(gpus, running=FULL, free=NONE):
    _, starts = decide(free, running, [normal(1, gpus)])
    return [(dict(start.placement.gpus), [victim.id for victim in start.victims]) for start in starts]


def test_victims_lose_least_in_slurms_order():
    assert where(2) == [({"n2": 2}, ["93"])]
    assert where(8) == [({"n1": 8}, ["92"])], "80 GPU-seconds lost instead of 100"
    assert where(16) == [({"n0": 8, "n1": 8}, ["90", "91", "92"])]


def test_free_gpus_come_first():
    assert where(2, free=NONE | {"n3": 0, "n2": 0}, running=FULL[:1]) == [({"n0": 2}, ["90"])]
    assert where(4, free=NONE | {"n0": 4}, running=FULL[2:]) == [({"n0": 4}, [])]
    few = scavengers(("n1", 2, 90.0), ("n3", 3, 10.0))
    assert where(4, free=NONE | {"n1": 2, "n3": 1}, running=few) == [({"n3": 4}, ["91"])]


def test_a_preemptor_reserves_the_servers_that_others_leave_soonest():
    """It needs a whole server, and jobs that it may not preempt run on each: on n1 the first of them ends."""
    rest = [replace(job, id=JobId(f"8{n}"), kind="other", gpus={job_name: 1}) for n, (job, job_name) in enumerate(
        (job, next(iter(job.gpus))) for job in FULL if job.id in ("90", "92", "95")
    )]  # fmt: skip
    victims = [
        replace(job, gpus={name: count - (job.id in ("90", "92", "95")) for name, count in job.gpus.items()})
        for job in FULL
    ]
    policy = make_policy("asrpt-gated", fabric=FABRIC)
    policy.cluster_changed(NODES, 0.0)
    ends = {"80": 500.0, "81": 60.0, "82": 400.0}
    for job in (*victims, *rest):
        policy.running(job.id, job.gpus, ends.get(job.id, 9000.0), 0.0)
    policy.submitted(normal(1, 8), 0.0)
    view = ClusterView(NODES, NONE)
    view.preemptable = Preemptable(tuple(victims))
    policy.decide(view, 0.0)
    assert (policy.reservation.mask, policy.reservation.time) == (2, 60.0)


def test_jobs_that_nothing_may_preempt_wait():
    other = [replace(job, kind="normal") for job in FULL]
    assert where(2, other) == []


def test_jobs_wait_behind_those_that_may_preempt_them():
    jobs = [normal(1, 4, "scavenger", 1.0), normal(2, 4, "normal", 50.0), normal(3, 4, "other", 99.0)]
    policy, starts = decide(NONE | {"n2": 4}, [], jobs)
    assert [start.job.id for start in starts] == ["2"]
    assert [job_id for job_id, _ in policy.queue(0.0)] == ["1", "3"], "no job waits that may preempt them"
    _, alone = decide(NONE | {"n2": 4}, [], jobs[:1])
    assert [start.job.id for start in alone] == ["1"], "they fill the rest"


@pytest.mark.parametrize("number", [1, 2])
def test_rules_that_go_round_end(number):
    circle = {PreemptionClass("a", frozenset({"b"})), PreemptionClass("b", frozenset({"a"})), None}
    assert precedence(circle).keys() == {"a", "b"}
    assert precedence({CLASSES[kind] for kind in KINDS}) == {"urgent": 0, "normal": 1, "scavenger": 2}
    assert precedence({None}) == {}


def test_a_victim_on_two_nodes_counts_on_both():
    """It frees enough of n1 as well, so the other one there need not end."""
    jobs = (
        PreemptableJob(JobId("1"), "scavenger", {"n0": 8, "n1": 4}, 0.0),
        PreemptableJob(JobId("2"), "scavenger", {"n1": 4}, 0.0),
    )
    plan = SlurmPreemptionPlan(ClusterView(NODES, {}), Preemptable(jobs))
    urgent = Job(JobId("9"), "u", 12, unprofiled(12), preemption=CLASSES["urgent"])
    assert [each.id for each in plan.add_preempting(urgent, {"n0": 8, "n1": 4})] == ["1"]
