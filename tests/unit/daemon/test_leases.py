"""Leases: all managed pending jobs are renewed in time, not more often, and other jobs never."""

from collections import Counter

import pytest

from slurm_asrpt.core.reasons import Phase, Reason
from slurm_asrpt.daemon.jobs.managed_job import REQUEUE_PAUSE_S
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.writes import leases as module
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.status.reason_texts import text_of


def fill_cluster(bench):
    blocker = bench.slurm.submit(12)
    bench.cycle(2)
    return blocker


def leases(bench, job_id):
    return [w["StartTime"] for w in bench.writes(job_id) if w.keys() == {"StartTime"}]


@pytest.mark.parametrize(("lease_s", "after_s"), [(600, 400), (100, 50)])
def test_a_lease_is_renewed_at_half_its_time_or_with_200_s_left(make_bench, lease_s, after_s):
    bench = make_bench(lease_s=lease_s)
    bench.slurm.lease = float(lease_s)
    fill_cluster(bench)
    job_id = bench.slurm.submit(12)  # the hook's lease
    bench.cycle(after_s)
    assert leases(bench, job_id) == []
    bench.cycle(3)
    assert leases(bench, job_id) == [f"now+{lease_s}"]
    bench.cycle(after_s - 1)
    assert len(leases(bench, job_id)) == 1
    bench.cycle(5)
    assert len(leases(bench, job_id)) == 2


def test_an_unleased_job_gets_a_lease_at_once(bench):
    """The hook leased nothing, because the daemon was down."""
    fill_cluster(bench)
    job_id = bench.slurm.submit(12, leased=False)
    bench.cycle()
    assert bench.slurm.records[job_id].eligible_time == bench.slurm.now - 1 + 600


def test_leases_of_dependent_jobs_are_not_written_every_cycle(bench):
    """Slurm shows no begin time of a dependent job: the lease written last counts."""
    job_id = bench.slurm.submit(2, reason="Dependency", eligible_time=0.0)
    bench.cycle(100)
    assert len(leases(bench, job_id)) == 1


def test_renewing_a_lease_keeps_the_owners_begin_time(bench):
    job_id = bench.slurm.submit(2)
    begin = bench.slurm.now + 4000
    bench.slurm.change(job_id, eligible_time=begin)
    bench.cycle(3)
    assert bench.job(job_id).begin_time == begin
    bench.restart()
    bench.cycle(3)
    bench.restart()
    bench.cycle(3)
    assert bench.job(job_id).begin_time == begin
    bench.slurm.tick(begin - bench.slurm.now)
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING


def test_the_owners_begin_time_survives_a_lost_state_file(bench):
    """The tag has the user's --begin; the job's begin time in Slurm is the later one of the lease."""
    begin = int(bench.slurm.now) + 4000
    tag = f"asrpt1:g=0123456789abcdef;n=0;b={begin}"
    job_id = bench.slurm.submit(2, admin_comment=tag, eligible_time=begin + 600.0)
    bench.cycle(2)
    (bench.settings.paths.state / "state.json").unlink()
    bench.restart()
    bench.cycle(2)
    assert bench.job(job_id).reason == Reason(Phase.WAITING, "begin", {"until": begin})
    bench.slurm.tick(begin - bench.slurm.now)
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING


def set_start_time_now(bench, job_id):
    """The owner runs scontrol update StartTime=now."""
    bench.slurm.change(job_id, eligible_time=bench.slurm.now, reason="Resources")


def deferred_job(bench):
    """A job tagged to begin in 4,000 s, on a full cluster."""
    blocker = fill_cluster(bench)
    tag = f"asrpt1:g=0123456789abcdef;n=0;b={int(bench.slurm.now) + 4000}"
    return blocker, bench.slurm.submit(2, admin_comment=tag, eligible_time=bench.slurm.now + 4600)


def test_starttime_now_is_respected_on_a_job_asrptd_has_not_seen(bench):
    blocker, job_id = deferred_job(bench)
    set_start_time_now(bench, job_id)
    bench.cycle()
    bench.slurm.end(blocker)
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING


def test_a_begin_time_that_was_given_back_does_not_drift(bench):
    """Slurm counts whole seconds, so that it shows the time that asrptd has given back a second earlier or later."""
    _, job_id = deferred_job(bench)
    bench.cycle()
    begin = bench.job(job_id).not_before
    for shown in (begin - 1, begin, begin + 1):
        bench.slurm.change(job_id, eligible_time=shown)
        bench.cycle()
        assert bench.job(job_id).reason == Reason(Phase.WAITING, "begin", {"until": begin})


@pytest.mark.parametrize("away", [False, True], ids=["there", "away"])
def test_starttime_now_is_respected_right_after_a_requeue(bench, away):
    """The tag still has the later begin time; the owner has started the job earlier."""
    blocker, job_id = deferred_job(bench)
    bench.cycle()
    set_start_time_now(bench, job_id)
    bench.slurm.end(blocker)
    bench.cycle(3)
    assert bench.job_state(job_id) is JobState.RUNNING
    blockers = [bench.slurm.submit(4), bench.slurm.submit(4)]
    bench.cycle(2)
    bench.slurm.starts_jobs = False
    bench.slurm.requeue(job_id)
    set_start_time_now(bench, job_id)
    if away:
        bench.restart()
    bench.cycle(5)  # a requeued job pauses for two seconds
    assert bench.job(job_id).begin_time == 0.0
    assert bench.job_state(job_id) is JobState.PINNED
    assert [bench.job_state(b) for b in blockers] == [JobState.RUNNING] * 2


@pytest.mark.parametrize("pinned", [True, False], ids=["our start", "Slurm's"])
def test_a_job_released_after_requeuehold_waits_for_slurms_pause(bench, pinned):
    job_id = bench.slurm.submit(4)
    if pinned:
        bench.cycle()
    else:
        bench.slurm.tick(bench.slurm.lease)  # asrptd was down
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING
    bench.slurm.requeued(job_id)
    bench.slurm.hold(job_id)
    pause_ends = bench.slurm.records[job_id].eligible_time
    for _ in range(10):
        bench.slurm.tick(10)  # its lease is renewed
        bench.cycle()
    assert bench.slurm.records[job_id].required_nodes == ""
    bench.slurm.release(job_id)
    bench.cycle()
    assert bench.slurm.now < pause_ends
    assert (bench.job_state(job_id), bench.job(job_id).reason.kind) == (JobState.INELIGIBLE, "begin")
    bench.slurm.tick(pause_ends - bench.slurm.now)
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING


def test_a_requeued_job_pauses_even_if_slurms_clock_is_behind(bench):
    """Slurm would start it in the second of its requeue, and that start fails."""
    job_id = bench.slurm.submit(4)
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING
    bench.slurm.starts_jobs = False  # otherwise Slurm would start it
    bench.slurm.requeue(job_id)
    bench.slurm.change(job_id, submit_time=bench.slurm.now - 4, eligible_time=bench.slurm.now - 4)  # its now is past
    seen = bench.slurm.now
    bench.cycle(5)
    (start,) = [entry for entry in bench.audit("start", job_id) if entry["time"] > seen]
    assert start["time"] >= seen + REQUEUE_PAUSE_S


def test_a_refused_lease_is_audited(bench):
    fill_cluster(bench)
    job_id = bench.slurm.submit(12, leased=False, priority=0, reason="JobHeldUser")
    bench.slurm.errors[job_id] = "Access/permission denied"
    bench.cycle(3)
    refused = bench.audit("lease-refused", job_id)
    assert refused[0]["error"] == "Access/permission denied"


def test_the_begin_time_of_a_job_that_slurm_lets_nobody_change_stays_a_lease(bench):
    """Slurm rejects each update of a job over a limit of its partition, but has set the begin time (22.05 to 26.05)."""
    first, second = bench.slurm.submit(12), bench.slurm.submit(12)
    bench.slurm.over_limit = {first, second}
    for _ in range(40):
        bench.cycle(30)
        assert all(bench.slurm.records[job_id].eligible_time <= bench.slurm.now + 600 for job_id in (first, second))
    tried = len(bench.audit("fence-refused", first))
    assert 2 < tried < 20, "with growing pauses, in 20 minutes"
    assert not bench.audit("lease-refused")
    why = bench.job(first).reason
    assert text_of(why).startswith("Slurm refuses it: Requested partition configuration not available now")
    bench.slurm.over_limit = set()
    bench.cycle(310)
    assert bench.job_state(first) is JobState.RUNNING


def test_a_job_over_a_limit_is_tried_at_once_when_its_request_has_changed(bench):
    job_id = bench.slurm.submit(4, iterations=1, memory_per_node=9000.0)
    bench.slurm.over_limit = {job_id}
    bench.cycle(200)
    assert bench.job(job_id).retry_at > bench.slurm.now + 20
    bench.slurm.over_limit = set()
    bench.slurm.change(job_id, memory_per_node=500.0)
    bench.cycle(4)
    assert bench.job_state(job_id) is JobState.RUNNING


def test_slurm_chooses_the_nodes_of_a_job_that_is_over_a_limit_only_with_a_list_of_nodes(make_bench):
    """--mem-per-cpu and MaxMemPerNode: by the list, Slurm counts all of its CPUs on one node."""
    bench = make_bench(policy="asrpt-gated")
    job_id = bench.slurm.submit(4)
    bench.slurm.limited_lists = {job_id}
    bench.cycle(8)
    assert bench.job_state(job_id) is JobState.RUNNING
    assert not bench.slurm.records[job_id].required_nodes
    assert [entry.get("by_slurm", "") for entry in bench.audit("start", job_id)] == ["", "constraints"]
    assert not bench.audit("fence-refused")


def test_a_job_that_slurm_lets_nobody_change_delays_no_others(bench):
    over = bench.slurm.submit(12, iterations=1)
    bench.slurm.over_limit = {over}
    bench.cycle(3)
    others = [bench.slurm.submit(4, iterations=1) for _ in range(3)]
    bench.cycle(8)
    assert {bench.job_state(job_id) for job_id in others} == {JobState.RUNNING}


def test_slurm_starts_jobs_whose_leases_run_out_after_asrptd_died(bench):
    blocker = fill_cluster(bench)
    job_id = bench.slurm.submit(12)
    bench.cycle(3)
    bench.stop()
    bench.slurm.end(blocker)
    bench.slurm.tick(601)
    assert bench.state(job_id) == "RUNNING"
    bench.start()
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING


@pytest.mark.parametrize("multifactor", [False, True])
def test_the_priority_of_a_pinned_job_is_restored(make_bench, multifactor):
    bench = make_bench()
    bench.slurm.multifactor = multifactor
    bench.restart()
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle(25)
    pins = [w for w in bench.writes(job_id) if w.get("ReqNodeList")]
    unpins = [w for w in bench.writes(job_id) if w.get("ReqNodeList") == ""]
    key = "SiteFactor" if multifactor else "Priority"
    assert len(pins) == len(unpins) == 2
    assert {w[key] for w in unpins} == {"0" if multifactor else "100"}
    assert not {w[key] for w in pins} & {w[key] for w in unpins}


@pytest.fixture
def few_renewals(monkeypatch):
    monkeypatch.setattr(module, "MIN_RENEWALS", 3)
    monkeypatch.setattr(module, "MAX_RENEWALS", 10)


def renewed(bench, cycles):
    """How many leases each of these cycles wrote."""
    counts = []
    for _ in range(cycles):
        before = len(bench.slurm.writes)
        bench.cycle()
        counts.append(len(bench.slurm.writes) - before)
    return counts


def test_leases_written_together_are_renewed_in_small_groups(bench, few_renewals):
    fill_cluster(bench)
    jobs = [bench.slurm.submit(12) for _ in range(30)]
    bench.cycle(399)
    counts = renewed(bench, 20)
    assert sum(counts) == len(jobs)
    assert max(counts) == 3
    assert min(bench.slurm.records[j].eligible_time for j in jobs) > bench.slurm.now + 500


def test_with_many_jobs_all_leases_are_renewed_in_time(make_bench, few_renewals):
    """The interval is a tenth of the lease: unless each cycle renews two fifths of the jobs, some leases run out."""
    bench = make_bench(lease_s=50, interval_s=5.0)
    bench.slurm.lease = 50
    fill_cluster(bench)
    jobs = [bench.slurm.submit(12) for _ in range(40)]
    for _ in range(40):
        bench.cycle(seconds=5.0)
        assert all(bench.slurm.records[j].eligible_time > bench.slurm.now for j in jobs)


def test_the_number_of_leases_written_per_cycle_is_bounded(bench, few_renewals):
    """As when the daemon was down for long."""
    fill_cluster(bench)
    jobs = [bench.slurm.submit(12, leased=False) for _ in range(25)]
    assert renewed(bench, 4) == [10, 10, 5, 0]
    assert Counter(len(leases(bench, j)) for j in jobs) == {1: 25}


def test_the_shortest_leases_are_renewed_first(bench, few_renewals):
    fill_cluster(bench)
    late, later = (bench.slurm.submit(12, eligible_time=bench.slurm.now + left) for left in (100, 190))
    others = [bench.slurm.submit(12, eligible_time=bench.slurm.now + 195) for _ in range(5)]
    bench.cycle()
    assert leases(bench, late)
    assert leases(bench, later)
    assert sum(bool(leases(bench, j)) for j in others) == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_a_lease_whose_answer_is_lost_is_known_however_late_slurm_has_read_it(bench, monkeypatch, restarts):
    """Taken for a begin time that its owner has set, it would keep the job waiting until its end, and longer."""
    blocker = fill_cluster(bench)
    job_id = bench.slurm.submit(12, leased=False)
    lose_the_answer(bench, monkeypatch, after_s=100.0)
    if restarts:
        bench.restart()
    bench.cycle(2)
    assert bench.slurm.records[job_id].eligible_time > bench.slurm.now + 500
    assert not bench.job(job_id).begin_time
    assert bench.job_state(job_id) is JobState.QUEUED
    bench.slurm.end(blocker)
    bench.cycle(3)
    assert bench.job_state(job_id) is JobState.RUNNING


def test_once_slurm_shows_which_lease_holds_a_begin_time_of_the_owner_is_one(bench, monkeypatch):
    fill_cluster(bench)
    job_id = bench.slurm.submit(12, leased=False)
    lose_the_answer(bench, monkeypatch, after_s=100.0)
    bench.cycle(50)
    begin = bench.slurm.now + 580  # later than the lease, earlier than a new one
    bench.slurm.change(job_id, eligible_time=begin)
    bench.cycle(2)
    assert bench.job(job_id).begin_time == begin
    assert bench.job_state(job_id) is JobState.INELIGIBLE


def lose_the_answer(bench, monkeypatch, after_s):
    """One cycle, of which Slurm reads the updates after this time, but does not answer."""

    def update(updates):
        if not updates:
            return []
        bench.slurm.tick(after_s)
        for each in updates:
            bench.slurm._update(each)
        raise SlurmError("scontrol did not answer within 30 s")

    with monkeypatch.context() as patch:
        patch.setattr(bench.slurm, "update", update)
        with pytest.raises(SlurmError, match="did not answer"):
            bench.cycle()
