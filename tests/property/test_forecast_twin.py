"""A simulated future of a forecast and a simulation of the same jobs have the same starts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import Job, JobId, unprofiled
from slurm_asrpt.core.placement.splitter import Split
from slurm_asrpt.core.policies import make_policy, policy_names
from slurm_asrpt.core.policies.base import Policy
from slurm_asrpt.forecast.preemptions import PreemptionState
from slurm_asrpt.forecast.replay import Replay
from slurm_asrpt.forecast.snapshot import Snapshot
from slurm_asrpt.sim.engine import simulate
from slurm_asrpt.sim.interruptions import interrupting
from slurm_asrpt.sim.job_table import JobTable
from tests.examples import examples
from tests.property.test_interruptions_promise import COSTS, NODES, SIZES, table_of

FABRIC = Fabric(1.25e9, 300e9)
PREEMPTING: dict[str, dict[str, Any]] = {
    "asrpt-gated": {"interrupts": True, "interruption_s": 100.0, "min_run_s": 200.0, "max_interruptions": 2},
    "hlas": {"first_gpu_s": 2000.0, "min_run_s": 60.0},
}
numbers = st.tuples(
    st.integers(0, 2000), st.integers(0, len(SIZES) - 1), st.integers(1, 8000), st.sampled_from([0.0, 0.1, 1.0, 10.0])
)


def with_limits(table: JobTable) -> JobTable:
    return replace(table, time_limit=2.0 * table.iterations + 60.0)


tables = st.lists(numbers, min_size=1, max_size=30, unique_by=lambda job: job[0]).map(table_of).map(with_limits)


def future(name: str, chosen: dict[str, Any], table: JobTable, consenting: set[int]) -> Replay:
    policy = make_policy(name, fabric=FABRIC, **chosen)
    policy.cluster_changed(NODES, 0.0)
    free = {node.name: node.gpus for node in NODES}
    known = PreemptionState(costs=COSTS)
    full = Snapshot(0.0, name, chosen, saved(policy), FABRIC, tuple(NODES), free, None, None, (), (), preemption=known)
    jobs = [job_of(table, row, row in consenting) for row in range(len(table))]
    replay = Replay(full, [], {}, iter(jobs), [job.id for job, _ in jobs])
    decide = replay.policy.decide
    # a simulation asks the policy only while jobs wait, and what it learns from running jobs depends on that a little
    replay.policy.decide = lambda view, now: decide(view, now) if replay._iterations else []  # type: ignore[method-assign]
    return replay


def saved(policy: Policy) -> Any:
    return json.loads(json.dumps(policy.dump()))


def job_of(table: JobTable, row: int, agrees: bool) -> tuple[Job, float]:
    gpus, iterations = SIZES[table.profile[row]], float(table.iterations[row])
    predicted, at, limit = float(table.predicted[row]), float(table.submit[row]), float(table.time_limit[row])
    made = Job(JobId(str(row)), "", gpus, unprofiled(gpus), predicted, at, time_limit=limit, interruptible=agrees)
    return made, iterations


def check(name: str, chosen: dict[str, Any], table: JobTable, consenting: set[int]) -> None:
    policy = make_policy(name, fabric=FABRIC, **chosen)
    policy.split = Split.SLURM
    found = simulate(policy, NODES, table, runner=interrupting(consenting, COSTS))
    starts = future(name, chosen, table, consenting).until(math.inf)
    assert [starts[JobId(str(row))] for row in range(len(table))] == pytest.approx(found.start.tolist())


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=examples(50), deadline=None)
@given(table=tables)
def test_a_future_is_a_simulation_under_every_policy(name: str, table: JobTable) -> None:
    check(name, {}, table, set())


@pytest.mark.parametrize("name", PREEMPTING)
@settings(max_examples=examples(200), deadline=None)
@given(table=tables, share=st.sampled_from([0.5, 1.0]), fills=st.booleans())
def test_also_where_jobs_are_preempted(name: str, table: JobTable, share: float, fills: bool) -> None:
    chosen = PREEMPTING[name] | ({"fills": fills} if name == "asrpt-gated" else {})
    check(name, chosen, table, {row for row in range(len(table)) if row % 4 < 4 * share})
