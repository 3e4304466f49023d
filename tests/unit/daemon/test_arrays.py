"""Job arrays in mode enforce: asrptd splits off their tasks, a few at a time, and loses none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from slurm_asrpt_cli.status.selection import Selection, one, read_jobs, select

from slurm_asrpt.daemon.jobs import arrays
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.errors import AsrptError
from tests.benches.daemon import Bench


def submit(bench: Bench, tasks: str, gpus: int = 1, **fields: object) -> str:
    return bench.slurm.submit(gpus, 50, array_tasks=tasks, **fields)


def tasks_of(bench: Bench, array: str, *states: str) -> list[str]:
    records = bench.slurm.records.values()
    return [r.job_id for r in records if r.array_id == array and r.state in states and not r.array_tasks]


def finish(bench: Bench, array: str, most: int = 300) -> int:
    """Run all tasks to their ends. Returns how many ran at once at most."""
    at_once = 0
    for _ in range(most):
        bench.cycle(2)
        running = tasks_of(bench, array, "RUNNING")
        at_once = max(at_once, len(running))
        for job_id in running:
            bench.slurm.end(job_id)
        if not any(r.array_id == array and r.state in ("PENDING", "RUNNING") for r in bench.slurm.records.values()):
            bench.cycle()
            return at_once
    raise AssertionError(f"tasks of {array} are left: {bench.slurm.records.keys()}")


def test_every_array_task_runs_once_where_asrptd_placed_it(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(policy="asrpt-gated")
    array = submit(bench, "0-18:2,30")
    finish(bench, array)
    done = {f"{array}_{task}" for task in [*range(0, 19, 2), 30]}
    assert set(tasks_of(bench, array, "COMPLETED")) == done
    assert all(bench.slurm.starts[job_id] == 1 for job_id in done)
    assert {entry["job"] for entry in bench.audit("start")} == done
    assert bench.runs().keys() == done
    assert not bench.audit("vanished")


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_tasks_are_split_off_than_may_run_at_once(make_bench: Callable[..., Bench], most: int) -> None:
    bench = make_bench(policy="asrpt-gated")
    array = submit(bench, "1-9", array_most=most)
    bench.cycle(3)
    assert len(tasks_of(bench, array, "PENDING", "RUNNING")) == most
    assert finish(bench, array) == most
    assert not bench.audit("not-started")


def test_the_last_task_waits_until_fewer_run_than_may(make_bench: Callable[..., Bench]) -> None:
    """It is in the array's own record, so it does not have to be split off."""
    bench = make_bench(policy="asrpt-gated")
    array = submit(bench, "0-2", array_most=2)
    bench.cycle(4)
    assert tasks_of(bench, array, "RUNNING") == [f"{array}_0", f"{array}_1"]
    last = f"{array}_2"
    row = next(row for row in bench.status(bench.slurm.now).jobs if row.job_id == last)
    assert (row.reason, row.facts["tasks"]) == ("array-limit", 2)
    assert [entry["job"] for entry in bench.audit("start")] == [f"{array}_0", f"{array}_1"]
    bench.slurm.end(f"{array}_0")
    bench.cycle(2)
    assert tasks_of(bench, array, "RUNNING") == [f"{array}_1", last]
    assert not bench.audit("not-started")


def test_the_last_task_without_gpus_waits_until_fewer_run_than_may(make_bench: Callable[..., Bench]) -> None:
    """Such tasks are not in the policy's queue. Slurm refused the third of two: JobArrayTaskLimit."""
    bench = make_bench(policy="asrpt-gated")
    array = submit(bench, "0-2", array_most=2, tres_per_task="", cpus=2)
    bench.cycle(4)
    assert len(tasks_of(bench, array, "RUNNING")) == 2
    (last,) = tasks_of(bench, array, "PENDING")
    row = next(row for row in bench.status(bench.slurm.now).jobs if row.job_id == last)
    assert (row.reason, row.facts["tasks"]) == ("array-limit", 2)
    assert len(bench.audit("start-cpus")) == 2
    bench.slurm.end(tasks_of(bench, array, "RUNNING")[0])
    bench.cycle(2)
    assert last in tasks_of(bench, array, "RUNNING")
    assert not bench.audit("not-started")


@pytest.mark.parametrize("tasks", ["0-2", "0-9"])
def test_a_task_that_completes_counts_against_the_limit_no_more(make_bench: Callable[..., Bench], tasks: str) -> None:
    """An epilog may take minutes. The last task is in the array's own record, others have to be split off."""
    bench = make_bench(policy="asrpt-gated")
    array = submit(bench, tasks, array_most=2)
    bench.cycle(4)
    bench.slurm.change(f"{array}_0", state="COMPLETING", end_time=bench.slurm.now)
    bench.cycle(4)
    assert tasks_of(bench, array, "RUNNING") == [f"{array}_1", f"{array}_2"]


def test_a_lower_limit_holds_tasks_that_are_jobs_already(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench((2,), policy="asrpt-gated")
    blocker = bench.slurm.submit(2, 1000)
    array = submit(bench, "0-9", array_most=4)
    bench.cycle(3)
    for job_id in tasks_of(bench, array, "PENDING"):
        bench.slurm.records[job_id] = replace(bench.slurm.records[job_id], array_most=1)
    bench.slurm.end(blocker)
    bench.cycle(3)
    assert tasks_of(bench, array, "RUNNING") == [f"{array}_0"]
    assert {row.reason for row in bench.status(bench.slurm.now).jobs if row.job_id == f"{array}_1"} == {"array-limit"}


def test_a_cycle_that_splits_off_tasks_is_followed_by_another_at_once(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(policy="asrpt-gated")
    scheduler, now = bench.scheduler, bench.slurm.now
    array = submit(bench, "0-199", array_most=2)
    assert scheduler.cycle(now) == now  # the first ones are split off
    assert scheduler.cycle(now) != now  # they start
    bench.slurm.end(f"{array}_0")
    assert scheduler.cycle(now) == now
    long = submit(bench, "0-199")
    assert scheduler.cycle(now) == now
    bench.slurm.end(f"{long}_50", "CANCELLED")
    assert scheduler.cycle(now) != now  # another task takes its place, but others are before it


def test_the_rest_of_a_long_array_waits_in_one_leased_record(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(policy="asrpt-gated", lease_s=60)
    bench.slurm.lease = 60.0
    running = [bench.slurm.submit(4, 1000) for _ in range(3)]
    bench.cycle(2)
    assert [bench.state(job_id) for job_id in running] == 3 * ["RUNNING"]
    array = submit(bench, "0-9999")
    bench.cycle(90)
    assert len(tasks_of(bench, array, "PENDING")) == arrays.ARRAY_TASKS_AHEAD
    rest = bench.slurm.records[array]
    assert (rest.state, bench.job_state(array)) == ("PENDING", JobState.INELIGIBLE)
    assert rest.eligible_time > bench.slurm.now
    row = next(row for row in bench.status(bench.slurm.now).jobs if row.job_id == array)
    assert (row.reason, row.facts["more"]) == ("array", 9900)
    assert row.text.startswith("9900 tasks of the array will enter the queue")
    assert not bench.audit("lease-refused")


def test_cancelled_tasks_do_not_disturb_the_rest_of_the_array(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(policy="asrpt-gated")
    blockers = [bench.slurm.submit(4, 10) for _ in range(3)]
    bench.cycle(2)
    array = submit(bench, "0-299")
    bench.cycle(2)
    bench.slurm.change(array, array_tasks="150-299")
    bench.slurm.end(f"{array}_7", "CANCELLED")
    for job_id in blockers:
        bench.slurm.end(job_id)
    finish(bench, array)
    assert len(tasks_of(bench, array, "COMPLETED")) == 99 + 150


def test_a_refused_task_is_retried_and_a_restart_loses_none(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(policy="asrpt-gated")
    array = submit(bench, "0-4")
    bench.slurm.errors[f"{array}_1"] = "Slurm backup controller in standby mode"
    bench.cycle(2)
    assert {entry["job"] for entry in bench.audit("lease-refused")} == {f"{array}_1"}
    bench.slurm.errors.clear()
    bench.restart()
    finish(bench, array)
    assert len(tasks_of(bench, array, "COMPLETED")) == 5


def test_a_begin_time_that_the_owner_sets_for_one_task_is_kept(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(policy="asrpt-gated")
    blockers = [bench.slurm.submit(4, 10) for _ in range(3)]
    bench.cycle(2)
    array = submit(bench, "0-2")
    bench.cycle(3)
    later = bench.slurm.now + 5000
    bench.slurm.change(f"{array}_1", eligible_time=later)
    bench.cycle(2)
    for job_id in blockers:
        bench.slurm.end(job_id)
    bench.cycle(20)
    assert {bench.state(f"{array}_{task}") for task in (0, 2)} == {"RUNNING"}
    assert bench.state(f"{array}_1") == "PENDING"
    assert bench.job(f"{array}_1").not_before == later


@pytest.mark.parametrize("at_once", [True, False])
def test_after_disable_slurm_schedules_all_tasks(make_bench: Callable[..., Bench], at_once: bool) -> None:
    """at_once: asrptd dies right after its first look at the array."""
    bench = make_bench(policy="asrpt-gated")
    array = submit(bench, "0-149")
    bench.cycle(1 if at_once else 4)
    bench.restart()
    bench.mode.disabled = True
    bench.cycle(2)
    waiting = [r for r in bench.slurm.records.values() if r.array_id == array and r.state == "PENDING"]
    assert sum(r.array_tasks != "" for r in waiting) <= 1
    assert all(r.eligible_time <= bench.slurm.now for r in waiting)


def test_in_mode_shadow_arrays_are_left_to_slurm(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(policy="asrpt-gated", mode="shadow")
    array = submit(bench, "0-49", leased=False)
    bench.cycle(3)
    assert bench.job_state(array) is JobState.LEFT_TO_SLURM
    assert not bench.slurm.writes
    assert len(tasks_of(bench, array, "RUNNING")) == 12


def test_held_and_dependent_arrays_are_not_split(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(policy="asrpt-gated")
    array = submit(bench, "0-9", reason="Dependency", dependency="afterok:77(unfulfilled)")
    held = submit(bench, "0-9")
    bench.slurm.hold(held)
    bench.cycle(3)
    assert bench.slurm.records[array].array_tasks == bench.slurm.records[held].array_tasks == "0-9"
    bench.slurm.change(array, reason="BeginTime", dependency="")
    bench.slurm.release(held)
    finish(bench, array)
    finish(bench, held)


def test_an_array_whose_task_list_is_too_long_is_left_to_slurm(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(policy="asrpt-gated")
    array = submit(bench, ",".join(map(str, range(0, 3000, 3))))
    bench.cycle(2)
    assert bench.job_state(array) is JobState.LEFT_TO_SLURM
    assert {update.job_id for update in bench.slurm.writes} == {array}


def test_a_task_that_is_not_split_off_yet_is_found_by_its_id(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(policy="asrpt-gated")
    array, other = submit(bench, "0-6:2", array_most=1), bench.slurm.submit(1)
    bench.cycle(2)
    jobs = bench.status(bench.slurm.now).jobs
    assert {job.job_id for job in jobs} == {array, f"{array}_0", other}
    shown = [job.job_id for job in select(jobs, Selection(jobs=read_jobs([f"{array}_4,{other}"])))]
    assert shown == [job.job_id for job in jobs if job.job_id in (array, other)]
    assert one(jobs, f"{array}_6").job_id == array
    assert one(jobs, f"{array}_0").job_id == f"{array}_0"
    for name in (f"{array}_1", f"{array}_8", f"{other}_0"):
        with pytest.raises(AsrptError, match="does not know"):
            one(jobs, name)
