"""The site lets jobs preempt others: asrptd chooses the nodes, Slurm the victims there. One lab for all tests."""

from collections.abc import Iterator

import pytest

from .conftest import REQUEUE_PAUSE_S, Cluster, own_cluster, quick, wait_for

pytestmark = pytest.mark.e2e

EXTRA = """PreemptType=preempt/qos
PreemptMode=REQUEUE
AccountingStorageEnforce=associations,limits,qos"""
SPEED = 20
GRACE_S = 120
LONG = "[ $SLURM_RESTART_COUNT ] && exit; sleep 36000"


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    """normal preempts scavenger, and polite after a time of grace."""
    settings = {**quick(SPEED), "policy": {"name": "asrpt-gated"}}
    options = {"accounting": True, "multifactor": True, "slurm_conf_extra": EXTRA, "speed": SPEED}
    with own_cluster(50, "2x8", settings, **options) as cluster:
        for words in (
            "add qos scavenger",
            f"add qos polite PreemptMode=cancel GraceTime={GRACE_S}",
            "modify qos normal set Preempt=scavenger,polite",
            "modify user asrpt1,asrpt2 set qos+=scavenger,polite",
        ):
            cluster.lab.run(["sacctmgr", "-i", *words.split()])
        cluster.start_daemon()
        yield cluster


def preemptable(lab: Cluster, number: int, *options: str, qos: str = "scavenger", script: str = LONG) -> list[str]:
    return [lab.submit(f"--qos={qos}", "--requeue", *options, script=script) for _ in range(number)]


def test_normal_jobs_preempt_scavengers_where_these_lose_least_and_scavengers_fill_the_rest(lab: Cluster):
    old = preemptable(lab, 4, "--gpus=2", "-w", "n1")
    lab.wait_all(old, "RUNNING")
    lab.sleep(60)  # so they have more to lose
    young = preemptable(lab, 6, "--gpus=2")
    lab.wait_all(young[:4], "RUNNING")
    normal = [lab.submit(f"--gpus={gpus}", script="sleep 160", user="asrpt2") for gpus in (2, 2, 4)]
    started = lab.wait_all(normal, "RUNNING", timeout=10)
    assert {job.nodes for job in started.values()} == {"n2"}, "the young ones lose least"
    assert {lab.job(job_id).state for job_id in old} == {"RUNNING"}
    assert {lab.job(job_id).state for job_id in young} == {"PENDING"}
    preempted = [victim for job_id in normal for victim in lab.audit(job_id, "start")[0]["preempts"]]
    assert sorted(preempted) == sorted(young[:4])
    assert not any(lab.audit(job_id, event) for job_id in normal for event in ("left", "not-started"))
    lab.wait_all(normal, "COMPLETED")
    lab.wait_all(young[4:], "RUNNING")
    lab.cancel(*old, *young[4:])
    done = lab.wait_all(young[:4], "COMPLETED")
    first = int(min(lab.audit(job_id, "start")[0]["time"] for job_id in normal))
    assert all(job.start_time >= first + REQUEUE_PAUSE_S for job in done.values())
    assert all(lab.audit(job_id, "cut") for job_id in young[:4])


def test_a_job_on_several_nodes_preempts_on_each_of_them(lab: Cluster):
    large = preemptable(lab, 4, "--gpus=3", "-N1")
    lab.wait_all(large, "RUNNING")
    victims = large + preemptable(lab, 4, "--gpus=1")
    lab.wait_all(victims, "RUNNING")
    wide = lab.submit("-n12", "--gpus-per-task=1", script="sleep 60", user="asrpt2")
    lab.wait(wide, "RUNNING")
    assert lab.job(wide).gpus_by_node.keys() == {"n1", "n2"}
    lab.wait(wide, "COMPLETED")
    assert not lab.audit(wide, "not-started")
    preempted = {victim for victim in victims if lab.audit(victim, "cut")}
    assert preempted <= set(lab.audit(wide, "start")[0]["preempts"]), "Slurm may split otherwise and need fewer"
    assert len(preempted) < 8, "no more than needed"


def test_a_preemptor_waits_for_the_grace_time_of_its_victims(lab: Cluster):
    script = "trap '' TERM\nsleep 36000 & wait; sleep 36000"
    polite = preemptable(lab, 2, "--gpus=8", "-N1", qos="polite", script=script)
    lab.wait_all(polite, "RUNNING")
    normal = lab.submit("--gpus=8", "-N1", script="sleep 20", user="asrpt2")
    said = "released to Slurm on the chosen nodes; preempts 1 job of QOS polite"
    wait_for(lambda: lab.text_of(normal) == said, said, 15)
    pinned = lab.audit(normal, "start")[0]["time"]
    lab.wait(normal, "COMPLETED", timeout=60)  # slurmctld ends the grace within half a minute
    assert lab.job(normal).start_time >= pinned + GRACE_S - 1
    assert not lab.audit(normal, "not-started")
    assert sorted(lab.job(job_id).state for job_id in polite) == ["PREEMPTED", "RUNNING"]
