"""Limits as asrptd follows them: read rarely, counted in each cycle, and learned from what Slurm refuses."""

import math
from dataclasses import replace

import pytest

from slurm_asrpt.daemon.jobs import site_reader as module
from slurm_asrpt.daemon.jobs.limits import LimitsWatch
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.priorities import PriorityWatch
from slurm_asrpt.daemon.jobs.refusals import FIRST_PROBE_S, Scope, scope_of
from slurm_asrpt.daemon.jobs.saved_state import Pin
from slurm_asrpt.daemon.jobs.site_reader import SiteReader
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.limits import Qos, SiteLimits
from slurm_asrpt.slurm.partitions import Partition
from slurm_asrpt.slurm.priorities import FIRST_DEFAULT, SitePriorities
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.slurm.site import Site
from slurm_asrpt.slurm.writeback import Original
from tests.benches.fake_slurm import node
from tests.benches.gated import job

WAITING = JobRecord(
    *("1", "train", "ann", 1001, "gpu", "PENDING", "None", 0.0), account="lab", qos="normal", tres="cpu=1,gres/gpu=2"
)
RUNNING = replace(WAITING, job_id="2", state="RUNNING")
LIMIT = "MaxTRESPU=gres/gpu of QOS normal, user ann"


class Client:
    def __init__(self) -> None:
        self.limits = SiteLimits(qos={"normal": Qos("normal", user={"MaxTRESPU=gres/gpu": 3.0})})
        self.partitions: dict[str, Partition] = {}
        self.reads = 0
        self.away = False

    def site(self) -> Site:
        self.reads += 1
        if self.away:
            raise SlurmError("slurmctld is away")
        return Site(self.limits, SitePriorities(known=True), partitions=self.partitions)


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def watch(client: Client, monkeypatch: pytest.MonkeyPatch) -> LimitsWatch:
    monkeypatch.setattr(module, "READ_PAUSE_FACTOR", 1e12)  # only new users make it read again
    return LimitsWatch(SiteReader(client))


def room(watch: LimitsWatch, limit: str = LIMIT) -> float:
    return watch.headroom(()).room[limit]


def test_what_runs_counts_and_what_completes_does_not(watch):
    watch.follow([WAITING], 0.0)
    assert watch.charges(WAITING) == ((LIMIT, 2.0),)
    assert room(watch) == 3
    watch.follow([WAITING, RUNNING], 1.0)
    assert room(watch) == 1
    assert watch.headroom(()).exceeded(watch.charges(WAITING)) == LIMIT
    watch.follow([WAITING, replace(RUNNING, state="COMPLETING")], 2.0)
    assert room(watch) == 3


@pytest.mark.parametrize(
    ("safe", "period_s", "left"),
    [(True, 60.0, [980, 980, 984, 998]), (True, math.inf, [980] * 4), (False, 60.0, [1000] * 4)],
)
def test_a_running_job_counts_for_the_minutes_that_slurmctld_has_not_taken_off_yet(client, watch, safe, period_s, left):
    """GrpTRESMins of a site that is safe; two GPUs for ten minutes."""
    caps = {"GrpTRESMins=gres/gpu": 1000.0}
    client.limits = SiteLimits(qos={"normal": Qos("normal", group=caps)}, safe=safe, period_s=period_s)
    job = replace(RUNNING, time_limit=600.0, start_time=5000.0)
    found = []
    for ran in (0.0, 119.0, 180.0, 600.0):
        watch.follow([job], 5000.0 + ran)
        found.append(room(watch, "GrpTRESMins=gres/gpu of QOS normal"))
    assert found == left
    assert watch.charges(job) == (("GrpTRESMins=gres/gpu of QOS normal", 20.0 * safe),), (
        "as it will when it waits again"
    )


def test_a_node_counts_once_for_all_jobs_of_a_limit_that_share_it(client, watch):
    """Jobs on n1, n1, n1 and n2, and one that is pinned there: two nodes of three. Without GPUs: one more."""
    limit = "MaxTRESPU=node of QOS normal, user ann"
    client.limits = SiteLimits(qos={"normal": Qos("normal", user={"MaxTRESPU=node": 3.0, "MaxTRESPU=cpu": 9.0})})
    on = [{"n1": 2}, {"n1": 1}, {"n1:a100": 1}, {"n2": 2}]
    waiting = replace(WAITING, tres="cpu=1,node=1,gres/gpu=2")
    jobs = [replace(waiting, job_id=f"{n}", state="RUNNING", gpus_by_node=gpus) for n, gpus in enumerate(on, 10)]
    watch.follow([waiting, *jobs], 0.0)
    assert (room(watch, limit), room(watch, "MaxTRESPU=cpu of QOS normal, user ann")) == (1, 5)
    assert watch.charges(waiting)[0] == (limit, 1.0)
    watch.follow([waiting, *jobs, replace(jobs[0], job_id="20", gpus_by_node={})], 0.0)
    assert room(watch, limit) == 0
    pinned = ManagedJob(record=waiting)
    pinned.pin = Pin({"n2": 2}, [], 1.0, 0.0, Original(1, 1, 1, 0))
    pinned.job = replace(job("1", 2), charges=watch.charges(waiting))
    watch.follow([waiting, *jobs], 0.0)
    assert watch.headroom([pinned]).room[limit] == 1


def test_a_job_that_gets_whole_nodes_counts_with_all_of_their_gpus(watch):
    exclusive = replace(WAITING, exclusive="node")
    watch.follow([exclusive], 0.0, [node("n0", 0, 8), replace(node("n1", 1, 2), partitions=frozenset({"cpu"}))])
    assert watch.charges(exclusive) == ((LIMIT, 8.0),)
    waiting = ManagedJob(record=exclusive)
    waiting.job = replace(job("1", 8), charges=watch.asked([exclusive]))
    assert waiting.charges == ((LIMIT, math.inf),)
    assert watch.alone(waiting, LIMIT) == (8.0, 3.0)
    watch.follow([exclusive], 1.0, [node("n0", 0, 4)])
    assert watch.charges(exclusive) == ((LIMIT, 4.0),)
    started = replace(exclusive, state="RUNNING")
    assert watch.charges(started) == ((LIMIT, 2.0),), "what Slurm shows of it"


@pytest.mark.parametrize(("one_thread", "cpus"), [(False, 64.0), (True, 32.0)])
def test_of_cores_of_which_a_job_uses_one_thread_half_may_count(client, watch, one_thread, cpus):
    client.limits = SiteLimits(qos={"normal": Qos("normal", user={"MaxTRESPU=cpu": 99.0})})
    exclusive = replace(WAITING, exclusive="node", one_thread=one_thread)
    watch.follow([exclusive], 0.0, [replace(node("n1", 0, 4), threads=2)])
    assert watch.charges(exclusive) == (("MaxTRESPU=cpu of QOS normal, user ann", cpus),)


def test_limits_are_read_at_once_for_a_new_user_and_seldom_otherwise(watch, client):
    for now in range(10):
        watch.follow([WAITING, RUNNING], float(now))
    assert client.reads == 1
    watch.follow([WAITING, replace(RUNNING, user="bob")], 10.0)
    assert client.reads == 2


@pytest.mark.parametrize("soon", [False, True])
def test_after_a_start_refused_for_the_state_of_a_partition_the_states_are_read_once(watch, client, soon, monkeypatch):
    watch.follow([WAITING], 0.0)
    monkeypatch.setattr(SiteReader, "due_soon", soon)
    watch.partition_refused()
    assert client.reads == 1
    for now in (1.0, 2.0):
        watch.follow([WAITING], now)
        assert client.reads == 2


def test_limits_and_priorities_are_read_together(client, monkeypatch):
    monkeypatch.setattr(module, "READ_PAUSE_FACTOR", 1e12)
    reader = SiteReader(client)
    limits, priorities = LimitsWatch(reader), PriorityWatch(reader)
    job = ManagedJob(record=replace(WAITING, priority=500))
    limits.follow([WAITING], 0.0)
    priorities.follow([job], 0.0)
    assert (client.reads, job.standing.live) == (1, 500.0)
    job.follow(replace(job.record, priority=FIRST_DEFAULT + 1))  # an admin has set it
    limits.follow([WAITING], 1.0)
    priorities.follow([job], 1.0)
    assert (client.reads, job.standing.fixed) == (2, 1)


def test_without_limits_jobs_have_no_charges(watch, client):
    client.limits = SiteLimits()
    watch.follow([WAITING], 0.0)
    assert watch.charges(WAITING) == ()


def test_the_previous_limits_stay_in_force_while_slurm_does_not_answer(watch, client):
    watch.follow([WAITING], 0.0)
    client.away = True
    watch.follow([WAITING, replace(RUNNING, user="bob")], 1.0)
    assert watch.charges(WAITING) == ((LIMIT, 2.0),)


@pytest.mark.parametrize(
    ("why", "fields"),
    [
        ("QOSMaxGRESPerUser", {"user": "ann", "qos": "normal"}),
        ("MaxGRESPerAccount", {"account": "lab", "qos": "normal"}),
        ("QOSGrpGRES", {"qos": "normal"}),
        ("AssocGrpGRES", {"user": "ann", "account": "lab"}),
        ("AssocGrpCPURunMinutesLimit", {"user": "ann", "account": "lab"}),
        ("AssocMaxJobsLimit", {"user": "ann", "account": "lab"}),
        ("QOSMaxJobsPerUserLimit", {"user": "ann", "qos": "normal"}),
        ("Licenses", {"licenses": ""}),
        ("AccountNotAllowed", {"partition": "gpu", "account": "lab"}),
        ("Job's account not permitted to use this partition (gpu denies lab)", {"partition": "gpu", "account": "lab"}),
        ("QOSNotAllowed", {"partition": "gpu", "qos": "normal"}),
        ("PartitionTimeLimit", {"partition": "gpu", "qos": "normal", "time_limit": "0.0"}),
        ("PartitionNodeLimit", {"partition": "gpu", "qos": "normal", "min_nodes": "1", "max_nodes": "0"}),
        ("InvalidQOS", {"user": "ann", "account": "lab", "qos": "normal"}),
        ("InvalidAccount", {"user": "ann", "account": "lab", "qos": "normal"}),
    ],
)
def test_a_refusal_is_about_the_jobs_that_share_its_limit(why, fields):
    assert scope_of(why, WAITING) == Scope(why, tuple(fields.items()))


@pytest.mark.parametrize(
    ("why", "changed", "shown"),
    [
        ("PartitionTimeLimit", {"qos": "", "time_limit": 60.0}, "jobs in partition gpu with a time limit of 00:01:00"),
        ("PartitionTimeLimit", {}, "jobs in partition gpu in QOS normal with a time limit of UNLIMITED"),
        ("PartitionNodeLimit", {"min_nodes": 3}, "jobs in partition gpu in QOS normal on at least 3 nodes"),
        ("QOSMaxJobsPerUserLimit", {}, "jobs of user ann in QOS normal"),
        ("Licenses", {"licenses": "matlab:2"}, "jobs with licenses matlab:2"),
    ],
)
def test_the_jobs_of_a_refusal_are_named_in_words(why, changed, shown):
    scope = scope_of(why, replace(WAITING, **changed))
    assert scope is not None
    assert scope.name == f"{why} ({shown})"


@pytest.mark.parametrize(
    "why",
    [
        *("QOSMaxGRESPerJob", "QOSMaxWallDurationPerJobLimit", "JobArrayTaskLimit"),
        *("QOSMinGRES", "QOSMinCpuNotSatisfied"),
        *("QOSMinMemory", "QOSMinNode", "QOSUsageThreshold", "AssocMaxSubmitJobLimit", "QOSTimeLimit"),
    ],
)
def test_a_refusal_of_one_job_alone_teaches_nothing_about_others(watch, why):
    watch.follow([WAITING], 0.0)
    assert not watch.refused(WAITING, why, 0.0)
    assert watch.charges(WAITING) == ((LIMIT, 2.0),)


def test_after_a_refusal_as_many_jobs_of_the_scope_may_run_as_did_then(watch):
    watch.follow([WAITING, RUNNING], 0.0)
    assert watch.refused(WAITING, "QOSGrpCpuLimit", 0.0)
    limit = "QOSGrpCpuLimit (jobs in QOS normal)"
    assert watch.charges(WAITING)[-1] == (limit, 1.0)
    assert watch.charges(replace(WAITING, qos="high")) == ()
    assert room(watch, limit) == 0
    watch.follow([WAITING], 1.0)  # one has ended
    assert room(watch, limit) == 1


def test_a_limit_that_may_be_of_a_partitions_qos_holds_in_this_partition_alone(watch, client):
    client.partitions = {"gpu": Partition(), "small": Partition(has_qos=True)}
    small, everywhere = replace(WAITING, partition="small"), replace(WAITING, partition="gpu,small")
    watch.follow([WAITING, small, everywhere], 0.0)
    assert watch.refused(small, "QOSMaxGRESPerUser", 0.0)
    assert watch.refused(WAITING, "QOSGrpCpuLimit", 0.0)
    limit = "QOSMaxGRESPerUser (jobs of user ann in partition small in QOS normal)"
    assert watch.charges(small)[1:] == ((limit, 1.0), ("QOSGrpCpuLimit (jobs in QOS normal)", 1.0))
    assert watch.charges(WAITING)[1:] == (("QOSGrpCpuLimit (jobs in QOS normal)", 1.0),)
    assert watch.refused(everywhere, "AssocGrpGRES", 0.0)
    assert watch.charges(WAITING)[-1] == ("AssocGrpGRES (jobs of user ann of account lab)", 1.0)


def running(count: int) -> list[JobRecord]:
    return [replace(RUNNING, job_id=str(10 + number)) for number in range(count)]


REFUSED = "QOSGrpCpuLimit (jobs in QOS normal)"


def test_a_refused_scope_is_probed_by_one_job(watch):
    watch.follow([WAITING, RUNNING], 0.0)
    watch.refused(WAITING, "QOSGrpCpuLimit", 0.0)
    watch.follow([WAITING, RUNNING], FIRST_PROBE_S)
    assert room(watch, REFUSED) == 1
    watch.refused(WAITING, "QOSGrpCpuLimit", FIRST_PROBE_S)
    watch.refused(replace(WAITING, job_id="3"), "QOSGrpCpuLimit", FIRST_PROBE_S)
    watch.follow([WAITING, RUNNING], 2 * FIRST_PROBE_S)  # the pause has doubled
    assert room(watch, REFUSED) == 0
    watch.follow([WAITING, RUNNING], 3 * FIRST_PROBE_S)  # but not twice
    assert room(watch, REFUSED) == 1


def test_a_scope_is_forgotten_when_ever_more_of_its_jobs_run_than_when_it_was_refused(watch):
    watch.follow([WAITING, *running(3)], 0.0)
    watch.refused(WAITING, "QOSGrpCpuLimit", 0.0)
    watch.follow([WAITING, *running(3)], FIRST_PROBE_S)
    count, rooms = 3, []
    for second in range(5):
        if REFUSED not in watch.headroom(()).room:
            break
        rooms.append(room(watch, REFUSED))
        count += int(rooms[-1])
        watch.follow([WAITING, *running(count)], FIRST_PROBE_S + second + 1)
    assert rooms == [1, 2, 4]
    assert watch.charges(WAITING) == ((LIMIT, 2.0),)


def test_a_scope_without_jobs_is_forgotten(watch):
    watch.follow([WAITING], 0.0)
    watch.refused(WAITING, "QOSGrpCpuLimit", 0.0)
    watch.follow([replace(WAITING, state="COMPLETED"), replace(RUNNING, qos="high")], 1.0)
    assert REFUSED not in watch.headroom(()).room


def test_two_limits_of_one_scope_are_learned_and_forgotten_by_themselves(watch):
    watch.follow([WAITING, RUNNING], 0.0)
    watch.refused(WAITING, "QOSGrpCpuLimit", 0.0)
    watch.follow([WAITING, *running(2)], 1.0)
    watch.refused(WAITING, "QOSGrpNodeLimit", 1.0)
    assert (room(watch, REFUSED), room(watch, "QOSGrpNodeLimit (jobs in QOS normal)")) == (2, 0)


def test_limits_of_a_user_who_was_away_when_they_were_read_are_read_again(watch, client, monkeypatch):
    watch.follow([replace(WAITING, user="bob")], 0.0)
    monkeypatch.setattr(SiteReader, "due", True)
    watch.follow([WAITING], 1.0)
    monkeypatch.setattr(SiteReader, "due", False)
    watch.follow([WAITING], 2.0)
    assert client.reads == 2
    watch.follow([WAITING, replace(WAITING, user="bob")], 3.0)
    assert client.reads == 3


def test_a_read_for_priorities_forgets_those_who_were_away(client, monkeypatch):
    monkeypatch.setattr(module, "READ_PAUSE_FACTOR", 1e12)
    reader = SiteReader(client)
    watch = LimitsWatch(reader)
    watch.follow([WAITING, replace(WAITING, user="bob")], 0.0)
    reader.read()
    watch.follow([WAITING], 1.0)
    assert client.reads == 2
    watch.follow([WAITING, replace(WAITING, user="bob")], 2.0)
    assert client.reads == 3
