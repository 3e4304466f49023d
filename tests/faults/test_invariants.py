"""The checker of the campaign finds every breach; otherwise its zeros would mean nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.slurm.records import JobRecord
from tests.faults.__main__ import known_table
from tests.faults.counts import LEDGER, Counts, keep, load, of, table
from tests.faults.invariants import Facts, Findings, Start, Ticket, Wish, check
from tests.faults.tokens import ghosts, recovered

TAG = "asrpt1:g=0123456789abcdef;n=0"
ENDED = JobRecord(
    "7", "t1", "asrpt1", 1, "gpu", "COMPLETED", "None", 100.0, 7, start_time=110.0, end_time=120.0, admin_comment=TAG
)
WAITS = dataclasses.replace(ENDED, state="PENDING", start_time=0.0, end_time=0.0, eligible_time=205.0)
STARTED = Start("t1", "7", 0, "n1")
GOOD = Facts(
    tickets=[Ticket("t1", "7")],
    starts=[STARTED],
    records={"t1": ENDED},
    runs={"7": 1},
    audit=[{"event": "start", "job": "7"}, {"event": "ended", "job": "7"}],
    lease_s=8.0,
    now=200.0,
)


def look(**changes: Any) -> Findings:
    return check(dataclasses.replace(GOOD, **changes))


def changed(**changes: Any) -> dict[str, JobRecord]:
    return {"t1": dataclasses.replace(ENDED, **changes)}


def test_a_job_that_ran_once_and_was_recorded_is_sound() -> None:
    assert look() == Findings(submitted=1)
    assert look().sound


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"starts": [], "records": {}}, "lost"),
        ({"starts": []}, "lost"),
        ({"starts": [], "records": changed(state="NODE_FAIL", required_nodes="n4")}, "lost"),
        ({"starts": [], "records": {"t1": WAITS}}, "stuck"),
        ({"records": changed(state="RUNNING")}, "stuck"),
        ({"starts": [STARTED, STARTED]}, "twice"),
        ({"starts": [STARTED, dataclasses.replace(STARTED, restart=1)]}, "twice"),
        ({"starts": [STARTED, Start("t1", "8", 0, "n1")], "records": changed(restarts=1)}, "twice"),
        ({"tickets": [Ticket("t1", "")], "starts": [STARTED, STARTED]}, "twice"),
        ({"tickets": [Ticket("t1", "7", Wish.CANCELLED)], "starts": [], "records": {"t1": WAITS}}, "stuck"),
        ({"cancelled": {"t1": 100.0}, "starts": [], "records": {"t1": WAITS}}, "stuck"),
    ],
)
def test_jobs_that_are_lost_stuck_or_run_twice_are_found(changes: dict[str, Any], kind: str) -> None:
    assert getattr(look(**changes), kind) == ["t1"]
    assert not look(**changes).sound


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tickets": [Ticket("t1", "7", Wish.HELD)]}, "was to stay pending (held), but is COMPLETED, 1 start(s)"),
        ({"tickets": [Ticket("t1", "7", Wish.LATER)], "records": {"t1": WAITS}}, "was to stay pending (later)"),
        ({"records": {"t1": dataclasses.replace(WAITS, required_nodes="n2")}}, "is pending with node list n2"),
        ({"records": {"t1": dataclasses.replace(WAITS, eligible_time=300.0)}}, "is leased for 100 s; the limit is 8 s"),
        ({"runs": {}}, "ran but is not in the history"),
        ({"audit": [{"event": "start", "job": "7"}]}, "the audit trail has no end"),
        ({"audit": [{"event": "ended", "job": "7"}], "records": changed(required_nodes="n1")}, "was given nodes"),
        ({"records": changed(admin_comment="")}, "has no tag"),
        ({"tickets": [Ticket("t1", "7", nodes="n9")], "records": changed(required_nodes="n9")}, "did not run on n9"),
        ({"records": changed(state="FAILED")}, "has failed, but its script cannot fail"),
        ({"cancelled": {"t1": 100.0}, "starts": [dataclasses.replace(STARTED, at=110.0)]}, "started 10 s after"),
    ],
)
def test_every_other_breach_is_reported_as_text(changes: dict[str, Any], words: str) -> None:
    assert words in "\n".join(look(**changes).other)
    assert not look(**changes).sound


@pytest.mark.parametrize(
    "changes",
    [
        {"starts": [STARTED, dataclasses.replace(STARTED, restart=1)], "records": changed(restarts=1)},  # requeued
        {"tickets": [Ticket("t1", "")], "starts": [], "records": {}},  # sbatch was refused
        {"tickets": [Ticket("t1", "7", Wish.CANCELLED)], "records": changed(state="CANCELLED")},
        {"tickets": [Ticket("t1", "7", managed=False)], "runs": {}, "audit": []},
        {"tickets": [Ticket("t1", "7", nodes="n2")], "records": changed(required_nodes="n2", nodes="n[1-2]")},
        {"cancelled": {"t1": 100.0}, "starts": [dataclasses.replace(STARTED, at=101.0)]},  # was on its way
        {"cancelled": {"t1": 100.0}, "starts": [], "records": {}},  # a task that was not parted
        {"runs": {}, "warned": True},  # known to be incomplete
        {"runs": {}, "audit": [{"event": "vanished", "job": "7"}]},
        {"records": changed(admin_comment=""), "hook_warned": True, "audit": [], "runs": {}},
    ],
)
def test_allowed_outcomes_are_no_breach(changes: dict[str, Any]) -> None:
    assert look(**changes).sound


INTERRUPTED = {"event": "interrupt", "job": "7"}
TRAINED = {
    "tickets": [Ticket("t1", "7", iterations=300)],
    "starts": [STARTED, dataclasses.replace(STARTED, restart=1)],
    "records": changed(restarts=1),
    "audit": [*GOOD.audit, INTERRUPTED, INTERRUPTED, {"event": "interrupt", "job": "8"}],
    "spans": {"t1": [(0, 120), (120, 300)], "t2": [(0, 7)]},
    "most_interruptions": 2,
}
"""A training that was preempted correctly."""


def test_a_training_that_did_each_iteration_once_is_sound() -> None:
    assert look(**TRAINED).sound
    assert look(**{**TRAINED, "spans": {"t1": [(0, 300)]}}).sound
    again = {**TRAINED, "spans": {"t1": [(0, 120), (0, 300)]}}
    assert look(**again, recovered={"7"}).sound, "slurmctld forgot a start"
    assert look(**again, held=["t1"]).sound, "an admin had to end it"


@pytest.mark.parametrize(
    "spans",
    [
        {"t1": [(0, 120), (100, 300)]},  # some twice
        {"t1": [(0, 120), (0, 300)]},  # from the beginning
        {"t1": [(0, 120), (140, 300)]},  # some left out
        {"t1": [(20, 300)]},
        {"t1": [(0, 120)]},  # not to the end
        {"t1": [(0, 300), (300, 310)]},  # and beyond
        {"t1": []},
        {},
    ],
)
def test_repeated_or_missing_iterations_are_a_breach(spans: dict[str, list[tuple[int, int]]]) -> None:
    (breach,) = look(**{**TRAINED, "spans": spans}).other
    assert "of 300 iterations" in breach


def test_a_failed_training_is_a_breach_even_with_all_iterations_done() -> None:
    (breach,) = look(**{**TRAINED, "records": changed(restarts=1, state="FAILED")}).other
    assert "(job 7, FAILED)" in breach


def test_one_preemption_too_many_is_a_breach() -> None:
    (breach,) = look(**{**TRAINED, "most_interruptions": 1}).other
    assert "was preempted 2 times" in breach
    assert look(**{**TRAINED, "most_interruptions": 1}, recovered={"7"}).other == [breach], (
        "everything that Slurm forgot"
    )


def test_jobs_that_slurm_forgot_when_killed_are_counted_separately() -> None:
    assert look(starts=[], records={}, slurm_lost_state=True).slurms_own == ["t1"]
    assert look(starts=[STARTED, STARTED], slurm_lost_state=True, recovered={"7"}).slurms_own == ["t1"]
    assert look(starts=[STARTED, STARTED], slurm_lost_state=True).twice == ["t1"]


def test_actions_of_slurm_itself_are_counted_separately() -> None:
    assert look(starts=[], records=changed(state="NODE_FAIL")).slurms_own == ["t1"]
    launched = changed(state="NODE_FAIL", required_nodes="n4", nodes="n4")
    assert look(starts=[], records=launched).slurms_own == ["t1"]
    assert look(held=["t1"]).slurms_own == ["t1"]
    assert look(records=changed(state="RUNNING"), completed={"7"}).slurms_own == ["t1"]
    assert look(records={"t1": WAITS}, starts=[], completed={"7"}).stuck == ["t1"]


def test_a_start_that_slurm_forgot_is_repeated_after_its_restart() -> None:
    allocate, back = "sched: Allocate JobId=7 NodeList=n1", "Recovered JobId=7 Assoc=4\nRecovered JobId=8 Assoc=4"
    backfilled = "sched/backfill: _start_job: Started JobId=7 in gpu on n2"
    for first in (allocate, backfilled):
        assert recovered("\n".join([first, back, allocate])) == {"7"}
    assert recovered("\n".join([back, allocate, allocate])) == set()
    assert recovered("\n".join([allocate, back])) == set()
    task, again = (f"sched: Allocate JobId=7_1({number}) NodeList=n1" for number in (8, 9))
    assert recovered("\n".join([task, "Recovered JobId=7_* Assoc=4", again])) == {"7_1"}
    assert recovered("\n".join([task, "Recovered JobId=77_* Assoc=4", again])) == set()


def test_a_ghost_is_an_ended_job_that_runs_again() -> None:
    start, done = "sched: Allocate JobId=7 NodeList=n1", "_job_complete: JobId=7 done"
    back, submitted = "Recovered JobId=7 Assoc=4\nRecovered JobId=8 Assoc=4", "_slurm_rpc_submit_batch_job: JobId=7 "
    assert ghosts("\n".join([start, done, back, back])) == {"7"}
    assert ghosts("\n".join([start, done, back, done])) == set()
    assert ghosts("\n".join([start, done, submitted, back])) == set()  # its id was reused
    assert ghosts("\n".join([start, done, back, start])) == set()  # and it was started again
    assert ghosts("\n".join([start, back])) == set()


def test_counts_add_up_over_runs(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    keep(file, [Counts("sigkill", injected=3, submitted=7, failures=["1.0: lost: t1"], lost=1)], 1, "asrpt")
    keep(file, [Counts("sigkill", injected=2, submitted=5), Counts("node", injected=1)], 2, "asrpt")
    ((kills, seeds), (node, _)) = of(load(file), ["sigkill", "leases", "node"])
    assert (kills.injected, kills.submitted, kills.lost, kills.failures) == (5, 12, 1, ["1.0: lost: t1"])
    assert seeds == [1, 2]
    text = table([("killed", kills, seeds), ("died", node, [2])])
    assert "| killed | 5 | 12 | 1 | 0 | 0 | 0 | 0 | 1, 2 |" in text
    assert "| **all** | 6 | 12 | 1 | 0 | 0 | 0 | 0 | |" in text


def test_the_page_shows_the_stored_counts() -> None:
    page = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
    shown = known_table(LEDGER)
    assert shown in page
    injected, submitted, *_, slurms_own, _ = shown.splitlines()[-1].split("|")[2:-1]
    headline = " ".join(page.partition("## ")[0].split())
    assert f"We injected {int(injected):,} faults into a real Slurm while {int(submitted):,} jobs" in headline
    assert f"except for {int(slurms_own)} that slurmctld itself had forgotten" in headline
