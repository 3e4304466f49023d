"""Explanations of jobs: from the scheduler through the published status to texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest
from slurm_asrpt_cli.status.explain import explain_command
from slurm_asrpt_cli.status.table import gpu_hours

from slurm_asrpt.core.reasons import KINDS, Phase
from slurm_asrpt.daemon.jobs.wait_reasons import KeptGpus
from slurm_asrpt.status.document import OWN_ORDER, UNUSED_PROFILE, JobStatus, Status
from slurm_asrpt.status.explain import add_ahead, explain
from slurm_asrpt.status.reason_texts import WORDS, change_of, in_words, rule_of
from tests.benches.daemon import Bench

FACTS = {
    "need": 8, "free": 3, "head": "17", "ahead": 2, "in_s": 60.0, "left_s": 9.0, "ratio": 2.0, "remaining_s": 5.0,
    "work_s": 9.0, "shape": "4 per node", "slurm_reason": "JobHeldUser", "partition": "gpu",
    "limit": "MaxJobs", "victims": 2, "kinds": "QOS scavenger", "why": "a job array", "reservation": "fair",
    "runs": "4, 5", "more": 3, "tasks": "4-6", "most": 3, "cpus": 4, "whole": 2,
    "gres": "nvme:1",
}  # fmt: skip


def status(bench: Bench) -> Status:
    return bench.status(bench.slurm.now)


def row(found: Status, job_id: str) -> JobStatus:
    return next(job for job in found.jobs if job.job_id == job_id)


@pytest.fixture
def gated(make_bench: Callable[..., Bench]) -> Bench:
    """Three nodes of four GPUs under asrpt-gated."""
    return make_bench(policy="asrpt-gated")


def test_explain_shows_jobs_ahead_free_gpus_and_the_next_ends(gated: Bench) -> None:
    runs = [gated.slurm.submit(4, iterations) for iterations in (50, 70)]
    gated.cycle(2)
    first, second = gated.slurm.submit(8, 100), gated.slurm.submit(12, 200)
    gated.cycle(2)
    found = status(gated)
    assert [(node.name, node.gpus, node.partitions) for node in found.nodes] == [
        (n, 4, ["gpu"]) for n in ("n1", "n2", "n3")
    ]
    assert sum(node.gpus_free for node in found.nodes) == found.gpus_free == 4
    one, two = explain(found, row(found, first)), explain(found, row(found, second))
    assert one.ahead is not None
    assert two.ahead is not None
    assert (one.ahead.jobs, two.ahead.jobs, two.ahead.gpus, two.ahead.nearest) == (0, 1, 8, [first])
    assert (one.own_gpu_s, two.ahead.gpu_s, two.own_gpu_s) == (800.0, 800.0, 2400.0)
    assert sum(one.free.values()) == 4
    assert [each.job_id for each in one.ends] == runs[:1]
    assert [each.job_id for each in two.ends] == runs
    assert one.ends[0].remaining_s == pytest.approx(row(found, runs[0]).remaining_s)
    assert one.reason in ("gpus", "reserved")
    assert (one.why, one.rule, bool(one.changes)) == (row(found, first).text, rule_of(one.reason, {}), True)


def test_a_job_with_reserved_gpus_shows_the_placement_possible_now(gated: Bench) -> None:
    """There are enough GPUs, but on more servers than the job needs: it waits because alpha exceeds alpha~min."""
    for _ in range(2):
        gated.slurm.submit(3, 500)
        gated.cycle(1)
    waits = gated.slurm.submit(6, 10, profile="tail")
    gated.cycle(1)
    job = row(status(gated), waits)
    assert (job.reason, job.nodes) == ("reserved", {"n1": 1, "n2": 1, "n3": 4})
    assert job.alpha is not None
    assert job.alpha_min is not None
    assert job.alpha > job.alpha_min


def test_a_job_left_to_slurm_shows_what_its_owner_can_change(gated: Bench) -> None:
    pinned = gated.slurm.submit(4, 10, reservation="r", leased=False, eligible_time=2e9, reason="BeginTime")
    gated.cycle(1)
    found = status(gated)
    said = explain(found, row(found, pinned))
    assert (said.state, said.reason, said.ahead, said.ends) == (Phase.LEFT, "left", None, [])
    assert row(found, pinned).gpus == 4
    assert "without --reservation" in said.changes[0]
    assert "squeue --start" in said.changes[1]


def too_large(bench: Bench, gpus: int, **fields: object) -> JobStatus:
    job_id = bench.slurm.submit(gpus, **fields)
    bench.cycle(2)
    return row(status(bench), job_id)


def test_a_job_that_asks_for_more_nodes_than_there_are_is_told_so(gated: Bench) -> None:
    large = too_large(gated, 5, tres_per_task="", tres_per_node="gres:gpu:1", min_nodes=5, max_nodes=5)
    assert large.text == "asks for 5 nodes; the nodes that it may use are 3"
    said = explain(status(gated), large)
    assert said.changes == ["the owner must resubmit it with fewer nodes (-N)"]
    assert (large.rank, said.ahead, said.free, said.ends) == (None, None, {}, [])
    behind = gated.slurm.submit(12, 10)
    gated.slurm.submit(12, 20)
    gated.cycle(2)
    assert [job.rank for job in status(gated).jobs] == [None, 1, None]
    assert row(status(gated), behind).state == Phase.RUNNING


@pytest.mark.parametrize(
    ("gpus", "fields", "text"),
    [
        (13, {}, "needs 13 GPUs; the nodes that it may use have 12"),
        (6, {"max_nodes": 1}, "needs 6 GPUs, all on one node; the nodes that it may use do not have them so"),
    ],
)
def test_too_large_a_job_is_told_what_it_lacks(gated: Bench, gpus: int, fields: dict[str, int], text: str) -> None:
    large = too_large(gated, gpus, **fields)
    assert (large.reason, large.text) == ("capacity", text)
    assert "return to service" not in explain(status(gated), large).changes[0]


def test_a_job_whose_nodes_are_all_down_is_told_so(gated: Bench) -> None:
    for name in ("n1", "n2", "n3"):
        gated.slurm.node_state(name, "DOWN")
    large = too_large(gated, 1)
    assert large.text == "none of the nodes that it may use is in service"
    assert change_of("capacity", large.facts) == (
        "nodes must return to service, or the owner must resubmit it for other nodes"
    )


def test_free_gpus_that_are_kept_for_a_starting_job_name_this_job(gated: Bench) -> None:
    gated.slurm.starts_jobs = False
    first = gated.slurm.submit(8, 100)
    gated.cycle(2)
    waits, larger = gated.slurm.submit(12, 200), gated.slurm.submit(13, 300)
    gated.cycle(2)
    found = status(gated)
    assert row(found, first).state == Phase.STARTING
    assert row(found, waits).text == f"needs 12 GPUs, 4 free for it and 8 kept for job {first}, about to start"
    assert "kept" not in row(found, larger).text


def test_of_many_starting_jobs_only_the_first_are_named(make_bench: Callable[..., Bench]) -> None:
    """Thousands may start while thousands wait: each of these would name all of them."""
    many = make_bench((8, 8), policy="asrpt-gated")
    many.slurm.starts_jobs = False
    first = [many.slurm.submit(2, 100) for _ in range(8)]
    many.cycle(2)
    waits, elsewhere = many.slurm.submit(6, 200), many.slurm.submit(6, 300, required_nodes="n2")
    many.cycle(2)
    found = status(many)
    assert {row(found, job_id).state for job_id in first} == {Phase.STARTING}
    told = f"needs 6 GPUs, 0 free for it and 16 kept for jobs {', '.join(first[:5])} and 3 more, about to start"
    assert row(found, waits).text == told
    on_n2 = [job_id for job_id in first if "n2" in row(found, job_id).nodes]
    kept = f"needs 6 GPUs, 0 free for it and 8 kept for jobs {', '.join(on_n2)}, about to start"
    assert row(found, elsewhere).text == kept


def test_what_is_kept_is_found_once_for_all_jobs_with_the_same_nodes(gated: Bench) -> None:
    gated.slurm.starts_jobs = False
    first = gated.slurm.submit(8, 100)
    gated.cycle(2)
    kept = KeptGpus(gated.scheduling.jobs.values(), {"n1": 4, "n2": 1})
    for names, found in ((None, (5, first)), (frozenset({"n2"}), (1, first)), (frozenset({"n3"}), (0, ""))):
        assert kept.among(names) == found
        assert kept.among(names) is kept.among(names)


def test_no_advice_for_one_gpu_to_ask_for_fewer() -> None:
    assert change_of("gpus", {"need": 1, "free": 0}) == "running jobs must end"
    assert "fewer GPUs" in change_of("gpus", {"need": 2, "free": 0})


def test_nodes_that_are_down_could_help_a_job_that_they_could_hold(gated: Bench) -> None:
    gated.slurm.node_state("n1", "DOWN")
    large = too_large(gated, 9)
    assert large.text == "needs 9 GPUs; the nodes that it may use now have 8"
    assert explain(status(gated), large).changes == [
        "nodes must return to service, or the owner must resubmit it with fewer GPUs"
    ]


@pytest.mark.parametrize("kind", WORDS)
def test_every_kind_of_reason_has_a_text(kind: str) -> None:
    assert "{" not in in_words(kind, FACTS) + change_of(kind, FACTS) + rule_of(kind, FACTS)


@pytest.mark.parametrize(
    ("kind", "facts", "text"),
    [
        ("gpus", {"need": 1, "free": 0}, "needs 1 GPU, 0 free for it"),
        ("gpus", {"need": 16, "free": 1}, "needs 16 GPUs, 1 free for it"),
        (
            "shape", {"need": 8, "free": 9, "shape": "4 on each of 2 nodes", "most": 4},
            "needs 8 GPUs, 4 on each of 2 nodes; 9 free for it, at most 4 on one",
        ),
        ("behind", {"ahead": 1, "head": "7"}, "1 job ahead; job 7 is next"),
        ("behind", {"ahead": 2, "head": "7"}, "2 jobs ahead; job 7 is next"),
        ("room", {"need": 2, "runs": "4, 5"}, "preempting 4, 5 to free 2 GPUs for it"),
        ("reserved", {"need": 1, "in_s": 1500.0}, "has 1 GPU reserved about 00:25:00 from now"),
        ("reserved", {"need": 1, "in_s": 0.0}, "has 1 GPU reserved as soon as they are free"),
        ("reserved", {"need": 2, "in_s": None}, "has 2 GPUs reserved as soon as they are free"),
        ("placement", {"left_s": 90000.0, "ratio": 2.0}, "waits up to 1-01:00:00 for a better placement"),
        ("begin", {"until": datetime(2026, 11, 28, 23).timestamp()}, "not before 2026-11-28T23:00:00 (--begin"),
        ("begin", {}, "not before its begin time"),
        ("virtual", {"remaining_s": 5.0, "work_s": 1500.0}, "jobs with less predicted work go first (00:00:05 of 00"),
    ],
)  # fmt: skip
def test_numbers_and_durations_are_readable(kind: str, facts: dict[str, object], text: str) -> None:
    assert in_words(kind, facts).startswith(text)


def test_ignored_profiles_are_shown_for_each_job(gated: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Two jobs with the same profile have reasons of their own; a valid profile has none."""
    reasons = {
        gated.slurm.submit(2, 10, profile="flat"): "is for 4 GPUs, but a job requests 2",
        gated.slurm.submit(3, 10, profile="flat"): "is for 4 GPUs, but a job requests 3",
        gated.slurm.submit(2, 10, profile="nowhere"): "no profile nowhere",
    }
    fits, plain = gated.slurm.submit(4, 10, profile="flat"), gated.slurm.submit(1, 10)
    gated.cycle(1)
    found = status(gated)
    for job_id, why in reasons.items():
        assert row(found, job_id).facts[UNUSED_PROFILE].endswith(why)
        explain_command(found, row(found, job_id), as_json=False)
        said = capsys.readouterr().out
        assert f"profile ignored: {row(found, job_id).facts[UNUSED_PROFILE]}" in " ".join(said.split())
        assert UNUSED_PROFILE not in said  # not as a raw fact
    assert UNUSED_PROFILE not in row(found, fits).facts | row(found, plain).facts
    explain_command(found, row(found, plain), as_json=False)
    assert "1, no profile" in capsys.readouterr().out


def test_the_audit_trail_and_the_status_have_the_same_reason_text(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(policy="fifo")
    bench.slurm.submit(8, 100)
    bench.cycle(2)
    waits = bench.slurm.submit(12, 100)
    bench.cycle(2)
    (entry,) = bench.audit("wait", waits)
    assert in_words(entry["reason"], entry) == row(status(bench), waits).text


def test_unknown_reasons_and_facts_are_no_error(gated: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    gated.slurm.submit(12, 100)
    gated.cycle(1)
    found = status(gated)
    strange = replace(
        found.jobs[0], reason="quantum", text="it is in two places", facts={"places": [1, 2]}, state="odd"
    )
    bare = replace(found.jobs[0], reason="gpus", facts={}, state="waiting", rank=1)
    for job in (strange, bare, *found.jobs):
        explain_command(found, job, as_json=False)
        explain_command(found, job, as_json=True)
    out = capsys.readouterr().out
    assert "it is in two places" in out
    assert json.loads(out[out.rindex("\n{\n") :])["job"]["job_id"] == found.jobs[-1].job_id


@pytest.mark.parametrize(("hours", "text"), [(0.5, "0.5"), (12.345, "12.3"), (999.4, "999"), (24000, "24000")])
def test_gpu_hours_are_shown_with_three_digits(hours: float, text: str) -> None:
    assert gpu_hours(hours * 3600) == text


def test_tasks_not_split_off_yet_count_as_ahead_of_later_jobs(gated: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    gated.slurm.submit(12, 1000)
    gated.cycle()
    short, array = gated.slurm.submit(4, 5), gated.slurm.submit(1, 50, array_tasks="0-149")
    long = gated.slurm.submit(12, 5000)
    gated.cycle(3)
    found = status(gated)
    ahead = explain(found, row(found, long)).ahead
    assert ahead is not None
    assert (ahead.jobs, ahead.tasks) == (101, 50)
    for job_id in (short, f"{array}_99"):
        before = explain(found, row(found, job_id)).ahead
        assert before is not None
        assert before.tasks == 0
    explain_command(found, row(found, long), as_json=False)
    assert "...), and 50 more tasks of their arrays" in " ".join(capsys.readouterr().out.split())


def test_jobs_ahead_are_summed_over_the_whole_queue() -> None:
    """Jobs without a rank do not count, and a job without a prediction has no work."""
    first, second, third, left = (
        JobStatus(
            job_id=str(number), name="a", user="ann", partition="gpu", gpus=number, group="", profile="",
            predicted_iterations=iterations, submit_time=0.0, state=state, reason="gpus", text="", facts={}, nodes={},
            rank=rank, alpha_min=0.5,
        )
        for number, iterations, state, rank in (
            (1, 100, Phase.WAITING, 1), (2, 0, Phase.WAITING, 2), (3, 10, Phase.WAITING, 3), (4, 9, Phase.LEFT, None),
        )
    )  # fmt: skip
    add_ahead([first, second, left, third])
    assert first.ahead == {"gpus": 0, "gpu_s": 0.0, "unseen": 0}
    assert third.ahead == {"gpus": 3, "gpu_s": 50.0, "unseen": 1}
    assert left.ahead is None
    found = Status(0.0, "enforce", "asrpt-gated", 5.0, 8, 0, [first, second, third, left])
    said = explain(found, third).ahead
    assert said is not None
    assert (said.jobs, said.gpus, said.gpu_s, said.unseen, said.nearest) == (2, 3, 50.0, 1, ["1", "2"])


def test_reason_texts_need_only_the_facts_of_their_kind():
    """Policies and asrpt-status agree on the kinds and on their facts."""
    assert WORDS.keys() == KINDS.keys()
    example = {
        "shape": "on 2 nodes",
        "head": "7",
        "runs": "8",
        "reservation": "maint",
        "slurm_reason": "x",
        "why": "y",
        "partition": "gpu",
    }
    for kind, names in KINDS.items():
        facts = {name: example.get(name, 2) for name in names}
        assert in_words(kind, facts)
        assert change_of(kind, facts) or kind == "running"


def test_an_end_that_nobody_predicts_is_bounded_by_the_time_limit(gated: Bench, capsys) -> None:
    gated.slurm.submit(12, 0, time_limit=600.0)
    gated.cycle(3)
    waiting = gated.slurm.submit(4, 100)
    gated.cycle(2)
    found = status(gated)
    said = explain(found, row(found, waiting))
    started = next(job.start_time for job in found.jobs if job.start_time)
    assert [(each.remaining_s, each.limit_end) for each in said.ends] == [(None, started + 600.0)]
    explain_command(found, row(found, waiting), as_json=False)
    assert "ends, by its time limit at " in " ".join(capsys.readouterr().out.split())


def test_running_jobs_without_predictions_end_by_their_time_limits(gated: Bench) -> None:
    for limit in (9000.0, 600.0):
        gated.slurm.submit(6, 0, time_limit=limit)
    gated.cycle(3)
    waiting = gated.slurm.submit(4, 100)
    gated.cycle(2)
    found = status(gated)
    assert [each.job_id for each in explain(found, row(found, waiting)).ends] == ["2"]


def test_a_job_in_slurms_own_order_is_not_said_to_go_by_its_work(gated: Bench, capsys) -> None:
    gated.slurm.submit(12, 100)
    gated.cycle(2)
    waiting = gated.slurm.submit(4, 100)
    gated.cycle(2)
    found = status(gated)
    job = replace(row(found, waiting), weight=27.0)
    explain_command(found, job, as_json=False)
    assert "divided by 27" in capsys.readouterr().out
    explain_command(found, replace(job, priority=f"{OWN_ORDER}, as a large job"), as_json=False)
    assert "divided by" not in capsys.readouterr().out
    explain_command(found, replace(job, state=Phase.RUNNING, rank=None), as_json=False)
    assert "Priority" not in capsys.readouterr().out


def test_gpus_that_become_free_are_no_evidence_for_a_job_that_a_limit_holds(gated: Bench) -> None:
    gated.slurm.submit(12, 100)
    gated.cycle(2)
    waiting = gated.slurm.submit(4, 100)
    gated.cycle(2)
    found = status(gated)
    job = row(found, waiting)
    assert explain(found, job).ends
    assert not explain(found, replace(job, reason="over-limit")).ends


def test_where_slurm_decides_an_explanation_says_so(gated: Bench, capsys) -> None:
    runs = gated.slurm.submit(12, 100)
    gated.cycle(2)
    waiting = gated.slurm.submit(4, 100)
    gated.cycle(2)
    found = status(gated)
    for mode, told in (("shadow", True), ("disabled", True), ("order", True), ("enforce", False)):
        explain_command(replace(found, mode=mode), row(found, waiting), as_json=False)
        assert (f"Mode             {mode}: " in capsys.readouterr().out) == told
        explain_command(replace(found, mode=mode), row(found, runs), as_json=False)
        assert "Mode " not in capsys.readouterr().out


def test_what_slurm_refuses_by_the_request_is_for_its_owner_to_change() -> None:
    facts = {"limit": "PartitionTimeLimit (jobs in partition gpu with a time limit of 00:10:00)"}
    assert in_words("over-limit", facts) == f"Slurm refuses it: {facts['limit']}"
    assert change_of("over-limit", facts).startswith("the owner must change its request")
    assert "other jobs" in change_of("over-limit", {"limit": "QOSMaxJobsPerUserLimit (jobs of user ann)"})


@pytest.mark.parametrize(
    ("why", "text", "change"),
    [
        ("JobHeldUser", "held (JobHeldUser)", "its owner or an admin must release it (scontrol release 7)"),
        ("JobHeldAdmin", "held by an admin (JobHeldAdmin)", "an admin must release it (scontrol release 7)"),
    ],
)
def test_a_held_job_says_who_can_release_it_and_how(why: str, text: str, change: str) -> None:
    facts = {"slurm_reason": why}
    held = JobStatus("7", "held", "alice", "gpu", 1, "", "", 0, 0.0, Phase.WAITING, "held", text, facts, {})
    assert in_words("held", facts) == text
    assert explain(Status(0.0, "enforce", "asrpt-gated", 5.0, 8, 8, [held]), held).changes == [change]
