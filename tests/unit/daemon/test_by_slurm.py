"""Jobs whose nodes Slurm must choose: in the queue with all others, released at their turn, their room kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.slurm.limits import SiteLimits
from slurm_asrpt.slurm.priorities import PartitionPriority, SitePriorities, Weights
from slurm_asrpt.slurm.writeback import PINNED_PRIORITY
from slurm_asrpt.status.document import count_jobs
from slurm_asrpt.status.explain import explain
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import GROUP

UNPIN_S = 10.0  # the bench's setting


@pytest.fixture
def gated(make_bench: Callable[..., Bench]) -> Bench:
    """Three nodes of four GPUs under asrpt-gated."""
    return make_bench(policy="asrpt-gated", release_ahead=0)


def left(why: str) -> str:
    return Tag(GROUP, left=why).format()


@pytest.mark.parametrize(
    ("fields", "gpus"),
    [
        ({"contiguous": True}, 8),
        ({"admin_comment": left("switches")}, 8),
        ({"exclusive": "user"}, 8),
        ({"features": "a*2"}, 8),
        ({"required_nodes": "n9"}, 8),
        ({"tasks_per_node": 5}, 8),
        ({"tasks_per_socket": 2}, 8),
        ({"admin_comment": left("interactive"), "leased": False}, 8),
    ],
)
def test_slurm_chooses_the_nodes_at_the_jobs_turn(gated: Bench, fields: dict[str, Any], gpus: int) -> None:
    blockers = [gated.slurm.submit(4, 100) for _ in range(3)]
    gated.cycle(2)
    job_id = gated.slurm.submit(8, 10, **fields)
    gated.cycle(2)
    assert gated.job_state(job_id) is JobState.QUEUED
    assert gated.slurm.records[job_id].eligible_time > gated.slurm.now  # leased
    assert "Slurm will choose its nodes" in next(
        row.text for row in gated.status(gated.slurm.now).jobs if row.job_id == job_id
    )
    for blocker in blockers[:2]:
        gated.slurm.end(blocker)
    gated.slurm.starts_jobs = False
    gated.cycle(2)
    job = gated.job(job_id)
    assert job.state is JobState.PINNED
    assert job.pin is not None
    assert sum(job.pin.gpus.values()) == gpus
    assert job.reason is not None
    assert job.reason.kind == "slurm-starts"
    assert not [fields for fields in gated.writes(job_id) if "NumNodes" in fields or "ReqNodeList" in fields]
    assert gated.slurm.records[job_id].eligible_time <= gated.slurm.now


@pytest.mark.parametrize(
    ("version", "fields", "by_slurm"),
    [
        ("24.11.5", {}, "bound"),
        ("23.11.0", {}, "bound"),
        ("22.05.8", {}, ""),  # it shows only what the owner has set
        ("24.11.5", {"max_nodes": 2}, ""),
        ("24.11.5", {"min_nodes": 2, "max_nodes": 2}, ""),
        ("24.11.5", {"tres_per_task": "gres:gpu:4", "tasks": 1}, ""),  # one node can hold it
        ("24.11.5", {"tres_per_task": "gres:gpu:13", "tasks": 1}, ""),  # nothing can
    ],
)
def test_slurm_chooses_the_nodes_where_it_shows_too_few(make_bench, version, fields, by_slurm) -> None:
    """A job that was held at submission shows as one of a single node, whatever it needs (24.11)."""
    bench = make_bench(policy="asrpt-gated", release_ahead=0)
    bench.slurm.version = version
    bench.restart()
    job_id = bench.slurm.submit(8, 10, **{"max_nodes": 1, **fields})
    bench.slurm.starts_jobs = False
    bench.cycle(2)
    assert bench.job(job_id).by_slurm == by_slurm
    assert bool(by_slurm) <= (bench.job_state(job_id) is JobState.PINNED)
    assert not by_slurm or not [each for each in bench.writes(job_id) if "NumNodes" in each or "ReqNodeList" in each]


def test_the_room_is_kept_until_slurm_has_started_the_job_or_some_time_has_passed(gated: Bench) -> None:
    job_id = gated.slurm.submit(12, 100, contiguous=True)
    gated.slurm.starts_jobs = False
    gated.cycle(2)
    small = gated.slurm.submit(1, 1)
    gated.cycle(int(3 * UNPIN_S) - 3)
    assert (gated.job_state(job_id), gated.job_state(small)) == (JobState.PINNED, JobState.QUEUED)
    gated.cycle(4)
    assert gated.audit("not-started", job_id)
    gated.cycle(int(3 * UNPIN_S) + 3)
    assert len(gated.audit("not-started", job_id)) == 2
    assert gated.job_state(job_id) is JobState.INELIGIBLE  # a pause, in which others may start
    assert gated.slurm.records[job_id].eligible_time > gated.slurm.now
    assert gated.slurm.records[job_id].priority == 100
    gated.slurm.starts_jobs = True
    gated.cycle(10)
    assert {gated.job_state(each) for each in (job_id, small)} == {JobState.RUNNING, JobState.QUEUED}


def test_a_stream_of_small_jobs_does_not_starve_a_job_on_contiguous_nodes(gated: Bench) -> None:
    started = []
    job_id = ""
    for second in range(120):
        started.append(gated.slurm.submit(2, 20))
        if second == 20:
            job_id = gated.slurm.submit(12, 100, contiguous=True)
        gated.cycle(1)
        for each in list(started):
            record = gated.slurm.records[each]
            if record.state == "RUNNING" and gated.slurm.now >= record.start_time + 10:
                gated.slurm.end(each)
    assert gated.job_state(job_id) is JobState.RUNNING
    began = gated.slurm.records[job_id].start_time
    before = [each for each in started if int(each) < int(job_id)]
    assert all(gated.slurm.records[each].start_time <= began for each in before)
    after = [gated.slurm.records[each].start_time for each in started if int(each) > int(job_id)]
    assert not [start for start in after if began - 20 < start < began]


SITE = SitePriorities(Weights(age=1000, job_size=100), {"gpu": PartitionPriority()}, known=True)


def queue_of(bench: Bench) -> list[str]:
    return [str(job_id) for job_id, _ in bench.scheduler.decider.policy.queue(bench.slurm.now)]


@pytest.mark.parametrize("multifactor", [True, False])
def test_a_large_job_on_contiguous_nodes_has_its_place_in_slurms_order(gated: Bench, multifactor: bool) -> None:
    slurm = gated.slurm
    slurm.multifactor = multifactor
    if multifactor:
        slurm.site_priorities = SITE
    slurm.submit(12, 100, priority=90)
    gated.cycle(3)
    older, higher = slurm.submit(4, 5, priority=20), slurm.submit(4, 900, priority=80)
    large = slurm.submit(12, 900, contiguous=True, priority=70)
    gated.cycle(1)
    younger, above = slurm.submit(4, 1, priority=20), slurm.submit(4, 900, priority=75)
    gated.cycle(3)
    by_slurm = [higher, above, large, younger, older]
    assert queue_of(gated) == (by_slurm if multifactor else [older, higher, large, younger, above])
    slurm.change(large, reason="JobHeldUser", priority=0)
    gated.cycle(2)
    assert queue_of(gated) == [younger, older, higher, above], "a held job delays nobody"


def test_a_job_on_contiguous_nodes_that_a_limit_holds_delays_nobody(gated: Bench) -> None:
    slurm = gated.slurm
    slurm.site_limits = SiteLimits(licenses={"matlab": 1.0})
    slurm.submit(12, 100, licenses="matlab")
    gated.cycle(3)
    older = slurm.submit(4, 900)
    held = slurm.submit(12, 900, contiguous=True, licenses="matlab")
    free = slurm.submit(12, 900, contiguous=True)
    younger = slurm.submit(4, 1)
    gated.cycle(3)
    assert queue_of(gated) == [older, held, free, younger]
    slurm.end(free, "CANCELLED")
    gated.cycle(2)
    assert queue_of(gated) == [younger, older, held]


def test_a_restart_keeps_a_released_job_and_its_room(gated: Bench) -> None:
    job_id = gated.slurm.submit(12, 100, contiguous=True)
    gated.slurm.starts_jobs = False
    gated.cycle(2)
    gated.restart()
    gated.cycle(2)
    assert gated.job_state(job_id) is JobState.PINNED
    assert gated.job(job_id).by_slurm == "contiguous"
    gated.cycle(int(3 * UNPIN_S))
    assert not [fields for fields in gated.writes(job_id) if "NumNodes" in fields or "ReqNodeList" in fields]


@pytest.mark.parametrize("mode", ["shadow", "order"])
def test_other_modes_leave_them_to_slurm(make_bench: Callable[..., Bench], mode: str) -> None:
    bench = make_bench(mode=mode)
    job_id = bench.slurm.submit(4, contiguous=True, leased=False)
    bench.slurm.starts_jobs = False
    bench.cycle(2)
    assert bench.job_state(job_id) in (JobState.LEFT_TO_SLURM, JobState.RUNNING)


def test_a_job_that_asrptd_cannot_plan_at_all_is_left_to_slurm(gated: Bench) -> None:
    job_id = gated.slurm.submit(13, 10, contiguous=True)
    gated.cycle(2)
    assert gated.job_state(job_id) is JobState.LEFT_TO_SLURM


@pytest.mark.parametrize(("allowed", "state"), [(True, JobState.LEFT_TO_SLURM), (False, JobState.QUEUED)])
def test_an_admin_may_forbid_to_opt_out(make_bench: Callable[..., Bench], allowed: bool, state: JobState) -> None:
    bench = make_bench(policy="asrpt-gated", release_ahead=0, tables={"slurm": {"allow_opt_out": allowed}})
    for _ in range(3):
        bench.slurm.submit(4, 100)
    bench.cycle(2)
    job_id = bench.slurm.submit(4, 10, admin_comment=left("off"), leased=False)
    bench.cycle(2)
    assert bench.job_state(job_id) is state
    assert (bench.slurm.records[job_id].eligible_time > bench.slurm.now) is not allowed


def test_a_heterogeneous_job_waits_for_room_for_all_components(gated: Bench) -> None:
    for _ in range(2):
        gated.slurm.submit(4, 100)
    gated.cycle(2)
    first = str(gated.slurm.last_number + 1)
    common: dict[str, Any] = {"het": True, "het_id": first, "admin_comment": left("het"), "leased": False}
    gated.slurm.starts_jobs = False
    parts = [gated.slurm.submit(gpus, 10, **common) for gpus in (3, 4)]
    gated.slurm.submit(1, 10, **common, tres_per_task="")
    gated.cycle(2)
    assert [gated.job_state(part) for part in parts] == [JobState.QUEUED, JobState.LEFT_TO_SLURM]
    job = gated.job(first).job
    assert job is not None
    assert (job.gpus, job.request.min_nodes, gated.job(first).in_slurms_order) == (7, 2, True)
    assert gated.slurm.records[first].eligible_time > gated.slurm.now
    assert gated.writes(parts[1]) == []
    gated.slurm.end("1")
    gated.cycle(2)
    assert gated.job_state(first) is JobState.PINNED
    assert gated.writes(first)[-1] == {"StartTime": "now", "Priority": str(PINNED_PRIORITY)}


def test_a_waiting_component_is_neither_left_to_slurm_nor_counted_twice(gated: Bench) -> None:
    gated.slurm.submit(4, 100)
    gated.cycle(2)
    first = str(gated.slurm.last_number + 1)
    common: dict[str, Any] = {"het": True, "het_id": first, "admin_comment": left("het"), "leased": False}
    gated.slurm.starts_jobs = False
    second = [gated.slurm.submit(gpus, 10, **common) for gpus in (3, 4)][1]
    gated.cycle(2)
    found = gated.status(gated.slurm.now)
    row = next(row for row in found.jobs if row.job_id == second)
    said = explain(found, row)
    assert (row.state, row.text) == ("waiting", "it starts with the first component of its heterogeneous job")
    assert "as a whole" in said.rule
    assert said.changes == [
        f"no action needed: the first component says what the job waits for (asrpt-status --explain {first})"
    ]
    assert sum(gpus for _, gpus in count_jobs(found.jobs).values()) == 4 + 3 + 4


def test_a_heterogeneous_job_without_gpus_waits_for_room_for_all_components(gated: Bench) -> None:
    blocker = gated.slurm.submit(60, admin_comment=Tag(GROUP).format(), tres_per_task="", min_nodes=1)
    gated.cycle(2)
    first = str(gated.slurm.last_number + 1)
    common: dict[str, Any] = {"het": True, "het_id": first, "admin_comment": left("het"), "leased": False}
    common |= {"tres_per_task": "", "min_nodes": 1}
    gated.slurm.starts_jobs = False
    for tasks in (10, 40, 5):
        gated.slurm.submit(tasks, **common)
    gated.cycle(2)
    job = gated.job(first)
    assert job.cpu_job is not None
    assert (job.cpu_job.cpus, job.cpu_job.min_nodes, job.by_slurm) == (120, 3, "het")
    assert job.state is JobState.INELIGIBLE
    assert gated.slurm.records[first].eligible_time > gated.slurm.now
    gated.slurm.end(blocker)
    gated.cycle(2)
    assert job.state is JobState.PINNED
    assert gated.writes(first)[-1] == {"StartTime": "now", "Priority": str(PINNED_PRIORITY)}
    assert job.reason is not None
    assert job.reason.kind == "slurm-starts"


@pytest.mark.parametrize(
    ("licenses", "state", "asks_for"), [(2.0, JobState.QUEUED, math.inf), (3.0, JobState.PINNED, 3.0)]
)
def test_all_components_count_against_limits(gated: Bench, licenses: float, state: JobState, asks_for: float) -> None:
    """Together they exceed the smaller limit by themselves."""
    gated.slurm.site_limits = SiteLimits(licenses={"matlab": licenses})
    first = str(gated.slurm.last_number + 1)
    common: dict[str, Any] = {"het": True, "het_id": first, "admin_comment": left("het"), "leased": False}
    gated.slurm.starts_jobs = False
    for count in ("matlab", "matlab:2"):
        gated.slurm.submit(1, 10, licenses=count, **common)
    gated.cycle(2)
    assert gated.job_state(first) is state
    assert gated.job(first).charges == (("license matlab", asks_for),)


def test_a_limit_that_holds_a_later_component_withdraws_the_start_at_once(gated: Bench) -> None:
    """Slurm says Resources of the first one, for which asrptd would keep GPUs for three times unpin_after_s."""
    first = str(gated.slurm.last_number + 1)
    common: dict[str, Any] = {"het": True, "het_id": first, "admin_comment": left("het"), "leased": False}
    gated.slurm.starts_jobs = False
    second = [gated.slurm.submit(1, 10, **common) for _ in range(2)][1]
    gated.cycle(2)
    assert gated.job_state(first) is JobState.PINNED
    gated.slurm.change(first, reason="Resources")
    gated.slurm.change(second, reason="QOSMaxBillingPerUser")
    gated.cycle()
    job = gated.job(first)
    assert (job.state, job.reason and job.reason.kind) == (JobState.QUEUED, "over-limit")


def test_a_job_requeued_while_no_daemon_ran_gets_its_own_priority_back(gated: Bench) -> None:
    """Its pin is only a priority, which Slurm keeps."""
    gated.slurm.multifactor = True
    gated.restart()
    job_id = gated.slurm.submit(12, 100, contiguous=True)
    gated.cycle(2)
    assert gated.job_state(job_id) is JobState.RUNNING
    gated.slurm.requeued(job_id)
    gated.restart()
    gated.cycle(2)
    assert gated.slurm.site_factors[job_id] == 0
    assert gated.slurm.records[job_id].priority == 100


def test_a_job_with_a_deadline_changes_the_order_of_others_only_when_half_of_its_time_is_over(gated: Bench) -> None:
    """It can start within 200 s."""
    gated.slurm.submit(12, 10**5)
    gated.cycle(2)
    long, short = gated.slurm.submit(12, 1000), gated.slurm.submit(12, 10)
    last = gated.slurm.submit(12, 100, time_limit=600.0, deadline=gated.slurm.now + 800.0)
    gated.cycle(5)
    turns = {job_id: gated.job(job_id).job.turn for job_id in (long, short, last)}  # type: ignore[union-attr]
    assert turns == dict.fromkeys(turns)
    rows = [row for row in gated.status(gated.slurm.now).jobs if row.rank]
    assert [(row.job_id, row.priority) for row in rows] == [(short, ""), (last, ""), (long, "")]
    gated.cycle(100)
    rows = [row for row in gated.status(gated.slurm.now).jobs if row.rank]
    assert [row.job_id for row in rows] == [long, short, last]
    assert "precedes a large job" in rows[0].priority
    assert "before its deadline" in rows[2].priority


def test_a_large_job_whose_nodes_slurm_chooses_says_that_it_goes_by_slurms_order(gated: Bench) -> None:
    gated.slurm.submit(12, 100)
    gated.cycle(2)
    large, work = gated.slurm.submit(8, 10, contiguous=True), gated.slurm.submit(4, 10)
    gated.cycle(2)
    rows = {row.job_id: row.priority for row in gated.status(gated.slurm.now).jobs}
    assert rows[large] == "Slurm's own order, as a large job whose nodes Slurm chooses"
    assert rows[work] == ""


def test_a_job_that_cannot_end_before_its_deadline_is_handed_to_slurm_which_cancels_it(gated: Bench) -> None:
    gated.slurm.submit(12, 10**5)
    gated.cycle(2)
    job_id = gated.slurm.submit(12, 100, time_limit=600.0, deadline=gated.slurm.now + 605.0)
    gated.cycle(2)
    assert gated.job_state(job_id) is JobState.QUEUED
    gated.cycle(6)
    assert gated.job_state(job_id) is JobState.LEFT_TO_SLURM
    assert gated.slurm.records[job_id].eligible_time <= gated.slurm.now
    assert "cannot end before its deadline" in gated.status(gated.slurm.now).jobs[-1].text


@pytest.mark.parametrize(("why", "lists"), [("BadConstraints", 2), ("ReqNodeNotAvail", 4)])
def test_slurm_chooses_the_nodes_of_a_job_that_it_does_not_start_with_node_lists(
    gated: Bench, why: str, lists: int
) -> None:
    """As with both --gpus and --gpus-per-node: each start was withdrawn, and the job never ran."""
    job_id = gated.slurm.submit(1, 50)
    gated.slurm.refused_lists[job_id] = why
    gated.cycle(200)
    assert gated.slurm.records[job_id].state == "RUNNING"
    assert [each["why"] for each in gated.audit("not-started", job_id)] == [why] * lists


def test_a_start_that_slurm_will_never_make_is_withdrawn_at_once(gated: Bench) -> None:
    """The job would keep its GPUs for unpin_after_s, and for three times as long where Slurm chooses its nodes."""
    job_id, either = (gated.slurm.submit(1, 50, partition=names) for names in ("gpu", "gpu,gpu"))
    gated.slurm.refused_lists |= dict.fromkeys((job_id, either), "BadConstraints")
    gated.cycle(3)
    assert gated.audit("not-started", job_id)
    assert not gated.audit("not-started", either)  # another partition may start it in the same pass


@pytest.mark.parametrize("fields", [{}, {"tres_per_task": "", "cpus": 2}])
def test_slurm_chooses_the_nodes_of_a_job_whose_nodes_it_does_not_let_change(
    gated: Bench, fields: dict[str, Any]
) -> None:
    """As with -m arbitrary from 23.11 on: each start was refused, and the job waited for as long as asrptd ran."""
    job_id = gated.slurm.submit(1, 50, **fields)
    gated.slurm.fixed_nodes.add(job_id)
    gated.cycle(6)
    assert gated.slurm.records[job_id].state == "RUNNING"
    assert len(gated.audit("not-started", job_id)) == 1
