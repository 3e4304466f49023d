"""Stateful tests of the daemon: random actions of users, admins and nodes, restarts, and the invariants."""

from __future__ import annotations

import itertools
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.records import PENDING, RUNNING_STATES, NodeRecord, Reservation
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import FakeSlurm
from tests.examples import examples

SIZES = (4, 4, 2)
CHOICES = {
    "-w": {"required_nodes": "n3"},
    "-x": {"excluded_nodes": "n1"},
    "-C": {"features": "fast"},
    "--exclusive": {"exclusive": "node"},
}
seconds = st.sampled_from([0.0, 1.0, 7.0, 12.0, 200.0, 400.0])
picks = st.integers(0, 1000)


class Walk(RuleBasedStateMachine):
    """Random actions of users, admins and machines, with cycles of asrptd in between."""

    multifactor = False
    settings: ClassVar[dict[str, Any]] = {"tau": 20.0}

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="asrpt-walk-")
        self.slurm = FakeSlurm(SIZES, multifactor=self.multifactor)
        self.bench = Bench(Path(self.folder.name), self.slurm, **self.settings)
        self.submitted: set[str] = set()
        self.slurms: set[str] = set()  # requests that are left to Slurm
        self.slurm.table[0] = replace(self.slurm.table[0], features=frozenset({"fast"}))
        self.constrained: dict[str, dict[str, str]] = {}  # jobs with -w, and the nodes

    @initialize()
    def first_cycle(self) -> None:
        self.bench.cycle()

    def teardown(self) -> None:
        self.settle()
        self.bench.close()
        self.folder.cleanup()

    def choose(self, pick: int, *states: str) -> str | None:
        ids = [r.job_id for r in self.slurm.records.values() if r.state in states]
        return ids[pick % len(ids)] if ids else None

    # users

    @rule(gpus=st.sampled_from([1, 2, 3, 4, 6, 6, 10, 40]), iterations=st.sampled_from([0, 5, 100, 10**6]))
    def submit(self, gpus: int, iterations: int) -> None:
        profile = {6: "tail", 4: "flat"}.get(gpus, "")
        self.submitted.add(self.slurm.submit(gpus, iterations, profile))

    @rule(why=st.sampled_from([{"contiguous": True}, {"exclusive": "user"}, {"admin_comment": "JS1:other"}]))
    def submit_unmanaged(self, why: dict[str, object]) -> None:
        job_id = self.slurm.submit(2, **why)
        self.submitted.add(job_id)
        self.slurms.add(job_id)

    @rule(gpus=st.sampled_from([1, 2]), asks=st.sampled_from(list(CHOICES)))
    def submit_with_node_list(self, gpus: int, asks: str) -> None:
        job_id = self.slurm.submit(gpus, **CHOICES[asks])
        self.submitted.add(job_id)
        self.constrained[job_id] = CHOICES[asks]

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        if job_id := self.choose(pick, PENDING, "RUNNING"):
            self.slurm.end(job_id, "CANCELLED")

    @rule(pick=picks, state=st.sampled_from(["COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL"]))
    def end(self, pick: int, state: str) -> None:
        if job_id := self.choose(pick, "RUNNING"):
            self.slurm.end(job_id, state)

    @rule(pick=picks)
    def hold(self, pick: int) -> None:
        if job_id := self.choose(pick, PENDING):
            self.slurm.hold(job_id)

    @rule(pick=picks)
    def release(self, pick: int) -> None:
        if (job_id := self.choose(pick, PENDING)) and self.slurm.records[job_id].priority == 0:
            self.slurm.release(job_id)

    @rule(pick=picks, later=st.sampled_from([0.0, 3000.0]))
    def owner_writes_a_begin_time(self, pick: int, later: float) -> None:
        if (job_id := self.choose(pick, PENDING)) and self.slurm.records[job_id].priority:
            reason = "BeginTime" if later else "None"
            self.slurm.change(job_id, eligible_time=self.slurm.now + later, reason=reason)

    @rule(pick=picks, gpus=st.integers(1, 5))
    def owner_writes_another_size(self, pick: int, gpus: int) -> None:
        if (job_id := self.choose(pick, PENDING)) and job_id not in self.constrained:
            self.slurm.change(job_id, tasks=gpus, cpus=gpus)

    # admins and machines

    @rule(pick=picks, refuses=st.booleans())
    def requeue(self, pick: int, refuses: bool) -> None:
        if job_id := self.choose(pick, "RUNNING"):
            self.slurm.requeued(job_id)
            if refuses:
                self.slurm.errors[job_id] = "Slurm temporarily unable to accept job"

    @rule(pick=picks)
    def a_job_starts_between_read_and_write(self, pick: int) -> None:
        read = self.slurm.nodes

        def nodes_and_a_start() -> list[NodeRecord]:
            found, self.slurm.nodes = read(), read  # type: ignore[method-assign]
            self.owner_writes_a_begin_time(pick, 0.0)
            return found

        self.slurm.nodes = nodes_and_a_start  # type: ignore[method-assign]
        self.bench.scheduler.cycle(self.slurm.now)

    @rule(name=st.sampled_from(["n1", "n2", "n3"]), state=st.sampled_from(["IDLE", "IDLE+DRAIN", "DOWN*", "IDLE"]))
    def node(self, name: str, state: str) -> None:
        self.slurm.node_state(name, state)

    @rule(starts=st.booleans())
    def slurm_is_slow_or_quick(self, starts: bool) -> None:
        self.slurm.starts_jobs = starts

    @rule(pick=picks, refuses=st.booleans())
    def slurm_refuses_updates_of_a_job(self, pick: int, refuses: bool) -> None:
        self.slurm.errors.clear()
        if refuses and (job_id := self.choose(pick, PENDING)):
            self.slurm.errors[job_id] = "Access/permission denied"

    @rule()
    def restart(self) -> None:
        self.bench.restart()
        self.bench.scheduler.cycle(self.slurm.now)

    @rule(restarted=st.booleans())
    def disable_and_enable(self, restarted: bool) -> None:
        """One cycle later, pending jobs are Slurm's; then asrptd is enabled again."""
        if restarted:
            self.bench.restart()
        self.bench.mode.disabled = True
        self.bench.scheduler.cycle(self.slurm.now)
        self.released_jobs_have_no_lease_and_no_pin()
        self.bench.mode.disabled = False
        self.bench.scheduler.cycle(self.slurm.now)

    @rule(pause=seconds, times=st.integers(1, 3))
    def cycle(self, pause: float, times: int) -> None:
        for _ in range(times):
            self.bench.scheduler.cycle(self.slurm.now)
            self.every_waiting_job_of_ours_has_a_lease()
            self.slurm.tick(pause)

    # invariants

    def every_waiting_job_of_ours_has_a_lease(self) -> None:
        for job_id, tracked in self.bench.scheduling.jobs.items():
            record = self.slurm.records[job_id]
            waits = record.state == PENDING and tracked.state in (JobState.QUEUED, JobState.INELIGIBLE)
            waits = waits and tracked.site_factor is None  # else it is released ahead
            if waits and job_id not in self.slurm.errors and not self.owner_has_released(job_id):
                assert record.eligible_time > self.slurm.now, job_id

    def released_jobs_have_no_lease_and_no_pin(self) -> None:
        for job_id, tracked in self.bench.scheduling.jobs.items():
            record = self.slurm.records[job_id]
            if record.state != PENDING or job_id in self.slurm.errors:
                continue
            assert record.required_nodes == self.requested_nodes(job_id), job_id
            assert not self.slurm.site_factors.get(job_id), job_id
            if record.priority and job_id not in self.slurms:  # begin times of other jobs are not tracked
                latest = max(self.slurm.now, tracked.not_before + 1, tracked.restarts_at + 1)
                assert record.eligible_time <= latest, job_id

    def owner_has_released(self, job_id: str) -> bool:
        """Slurm shows a begin time in the past although our last lease has not expired: the owner changed it."""
        tracked, record = self.bench.scheduling.jobs[job_id], self.slurm.records[job_id]
        return record.eligible_time <= self.slurm.now < tracked.lease_until

    def requested_nodes(self, job_id: str) -> str:
        """The nodes of its -w."""
        return self.constrained.get(job_id, {}).get("required_nodes", "")

    @invariant()
    def jobs_run_on_the_requested_nodes(self) -> None:
        for job_id, asks in self.constrained.items():
            nodes = self.slurm.records[job_id].nodes if job_id in self.slurm.records else ""
            if nodes:
                names, sizes = set(nodes.split(",")), dict(zip(("n1", "n2", "n3"), SIZES, strict=True))
                assert names == set(expand(asks.get("required_nodes", nodes)))
                assert asks.get("excluded_nodes") not in names
                assert names == {"n1"} or "features" not in asks
                whole = {name: sizes[name] for name in names}
                assert self.slurm.records[job_id].gpus_by_node == whole or "exclusive" not in asks

    @invariant()
    def no_running_job_is_resized(self) -> None:
        assert self.slurm.resized == []

    @invariant()
    def managed_jobs_are_not_left_to_slurm(self) -> None:
        tracked = self.bench.scheduling.jobs.items()
        assert {j for j, t in tracked if t.state is JobState.LEFT_TO_SLURM} <= self.slurms

    @invariant()
    def no_job_runs_twice(self) -> None:
        assert max(self.slurm.starts.values(), default=0) <= 1

    @invariant()
    def no_two_pins_share_a_gpu(self) -> None:
        """Pins and running jobs together; a job that has started unseen counts once."""
        tracked = self.bench.scheduling.jobs.values()
        for name, size in zip(("n1", "n2", "n3"), SIZES, strict=True):
            pins = [t.pin.gpus.get(name, 0) for t in tracked if t.state is JobState.PINNED and t.pin]
            assert sum(pins) <= size

    @invariant()
    def asrptd_knows_of_each_site_factor(self) -> None:
        tracked = self.bench.scheduling.jobs
        for job_id, factor in self.slurm.site_factors.items():
            job = tracked.get(job_id)
            ours = job is None or job.site_factor is not None or job.original is not None
            assert ours or not factor or job.record.state != PENDING, job_id

    @invariant()
    def the_policy_and_the_managed_jobs_agree(self) -> None:
        scheduling = self.bench.scheduling
        held = {str(job_id) for job_id, _ in scheduling.scheduler.decider.policy.queue(self.slurm.now)}
        assert held == {j for j, t in scheduling.jobs.items() if t.state is JobState.QUEUED}

    @precondition(lambda self: self.slurm.records)
    @rule()
    def settle_now(self) -> None:
        self.settle()

    @rule(in_s=st.sampled_from([5.0, 30.0, 300.0]), nodes=st.sets(st.sampled_from(["n1", "n2", "n3"])))
    def plan_maintenance(self, in_s: float, nodes: set[str]) -> None:
        start = self.slurm.now + in_s
        self.slurm.reserved = [Reservation("maint", start, start + 60, frozenset(nodes))] if nodes else []

    def settle(self) -> None:
        """All machines recover, and no more events occur: every job starts, or is pending with a reason."""
        self.slurm.errors.clear()
        self.slurm.states.clear()
        self.slurm.reserved.clear()
        self.slurm.starts_jobs = True
        for _ in range(3):
            self.bench.scheduler.cycle(self.slurm.now)
            self.slurm.tick(20)
        self.bench.scheduler.cycle(self.slurm.now)
        assert set(self.slurm.records) == self.submitted
        for job_id, tracked in self.bench.scheduling.jobs.items():
            record = self.slurm.records[job_id]
            unseen = tracked.state is JobState.PINNED or tracked.site_factor is not None  # Slurm may start it any time
            assert tracked.record.state == record.state or unseen
            if record.state == PENDING and tracked.state in (JobState.QUEUED, JobState.INELIGIBLE):
                assert record.required_nodes == self.requested_nodes(job_id), job_id
        alive = {r.job_id for r in self.slurm.records.values() if r.state in {PENDING, *RUNNING_STATES}}
        assert set(self.bench.scheduling.jobs) == alive
        used = self.slurm.used()
        assert all(used[name] <= size for name, size in zip(("n1", "n2", "n3"), SIZES, strict=True))


class WalkAhead(Walk):
    """The same where jobs are released ahead."""

    multifactor = True
    settings: ClassVar[dict[str, Any]] = {"policy": "asrpt-gated", "release_ahead": 3}

    @invariant()
    def few_jobs_are_released_ahead(self) -> None:
        """And only by this rule: the policy would start them next, whichever job ends."""
        jobs = self.bench.scheduling.jobs.values()
        assert sum(job.site_factor is not None and job.state is JobState.QUEUED for job in jobs) <= 3


class WalkAheadBasic(WalkAhead):
    """With priority/basic: only in the order of submission."""

    multifactor = False


LONG = settings(
    max_examples=examples(100),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking would take minutes
)
TestWalk = Walk.TestCase
TestWalk.settings = LONG
TestWalkAhead = WalkAhead.TestCase
TestWalkAheadBasic = WalkAheadBasic.TestCase
TestWalkAhead.settings = LONG


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["1", "2", "gpus", "jobs"]), inner),
    max_leaves=4,
)


def paths_in(state: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key in nested dictionaries."""
    if not isinstance(state, dict):
        return []
    return [p for key, value in state.items() for p in ((*path, key), *paths_in(value, (*path, key)))]


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_a_corrupted_state_file_loses_no_job(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(prefix="asrpt-state-") as folder:
        slurm = FakeSlurm(SIZES)
        bench = Bench(Path(folder), slurm)
        jobs = {slurm.submit(10, iterations=9), slurm.submit(4, iterations=90, profile="flat"), slurm.submit(2)}
        bench.cycle(20)
        bench.stop()
        file = Path(folder) / "state" / "state.json"
        state = json.loads(file.read_text(encoding="utf-8"))
        *parents, last = data.draw(st.sampled_from([path for path in paths_in(state) if path != ("schema",)]))
        target = state
        for key in parents:
            target = target[key]
        target[last] = data.draw(anything)
        file.write_text(json.dumps(state), encoding="utf-8")
        bench.start()
        bench.cycle(2)
        assert set(bench.scheduling.jobs) == jobs
        bench.close()


def test_every_job_of_a_day_runs(tmp_path: Path) -> None:
    """Forty jobs of all sizes, some requeues, two restarts: every job runs once and is recorded."""
    slurm = FakeSlurm(SIZES)
    bench = Bench(tmp_path, slurm)
    sizes = itertools.islice(itertools.cycle([1, 2, 6, 4, 10, 3]), 40)
    jobs = [slurm.submit(gpus, iterations=7 * gpus) for gpus in sizes]
    for hour in range(400):
        bench.cycle(seconds=15.0)
        running = [r.job_id for r in slurm.records.values() if r.state == "RUNNING"]
        for number, job_id in enumerate(running):
            if hour < 150 and hour % 7 == 3 and number == 0:
                slurm.requeue(job_id)
            elif (hour + number) % 2:
                slurm.end(job_id)
        if hour in (20, 60):
            bench.restart()
    assert {r.state for r in slurm.records.values()} == {"COMPLETED"}
    assert set(bench.runs()) == set(jobs)
    assert slurm.resized == []
    bench.close()
