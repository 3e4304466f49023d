"""Rules of the site for single jobs: upcoming reservations, preemption, fair-share bands."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.policies import banded_policies, make_policy, policy_names
from slurm_asrpt.core.policies.base import band_of
from slurm_asrpt.daemon.cluster import CLEANING_S
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.gpu_defaults import GpuDefaults
from slurm_asrpt.slurm.limits import Qos, SiteLimits
from slurm_asrpt.slurm.partitions import Names, Partition
from slurm_asrpt.slurm.preemption import PreemptionDefaults, PreemptionKind, PreemptionRules
from slurm_asrpt.slurm.priorities import PartitionPriority, SitePriorities, Weights
from slurm_asrpt.slurm.records import Reservation
from slurm_asrpt.status.explain import explain
from tests.unit.core.test_baselines import FABRIC, cluster, job

HOUR = 3600.0


def row(bench, job_id):
    return next(row for row in bench.status(bench.slurm.now).jobs if row.job_id == job_id)


def maintenance(bench, in_s, *nodes):
    start = bench.slurm.now + in_s
    bench.slurm.reserved = [Reservation("maint", start, start + HOUR, frozenset(nodes))]


# reservations ahead


def test_jobs_that_would_overlap_a_reservation_run_elsewhere_or_wait(bench):
    maintenance(bench, HOUR, "n1", "n2")
    one = bench.slurm.submit(4, time_limit=2 * HOUR)
    two = bench.slurm.submit(8, time_limit=2 * HOUR)
    bench.cycle(3)
    assert bench.slurm.records[one].nodes == "n3"
    assert bench.job_state(two) is JobState.QUEUED
    said = row(bench, two)
    assert (said.reason, said.facts["reservation"]) == ("ahead", "maint")
    assert "reservation maint, which begins about 00:59:57 from now" in said.text
    assert not bench.audit("not-started")
    bench.slurm.reserved = []
    bench.cycle(3)
    assert bench.state(two) == "RUNNING"


def test_nodes_of_a_maintenance_that_has_begun_start_no_jobs_although_slurm_shows_them_as_usable(bench):
    """As Slurm does for a second or two: jobs that were planned there would be refused."""
    maintenance(bench, -1.0, "n1", "n2")
    jobs = [bench.slurm.submit(2, time_limit=60) for _ in range(3)]
    bench.cycle(3)
    assert [bench.slurm.records[job_id].nodes for job_id in jobs] == ["n3", "n3", ""]
    assert row(bench, jobs[2]).facts["reservation"] == "maint"


def test_jobs_that_end_before_a_reservation_may_use_its_nodes(bench):
    maintenance(bench, HOUR, "n1", "n2", "n3")
    early = bench.slurm.submit(12, time_limit=HOUR / 2)
    late = bench.slurm.submit(12, time_limit=HOUR / 2)
    endless = bench.slurm.submit(1)
    bench.cycle(2)
    assert bench.state(early) == "RUNNING"
    assert row(bench, late).reason == "gpus", "it waits for a job, not for the reservation"
    assert row(bench, endless).reason == "ahead"
    bench.cycle(10, 180.0)
    bench.slurm.end(early)
    bench.cycle(2)
    assert row(bench, late).reason == "ahead"


def test_slurm_chooses_the_nodes_of_a_job_that_it_may_shorten_ahead_of_a_reservation(bench):
    """--time-min. Slurm's backfill shortens a job; what cannot be shortened enough waits."""
    maintenance(bench, 600.0, "n1", "n2", "n3")
    able = bench.slurm.submit(4, time_limit=3600.0, time_min=300.0)
    not_able = bench.slurm.submit(4, time_limit=3600.0, time_min=900.0)
    plain = bench.slurm.submit(4, time_limit=300.0, time_min=60.0)
    bench.cycle(3)
    assert [bench.audit("start", job_id)[0].get("by_slurm", "") for job_id in (able, plain)] == ["time-min", ""]
    assert bench.job(not_able).reason.kind == "ahead"
    bench.slurm.reserved = []
    bench.cycle(3)
    (entry,) = bench.audit("start", not_able)
    assert "by_slurm" not in entry


def test_a_reservation_is_the_reason_only_if_it_alone_blocks_the_job(bench):
    small = [bench.slurm.submit(1, required_nodes=f"n{n}", min_nodes=1, max_nodes=1, time_limit=60) for n in (1, 2, 3)]
    bench.cycle(3)
    assert {bench.state(job_id) for job_id in small} == {"RUNNING"}
    maintenance(bench, HOUR, "n2")
    whole = bench.slurm.submit(4, min_nodes=1, max_nodes=1, time_limit=2 * HOUR)
    elsewhere = bench.slurm.submit(8, excluded_nodes="n2", time_limit=2 * HOUR)
    bench.cycle(30)
    assert "all on one node" in row(bench, whole).text
    assert row(bench, elsewhere).reason != "ahead"
    bench.slurm.end(small[1])
    bench.cycle(2)
    assert row(bench, whole).reason == "ahead"


# limits


def test_a_job_over_a_limit_on_each_job_is_told_how_much_it_asks_for(make_bench):
    """Its charge is infinite: no such job may start. JSON has no infinite numbers."""
    gated = make_bench(policy="asrpt-gated", release_ahead=0)
    gated.slurm.site_limits = SiteLimits(qos={"normal": Qos("normal", job={"MaxTRESPJ=gres/gpu": 2.0})})
    large = gated.slurm.submit(3, 100, qos="normal")
    gated.cycle(2)
    said = row(gated, large)
    limit = "MaxTRESPJ=gres/gpu of QOS normal"
    assert said.text == f"alone exceeds limit {limit} (it asks for 3, the limit is 2)"
    assert json.dumps(said.facts, allow_nan=False)


def test_a_job_with_fewer_gpus_than_its_qos_asks_for_is_not_tried_and_told_so(make_bench):
    """Slurm refuses it (QOSMinGRES). Meanwhile it would keep GPUs from others, a heterogeneous one for long."""
    gated = make_bench(policy="asrpt-gated", release_ahead=0)
    gated.slurm.site_limits = SiteLimits(qos={"normal": Qos("normal", job={"MinTRESPJ=gres/gpu": 2.0})})
    small = gated.slurm.submit(1, 100, qos="normal")
    pair = gated.slurm.submit(2, 100, qos="normal")
    whole = gated.slurm.submit(1, 100, qos="normal", exclusive="node")
    gated.cycle(2)
    limit = "MinTRESPJ=gres/gpu of QOS normal"
    text = f"it asks for less than a limit of the site: {limit} (it asks for 1, the limit is 2)"
    assert row(gated, small).text == text
    assert gated.state(pair) == gated.state(whole) == "RUNNING"  # Slurm gives the second one all GPUs of a node


LEFT_25 = (
    "by its time limit, it may use more than is left of a limit of the site: {} (minutes: 30, of which 25 are left)"
)


@pytest.mark.parametrize(
    ("left", "safe", "text"),
    [
        (
            25.0,
            True,
            LEFT_25,
        ),
        (-0.001, False, "the minutes of a limit of the site are used up: {}"),
    ],
)
def test_a_job_for_which_too_few_minutes_are_left_is_told_so(make_bench, left, safe, text):
    gated = make_bench(policy="asrpt-gated", release_ahead=0)
    caps = {"GrpTRESMins=gres/gpu": left}
    gated.slurm.site_limits = SiteLimits(qos={"normal": Qos("normal", group=caps)}, safe=safe)
    long = gated.slurm.submit(3, 100, qos="normal", time_limit=600.0)
    gated.cycle(2)
    said = row(gated, long)
    assert said.text == text.format("GrpTRESMins=gres/gpu of QOS normal")
    assert "admin must raise the limit" in explain(gated.status(gated.slurm.now), said).changes[0]


def test_a_job_that_exceeds_a_limit_by_itself_is_not_told_to_wait_for_others(make_bench):
    gated = make_bench(policy="asrpt-gated", release_ahead=0)  # the fake Slurm has no limits
    gated.slurm.site_limits = SiteLimits(licenses={"matlab": 2.0})
    first = gated.slurm.submit(1, 100, licenses="matlab:2")
    gated.cycle(3)
    second, large = (gated.slurm.submit(1, 100, licenses=f"matlab:{count}") for count in (1, 3))
    gated.cycle(3)
    assert gated.state(first) == "RUNNING"
    assert row(gated, second).text == "would exceed limit license matlab"
    said = row(gated, large)
    assert said.text == "alone exceeds limit license matlab (it asks for 3, the limit is 2)"
    assert explain(gated.status(gated.slurm.now), said).changes == [
        "the owner must resubmit it with a smaller request, or an admin must raise the limit"
    ]


# CPUs by GPUs


@pytest.mark.parametrize("asked", [40, 0])
def test_jobs_wait_for_the_cpus_that_they_get_for_their_gpus(gated, asked):
    """A node has CPUs for one of them, by --cpus-per-gpu or by DefCpuPerGPU; Slurm shows neither."""
    gated.slurm.gpu_defaults = {} if asked else {"gpu": GpuDefaults(cpus=40)}
    gated.restart()
    jobs = [gated.slurm.submit(1, cpus_per_gpu=asked) for _ in range(4)]
    gated.cycle(3)
    assert [gated.state(job_id) for job_id in jobs] == ["RUNNING"] * 3 + ["PENDING"]
    assert row(gated, jobs[3]).reason == "resources"


# preemption


def preemption(bench, by="qos", mode="REQUEUE", grace_s=0.0, exempt_s=0.0):
    """normal (or partition gpu) may preempt scavenger (partition low)."""
    first, second = ("normal", "scavenger") if by == "qos" else ("gpu", "low")
    kinds = {
        first: PreemptionKind(frozenset({second}), "REQUEUE", 1),
        second: PreemptionKind(frozenset(), mode, 0, grace_s, exempt_s),
    }
    bench.slurm.preempt = PreemptionRules(kinds, PreemptionDefaults(by, "REQUEUE", kill_s=5.0))
    bench.restart()


@pytest.fixture
def gated(make_bench):
    return make_bench(policy="asrpt-gated")


def full_of_scavengers(bench):
    """One GPU each, the last ones on node n3."""
    jobs = []
    for name in ("n1", "n2", "n3"):
        jobs += [bench.slurm.submit(1, qos="scavenger", requeue=True, required_nodes=name) for _ in range(4)]
        bench.cycle(10)
    assert {bench.state(job_id) for job_id in jobs} == {"RUNNING"}
    return jobs


def test_a_preemptor_starts_where_the_preempted_jobs_lose_least(gated):
    preemption(gated)
    jobs = full_of_scavengers(gated)
    job_id = gated.slurm.submit(2, qos="normal")
    gated.cycle(1, seconds=0.0)
    assert row(gated, job_id).text == "released to Slurm on the chosen nodes; preempts 2 jobs of QOS scavenger"
    gated.cycle(2)
    assert gated.slurm.records[job_id].nodes == "n3"
    assert gated.slurm.preempted == [(jobs[8], job_id), (jobs[9], job_id)]
    assert gated.audit("start", job_id)[0]["preempts"] == [jobs[8], jobs[9]]
    assert not gated.audit("left")


def test_a_preempted_job_is_in_the_queue_again_after_slurms_delay(gated):
    preemption(gated)
    jobs = full_of_scavengers(gated)
    job_id = gated.slurm.submit(4, qos="normal")
    gated.cycle(3)
    assert {gated.state(each) for each in jobs[8:]} == {"PENDING"}
    assert {row(gated, each).reason for each in jobs[8:]} == {"begin"}
    gated.slurm.end(job_id)
    gated.cycle(125)
    assert {gated.state(each) for each in jobs} == {"RUNNING"}


def test_preemptors_that_start_together_use_different_gpus(gated):
    preemption(gated)
    full_of_scavengers(gated)
    waiting = [gated.slurm.submit(gpus, qos="normal") for gpus in (4, 3, 3, 2)]
    gated.cycle(3)
    assert [gated.state(job_id) for job_id in waiting] == ["PENDING"] + ["RUNNING"] * 3, "those with less work go first"
    assert not gated.audit("not-started")


def test_jobs_within_their_exempt_time_are_not_preempted(gated):
    preemption(gated, exempt_s=60.0)
    full_of_scavengers(gated)
    job_id = gated.slurm.submit(4, qos="normal")
    gated.cycle(3)
    assert row(gated, job_id).reason in ("gpus", "reserved")
    gated.cycle(40)
    assert gated.slurm.records[job_id].nodes == "n1"


@pytest.mark.parametrize(("waits_s", "withdrawn"), [(100, False), (110, True)])
def test_a_start_may_take_as_long_as_the_preempted_jobs(gated, waits_s, withdrawn):
    """10 s for any start, 60 s of grace that is checked every 30 s, 5 s of KillWait."""
    preemption(gated, grace_s=60.0)
    full_of_scavengers(gated)
    gated.slurm.starts_jobs = False
    gated.slurm.submit(4, qos="normal")
    gated.cycle(waits_s)
    assert bool(gated.audit("not-started")) == withdrawn


@pytest.mark.parametrize(("waits_s", "withdrawn"), [(CLEANING_S, False), (CLEANING_S + 30, True)])
def test_a_preemptor_waits_for_its_nodes_to_clean_up_rather_than_preempt_others(gated, waits_s, withdrawn):
    """Slurm starts nothing there before the epilogs of the preempted jobs have ended."""
    preemption(gated)
    full_of_scavengers(gated)
    gated.slurm.starts_jobs = False
    job_id = gated.slurm.submit(4, qos="normal")
    gated.cycle(2)
    where = gated.slurm.records[job_id].required_nodes
    for each in [each for each in gated.slurm.records.values() if each.nodes == where]:
        gated.slurm.requeued(each.job_id)
    gated.slurm.node_state(where, "IDLE+COMPLETING")
    gated.cycle(int(waits_s))
    assert bool(gated.audit("not-started", job_id)) == withdrawn


@pytest.mark.parametrize("started", [False, True])
def test_gpus_that_jobs_have_left_for_a_start_are_not_taken_from_others_again(gated, monkeypatch, started):
    """Their node still cleans up; or the first job has started after the jobs were read, but before the nodes were."""
    preemption(gated)
    jobs, read = full_of_scavengers(gated), gated.slurm.nodes
    gated.slurm.starts_jobs = False
    gated.slurm.submit(2, qos="normal")
    gated.cycle(2)
    for each in jobs[8:10]:
        gated.slurm.requeued(each)
    if started:
        monkeypatch.setattr(gated.slurm, "nodes", lambda: [replace(node, gpus_used=4) for node in read()])
    else:
        gated.slurm.node_state("n3", "MIXED+COMPLETING")
    second = gated.slurm.submit(2, qos="normal")
    gated.cycle(2)
    assert gated.slurm.records[second].required_nodes == "n3"
    assert gated.audit("start", second)[0]["preempts"] == jobs[10:]


def test_a_start_on_what_a_preempted_job_leaves_over_waits_for_it_too(gated):
    preemption(gated, grace_s=60.0)
    for name in ("n1", "n2", "n3"):
        gated.slurm.submit(4, qos="scavenger", requeue=True, required_nodes=name)
        gated.cycle(10)
    gated.slurm.starts_jobs = False
    first = gated.slurm.submit(2, qos="normal")
    gated.cycle(2)
    second = gated.slurm.submit(2, qos="normal")
    gated.cycle(2)
    assert gated.slurm.records[second].required_nodes == gated.slurm.records[first].required_nodes == "n3"
    assert "preempts" not in gated.audit("start", second)[0], "the job is preempted once"
    gated.cycle(95)
    assert not gated.audit("not-started", second)


def test_waiting_preemptors_go_before_the_jobs_that_they_may_preempt(gated):
    preemption(gated)
    blockers = [gated.slurm.submit(4, qos="other") for _ in range(3)]
    gated.cycle(2)
    scavenger = gated.slurm.submit(4, 10, qos="scavenger")
    job_id = gated.slurm.submit(4, 1000, qos="normal")
    gated.cycle()
    assert [each for each, _ in gated.scheduler.decider.policy.queue(gated.slurm.now)] == [job_id, scavenger]
    gated.slurm.end(blockers[0])
    gated.cycle(3)
    assert (gated.state(job_id), gated.state(scavenger)) == ("RUNNING", "PENDING")


@pytest.mark.parametrize(("by", "mode", "policy", "why"), [
    ("qos", "SUSPEND", "asrpt-gated", "suspends"),
    ("partition_prio", "SUSPEND", "asrpt-gated", "suspends"),
    ("qos", "REQUEUE", "fifo", "preempts"),
    ("partition_prio", "CANCEL", "fifo", "preempts"),
])  # fmt: skip
def test_other_preemptors_are_left_to_slurm(make_bench, by, mode, policy, why):
    bench = make_bench(policy=policy)
    preemption(bench, by, mode)
    job_id, other = bench.slurm.submit(4, qos="normal"), bench.slurm.submit(4, qos="scavenger")
    bench.cycle(2)
    assert bench.audit("left", job_id)[0]["why"] == why
    assert bool(bench.audit("left", other)) == (by == "partition_prio")


def test_while_slurmdbd_is_down_its_last_answer_is_used(bench, caplog):
    preemption(bench)
    bench.cycle()
    bench.slurm.accounting = False
    bench.slurm.tick(120.0)
    job_id = bench.slurm.submit(4, qos="normal")
    bench.cycle()
    assert bench.audit("left", job_id)[0]["why"] == "preempts"
    assert caplog.text.count("slurmdbd is away; the previous answer stays in force") == 1


# bands


def test_bands_order_by_fair_share_and_then_by_work(make_bench):
    bench = make_bench(policy="asrpt-gated", fairshare_bands=2)
    slurm = bench.slurm
    slurm.shares = {("ann", "lab"): 0.9, ("bob", "lab"): 0.2}
    slurm.submit(12)
    bench.cycle(2)
    jobs = {
        name: slurm.submit(12, iterations, user=user, account="lab")
        for name, user, iterations in (
            ("short", "bob", 5),
            ("long", "ann", 500),
            ("middle", "ann", 50),
            ("nobody", "", 1),
        )
    }
    bench.cycle()
    order = [job_id for job_id, _ in bench.scheduler.decider.policy.queue(slurm.now)]
    assert order == [jobs["middle"], jobs["long"], jobs["nobody"], jobs["short"]]
    assert [row(bench, jobs[name]).band for name in ("middle", "nobody", "short")] == [1, 2, 2]
    slurm.shares = {("ann", "lab"): 0.1, ("bob", "lab"): 0.8}
    slurm.tick(120.0)
    bench.cycle()
    order = [job_id for job_id, _ in bench.scheduler.decider.policy.queue(slurm.now)]
    assert order == [jobs["short"], jobs["nobody"], jobs["middle"], jobs["long"]]


def test_without_fairshare_bands_jobs_have_no_band(bench):
    job_id = bench.slurm.submit(4)
    bench.cycle()
    assert row(bench, job_id).band is None


@given(st.floats(allow_nan=False), st.floats(allow_nan=False), st.integers(2, 100))
def test_a_larger_factor_is_never_in_a_later_band(one, two, bands):
    assert 0 <= band_of(max(one, two), bands) <= band_of(min(one, two), bands) < bands


# priorities


SITE = SitePriorities(
    Weights(qos=100_000, age=1000), {"gpu": PartitionPriority()}, {"normal": 0.0, "high": 10.0}, known=True
)


def queue_of(bench):
    return [job_id for job_id, _ in bench.scheduler.decider.policy.queue(bench.slurm.now)]


@pytest.fixture
def full_bench(make_bench):
    """All GPUs are in use; the site has QOS high, and a weight of age."""
    bench = make_bench(policy="asrpt-gated")
    bench.slurm.multifactor, bench.slurm.site_priorities = True, SITE
    bench.slurm.submit(12)
    bench.cycle(3)
    return bench


def test_jobs_follow_qos_nice_and_the_priority_that_an_admin_sets(full_bench):
    bench, slurm = full_bench, full_bench.slurm
    short = slurm.submit(12, 5, qos="normal")
    nice = slurm.submit(12, 1, qos="normal", nice=500, priority=1)
    high = slurm.submit(12, 5000, qos="high", priority=100_100)
    long = slurm.submit(12, 7000, qos="normal")
    bench.cycle(2)
    assert queue_of(bench) == [high, short, long, nice]
    last = row(bench, long)
    assert row(bench, short).ahead == {"gpus": 12, "gpu_s": 60_000.0, "unseen": 0, "higher": 1}
    assert (last.priority, row(bench, high).priority, row(bench, nice).priority) == ("", "QOS high", "nice 500")
    slurm.change(long, priority=5000)
    bench.cycle(2)
    assert queue_of(bench) == [high, long, short, nice]
    assert row(bench, long).priority == "priority 5000 set by an admin"
    slurm.change(long, priority=2_000_000)
    slurm.change(nice, nice=-10_000, priority=10_100)
    bench.cycle(2)
    assert queue_of(bench) == [long, high, nice, short]


def test_a_boosted_job_goes_first_and_undo_takes_it_back(full_bench):
    bench, slurm = full_bench, full_bench.slurm
    short, long = slurm.submit(12, 5, qos="normal"), slurm.submit(12, 7000, qos="normal")
    bench.cycle(2)
    assert queue_of(bench) == [short, long]
    for undo, order in ((False, [long, short]), (True, [short, long])):
        record = slurm.records[long]
        nice = int(writeback.boost(record, True, undo).fields["Nice"])
        slurm.change(long, nice=nice, priority=record.priority + record.nice - nice)
        assert writeback.is_boosted(slurm.records[long], True) is not undo
        bench.cycle(2)
        assert queue_of(bench) == order


def test_a_user_is_told_which_priority_is_ahead(make_bench):
    bench = make_bench(policy="fifo")
    bench.slurm.multifactor, bench.slurm.site_priorities = True, SITE
    bench.slurm.submit(10)
    bench.cycle(3)
    bench.slurm.submit(8, qos="high", priority=100_100)
    later = bench.slurm.submit(2, qos="normal")
    bench.cycle(2)
    assert row(bench, later).text == "1 job of a higher priority ahead (QOS high); job 2 is next"
    assert "partition tier" in explain(bench.status(bench.slurm.now), row(bench, later)).rule


rows = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1.0, 20.0, 300.0])), min_size=1, max_size=12)


@pytest.mark.parametrize("name", banded_policies())
@given(rows=rows, moves=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 3)), max_size=6))
def test_bands_keep_the_policys_order_within_each_band(name, rows, moves):
    """The order is that of the policy without bands, sorted by band; also after changes of bands and a restart."""
    view = cluster(0, 0)

    def waiting(banded):
        policy = make_policy(name, fabric=FABRIC)
        policy.cluster_changed(view.nodes, 0.0)
        bands = [band for band, _ in rows]
        jobs = {}
        for number, (band, iterations) in enumerate(rows):
            jobs[number] = job(number, 1, iterations, band=band if banded else 0)
            policy.submitted(jobs[number], 0.0)
        for number, band in moves:
            if banded and number in jobs:
                bands[number] = band
                jobs[number] = job(number, 1, rows[number][1], band=band)
                policy.changed(jobs[number], 1.0)
        again = make_policy(name, fabric=FABRIC)
        again.cluster_changed(view.nodes, 1.0)
        again.load(policy.dump(), {job.id: job for job in jobs.values()})
        order = [job_id for job_id, _ in policy.queue(1.0)]
        assert [job_id for job_id, _ in again.queue(1.0)] == order
        return order, {job.id: band for job, band in zip(jobs.values(), bands, strict=True)}

    order, bands = waiting(True)
    assert order == sorted(waiting(False)[0], key=bands.__getitem__)


@pytest.mark.parametrize("name", banded_policies())
def test_a_returned_job_is_ordered_before_all_others_of_its_band(name):
    view = cluster(0, 0)
    policy = make_policy(name, fabric=FABRIC)
    policy.cluster_changed(view.nodes, 0.0)
    jobs = [job(1, 1, 5.0), job(3, 1, 5.0, band=2), job(2, 1, 500.0, band=3), job(4, 1, 500.0, band=3)]
    for one in jobs[:2]:
        policy.submitted(one, 0.0)
    for one in jobs[2:]:
        policy.returned(one, 1.0)
    assert [job_id for job_id, _ in policy.queue(2.0)] == ["1", "3", "4", "2"]
    jobs[2] = job(2, 1, 500.0, band=2)
    policy.changed(jobs[2], 1.0)
    assert [job_id for job_id, _ in policy.queue(2.0)] == ["1", "2", "3", "4"]
    again = make_policy(name, fabric=FABRIC)
    again.cluster_changed(view.nodes, 0.0)
    again.load(policy.dump(), {each.id: each for each in jobs})
    assert again.queue(2.0) == policy.queue(2.0)


def test_the_papers_policies_and_easy_backfill_have_no_bands():
    assert set(policy_names()) - set(banded_policies()) == {"asrpt", "easy-backfill", "hlas", "sjf-bco-online"}


# reservations in which asrptd starts jobs


def reserve(bench, *nodes, magnetic=False, users=(), accounts=(), **fields):
    now = bench.slurm.now
    owners = frozenset(users), frozenset(accounts)
    bench.slurm.reserved = [Reservation("course", now - 1, now + HOUR, frozenset(nodes), magnetic, *owners, **fields)]
    for name in nodes:
        bench.slurm.node_state(name, "IDLE+RESERVED")


def magnetic(bench, *nodes, users=(), accounts=()):
    reserve(bench, *nodes, magnetic=True, users=users, accounts=accounts)


@pytest.mark.parametrize("policy", ["asrpt-gated", "easy-backfill", "fifo", "wcs-workload"])
def test_jobs_that_name_a_reservation_run_on_its_nodes_and_no_others_do(make_bench, policy):
    bench = make_bench(policy=policy, release_ahead=0)
    reserve(bench, "n2", "n3", users=["asrpt1"])
    others = [bench.slurm.submit(4) for _ in range(2)]
    bench.cycle(2)
    assert bench.slurm.records[others[0]].nodes == "n1"
    bench.slurm.end(others[1], "CANCELLED")
    inside = [bench.slurm.submit(4, reservation="course") for _ in range(3)]
    bench.cycle(2)
    assert sorted(bench.slurm.records[job_id].nodes for job_id in inside) == ["", "n2", "n3"]
    bench.slurm.end(others[0])
    bench.cycle(2)
    assert bench.slurm.records[inside[2]].nodes == "", "n1 is free, but not in the reservation"
    said = row(bench, inside[2])
    assert (said.state, said.facts["reserved_in"]) == ("waiting", "course")
    if policy != "fifo":  # its head waits, so all do
        outside = bench.slurm.submit(4)
        bench.cycle(2)
        assert bench.slurm.records[outside].nodes == "n1"
    assert not bench.audit("not-started")


def test_whole_nodes_runs_of_nodes_and_jobs_without_gpus_are_found_in_the_reservation(make_bench):
    bench = make_bench(policy="asrpt-gated", sizes=(4, 4, 4, 2, 2, 2))
    reserve(bench, "n2", "n4", "n5", "n6")
    whole = bench.slurm.submit(2, exclusive="node", reservation="course")
    bench.cycle(2)
    assert bench.slurm.records[whole].nodes in ("n4", "n5", "n6"), "of these, the reservation has most GPUs"
    bench.slurm.end(whole)
    bench.slurm.starts_jobs = False
    run = bench.slurm.submit(4, min_nodes=2, contiguous=True, reservation="course")
    bench.cycle(2)
    assert set(bench.job(run).pin.gpus) in ({"n4", "n5"}, {"n5", "n6"})
    none = bench.slurm.submit(1, tres_per_task="", reservation="course")
    bench.cycle(2)
    assert set(bench.job(none).pin.gpus) < {"n2", "n4", "n5", "n6"}


@pytest.mark.parametrize("used", [0, 16])
def test_jobs_start_beside_reserved_cores_and_leave_these_to_the_reservation(make_bench, used):
    """Of 64 CPUs, 40 are reserved; of these, a job of the reservation uses some."""
    bench = make_bench(policy="asrpt-gated", sizes=(4,), release_ahead=0)
    reserve(bench, "n1", cores=(("n1", 40),))
    if used:
        inside = bench.slurm.submit(1, cpus=used, reservation="course")
        bench.slurm.change(inside, state="RUNNING", nodes="n1", gpus_by_node={"n1": 1})
    bench.slurm.starts_jobs = False
    jobs = [bench.slurm.submit(1, cpus=20) for _ in range(3)]
    bench.cycle(2)
    assert [bench.job_state(job_id) for job_id in jobs].count(JobState.PINNED) == 1


def test_a_job_waits_for_its_reservation_to_begin(make_bench):
    bench = make_bench(policy="asrpt-gated")
    start = bench.slurm.now + 60
    bench.slurm.reserved = [Reservation("course", start, start + HOUR, frozenset({"n2"}))]
    early = bench.slurm.submit(4, reservation="course")
    bench.cycle(5)
    said = row(bench, early)
    assert (said.reason, said.facts["reservation"]) == ("reservation-begins", "course")
    assert bench.slurm.records[early].eligible_time > bench.slurm.now
    bench.slurm.node_state("n2", "IDLE+RESERVED")
    bench.cycle(60)
    assert (bench.slurm.records[early].nodes, bench.slurm.records[early].start_time >= start) == ("n2", True)


@pytest.mark.parametrize("named", ["course,other", "unknown", "course"])
def test_reservations_that_asrptd_cannot_plan_in_are_left_to_slurm(make_bench, named):
    bench = make_bench(policy="asrpt-gated")
    reserve(bench, "n2", plain=False)
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4, reservation=named)
    bench.cycle(2)
    assert row(bench, job_id).facts["word"] == "reservation"
    assert bench.slurm.records[job_id].eligible_time <= bench.slurm.now
    assert "n2" not in bench.scheduler.decider.cluster.view.free


@pytest.mark.parametrize("mode", ["shadow", "order"])
def test_other_modes_leave_jobs_of_reservations_to_slurm(make_bench, mode):
    bench = make_bench(mode=mode)
    reserve(bench, "n2")
    job_id = bench.slurm.submit(4, reservation="course", leased=False)
    bench.cycle(1)
    assert bench.job_state(job_id) in (JobState.LEFT_TO_SLURM, JobState.RUNNING)


@pytest.mark.parametrize("policy", ["asrpt-gated", "easy-backfill", "fifo", "wcs-workload"])
def test_a_magnetic_reservation_draws_the_jobs_that_it_admits_and_no_others(make_bench, policy):
    bench = make_bench(policy=policy, release_ahead=0)
    magnetic(bench, "n2", "n3", users=["asrpt1"])
    other = [bench.slurm.submit(4, user="asrpt2") for _ in range(2)]
    bench.cycle(2)
    assert bench.slurm.records[other[0]].nodes == "n1"
    said = row(bench, other[1])
    assert (said.reason, said.facts["reservation"]) == ("reserved-nodes", "course")
    own = [bench.slurm.submit(3), bench.slurm.submit(4)]
    if policy == "fifo":  # its head waits, so they do
        bench.slurm.end(other[1], "CANCELLED")
    bench.cycle(2)
    assert sorted(bench.slurm.records[job_id].nodes for job_id in own) == ["n2", "n3"]
    assert not bench.audit("not-started")


@pytest.mark.parametrize(
    ("version", "flex", "drawn"), [("22.05.8", False, True), ("25.11.2", False, False), ("26.05.5", True, True)]
)
def test_from_25_11_a_magnetic_reservation_draws_jobs_only_if_they_end_before_it(make_bench, version, flex, drawn):
    bench = make_bench(policy="asrpt-gated", release_ahead=0)
    bench.slurm.version = version
    bench.restart()
    reserve(bench, "n3", magnetic=True, users=["asrpt1"], flex=flex, plain=not flex)
    short = bench.slurm.submit(2, time_limit=HOUR / 2)
    others = [bench.slurm.submit(4, time_limit=2 * HOUR) for _ in range(2)]
    bench.cycle(2)
    assert bench.slurm.records[short].nodes == "n3"
    assert {bench.slurm.records[job_id].nodes for job_id in others} == {"n1", "n2"}
    last = bench.slurm.submit(2, time_limit=2 * HOUR)
    bench.cycle(2)
    assert bench.slurm.records[last].nodes == ("n3" if drawn else "")
    assert drawn or (row(bench, last).reason, row(bench, last).facts["reservation"]) == ("reserved-nodes", "course")


def test_a_job_that_is_drawn_goes_to_the_reserved_nodes_first_and_never_half_there(make_bench):
    bench = make_bench(policy="asrpt-gated", sizes=(4, 4, 4, 4))
    magnetic(bench, "n4", accounts=["physics"])
    first = bench.slurm.submit(2, account="physics")
    bench.cycle(2)
    assert bench.slurm.records[first].nodes == "n4"
    wide = bench.slurm.submit(12, account="physics")
    wider = bench.slurm.submit(14, account="physics")
    bench.cycle(2)
    assert bench.slurm.records[wide].nodes == "n1,n2,n3"
    assert row(bench, wider).reason == "capacity"
    assert row(bench, wider).facts["drawn_by"] == "course"


def test_what_slurm_does_not_answer_is_logged_once_and_again_when_it_comes_back(bench, monkeypatch, caplog):
    def away(*_):
        raise SlurmError("slurmctld is away")

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(bench.slurm, "reservations", away)
            bench.cycle(3)
        bench.cycle(3)
    assert caplog.text.count("slurmctld is away; the previous answer stays in force") == 2


# partitions


@pytest.mark.parametrize("closed", [{"up": False}, {"max_time": 300.0}, {"accounts": Names(frozenset({"other"}))}])
def test_a_job_of_several_partitions_starts_on_nodes_of_one_that_lets_it(make_bench, monkeypatch, closed):
    bench = make_bench(policy="asrpt-gated", tables={"slurm": {"partitions": ["gpu", "short"]}})
    found = bench.slurm.nodes

    def parted():
        return [replace(n, partitions=frozenset({"gpu" if n.name == "n3" else "short"})) for n in found()]

    monkeypatch.setattr(bench.slurm, "nodes", parted)
    bench.slurm.partition_rules = {"short": Partition(**closed), "gpu": Partition()}
    bench.restart()
    job_id = bench.slurm.submit(2, 100, partition="short,gpu", time_limit=600.0)
    bench.cycle(3)
    assert bench.slurm.records[job_id].gpus_by_node == {"n3": 2}


def test_jobs_of_a_closed_partition_keep_no_gpus_and_start_once_it_is_open(make_bench, monkeypatch):
    bench = make_bench(policy="asrpt-gated", release_ahead=0)
    bench.slurm.partition_rules = {"gpu": Partition(up=False)}
    bench.restart()
    jobs = [bench.slurm.submit(4, 100) for _ in range(6)]
    bench.cycle(2)
    assert {bench.job(job).reason.kind for job in jobs} == {"partition-closed"}
    assert not any(bench.audit("start", job) for job in jobs)
    bench.slurm.partition_rules = {"gpu": Partition()}
    monkeypatch.setattr("slurm_asrpt.daemon.jobs.site_reader.SOON", 0.0)
    bench.cycle(3)
    assert bench.job_state(jobs[0]) is JobState.RUNNING


def test_a_partition_that_slurm_refuses_a_start_for_is_read_again_at_once(make_bench):
    bench = make_bench(policy="asrpt-gated", release_ahead=0)
    bench.slurm.partition_rules = {"gpu": Partition()}
    bench.restart()
    bench.cycle()
    bench.slurm.starts_jobs = False
    jobs = [bench.slurm.submit(4, 100) for _ in range(9)]
    bench.cycle()
    bench.slurm.partition_rules = {"gpu": Partition(up=False)}
    for job_id in jobs:
        bench.slurm.change(job_id, reason="PartitionDown")
    bench.cycle(3)
    assert {bench.job(job).reason.kind for job in jobs} == {"partition-closed"}
    assert {each["why"] for each in bench.audit("not-started")} == {"PartitionDown"}
    assert not any(bench.slurm.records[job].required_nodes for job in jobs)


def test_a_job_gets_at_least_as_many_nodes_as_its_partition_asks_for(make_bench):
    bench = make_bench(policy="asrpt-gated", release_ahead=0)
    bench.slurm.partition_rules = {"gpu": Partition(min_nodes=2)}
    bench.restart()
    job_id = bench.slurm.submit(4, 100)
    bench.cycle(3)
    assert len(bench.slurm.records[job_id].gpus_by_node) == 2
