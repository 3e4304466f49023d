"""Nodes that are powered down: which jobs are started there, and which wait for nodes that are up."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.audit.inputs import Inputs, decide, decisions_of, from_document, to_document
from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Startup
from slurm_asrpt.core.job import ANYWHERE, Job, JobProfile, Stage
from slurm_asrpt.core.limits import Headroom
from slurm_asrpt.core.policies import make_policy, policy_names, power_saving
from slurm_asrpt.core.policies.base import Policy, Start
from tests.benches.gated import job

FABRIC = Fabric(1.25e9, 300e9)
HEAVY = JobProfile("heavy", (Stage(4, 0.5, 0.5, param_bytes=1e9),))
"""On one server 1 s an iteration, on two more than twice that."""


def nodes(*sizes: int) -> list[Node]:
    return [Node(f"n{i}", gpus, i) for i, gpus in enumerate(sizes)]


def starts(name: str, view: ClusterView, *jobs: Job, now: float = 0.0) -> dict[str, dict[str, int]]:
    """Where jobs are started, by a new policy."""
    decided = power_saving.decide(policy_of(name, view, *jobs), view, jobs, now)
    return {each.job.id: dict(each.placement.gpus) for each in decided if isinstance(each, Start)}


def policy_of(name: str, view: ClusterView, *jobs: Job) -> Policy:
    policy = make_policy(name, fabric=FABRIC)
    policy.cluster_changed(view.nodes, 0.0)
    for each in jobs:
        policy.submitted(each, 0.0)
    return policy


def view_of(
    *sizes: int, down: set[str], free: dict[str, int] | None = None, freed: dict[str, int] | None = None
) -> ClusterView:
    startup = Startup(frozenset(down), 30.0, ((freed, ANYWHERE),) if freed else ())
    table = nodes(*sizes)
    return ClusterView(table, {n.name: n.gpus for n in table} | (free or {}), startup=startup)


IN_TIME = [name for name in policy_names() if name not in ("asrpt", "hlas")]
"""Policies that start a job as soon as it fits, and preempt nobody."""


@pytest.mark.parametrize("name", IN_TIME)
def test_nodes_that_are_up_go_first(name: str):
    view = view_of(4, 4, 4, down={"n0", "n1"})
    assert starts(name, view, job("1", 1, 100)) == {"1": {"n2": 1}}


@pytest.mark.parametrize("name", IN_TIME)
def test_a_job_that_finds_no_room_on_them_powers_nodes_up(name: str):
    view = view_of(4, 4, 4, down={"n0", "n1"}, free={"n2": 0})
    assert starts(name, view, job("1", 1, 100)) == {"1": {"n0": 1}}
    assert starts(name, view, job("1", 8, 100)) == {"1": {"n0": 4, "n1": 4}}


@pytest.mark.parametrize("name", IN_TIME)
def test_a_job_waits_for_what_is_free_before_a_node_is_up(name: str):
    view = view_of(4, 4, 4, down={"n0", "n1"}, free={"n2": 0}, freed={"n2": 2})
    assert starts(name, view, job("1", 2, 100)) == {}
    strict = name in ("fifo", "slurm-backfill", "spjf", "spwf")  # the head waits, so the others do
    assert len(starts(name, view, job("1", 2, 100), job("2", 1, 90))) <= 1  # one of them finds room there
    assert strict or starts(name, view, job("1", 2, 100), job("2", 1, 90))


def test_a_job_that_would_be_slow_on_what_is_up_powers_up_a_node():
    view = view_of(4, 2, 2, down={"n0"})
    assert starts("asrpt-gated", view, job("1", 4, 100, profile=HEAVY)) == {"1": {"n0": 4}}


def test_no_more_nodes_are_powered_up_than_jobs_need():
    view = view_of(4, 4, 4, 4, down={"n1", "n2", "n3"}, free={"n0": 0})
    placed = starts("asrpt-gated", view, *[job(str(i), 1, 100) for i in range(4)])
    assert {name for gpus in placed.values() for name in gpus} == {"n1"}


def test_a_node_that_is_powering_down_serves_nobody_yet():
    view = view_of(4, 4, down={"n1"}, free={"n0": 0, "n1": 0})
    assert starts("asrpt-gated", view, job("1", 1, 100)) == {}


def test_a_policy_that_preempts_takes_nodes_that_are_down_first():
    view = view_of(4, 4, down={"n1"}, free={"n0": 0})
    assert starts("hlas", view, job("1", 1, 100)) == {"1": {"n1": 1}}


SOME = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 300)), max_size=8)


@pytest.mark.parametrize("name", policy_names())
@given(SOME, st.sets(st.sampled_from(["n0", "n1", "n2"])), st.lists(st.integers(0, 4), min_size=4, max_size=4))
def test_nothing_is_given_twice_and_policies_forget_nodes_that_are_down(name, some, down, free):
    view = view_of(4, 4, 4, 4, down=down, free={f"n{i}": count for i, count in enumerate(free)})
    jobs = [job(str(i), gpus, length) for i, (gpus, length) in enumerate(some)]
    policy, before = policy_of(name, view, *jobs), dict(view.free)
    inputs = Inputs(
        0.0, name, {}, policy.dump(), FABRIC, view.nodes, dict(view.free), None, None, tuple(jobs), view.startup
    )
    decided = power_saving.decide(policy, view, jobs, 0.0)
    assert view.free == before
    left = view.copy()
    for start in (each for each in decided if isinstance(each, Start)):
        left.take(start.placement.gpus)  # raises where GPUs are given twice
    assert "power:" not in str(policy.dump())
    waiting = {each.id for each in jobs} - {each.job.id for each in decided if isinstance(each, Start)}
    assert {job_id for job_id, _ in policy.queue(0.0)} == waiting
    assert decide(from_document(to_document(inputs)))[0] == decisions_of(decided)


@pytest.mark.parametrize("name", policy_names())
@given(SOME)
def test_where_all_nodes_are_up_nothing_changes(name, some):
    view = ClusterView(nodes(4, 4, 4))
    jobs = [job(str(i), gpus, length) for i, (gpus, length) in enumerate(some)]
    plain = policy_of(name, view, *jobs).decide(view, 0.0)
    assert decisions_of(power_saving.decide(policy_of(name, view, *jobs), view, jobs, 0.0)) == decisions_of(plain)


@pytest.mark.parametrize("name", IN_TIME)
def test_no_node_is_powered_up_beyond_a_limit_of_the_site(name: str):
    """One job of ann at a time: the first starts on the node that is up."""
    view = view_of(4, 4, down={"n1"}, free={"n0": 1})
    view.headroom = Headroom({"ann": 1.0})
    both = [replace(job(each, 1, 100), charges=(("ann", 1.0),)) for each in ("1", "2")]
    assert starts(name, view, *both) == {"1": {"n0": 1}}
