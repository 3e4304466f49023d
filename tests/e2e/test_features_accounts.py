"""Features of slurmdbd: limits, preemption by QOS, fair-share (docs/slurm-features.md). One lab for all tests."""

import operator
from collections.abc import Iterator

import pytest

from .conftest import REQUEUE_PAUSE_S, Cluster, own_cluster, quick, wait_for

pytestmark = pytest.mark.e2e

SPEED = 20
SHORT = "sleep 20"
LONG = "sleep 36000"
EXTRA = """PreemptType=preempt/qos
PreemptMode=REQUEUE
AccountingStorageEnforce=associations,limits,qos,safe
PriorityCalcPeriod=1"""


def sacctmgr(cluster: Cluster, *words: str) -> None:
    cluster.lab.run(["sacctmgr", "-i", *words])


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    """QOS limited (one job a user), large (two GPUs at least), cores (four CPUs at least) and urgent (preempts normal).

    asrptd knows them, and orders jobs in four bands.
    """
    settings = {**quick(SPEED), "policy": {"fairshare_bands": 4}}
    options = {"accounting": True, "multifactor": True, "slurm_conf_extra": EXTRA, "speed": SPEED}
    with own_cluster(30, "2x4", settings, **options) as cluster:
        sacctmgr(cluster, "add", "qos", "limited", "MaxJobsPerUser=1")
        sacctmgr(cluster, "add", "qos", "urgent", "Preempt=normal", "Priority=100")
        sacctmgr(cluster, "add", "qos", "large", "MinTRESPerJob=gres/gpu=2")
        sacctmgr(cluster, "add", "qos", "cores", "MinTRESPerJob=cpu=4")
        sacctmgr(cluster, "modify", "user", "asrpt1,asrpt2", "set", "qos+=limited,urgent,large,cores")
        cluster.start_daemon()
        yield cluster


def fair_shares(cluster: Cluster) -> tuple[float, float]:
    shares = cluster.client.fair_shares()
    return shares["asrpt1", "lab"], shares["asrpt2", "lab"]


def test_fair_share_bands_order_jobs_and_predicted_work_orders_each_band(lab: Cluster):
    used = lab.submit("-p", "other", "--gpus=1", "-c8", script="sleep 60", user="asrpt1")
    lab.wait(used, "COMPLETED")
    lab.stop_daemon()
    # slurmctld computes usage once a minute
    wait_for(lambda: operator.lt(*fair_shares(lab)), "asrpt1 has used more than asrpt2", 30)
    lab.predict({("asrpt1", "short"): 30, ("asrpt2", "middle"): 300, ("asrpt2", "long"): 3000})
    lab.start_daemon()
    blockers = lab.block_all()
    whole = ("-N2", "--gres=gpu:4")
    short = lab.submit(*whole, "-J", "short", user="asrpt1")
    long, middle = (lab.submit(*whole, "-J", name, user="asrpt2") for name in ("long", "middle"))
    wait_for(lambda: lab.order() == [middle, long, short], "the bands are in order", 15)
    rows = lab.status()
    assert rows[middle]["band"] == rows[long]["band"] < rows[short]["band"]
    lab.cancel(*blockers)
    done = lab.wait_all([middle, long, short], "COMPLETED")
    assert done[middle].end_time <= done[long].start_time < done[long].end_time <= done[short].start_time


def test_limits_of_qos_and_associations_delay_only_the_jobs_they_apply_to(lab: Cluster):
    sacctmgr(lab, "modify", "user", "asrpt2", "set", "MaxJobs=1")
    limited = [lab.submit("--gpus=1", "--qos=limited", script=LONG, user="asrpt1") for _ in range(2)]
    single = [lab.submit("--gpus=1", script=LONG, user="asrpt2") for _ in range(2)]
    lab.wait_all([limited[0], single[0]], "RUNNING")
    limits = ("MaxJobsPU of QOS limited, user asrpt1", "MaxJobs of user asrpt2 in account lab")
    for job_id, limit in zip((limited[1], single[1]), limits, strict=True):
        text = f"would exceed limit {limit}"
        wait_for(lambda j=job_id, t=text: lab.text_of(j) == t, limit, 30)
    free = lab.submit("--gpus=6", script=SHORT, user="asrpt1")
    lab.wait(free, "COMPLETED")
    lab.cancel(limited[0], single[0])
    lab.wait_all([limited[1], single[1]], "RUNNING")
    assert not any(lab.audit(job_id, "not-started") for job_id in (*limited, *single))
    sacctmgr(lab, "modify", "user", "asrpt2", "set", "MaxJobs=-1")


def test_jobs_with_fewer_gpus_than_their_qos_asks_for_are_not_tried(lab: Cluster):
    small = lab.submit("--gpus=1", "--qos=large", script=SHORT)
    others = [lab.submit(*words, "--qos=large", script=SHORT) for words in (["--gpus=2"], ["--gpus=1", "--exclusive"])]
    lab.wait_all(others, "COMPLETED")
    text = "it asks for less than a limit of the site: MinTRESPJ=gres/gpu of QOS large"
    wait_for(lambda: lab.text_of(small).startswith(text), text, 15)
    assert not lab.audit(small, "start")


def test_a_limit_that_holds_a_component_withdraws_the_start_of_the_heterogeneous_job(lab: Cluster):
    """Slurm alone knows how many CPUs a job will have. Of the first component it says Resources."""
    first = lab.submit("--gpus=1", "-c4", "--qos=cores", ":", "--gpus=1", "-c1", "--qos=cores", script=SHORT)
    wait_for(lambda: lab.audit(first, "not-started"), "the start is withdrawn", 30)
    assert lab.audit(first, "not-started")[0]["why"] == "QOSMinCpuNotSatisfied"
    lab.cancel(first)


def test_a_queue_over_a_limit_keeps_all_gpus_busy_without_a_refused_start(lab: Cluster):
    """30 jobs of a user who may use 2 of 8 GPUs come first; the jobs of another user behind them get the rest."""
    sacctmgr(lab, "modify", "qos", "limited", "set", "MaxTRESPerUser=gres/gpu=2", "MaxJobsPerUser=-1")
    blockers = lab.block_all()  # or the first have ended before the last are submitted, on a slow machine
    limited = [lab.submit("--gpus=1", "--qos=limited", script="sleep 10", user="asrpt1") for _ in range(30)]
    free = [lab.submit("--gpus=1", script="sleep 10", user="asrpt2") for _ in range(12)]
    wait_for(lambda: {*limited, *free} <= set(lab.status()), "asrptd knows them", 10)
    lab.cancel(*blockers)
    lab.wait_all([*limited, *free], "COMPLETED", timeout=90)
    assert not any(lab.audit(job_id, "not-started") for job_id in (*limited, *free))
    ends = [lab.job(job_id).end_time for job_id in (*limited, *free)]
    assert max(ends[len(limited) :]) < sorted(ends)[len(free) + len(limited) // 2]
    sacctmgr(lab, "modify", "qos", "limited", "set", "MaxTRESPerUser=gres/gpu=-1", "MaxJobsPerUser=1")


def test_where_the_site_is_safe_jobs_wait_until_the_minutes_that_are_left_suffice(lab: Cluster):
    """Of 30 GPU-minutes, a running job may use 20: the next job of 20 waits until it has ended, as does no other."""
    sacctmgr(lab, "add", "account", "grant")
    sacctmgr(lab, "add", "user", "asrpt1", "account=grant")
    sacctmgr(lab, "modify", "account", "grant", "set", "GrpTRESMins=gres/gpu=30")
    lab.stop_daemon()
    lab.start_daemon()
    first, second = (lab.submit("--gpus=2", "-A", "grant", "-t10", script="sleep 120", user="asrpt1") for _ in range(2))
    small = lab.submit("--gpus=1", "-A", "grant", "-t5", script=SHORT, user="asrpt1")
    text = "would exceed limit GrpTRESMins=gres/gpu of account grant"
    wait_for(lambda: lab.text_of(second) == text, "the second job is over the limit", 30)
    done = lab.wait_all([first, second, small], "COMPLETED", timeout=60)
    assert done[second].start_time >= done[first].end_time > done[small].start_time
    assert not any(lab.audit(job_id, "not-started") for job_id in done)


def test_a_qos_with_overpartqos_goes_before_that_of_the_partition(lab: Cluster):
    """The partition allows 2 GPUs a user, the job's QOS 6: a job of 5 is not over a limit, and waits in its turn."""
    sacctmgr(lab, "modify", "qos", "limited", "set", "MaxTRESPerUser=gres/gpu=2", "MaxJobsPerUser=-1")
    sacctmgr(lab, "add", "qos", "over", "Flags=OverPartQOS", "MaxTRESPerUser=gres/gpu=6")
    sacctmgr(lab, "modify", "user", "asrpt1", "set", "qos+=over")
    lab.stop_daemon()
    blockers = lab.block_all()
    lab.lab.run(["scontrol", "update", "PartitionName=gpu", "QOS=limited"])
    lab.start_daemon()
    over, alone = (lab.submit("--gpus=5", *qos, script=SHORT, user="asrpt1") for qos in (["--qos=over"], []))
    wait_for(lambda: "alone exceeds limit" in lab.text_of(alone), "asrptd knows the limits", 30)
    assert lab.audit(over, "wait")[-1]["reason"] != "over-limit"
    lab.cancel(*blockers, alone)
    lab.wait(over, "COMPLETED")
    lab.lab.run(["scontrol", "update", "PartitionName=gpu", "QOS="])
    sacctmgr(lab, "modify", "qos", "limited", "set", "MaxTRESPerUser=gres/gpu=-1", "MaxJobsPerUser=1")


def test_a_new_preempting_qos_is_managed_and_preempted_jobs_run_again(lab: Cluster):
    script = "[ $SLURM_RESTART_COUNT ] || sleep 36000"
    victim = lab.submit("-N2", "--gres=gpu:4", "--requeue", script=script, user="asrpt1")
    lab.wait(victim, "RUNNING")
    wait_for(lambda: lab.audit(victim, "running"), "asrptd has seen it run", 10)
    urgent = lab.submit("--gpus=1", "--qos=urgent", script="sleep 60", user="asrpt2")
    lab.wait(urgent, "RUNNING", "COMPLETED")
    assert lab.audit(urgent, "start")[0]["preempts"] == [victim]
    lab.wait(victim, "PENDING")
    again = lab.wait(victim, "COMPLETED")
    assert lab.job(urgent).state == "COMPLETED"
    assert again.start_time >= int(lab.audit(urgent, "start")[0]["time"]) + REQUEUE_PAUSE_S
