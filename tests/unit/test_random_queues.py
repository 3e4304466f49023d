"""Random queues beside plain Slurm: what is drawn, and what counts as a difference."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace

import pytest

from tests.trials.queues.draw import Act, Draw
from tests.trials.queues.findings import findings
from tests.trials.queues.play import Done, Outcome, Side, outcomes, suffixes
from tests.trials.queues.sites import SITES, site_of

SUBMIT = Act(0.0, "asrpt1", "j0", ("sbatch", "--wrap", "sleep 1"))
CANCEL = Act(2.0, "asrpt1", "j0", ("scancel", "{j0}"))
AFTER = Act(3.0, "asrpt1", "j1", ("sbatch", "--dependency=afterok:{j0}", "--wrap", "sleep 1"))
ENDED = Outcome("COMPLETED", "0:0", "None", 0, 10.0, 10.0, 12.0, 13.0, "1", "")
FAILED = ENDED._replace(state="FAILED", exit_code="1:0")
WAITING = ENDED._replace(state="PENDING", reason="Resources", start=0.0, end=0.0)
OK = Done(True, (), "")


@pytest.mark.parametrize("site", SITES)
def test_a_seed_draws_the_same_queue_whose_jobs_exist_before_they_are_named(site):
    first, again = (Draw(random.Random(3), SITES[site]).acts(80, 60.0) for _ in range(2))
    assert first == again
    submitted = set()
    for act in first:
        assert set(act.others) <= submitted
        if act.submits:
            submitted.add(act.job)
        else:
            assert not act.job or act.job in submitted
    assert len(submitted) == 80


def test_a_site_may_have_the_rules_of_several():
    site = site_of(["types", "topology", "accounts"])
    assert (site.nodes, site.topology) == (SITES["types"].nodes, "tree:2x2")
    assert pickle.loads(pickle.dumps(site)).rules == site.rules  # it goes to the two sides' processes
    assert {"--qos=one", "--contiguous", "--gpus=a100:2"} <= set(site.options)


def test_waiting_tasks_of_an_array_are_told_apart():
    listed = (
        "JobId=5 ArrayJobId=5 ArrayTaskId=1-3:2,6%2 JobName=j0 JobState=PENDING Reason=Dependency ExitCode=0:0\n"
        "JobId=7 ArrayJobId=5 ArrayTaskId=0 JobName=j0 JobState=RUNNING Reason=None ExitCode=0:0 StartTime=90\n"
        "JobId=9 HetJobId=8 HetJobOffset=1 JobName=j1 JobState=FAILED Reason=None ExitCode=1:0\n"
    )
    found = outcomes(listed, {"5": "j0", "8": "j1"})
    assert {name: one.state for name, one in found.items()} == {
        **dict.fromkeys(("j0_1", "j0_3", "j0_6"), "PENDING"),
        "j0_0": "RUNNING",
        "j1+1": "FAILED",
    }
    assert found["j0_0"].start == 90.0
    assert suffixes({"JobId": "4"}) == [""]


def sides(one: Outcome, two: Outcome, acts: int = 1) -> tuple[Side, Side]:
    return Side([OK] * acts, {"j0": one}), Side([OK] * acts, {"j0": two})


def kinds(acts, plain, ours):
    return {kind for kind, rows in findings(acts, plain, ours).items() if rows}


def test_what_differs_is_found():
    assert kinds([SUBMIT], *sides(ENDED, ENDED)) == set()
    assert kinds([SUBMIT], *sides(ENDED, WAITING)) == {"missing"}
    assert kinds([SUBMIT], *sides(ENDED, FAILED)) == {"other"}
    assert kinds([SUBMIT], *sides(WAITING, ENDED)) == {"only_asrptd"}
    plain, ours = sides(ENDED, ENDED)
    assert kinds([SUBMIT], plain, replace(ours, shown={"j0": "running"})) == {"shown"}
    assert kinds([SUBMIT], plain, replace(ours, log=["Traceback"])) == {"log"}
    assert kinds([SUBMIT], plain, replace(ours, left={"j0": WAITING._replace(eligible=99.0)})) == {"leases"}


def test_a_job_that_an_act_met_in_another_state_and_those_that_depend_on_it_may_end_otherwise():
    acts = [SUBMIT, CANCEL, AFTER]
    plain = Side([OK, Done(True, ("RUNNING",), ""), OK], {"j0": FAILED, "j1": ENDED})
    ours = Side([OK, Done(True, ("PENDING",), ""), OK], {"j0": ENDED, "j1": FAILED})
    assert kinds(acts, plain, ours) == set()
    waits = [OK, Done(True, ("PENDING",), ""), OK]
    assert kinds(acts, replace(plain, done=waits), replace(ours, done=waits)) == {"other"}
    assert kinds(acts, plain, replace(ours, done=plain.done)) == set()  # the job may end by itself at that moment


@pytest.mark.parametrize(("reason", "found"), [("QOSMaxGRESPerUser", set()), ("Resources", {"missing"})])
def test_a_job_that_was_moved_before_it_could_start_may_exceed_a_limit_since(reason, found):
    moved = replace(CANCEL, words=("scontrol", "update", "JobId={j0}", "Partition=small"))
    plain = Side([OK, Done(True, ("RUNNING",), "")], {"j0": ENDED})
    ours = Side([OK, Done(True, ("PENDING",), "")], {"j0": ENDED._replace(state="PENDING", end=0.0, reason=reason)})
    assert kinds([SUBMIT, moved], plain, ours) == found
    leased = {"j0": ENDED._replace(state="PENDING", end=0.0, reason="BeginTime")}
    assert kinds([SUBMIT, moved], plain, replace(ours, outcomes=leased, left=ours.outcomes, disabled=9e9)) == found


@pytest.mark.parametrize(("command", "found"), [("ReservationName=r EndTime=now", set()), ("QOS=q", {"missing"})])
def test_slurm_may_hold_a_job_whose_reservation_has_ended(command, found):
    admin = Act(5.0, "root", "", ("scontrol", "update", *command.split()))
    held = ENDED._replace(state="PENDING", end=0.0, reason="JobHeldAdmin")
    assert kinds([SUBMIT, admin], Side([OK, OK], {"j0": ENDED}), Side([OK, OK], {"j0": held})) == found


@pytest.mark.parametrize(("said", "found"), [("QOSMaxSubmitJobPerUserLimit", set()), ("Bad", {"submissions"})])
def test_a_limit_on_submitted_jobs_refuses_what_comes_too_early(said, found):
    plain, ours = Side([OK], {"j0": ENDED}), Side([Done(False, (), said)], {})
    assert kinds([SUBMIT], plain, ours) == found


@pytest.mark.parametrize("state", ["RESV_DEL_HOLD", "REQUEUE_HOLD", "PENDING"])
def test_a_held_job_has_not_ended(state):
    assert not ENDED._replace(state=state).ended


def test_a_begin_time_is_no_start():
    first = ENDED._replace(submit=0.0, start=1.0, end=2.0)
    waits = ENDED._replace(submit=1.0, start=190.0, end=0.0, state="PENDING", reason="Resources")
    last = ENDED._replace(submit=1.0, start=190.0, end=201.0)
    plain = Side([OK], {"j0": first, "j1": ENDED._replace(state="PENDING", start=2.0), "j2": last})
    assert kinds([SUBMIT], plain, Side([OK], {"j0": first, "j1": waits, "j2": last})) == set()


def test_a_job_that_waits_on_an_empty_cluster_is_late():
    first = ENDED._replace(submit=0.0, start=1.0, end=2.0)
    late = ENDED._replace(submit=1.0, start=40.0, end=41.0)
    plain = Side([OK, OK], {"j0": first, "j1": late._replace(start=2.0, end=3.0)})
    ours = Side([OK, OK], {"j0": first, "j1": late})
    acts = [SUBMIT, replace(SUBMIT, job="j1")]
    assert kinds(acts, plain, ours) == {"late"}
    assert kinds(acts, ours, ours) == set()
