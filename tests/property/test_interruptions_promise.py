"""asrpt-gated with interruptions on random workloads: its promises to those who agree, and to everybody."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.core.cluster import ClusterView, Node, Placement
from slurm_asrpt.core.job import Job, JobId, unprofiled
from slurm_asrpt.core.policies.base import Preempt, PreemptibleRun, Start
from slurm_asrpt.core.policies.gated.decision import OneDecision
from slurm_asrpt.core.policies.gated.queue import Waiting
from slurm_asrpt.core.preemption_costs import PreemptionCosts
from slurm_asrpt.sim.engine import Result, simulate
from slurm_asrpt.sim.interruptions import InterruptedRun, interrupting
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.metrics import latest_starts
from tests.benches.gated import unchecked_policy
from tests.examples import examples

NODES = [Node(f"n{i}", 4, i) for i in range(3)]
SIZES = (1, 2, 4, 8)
COSTS = PreemptionCosts(checkpoint_s=20.0, requeue_s=10.0, restart_s=30.0)
MOST, MIN_RUN_S, LATE_SHARE = 2, 200.0, 0.4

rows = st.tuples(  # submission, size, seconds, predicted over true seconds
    st.integers(0, 2000), st.integers(0, len(SIZES) - 1), st.integers(1, 8000), st.sampled_from([0.0, 0.1, 1.0, 10.0])
)


def table_of(jobs: Sequence[tuple[int, int, int, float]]) -> JobTable:
    submit, size, seconds, error = (np.array(column) for column in zip(*sorted(jobs), strict=True))
    profiles = tuple(map(unprofiled, SIZES))
    return JobTable(profiles, submit.astype(float), size, seconds.astype(float), seconds * error)


tables = st.lists(rows, min_size=1, max_size=40).map(table_of)
patience = st.sampled_from([0.0, 600.0, 3000.0, 1e6])


def made_policy(patience_s: float, fills: bool) -> Any:
    often = {"max_interruptions": MOST, "min_run_s": MIN_RUN_S, "interruption_s": 100.0}
    waits = {"patience_s": patience_s, "late_share": LATE_SHARE}
    return unchecked_policy("asrpt-gated", interrupts=True, fills=fills, **often, **waits)


def play(
    table: JobTable,
    consenting: set[int],
    patience_s: float,
    watched: Callable[[Any], Any] = lambda policy: policy,
    fills: bool = True,
) -> tuple[Result, InterruptedRun, dict[int, list[float]]]:
    """The result, the run, and the starts of each job. watched: what is done with the policy before."""
    made: list[Any] = []
    starts = defaultdict[int, list[float]](list)

    def runner(*parts: Any) -> Any:
        made.append(interrupting(consenting, COSTS)(*parts))
        return made[0]

    policy = watched(made_policy(patience_s, fills))
    result = simulate(policy, NODES, table, on_start=lambda row, now, _: starts[row].append(now), runner=runner)
    return result, made[0], starts


@settings(max_examples=examples(400), deadline=None)
@given(
    table=tables, share=st.sampled_from([0.5, 1.0]), seed=st.integers(0, 3), patience_s=patience, fills=st.booleans()
)
def test_all_jobs_end_and_only_those_who_agree_are_preempted(
    table: JobTable, share: float, seed: int, patience_s: float, fills: bool
) -> None:
    consenting = set(np.flatnonzero(np.random.default_rng(seed).random(len(table)) < share).tolist())
    result, run, starts = play(table, consenting, patience_s, fills=fills)
    assert len(result.ended) == len(table)
    assert set(run.interruptions) <= consenting
    assert max(run.interruptions.values(), default=0) <= MOST
    assert all(len(starts[row]) == 1 + run.interruptions.get(row, 0) for row in range(len(table)))
    assert fills or all(later - before >= MIN_RUN_S for times in starts.values() for before, later in pairwise(times))
    assert fills or not run.interruptions or len(consenting) > 1


@settings(max_examples=examples(400), deadline=None)
@given(table=tables, patience_s=patience)
def test_servers_with_a_claim_are_left_to_the_job_that_has_preempted_others(table: JobTable, patience_s: float) -> None:
    """Late jobs keep the servers that they have reserved."""

    start = OneDecision.start

    def checked(decision: OneDecision, entry: Waiting, placement: Placement, *filling: Job) -> None:
        mask, jobs = sum(1 << at for at, node in enumerate(NODES) if node.name in placement.gpus), decision.jobs
        assert not mask & jobs.interruptions.claimed or jobs.queue.is_late(entry, decision.now)
        start(decision, entry, placement, *filling)

    with patch.object(OneDecision, "start", checked):
        play(table, set(range(len(table))), patience_s)


@settings(max_examples=examples(400), deadline=None)
@given(table=tables, patience_s=patience)
def test_a_job_that_has_waited_for_its_patience_starts_as_promised_and_is_not_preempted_again(
    table: JobTable, patience_s: float
) -> None:
    """L, the longest run, includes what interrupted jobs wait between their runs."""
    result, _, starts = play(table, set(range(len(table))), patience_s)
    latest = latest_starts(result, patience_s, LATE_SHARE, len(NODES), 4)
    assert np.all(result.start <= latest + 1e-6)
    for row, times in starts.items():
        late = [time for time in times if time >= table.submit[row] + patience_s]
        assert len(late) <= 1 or late[0] == table.submit[row], "the first start after its patience is its last one"


def without_fillers(policy: Any, fillers: Sequence[PreemptibleRun], patience_s: float) -> Any:
    """The policy as it would be if these fillers had ended; it preempts nobody."""
    state = json.loads(json.dumps(policy.dump(), allow_nan=False))
    claims = policy.jobs.interruptions.claims.values()
    waiting = [entry.job for entry in [*policy.jobs.queue.entries.values(), *(claim.entry for claim in claims)]]
    other = made_policy(patience_s, fills=False)
    other.cluster_changed(NODES, 0.0)
    other.load(state, {job.id: job for job in waiting})
    other.reservation, other.jobs.interruptions.next_time = policy.reservation, math.inf
    for run in fillers:
        other.jobs.forget_run(run.job_id)
    return other


def starts_before_a_reservation(policy: Any, view: ClusterView, now: float) -> tuple[list[JobId], list[JobId]]:
    """The jobs that start before a job gets a reservation, and all that start, in the order of the decision."""
    start, before = OneDecision.start, list[JobId]()

    def noted(decision: OneDecision, entry: Waiting, placement: Placement, *filling: Job) -> None:
        if decision.reservation is None:
            before.append(entry.job.id)
        start(decision, entry, placement, *filling)

    with patch.object(OneDecision, "start", noted):
        return before, [each.job.id for each in policy.decide(view, now) if isinstance(each, Start)]


class Compared:
    """A policy with fillers that decides for the first job in the queue as if there were none. filled: its starts."""

    interrupts = True

    def __init__(self, policy: Any, patience_s: float) -> None:
        self.policy, self.patience_s, self.filled, self.preempted = policy, patience_s, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def served(self, waiting: Any, runs: Any, now: float) -> None:
        self.policy.served(waiting, runs, now)

    def decide(self, view: ClusterView, now: float) -> Any:
        fillers = self.policy.jobs.interruptions.to_give_back()
        other, empty = without_fillers(self.policy, fillers, self.patience_s) if fillers else None, view.copy()
        decisions = self.policy.decide(view, now)
        filling = [each for each in decisions if isinstance(each, Start) and each.filling]
        self.filled += len(filling)
        heads = [each.head.id for each in decisions if isinstance(each, Preempt)]
        if other is None:
            return decisions
        for run in fillers:
            empty.give(run.gpus)
        before, all_starts = starts_before_a_reservation(other, empty, now)
        begun = [each.job.id for each in decisions if isinstance(each, Start) and not each.filling]
        assert not before or before[0] in [*begun, *heads]
        if not before and not heads:
            assert set(begun) <= set(all_starts)
            assert self.policy.reservation == other.reservation
        self.preempted += bool(heads)
        return decisions


@settings(max_examples=examples(200), deadline=None)
@given(table=tables, share=st.sampled_from([0.5, 1.0]), patience_s=patience)
def test_the_first_job_starts_or_gets_its_reservation_as_if_there_were_no_fillers(
    table: JobTable, share: float, patience_s: float
) -> None:
    consenting = set(np.flatnonzero(np.random.default_rng(0).random(len(table)) < share).tolist())
    play(table, consenting, patience_s, lambda policy: Compared(policy, patience_s))


@settings(max_examples=examples(200), deadline=None)
@given(table=tables, patience_s=patience)
def test_a_job_for_which_others_are_preempted_starts_when_they_have_written_their_checkpoints(
    table: JobTable, patience_s: float
) -> None:
    decided: list[tuple[int, float]] = []

    def noted(policy: Any) -> Any:
        claim = policy.jobs.interruptions.claim

        def note(entry: Any, mask: int, victims: Any, now: float) -> Any:
            decided.append((int(entry.job.id), now))
            return claim(entry, mask, victims, now)

        policy.jobs.interruptions.claim = note
        return policy

    _, _, starts = play(table, set(range(len(table))), patience_s, noted)
    for row, time in decided:
        assert any(time <= start <= time + COSTS.checkpoint_s + 1e-6 for start in starts[row])
