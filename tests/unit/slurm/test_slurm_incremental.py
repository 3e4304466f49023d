"""Incremental reads: which changes they cover, and which cause a full read."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm import incremental
from slurm_asrpt.slurm.incremental import (
    LONGEST_S,
    MANY,
    PARTS,
    SOME,
    SPREAD_S,
    TASKS_PER_JOB,
    IncrementalQueue,
    parse_lines,
    prints_records,
    prints_single_jobs,
    update_record,
)
from slurm_asrpt.slurm.notation import fold_tasks, read_tasks
from slurm_asrpt.slurm.parse import parse_jobs
from slurm_asrpt.slurm.records import PENDING, JobRecord

WIDTHS = [(name, int(width)) for name, _, width in (column.partition(":") for column in incremental.OPTION.split(","))]
RECORDED = Path(__file__).parents[2] / "recorded"
TIMES = ("SubmitTime", "EligibleTime", "AccrueTime", "StartTime", "EndTime")


def record(number: int, **fields: Any) -> JobRecord:
    base = JobRecord(
        str(number), "train", "anna", 1001, "gpu", PENDING, "BeginTime", 1000.0, number, 2000.0, priority=7, cpus=4
    )
    return dataclasses.replace(base, **fields)


def lines_of(job: JobRecord, task_lines: bool, **columns: str) -> bytes:
    """The job as squeue -O shows it. task_lines: a line for each pending task, without the array's limit."""
    tasks = [str(task) for each in read_tasks(job.array_tasks) for task in each] if task_lines else []
    if ":" in job.array_tasks:
        tasks = tasks[:-1]  # squeue's mistake, in all releases
    return b"".join(line(job, ArrayTaskId=task, **columns) for task in tasks) or line(job, **columns)


def line(job: JobRecord, **columns: str) -> bytes:
    """The job as squeue -O shows it in one line."""
    times = {name: getattr(job, name.replace("Time", "_time").lower()) for name in TIMES}
    shown = {name: str(int(seconds)) if seconds else "N/A" for name, seconds in times.items()}
    shown |= {"JobId": str(job.number), "State": job.state, "Reason": job.reason, "PriorityLong": str(job.priority)}
    shown |= {"RestartCnt": str(job.restarts), "exit_code": str(job.exit_code << 8 | job.signal), "NodeList": job.nodes}
    shown |= {"Dependency": job.dependency or "(null)", "ReqNodes": job.required_nodes, "Nice": str(job.nice)}
    limit = f"%{job.array_most}" if job.array_most and job.array_tasks else ""
    tasks = f"{job.array_tasks}{limit}" or job.job_id.partition("_")[2] or "N/A"
    shown |= {"MaxNodes": str(job.max_nodes or job.min_nodes), "NumNodes": str(job.min_nodes)}
    shown |= {"NumCPUs": str(job.cpus), "ArrayJobID": job.array_id, "ArrayTaskId": tasks, **columns}
    cells = (shown.get(name, "x").encode()[:width].ljust(width) for name, width in WIDTHS)
    return b"".join(cells) + b"\n"


class Slurm:
    """A queue, how often it was read in full, and a clock.

    seconds: duration of a full read. late: jobs submitted between the lines and the full read. task_lines: as squeue
    from 23.02 on.
    """

    def __init__(self, jobs: int = MANY, seconds: float = 1.0, task_lines: bool = False, singly: bool = False) -> None:
        self.jobs = {number: record(number) for number in range(1, jobs + 1)}
        self.columns: dict[str, str] = {}
        self.reads, self.now, self.seconds = 0, 0.0, seconds
        self.text: bytes | None = None
        self.late: list[JobRecord] = []
        self.answers = True
        self.gres: dict[str, dict[str, str]] = {}  # as scontrol shows it
        self.asked: list[list[str]] = []
        self.task_lines = task_lines
        self.singly: list[list[str]] = []  # the jobs that were read by themselves
        self.gone: set[str] = set()  # of these, when they are read
        self.queue = IncrementalQueue(
            *(self.lines, self.read, self.gres_of, lambda: self.now),
            task_lines=task_lines,
            some=self.some if singly else None,
        )

    def lines(self) -> bytes:
        if self.text is not None:
            return self.text
        return b"".join(lines_of(job, self.task_lines, **self.columns) for job in self.jobs.values())

    def read(self) -> list[JobRecord]:
        if not self.answers:
            raise SlurmError("squeue failed: away")
        self.reads += 1
        self.now += self.seconds
        self.jobs |= {job.number: job for job in self.late}
        return list(self.jobs.values())

    def some(self, numbers: Sequence[str]) -> list[JobRecord]:
        """As squeue --jobs: of an array, all records."""
        self.singly.append(list(numbers))
        if self.gone.intersection(numbers):
            raise SlurmError("squeue failed: Invalid job id specified")
        arrays = {self.jobs[int(number)].array_id for number in numbers}
        return [job for job in self.jobs.values() if job.array_id in arrays]

    def gres_of(self, numbers: Sequence[str]) -> dict[str, dict[str, str]]:
        self.asked.append(list(numbers))
        return {number: self.gres[number] for number in numbers if number in self.gres}

    def change(self, number: int, **fields: Any) -> JobRecord:
        self.jobs[number] = dataclasses.replace(self.jobs[number], **fields)
        return self.jobs[number]

    def look(self, after: float = 1.0) -> dict[int, JobRecord]:
        self.now += after
        return {job.number: job for job in self.queue.jobs()}

    def look_again(self, after: float = 1.0) -> dict[int, JobRecord]:
        """After a pause between two cycles."""
        self.now += after
        self.queue.catch_up()
        return self.look()


@pytest.fixture(params=[False, True], ids=["22.05", "23.02 and later"])
def slurm(request: pytest.FixtureRequest) -> Slurm:
    slurm = Slurm(task_lines=request.param)
    slurm.look()
    slurm.look()  # the first lines cannot show what has changed since the full read
    assert slurm.reads == 2
    slurm.look()
    assert slurm.reads == 2
    slurm.reads = 0
    return slurm


def test_few_jobs_are_read_in_full() -> None:
    slurm = Slurm(MANY - 1)
    for expected in (1, 2, 3):
        assert slurm.look_again(after=LONGEST_S) == slurm.jobs
        assert slurm.reads == expected


def test_unchanged_jobs_keep_their_record_objects(slurm: Slurm) -> None:
    before = slurm.look()
    assert all(job is before[number] for number, job in slurm.look().items())
    assert slurm.reads == 0


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "reason": st.sampled_from(["None", "Resources", "JobHeldUser", "QOSMaxJobsPerUserLimit"]),
            "submit_time": st.integers(1, 2**32).map(float),
            "eligible_time": st.integers(0, 2**32).map(float),
            "accrue_time": st.integers(0, 2**32).map(float),
            "priority": st.integers(0, 2**32 - 1),
            "restarts": st.integers(0, 9),
            "dependency": st.sampled_from(["", "afterok:12(unfulfilled)", "singleton(unfulfilled)"]),
        },
    )
)
def test_changes_of_pending_jobs_need_no_full_read(changes: dict[str, Any]) -> None:
    before = record(1)
    after = dataclasses.replace(before, **changes)
    assert update_record(before, line(before), line(after)) == (after, True)


def test_bounds_that_asrptd_writes_need_no_full_read(slurm: Slurm) -> None:
    """A job that is released ahead for one node gets the upper bound 1, and another one when it is leased again."""
    for most in (4, 1, 4):
        slurm.change(5, max_nodes=most)
        assert slurm.look() == slurm.jobs
    assert slurm.reads == 0
    slurm.change(5, min_nodes=2)
    assert slurm.look() == slurm.jobs
    assert slurm.reads == 1


def test_the_end_of_a_job_needs_no_full_read(slurm: Slurm) -> None:
    """Slurm shows no CPUs for an ended job; that does not matter."""
    slurm.change(5, state="CANCELLED", reason="None", exit_code=3, signal=9, start_time=2100.0, end_time=2200.0, cpus=0)
    assert slurm.look(after=9.0) == {**slurm.jobs, 5: dataclasses.replace(slurm.jobs[5], cpus=4)}
    assert slurm.look_again(after=9.0)
    assert slurm.reads == 0


@pytest.fixture
def printing_single_jobs() -> Slurm:
    """From 24.11 on."""
    slurm = Slurm(task_lines=True, singly=True)
    for _ in range(3):
        slurm.look()
    slurm.reads = 0
    return slurm


def test_new_jobs_and_changed_requests_are_read_by_themselves(printing_single_jobs: Slurm) -> None:
    slurm = printing_single_jobs
    slurm.jobs |= {n: record(n) for n in (MANY + 7, MANY + 8)}
    slurm.change(3, min_nodes=2, cpus=9)
    assert slurm.look() == slurm.jobs
    assert slurm.look() == slurm.jobs
    assert slurm.singly == [["3", str(MANY + 7), str(MANY + 8)]]
    assert slurm.reads == 0


def test_of_an_array_only_the_records_that_are_wanted_are_taken(printing_single_jobs: Slurm) -> None:
    """The lines say what has changed of the others since they were read."""
    slurm = printing_single_jobs
    slurm.jobs[MANY + 1] = record(MANY + 1, job_id=f"{MANY + 1}", array_tasks="0-3")
    assert slurm.look() == slurm.jobs
    slurm.jobs[MANY + 2] = record(MANY + 2, job_id=f"{MANY + 1}_0")
    slurm.change(MANY + 1, array_tasks="1-3")
    assert slurm.look() == slurm.jobs
    assert slurm.reads == 0


def test_if_a_job_is_gone_before_it_is_read_all_are_read_between_two_cycles(printing_single_jobs: Slurm) -> None:
    slurm = printing_single_jobs
    slurm.jobs[MANY + 7] = record(MANY + 7)
    slurm.gone = {str(MANY + 7)}
    assert MANY + 7 not in slurm.look()
    assert slurm.look_again(after=100.0) == slurm.jobs
    assert slurm.reads == 1


def test_many_new_jobs_are_read_with_all_others(printing_single_jobs: Slurm) -> None:
    slurm = printing_single_jobs
    slurm.jobs |= {n: record(n) for n in range(MANY + 1, MANY + SOME + 2)}
    slurm.look()
    assert slurm.singly == []
    assert slurm.look_again(after=100.0) == slurm.jobs


UNSEEN = {"excluded_nodes": "n1", "licenses": "matlab:1"}
"""Changes that no column shows."""


@pytest.mark.parametrize(
    ("version", "single", "records"),
    [
        ("slurm-wlm 22.05.8", False, True),
        ("slurm 23.11.11", False, False),
        ("slurm 24.05.0", False, False),
        ("slurm 24.05.1", True, False),
        ("slurm-wlm 24.11.5", True, False),
        ("slurm 25.05.0-0rc1", True, False),
    ],
)
def test_what_squeue_prints_depends_on_its_release(version: str, single: bool, records: bool) -> None:
    assert (prints_single_jobs(version), prints_records(version)) == (single, records)


@pytest.mark.parametrize("pause_s", [0.5, 7.0, SPREAD_S])
@pytest.mark.parametrize("state", [PENDING, "RUNNING"])
def test_where_squeue_prints_single_jobs_unseen_changes_are_known_in_time(
    printing_single_jobs: Slurm, pause_s: float, state: str
) -> None:
    """Without a full read, in equal parts, and not in more than PARTS."""
    slurm = printing_single_jobs
    changed = (1, 250, MANY)
    for number in changed:
        slurm.change(number, state=state, nodes="n1" * (state != PENDING))
    slurm.look(after=SPREAD_S / PARTS)
    slurm.queue.catch_up()
    slurm.singly = []
    for number in changed:
        slurm.change(number, **UNSEEN)
    began = slurm.now
    while slurm.now < began + SPREAD_S:
        slurm.now += pause_s
        slurm.queue.catch_up()
    assert slurm.look(after=0.0) == slurm.jobs
    assert slurm.reads == 0
    assert len(slurm.singly) <= PARTS
    assert max(map(len, slurm.singly)) <= math.ceil(MANY * max(pause_s / SPREAD_S, 1 / PARTS))


def test_jobs_that_were_read_lately_wait_for_their_turn(printing_single_jobs: Slurm) -> None:
    """In two minutes, each is read about twice; ended ones are not."""
    slurm = printing_single_jobs
    slurm.change(7, state="COMPLETED", nodes="n1")
    slurm.look()
    slurm.singly = []
    for _ in range(20):
        slurm.look_again(after=SPREAD_S / 10 - 1)
    counts = Counter(number for asked in slurm.singly for number in asked)
    assert counts.keys() == {str(number) for number in slurm.jobs} - {"7"}
    assert set(counts.values()) <= {1, 2, 3}


def test_a_change_after_the_lines_of_a_job_that_is_read_again_is_noticed(printing_single_jobs: Slurm) -> None:
    slurm = printing_single_jobs
    slurm.change(1, min_nodes=2)  # after the lines, before the job is read by itself
    slurm.now += SPREAD_S
    slurm.queue.catch_up()
    assert slurm.look() == slurm.jobs
    slurm.change(1, state="RUNNING", nodes="n1", min_nodes=1)
    slurm.gres = {"1": {"n1": "gpu:4"}}
    seen = slurm.look()[1]
    assert (seen.state, seen.min_nodes) == ("RUNNING", 1)


def test_if_jobs_cannot_be_read_by_themselves_all_are_read_in_time(printing_single_jobs: Slurm) -> None:
    slurm = printing_single_jobs
    slurm.change(5, **UNSEEN)
    slurm.gone = {str(number) for number in slurm.jobs}
    began = slurm.now
    while slurm.look_again(after=3.0) != slurm.jobs:
        assert slurm.now < began + 2 * SPREAD_S + 5.0
    assert slurm.reads == 1


GOT = {"gpus_by_node": {"n1": 4, "n2": 1}, "gpu_indexes": {"n1": 15, "n2": 1}}
GOT_TYPES = {"n1": {"h100": 4}, "n2": {"h100": 1}}


def test_a_start_and_its_gpus_are_seen_at_once(slurm: Slurm) -> None:
    slurm.change(5, state="RUNNING", nodes="n[1-2]", start_time=2100.0, gpus_by_type=GOT_TYPES, **GOT)
    slurm.gres = {"5": {"n1": "gpu:h100:4(IDX:0-3)", "n2": "gpu:h100:1(IDX:0)"}}
    for _ in range(3):
        assert slurm.look() == slurm.jobs
    assert slurm.asked == [["5"]]
    assert slurm.reads == 0


def test_the_gpus_of_a_job_whose_nodes_boot_are_asked_for_when_it_runs(slurm: Slurm) -> None:
    slurm.change(5, state="CONFIGURING", nodes="n[1-2]")
    assert slurm.look() == slurm.jobs
    assert slurm.asked == []
    slurm.change(5, state="RUNNING", gpus_by_type=GOT_TYPES, **GOT)
    slurm.gres = {"5": {"n1": "gpu:h100:4(IDX:0-3)", "n2": "gpu:h100:1(IDX:0)"}}
    assert slurm.look() == slurm.jobs
    assert slurm.reads == 0


@pytest.mark.parametrize(
    "gres", [{}, {"5": {"n3": "gpu:4"}}, {"6": {"n1": "gpu:4"}}], ids=["unknown", "other nodes", "another job"]
)
def test_gpus_that_cannot_be_asked_for_are_seen_after_a_full_read(
    slurm: Slurm, gres: dict[str, dict[str, str]]
) -> None:
    slurm.change(5, state="RUNNING", reason="None", nodes="n[1-2]", start_time=2100.0, gpus_by_node={"n1": 4, "n2": 1})
    slurm.gres = gres
    seen = slurm.look()[5]
    assert (seen.state, seen.nodes, seen.start_time, seen.gpus_by_node) == ("RUNNING", "n[1-2]", 2100.0, {})
    assert slurm.look(after=9.0) != slurm.jobs  # the full read comes between cycles
    assert slurm.look_again() == slurm.jobs
    assert slurm.reads == 1


@pytest.fixture
def array(slurm: Slurm) -> Slurm:
    """Job 5 is an array, of which two tasks may run at once."""
    slurm.change(5, job_id="5", array_tasks="0-3,5", array_most=2)
    slurm.look(LONGEST_S)
    slurm.look()
    slurm.reads = 0
    return slurm


def split(slurm: Slurm, task: int, rest: str, **fields: Any) -> int:
    """Split a task from array 5; its number."""
    number = len(slurm.jobs) + 1
    slurm.jobs[number] = dataclasses.replace(slurm.jobs[5], number=number, job_id=f"5_{task}", array_tasks="", **fields)
    slurm.change(
        5, **({"array_tasks": rest} if "," in rest or "-" in rest else {"job_id": f"5_{rest}", "array_tasks": ""})
    )
    return number


def test_tasks_that_are_split_from_an_array_need_no_full_read(array: Slurm) -> None:
    split(array, 0, "1-3,5", eligible_time=5000.0)
    split(array, 1, "2-3,5", eligible_time=5000.0, reason="Resources")
    assert array.look() == array.jobs
    split(array, 3, "2,5")
    assert array.look() == array.jobs
    split(array, 2, "5")
    assert array.look_again(after=9.0) == array.jobs
    assert array.reads == 0


def test_the_limit_of_an_array_is_seen_at_once_or_with_the_next_full_read(array: Slurm) -> None:
    """A line for each task does not show it."""
    array.change(5, array_most=4)
    assert (array.look() == array.jobs) is not array.task_lines
    assert array.look(after=LONGEST_S) == array.jobs


def test_a_split_task_that_runs_is_seen_at_once(array: Slurm) -> None:
    got = {"gpus_by_node": {"n1": 4}, "gpus_by_type": {"n1": {"": 4}}}
    number = split(array, 0, "1-3,5", state="RUNNING", nodes="n1", start_time=2100.0, **got)
    array.gres = {str(number): {"n1": "gpu:4"}}
    assert array.look() == array.jobs
    assert array.look_again(after=9.0) == array.jobs
    assert array.reads == 1, "what else has changed"


@pytest.mark.parametrize("fields", [{"required_nodes": "n1"}, {"cpus": 8}], ids=["pinned", "changed"])
def test_a_split_task_with_another_request_is_read_in_full(array: Slurm, fields: dict[str, Any]) -> None:
    split(array, 0, "1-3,5", **fields)
    assert array.look() == array.jobs
    assert array.reads == 1


def test_a_list_of_tasks_that_is_cut_off_is_read_in_full(array: Slurm) -> None:
    split(array, 0, ",".join(map(str, [*range(1, 200, 2), 202])))
    assert array.look() == array.jobs
    assert array.reads == (0 if array.task_lines else 1), "a line for each task shows them all"


@pytest.mark.parametrize(
    ("tasks", "rest", "reads"),
    [
        ("0-30:2", "2-30:2", 0),
        ("0-30:2", "0-28:2", 0),
        ("0-30:2", "4,8,12,16-20", 0),
        ("0-15:3", "3,6,9,12,15", 0),
        ("0-15:3", "0,3,6,9,12", 1),  # shown like 0-15:3
        ("0-12:2", "0,2,4,6,8,10", 1),
        ("0-8,12,16", "0,4,8,12,16", 0),
    ],
)
def test_the_last_task_of_even_steps_is_not_lost(array: Slurm, tasks: str, rest: str, reads: int) -> None:
    array.change(5, array_tasks=tasks)
    array.look(after=LONGEST_S)
    array.look()
    array.reads = 0
    array.change(5, array_tasks=rest, reason="Resources")
    for _ in range(3):
        assert array.look() == array.jobs
    assert array.reads == (reads if array.task_lines else 0)


def test_with_very_many_tasks_all_jobs_are_read_in_full_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slurm = Slurm(task_lines=True)
    slurm.change(5, array_tasks=f"0-{TASKS_PER_JOB * MANY}")
    for expected in (1, 2, 3):
        assert slurm.look() == slurm.jobs
        slurm.queue.catch_up()
        assert slurm.reads == expected
    assert caplog.text.count("5001 tasks of arrays are pending: squeue reads slowly") == 1
    slurm.change(5, array_tasks="0-99")
    for _ in range(4):
        assert slurm.look() == slurm.jobs
    assert slurm.reads == 5
    assert len(caplog.records) == 1


def test_with_one_line_for_each_record_very_many_tasks_do_not_matter() -> None:
    slurm = Slurm()
    slurm.change(5, array_tasks=f"0-{TASKS_PER_JOB * MANY}")
    for _ in range(4):
        assert slurm.look() == slurm.jobs
    assert slurm.reads == 2


def test_tasks_of_an_array_that_is_not_known_wait_for_a_full_read(slurm: Slurm) -> None:
    slurm.jobs[MANY + 2] = record(MANY + 2, job_id=f"{MANY + 1}_4")
    assert slurm.look().keys() == slurm.jobs.keys() - {MANY + 2}
    assert slurm.look_again(after=9.0) == slurm.jobs
    assert slurm.reads == 1


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
def test_the_last_task_of_an_array_is_not_mistaken_for_the_array(array: Slurm, state: str) -> None:
    """Until it starts, it shares the record of all pending tasks."""
    array.change(5, job_id="5_4", array_tasks="", state=state, nodes="n1", start_time=2100.0)
    assert array.look() == array.jobs
    assert array.look_again(after=9.0) == array.jobs
    assert array.reads == (state == "RUNNING"), "only the GPUs of a running job are read in full"


def test_cancelling_a_whole_array_costs_one_full_read(array: Slurm) -> None:
    array.change(5, state="CANCELLED", end_time=2200.0)
    for _ in range(5):
        assert array.look() == array.jobs
    assert array.reads == 1


def test_a_requeue_frees_the_nodes(slurm: Slurm) -> None:
    slurm.change(5, state="RUNNING", nodes="n1", gpus_by_node={"n1": 4})
    slurm.look(after=LONGEST_S)
    slurm.change(5, state="REQUEUED", nodes="", submit_time=3000.0, restarts=1)
    again = slurm.look()[5]
    assert (again.state, again.nodes, again.gpus_by_node, again.restarts) == (PENDING, "", {}, 1)


def test_a_pin_does_not_hide_that_the_job_runs(slurm: Slurm) -> None:
    """The pin changes fields that only a full read shows; the state must not wait for it."""
    slurm.change(5, required_nodes="n1", state="RUNNING", nodes="n1")
    assert slurm.look()[5].state == "RUNNING"
    assert slurm.reads == 0


@pytest.mark.parametrize("again", [False, True], ids=["waits", "requeued"])
def test_a_pending_jobs_request_is_never_outdated(slurm: Slurm, again: bool) -> None:
    """Otherwise a withdrawn pin would look like the owner's node list, and old fields would be restored."""
    if again:
        slurm.change(5, required_nodes="n1", state="RUNNING", nodes="n1")
        slurm.look()
        slurm.change(5, state=PENDING, nodes="", restarts=1)
    else:
        slurm.change(5, required_nodes="n1")
    assert slurm.look() == slurm.jobs
    assert slurm.reads == 1


def test_new_jobs_cause_a_full_read_between_cycles_and_not_too_often(slurm: Slurm) -> None:
    """A read takes one second, so the next one follows nine seconds later."""
    for expected in (1, 2):
        slurm.jobs[MANY + expected] = record(MANY + expected)
        assert slurm.look(after=3.0).keys() != slurm.jobs.keys()
        assert slurm.look_again(after=1.0).keys() != slurm.jobs.keys()
        assert slurm.reads == expected - 1
        assert slurm.look_again(after=5.0) == slurm.jobs
        assert slurm.reads == expected


def test_a_job_submitted_during_a_read_appears_in_the_next_one(slurm: Slurm) -> None:
    """Its request may have changed between the two, and no line would show that."""
    slurm.jobs[MANY + 1] = record(MANY + 1)
    slurm.late = [record(MANY + 2)]
    slurm.look(after=9.0)
    assert slurm.look_again().keys() == slurm.jobs.keys() - {MANY + 2}
    slurm.late = []
    slurm.change(MANY + 2, required_nodes="n1")
    assert slurm.look_again(after=9.0) == slurm.jobs
    assert slurm.reads == 2


def test_after_malformed_output_a_second_full_read_follows(slurm: Slurm) -> None:
    """After the full read, there are no earlier lines that would show later changes."""
    slurm.text = b"squeue: what?"
    slurm.look()
    slurm.text = None
    slurm.change(5, required_nodes="n1")
    assert slurm.look() == slurm.jobs
    assert slurm.reads == 2


def test_a_job_that_slurm_has_purged_is_removed(slurm: Slurm) -> None:
    slurm.jobs.update({MANY + 1: record(MANY + 1)})
    slurm.look(after=LONGEST_S)
    del slurm.jobs[7]
    assert slurm.look() == slurm.jobs


@pytest.mark.parametrize("between", [True, False])
def test_a_full_read_follows_once_a_minute(slurm: Slurm, between: bool) -> None:
    slurm.change(5, excluded_nodes="n1")  # which no column shows
    assert slurm.look()[5].excluded_nodes == ""
    assert (slurm.look_again(LONGEST_S / 2) if between else slurm.look(LONGEST_S)) == slurm.jobs
    assert slurm.reads == 1


@pytest.mark.parametrize(
    "text",
    [b"", b"squeue: what?\n", b"\n" * len(line(record(1))), line(record(1))[:-1] + b" ", line(record(1)) + b"x"],
    ids=["empty", "words", "newlines", "no newline", "more"],
)
def test_malformed_output_costs_a_full_read(slurm: Slurm, text: bytes) -> None:
    slurm.text = text
    assert slurm.look() == slurm.jobs
    assert slurm.reads == 1


@pytest.mark.parametrize(("shown", "code", "signal"), [("0:15", 0, 15), ("3:0", 3, 0), ("143:0", 143, 0)])
def test_an_exit_code_that_is_shown_with_the_signal(slurm: Slurm, shown: str, code: int, signal: int) -> None:
    slurm.jobs[5] = record(5, state="FAILED", exit_code=code, signal=signal)
    slurm.columns = {"exit_code": shown}
    found = slurm.look()[5]
    assert (found.exit_code, found.signal) == (code, signal)
    assert slurm.reads == 0


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_recorded_lines_show_what_the_recorded_json_shows(release: str) -> None:
    """Changed, split and cancelled jobs, among them an array whose name looks like fields of other jobs."""
    folder = RECORDED / release
    before, after = ((folder / f"lines-{name}.txt").read_bytes() for name in ("before", "after"))
    first, last = (parse_jobs((folder / f"lines-{name}.json").read_text("utf-8")) for name in ("before", "after"))
    said, reads = [before, after], []

    def read() -> list[JobRecord]:
        reads.append(1)
        return first

    queue = IncrementalQueue(
        lambda: said.pop(0), read, lambda _: {}, lambda: 0.0, many=1, task_lines=not prints_records(release)
    )
    for _ in range(3):
        found = {job.number: _without_estimates(job) for job in queue.jobs()}
    assert found == {job.number: _without_estimates(job) for job in last}
    assert len(reads) == 2, "the last read was an incremental one"


def _without_estimates(job: JobRecord) -> JobRecord:
    """Without the start and end that Slurm expects, and without what an ended job has no longer."""
    if job.state == PENDING:
        return dataclasses.replace(job, start_time=0.0, end_time=0.0)
    return dataclasses.replace(job, cpus=0, tasks=0, gpus_by_node={}, gpus_by_type={}, gpu_indexes={})


@given(
    st.sets(st.integers(0, 40), min_size=1)
    | st.builds(range, st.integers(0, 9), st.integers(10, 99), st.integers(1, 9))
)
def test_tasks_are_written_as_slurm_writes_them(tasks: Iterable[int]) -> None:
    assert sorted(task for each in read_tasks(fold_tasks(sorted(tasks))) for task in each) == sorted(tasks)


@pytest.mark.parametrize("text", ["7", "0-3,7", "0-20:2", "0,2,4,6,8,10", "1,3", "0-1,3-20"])
def test_tasks_that_slurm_has_written_are_written_alike(text: str) -> None:
    assert fold_tasks([task for each in read_tasks(text) for task in each]) == text


@pytest.mark.parametrize("column", ["SubmitTime", "PriorityLong", "Nice", "exit_code"])
def test_a_changed_line_that_cannot_be_read_costs_a_full_read(slurm: Slurm, column: str) -> None:
    slurm.columns = {column: "soon"}
    assert slurm.look() == slurm.jobs
    assert slurm.reads == 1


def test_a_slurm_that_does_not_answer_raises_an_error(slurm: Slurm) -> None:
    slurm.text, slurm.answers = b"", False
    with pytest.raises(SlurmError, match="away"):
        slurm.look()


@pytest.mark.parametrize(
    ("columns", "field", "kept"),
    [
        ({"Reason": "Nodes required for job are DOWN, DRAINED or reserved"}, "reason", "BeginTime"),
        ({"Dependency": "afterok:" + "1," * 200}, "dependency", "afterok:3"),
        ({"NodeList": "n[" + "1," * 200}, "nodes", ""),
    ],
)
def test_values_that_are_cut_off_or_sentences_are_ignored(columns: dict[str, str], field: str, kept: str) -> None:
    before = record(1, dependency="afterok:3")
    seen, whole = update_record(before, line(before), line(before, **columns))
    assert getattr(seen, field) == kept
    assert not whole


@given(st.binary(max_size=3 * len(line(record(1)))))
def test_any_output_is_parsed_or_refused(text: bytes) -> None:
    try:
        found = parse_lines(text)
    except SlurmError:
        return
    assert all(number >= 0 or text for number in found)
    for job_line in found.values():
        try:
            update_record(record(1), line(record(1)), job_line)
        except SlurmError:
            continue


@given(st.text(max_size=80), st.sampled_from(["admin_comment", "Feature", "Dependency", "Reason"]))
def test_no_value_can_forge_another_job_or_column(value: str, column: str) -> None:
    first, second = record(1), record(2)
    forged = value + line(second, State="RUNNING").decode()
    lines = parse_lines(line(first, **{column: forged}) + line(second))
    assert lines.keys() == {1, 2}
    seen, _ = update_record(first, line(first), lines[1])
    assert (seen.state, seen.priority) == (first.state, first.priority)
