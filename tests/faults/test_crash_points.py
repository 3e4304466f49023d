"""asrptd dies at any call, between any two updates, any number of times, on a Slurm in memory; reproducible by seed.

The campaign on a real Slurm tries random points; these tests try each point.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.records import PENDING, Update
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import FakeSlurm

MOST_CYCLES = 900
"""More than enough for every backoff and a lease."""


class KilledError(BaseException):
    """A kill: nothing in asrptd catches it, as nothing catches SIGKILL."""


class Dying(FakeSlurm):
    """Kills its caller, or only fails, at the n-th call from now on; a list of updates may be partly applied."""

    calls_left: int = -1
    slow: float = 0.0
    """Seconds until an update is read."""
    only_updates: bool = False
    """Whether read-only calls do not count."""
    done: float = 0.0
    error: BaseException = KilledError()

    def arm(self, calls: int, done: float, error: BaseException) -> None:
        """done: the share of a list of updates that is applied."""
        self.calls_left, self.done, self.error = calls, done, error

    def _due(self) -> bool:
        self.calls_left -= 1
        return self.calls_left == -1

    def check_available(self) -> None:
        super().check_available()
        if not self.only_updates and self._due():
            raise self.error

    def update(self, updates: Sequence[Update]) -> list[str]:
        self.tick(self.slow if updates else 0.0)
        if updates and self.calls_left == 0:
            self.calls_left = -1
            super().update(updates[: round(self.done * len(updates))])
            raise self.error
        self.calls_left -= bool(updates and self.only_updates)
        return super().update(updates)


POINT = st.tuples(st.integers(0, 40), st.floats(0, 1), st.booleans())
POLICIES = st.sampled_from(["asrpt", "asrpt-gated"])


class ArmedBench(Bench):
    """Restarts on a Slurm that may kill it again: reading the configuration also counts as a call."""

    def survive(self) -> None:
        """Run a cycle and a second one; if one kills asrptd, start another."""
        try:
            self.scheduler.cycle(self.slurm.now)
        except SlurmError:
            pass
        except KilledError:
            slurm: Any = self.slurm
            left, slurm.calls_left = slurm.calls_left, -1
            self.restart()
            slurm.calls_left = left
        self.slurm.tick(1.0)


def play(bench: ArmedBench, slurm: Dying, sizes: list[int], points: list[tuple[int, float, bool]]) -> None:
    """One job arrives per cycle and runs for three; asrptd dies (or a call fails) at the points in turn."""
    waiting, left = list(sizes), list(points)
    began: dict[str, float] = {}
    for _ in range(MOST_CYCLES):
        if waiting:
            slurm.submit(waiting.pop(), iterations=20)
        if slurm.calls_left < 0 and left:
            calls, done, dies = left.pop()
            slurm.arm(calls, done, KilledError() if dies else SlurmError("Socket timed out"))
        bench.survive()
        for record in list(slurm.records.values()):
            if record.state == "RUNNING" and slurm.now - began.setdefault(record.job_id, slurm.now) >= 3:
                slurm.end(record.job_id)
        if not waiting and all(record.state == "COMPLETED" for record in slurm.records.values()):
            return


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), min_size=1, max_size=6), st.lists(POINT, max_size=6), POLICIES)
def test_every_job_runs_once_wherever_asrptd_dies(
    sizes: list[int], points: list[tuple[int, float, bool]], policy: str
) -> None:
    with TemporaryDirectory() as folder:
        slurm = Dying()
        bench = ArmedBench(Path(folder), slurm, policy=policy)
        try:
            play(bench, slurm, sizes, points)
            slurm.calls_left = -1
            bench.cycle(2)
            runs = bench.runs()
            ended = {entry["job"] for entry in bench.audit("ended")}
        finally:
            bench.close()
    assert {record.state for record in slurm.records.values()} == {"COMPLETED"}
    assert dict(slurm.starts) == dict.fromkeys(slurm.records, 1)
    assert slurm.resized == []
    assert runs.keys() == slurm.records.keys() == ended


@settings(max_examples=12, deadline=None)
@given(st.lists(POINT, min_size=1, max_size=4))
def test_pending_jobs_have_no_node_list_and_no_long_lease(points: list[tuple[int, float, bool]]) -> None:
    """The cluster is full: a cycle or two after every death, all pending jobs are leased and none is pinned."""
    with TemporaryDirectory() as folder:
        slurm = Dying(starts_jobs=False)
        bench = ArmedBench(Path(folder), slurm)
        try:
            for gpus in (12, 4, 6):
                slurm.submit(gpus, iterations=20)
            for calls, done, dies in points:
                slurm.arm(calls, done, KilledError() if dies else SlurmError("Socket timed out"))
                for _ in range(30):
                    bench.survive()
            slurm.calls_left = -1
            for job_id in slurm.records:
                slurm.hold(job_id)
            bench.cycle(15)
        finally:
            bench.close()
    assert [record.required_nodes for record in slurm.records.values()] == [""] * 3
    assert all(record.eligible_time <= slurm.now + slurm.lease + 2 for record in slurm.records.values())


UPDATE = st.tuples(st.integers(0, 2), st.floats(0, 1), st.booleans(), st.integers(1, 25), st.booleans())
"""The update, the share of it that is applied, death or failure, cycles until the next, whether jobs are requeued."""


@settings(max_examples=30, deadline=None)
@given(st.lists(UPDATE, min_size=1, max_size=6), st.floats(0, 5), st.booleans())
def test_a_lease_is_never_mistaken_for_the_owners_begin_time(
    faults: list[tuple[int, float, bool, int, bool]], slow: float, starts: bool
) -> None:
    """In this test, only Slurm delays jobs, at a requeue."""
    with TemporaryDirectory() as folder:
        slurm = Dying(starts_jobs=starts, lease=20)
        slurm.slow, slurm.only_updates = slow, True
        bench = ArmedBench(Path(folder), slurm, lease_s=20, unpin_after_s=4.0)
        put_off = {slurm.submit(gpus, iterations=20): 0.0 for gpus in (12, 4, 6, 12)}
        try:
            for calls, done, dies, cycles, requeues in faults:
                for job_id in [j for j in put_off if requeues and slurm.records[j].state == "RUNNING"]:
                    slurm.requeue(job_id)
                    put_off[job_id] = slurm.records[job_id].eligible_time
                slurm.arm(calls, done, KilledError() if dies else SlurmError("Socket timed out"))
                for _ in range(cycles):
                    bench.survive()
                    known = bench.scheduling.jobs.items()
                    assert all((tracked.begin_time or 0.0) in (0.0, put_off[job_id]) for job_id, tracked in known)
        finally:
            bench.close()


ORDER_POINT = st.tuples(st.integers(0, 2), st.floats(0, 1), st.booleans(), st.integers(1, 3))
"""The update, the share of it that is applied, death or failure, cycles until the next."""


@settings(max_examples=25, deadline=None)
@given(st.lists(ORDER_POINT, min_size=1, max_size=4), st.booleans())
def test_in_mode_order_no_site_factor_is_missing_or_wrong(
    faults: list[tuple[int, float, bool, int]], at_once: bool
) -> None:
    """Wherever asrptd dies, the factors in Slurm soon follow the policy, and none is left after a disable."""
    with TemporaryDirectory() as folder:
        slurm = Dying(starts_jobs=False)
        slurm.only_updates = True
        bench = ArmedBench(Path(folder), slurm, mode="order")
        try:
            for calls, done, dies, cycles in faults:
                for iterations in (1000, 10, 100_000):
                    slurm.submit(12, iterations=iterations, leased=False)
                slurm.arm(calls, done, KilledError() if dies else SlurmError("Socket timed out"))
                for _ in range(cycles):
                    bench.survive()
            slurm.calls_left = -1
            if not at_once:
                bench.cycle(2)
                wanted = [str(job_id) for job_id, _ in bench.scheduler.decider.policy.queue(slurm.now)]
                assert sorted(wanted, key=lambda job_id: -slurm.site_factors[job_id]) == wanted
            bench.mode.disabled = True
            bench.cycle()
        finally:
            bench.close()
    assert set(slurm.site_factors.values()) <= {0}


def test_the_fake_kills_asrptd_at_the_chosen_call(tmp_path: Path) -> None:
    """Otherwise the tests above would prove nothing."""
    slurm = Dying()
    bench = ArmedBench(tmp_path, slurm)
    job_id = slurm.submit(4)
    slurm.arm(4, 1.0, KilledError())  # jobs, nodes, the topology, the fence, and then the pin
    with pytest.raises(KilledError):
        bench.cycle()
    assert slurm.records[job_id].required_nodes == "n1"
    assert slurm.records[job_id].state != PENDING
    bench.close()
