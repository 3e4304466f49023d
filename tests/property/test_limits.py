"""Limits of a site under every policy: none is exceeded, and a job over its limit delays no other job."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Node
from slurm_asrpt.core.job import Job, JobId, unprofiled
from slurm_asrpt.core.limits import Headroom, Held
from slurm_asrpt.core.policies import policy_names
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.core.policies.options import PolicyOptions
from slurm_asrpt.core.policies.queue_policy import QueuePolicy
from slurm_asrpt.sim.engine import simulate
from slurm_asrpt.sim.job_table import JobTable
from tests.benches.gated import FABRIC, unchecked_policy
from tests.examples import examples

NODES = tuple(Node(f"n{i}", 4, i) for i in range(3))
PROFILES = tuple(map(unprofiled, (1, 2, 3, 4, 8, 100)))  # the last fits on no cluster
POLICIES = sorted(name for name in policy_names() if name != "users-in-turn")

rows = st.tuples(st.integers(0, 30), st.integers(0, len(PROFILES) - 2), st.integers(1, 20), st.sampled_from("abc"))


@st.composite
def tables(draw):
    """Jobs of three users; each user may use so many GPUs and run so many jobs at a time."""
    jobs = sorted(draw(st.lists(rows, min_size=1, max_size=30)))
    submit, profile, iterations, users = (list(column) for column in zip(*jobs, strict=True))
    gpus = {f"gpus {user}": draw(st.integers(1, 12)) for user in "ab"}
    counts = {f"jobs {user}": draw(st.integers(1, 5)) for user in "bc"}
    caps = {name: float(cap) for name, cap in {**gpus, **counts}.items()}
    charges = [
        tuple(
            (name, amount)
            for name, amount in ((f"gpus {u}", float(PROFILES[p].gpus)), (f"jobs {u}", 1.0))
            if name in caps
        )
        for u, p in zip(users, profile, strict=True)
    ]
    times = np.array(iterations, dtype=float)
    return JobTable(
        PROFILES,
        np.array(submit, dtype=float),
        np.array(profile),
        times,
        times,
        users=users,
        charges=charges,
        caps=caps,
    )


def possible(table):
    """The rows of the jobs that their limits allow at all."""
    return [
        row for row, charges in enumerate(table.charges) if all(amount <= table.caps[name] for name, amount in charges)
    ]


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=examples(40), deadline=None)
@given(table=tables())
def test_no_limit_is_exceeded_and_all_jobs_within_theirs_run(name, table):
    result = simulate(unchecked_policy(name), NODES, table)  # the engine refuses a start over a limit
    assert sorted(set(range(len(table))) - set(result.never_started.tolist())) == possible(table)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=examples(25), deadline=None)
@given(table=tables())
def test_a_job_over_its_limit_delays_no_other_job(name, table):
    """They start at the same times as beside jobs that no cluster can hold."""
    if name == "asrpt":  # its virtual machine counts the work of all jobs
        return
    never = sorted(set(range(len(table))) - set(possible(table)))
    profile = table.profile.copy()
    profile[never] = len(PROFILES) - 1
    charges = [() if row in never else charges for row, charges in enumerate(table.charges)]
    too_large = replace(table, profile=profile, charges=charges)
    limited, unlimited = (simulate(unchecked_policy(name), NODES, each).start.tolist() for each in (table, too_large))
    assert limited == pytest.approx(unlimited, abs=0.0, nan_ok=True)


@pytest.mark.parametrize("name", POLICIES)
def test_the_reason_names_the_limit(name):
    table = JobTable(
        PROFILES,
        np.zeros(2),
        np.array([1, 1]),
        np.ones(2),
        np.ones(2),
        users=["a", "a"],
        charges=[(("gpus a", 2.0),), (("gpus a", 2.0),)],
        caps={"gpus a": 1.0},
    )
    policy = unchecked_policy(name)
    simulate(policy, NODES, table)
    reasons = dict(policy.queue(1e6))
    assert {why.kind for why in reasons.values()} == {"over-limit"}
    assert reasons[JobId("0")].facts == {"limit": "gpus a"}
    assert json.loads(json.dumps(policy.dump()))


@pytest.mark.parametrize("name", POLICIES)
def test_held_jobs_start_when_their_limit_has_room_or_is_gone(name):
    job, other = (
        Job(JobId(number), user, 1, PROFILES[0], predicted_iterations=1.0, charges=((f"gpus {user}", 1.0),))
        for number, user in (("0", "a"), ("1", "b"))
    )
    policy = unchecked_policy(name)
    policy.cluster_changed(NODES, 0.0)
    for each in (job, other):
        policy.submitted(each, 0.0)

    def started(now, **room):
        view = ClusterView(NODES, headroom=Headroom({f"gpus {user}": gpus for user, gpus in room.items()}))
        return [each.job.id for each in policy.decide(view, now) if isinstance(each, Start)]

    assert started(100.0, a=0.0, b=0.0) == []
    assert started(200.0, a=0.5, b=0.0) == []
    assert started(300.0, a=0.0, b=1.0) == ["1"]
    policy.changed(replace(job, charges=(("jobs a", 1.0),)), 350.0)
    assert started(400.0, a=0.0) == ["0"]  # its charges are others now, and nothing limits them


def test_held_groups_are_released_by_the_limit_that_holds_them():
    held = Held()
    for group, amount in (("small", 1.0), ("large", 4.0)):
        held.hold(group, (("jobs", 1.0), ("gpus", amount)), "gpus")
    held.hold("other", (("jobs", 1.0),), "jobs")
    assert held.released(Headroom({"gpus": 0.0, "jobs": 0.0})) == []
    assert held.released(Headroom({"gpus": 2.0, "jobs": 0.0})) == ["small"]
    assert "small" not in held
    held.drop("other")
    assert held.released(Headroom()) == ["large"]
    assert not held


def test_held_groups_can_be_forgotten():
    held = Held()
    held.hold("jobs of ann", (("ann", 2.0),), "ann")
    assert held
    held.clear()
    assert not held
    assert "jobs of ann" not in held
    assert held.released(Headroom({"ann": 9.0})) == []


def test_a_queue_policy_passes_over_jobs_that_a_limit_holds():
    """The base class for policies of others."""
    policy, view = QueuePolicy(FABRIC, PolicyOptions()), ClusterView(NODES, headroom=Headroom({"ann": 1.0}))
    policy.cluster_changed(NODES, 0.0)
    for number, charges in enumerate([(("ann", 1.0),), (("ann", 1.0),), ()]):
        policy.submitted(Job(JobId(str(number)), "u", 1, unprofiled(1), charges=charges), 0.0)
    assert [each.job.id for each in policy.decide(view, 0.0) if isinstance(each, Start)] == ["0", "2"]
