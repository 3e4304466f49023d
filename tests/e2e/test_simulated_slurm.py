"""The priorities of the simulated Slurm against sshare and sprio of a real one, and what-if with its settings."""

import json
import time
from collections.abc import Iterator

import pandas as pd
import pytest

from slurm_asrpt.core.job import Job, JobId, Request, unprofiled
from slurm_asrpt.core.multifactor import Leaf, Multifactor, Usage, fair_tree
from slurm_asrpt.core.policies.slurm_backfill.options import SlurmOptions
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.sim import simulated_slurm
from slurm_asrpt.slurm.limits import parse_tres
from slurm_asrpt.traces import accounting

from .conftest import COMMANDS, own_lab, wait_for

pytestmark = pytest.mark.e2e

HOUR = 3600.0
EXTRA = """PriorityDecayHalfLife=0-01:00:00
PriorityCalcPeriod=1
PriorityMaxAge=0-01:00:00
PriorityWeightQOS=500
PriorityWeightPartition=300
AccountingStorageEnforce=associations,limits,qos
PartitionName=better Nodes=n[1-2] PriorityJobFactor=2 MaxTime=INFINITE State=UP"""
CPUS_A_GPU = 16
"""The share of CPUs is that of GPUs, so the job size that Slurm computes of CPUs is the same of GPUs."""
ACCOUNTS = (
    "add account big Fairshare=3",
    "add account sub parent=lab Fairshare=parent",
    "add user asrpt3 account=big Fairshare=1",
    "add user asrpt4 account=sub Fairshare=2",
    "modify user asrpt2 where account=lab set Fairshare=4",
    "add qos high Priority=10",
    "modify user asrpt1,asrpt2,asrpt3,asrpt4 set qos+=high",
)
RAN = (
    *(("asrpt1", "lab", 2, 240), ("asrpt2", "lab", 2, 300), ("asrpt3", "big", 1, 180), ("asrpt4", "sub", 1, 120)),
    *(("asrpt1", "lab", 1, 60), ("asrpt2", "lab", 4, 120)),
)
"""User, account, GPUs, seconds of jobs that make the usage."""
WAITING = (
    *(
        ("asrpt1", "lab", 1, "normal", "gpu"),
        ("asrpt2", "lab", 1, "normal", "gpu"),
        ("asrpt3", "big", 2, "normal", "gpu"),
    ),
    *(
        ("asrpt4", "sub", 1, "normal", "gpu"),
        ("asrpt1", "lab", 4, "high", "gpu"),
        ("asrpt1", "lab", 1, "normal", "better"),
    ),
)


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Two accounts beside a third one below the first, in a lab whose minutes take two seconds."""
    spec = {"users": 4, "accounting": True, "multifactor": True, "hook": False, "speed": 30.0}
    with own_lab(680, "2x4", slurm_conf_extra=EXTRA, cpus=4 * CPUS_A_GPU, **spec) as lab:
        for words in ACCOUNTS:
            lab.run(["sacctmgr", "-i", *words.split()])
        yield lab


def submit(lab: Lab, user: str, account: str, gpus: int, *options: str, seconds: int = 600) -> str:
    ask = ("-N1", f"-n{gpus}", f"-c{CPUS_A_GPU}", "--gpus-per-task=1", "--time=60", f"--account={account}", *options)
    script = f"#!/bin/sh\nsleep {seconds}\n"
    return lab.run(["sbatch", "--parsable", "--output=/dev/null", *ask], user=user, input=script).stdout.strip()


def rows(lab: Lab, *command: str) -> list[list[str]]:
    return [line.strip().split("|") for line in lab.run(list(command)).stdout.splitlines()]


def site_text(lab: Lab) -> str:
    return "\n".join(lab.run(list(words)).stdout for words in (accounting.CONFIG, *accounting.LIMITS))


def usage_of_sacct(lab: Lab, now: float) -> dict[Leaf, float]:
    """The usage of all users, from the records of jobs that have ended."""
    usage = Usage(HOUR)
    command = [
        "env",
        "SLURM_TIME_FORMAT=%s",
        "sacct",
        "-aXPn",
        "-S",
        "now-1days",
        "-o",
        "JobID,Account,User,Start,End,AllocTRES",
    ]
    for job, account, user, start, end, tres in rows(lab, *command):
        if end.isdigit():
            usage.started(job, Leaf(account, user), parse_tres(tres)["billing"], float(start))
            usage.ended(job, float(end))
    return usage.at(now)


def shares(lab: Lab) -> dict[Leaf, tuple[float, float]]:
    """RawUsage and FairShare of all users, as sshare shows them."""
    found = rows(lab, "sshare", "-a", "-P", "-n", "-o", "Account,User,RawUsage,FairShare")
    return {Leaf(account.strip(), user): (float(used), float(share)) for account, user, used, share in found if user}


def make_usage(lab: Lab) -> None:
    ids = [submit(lab, user, account, gpus, seconds=seconds) for user, account, gpus, seconds in RAN]
    wait_for(lambda: not lab.run(["squeue", "-h", "-j", ",".join(ids)], check=False).stdout.strip(), "the jobs end", 90)


def test_usage_fair_share_and_priorities_are_those_of_slurm(lab: Lab) -> None:
    make_usage(lab)
    for node in ("n1", "n2"):
        lab.run(["sbatch", "-p", "other", "-w", node, "-N1", "--gres=gpu:4", "--wrap", "sleep 36000"])
    wait_for(lambda: lab.run(["squeue", "-h", "-t", "R", "-o", "%i"]).stdout.count("\n") == 2, "the GPUs are taken", 30)
    ids = [
        submit(lab, user, account, gpus, f"--qos={qos}", f"--partition={partition}")
        for user, account, gpus, qos, partition in WAITING
    ]
    time.sleep(2.5 * 60 / lab.spec.speed)  # priorities are calculated every minute of the lab
    found, now = shares(lab), lab.time()
    sprio = {
        job: [float(word) for word in words] for job, *words in rows(lab, "sprio", "-h", "-o", "%i|%A|%F|%J|%P|%Q|%Y")
    }
    site = accounting.parse_site(site_text(lab), "scontrol")

    expected = usage_of_sacct(lab, now)
    assert {leaf: found[leaf][0] for leaf in expected} == {
        leaf: pytest.approx(used, rel=0.05, abs=5) for leaf, used in expected.items()
    }
    assert set(expected) == {Leaf(account, user) for user, account, *_ in RAN}

    columns = ("user", "account", "gpus", "qos", "queue")
    frame = pd.DataFrame(WAITING, columns=columns).assign(tres="")
    slurm = simulated_slurm.of_site(site, frame, 8, "scontrol")
    assert slurm.tree is not None
    used = {leaf: usage for leaf, (usage, _) in found.items()}
    assert fair_tree(slurm.tree, used) == pytest.approx({leaf: share for leaf, (_, share) in found.items()}, abs=1e-6)
    assert len({found[leaf][1] for leaf in expected}) == 4, "each user ranks differently"

    priorities = Multifactor(SlurmOptions(**slurm.settings).weights, slurm.tree, slurm.factors)
    for leaf, amount in used.items():
        priorities.usage.add(leaf, amount, now)
    jobs = [
        Job(JobId(str(at)), user, gpus, unprofiled(gpus), submit_time=now, request=Request(min_nodes=1))
        for at, (user, _, gpus, *_) in enumerate(WAITING)
    ]
    order = priorities.order(jobs, nodes=2, gpus=8, now=now)
    for job, job_id in zip(jobs, ids, strict=True):
        age, *_, total = sprio[job_id]
        assert priorities.priority(job, priorities.factors_of(job), 2, 8, now) == pytest.approx(total - age, abs=2), (
            job_id
        )
        assert 0 < age <= 1000 * (now - lab_submission(lab, job_id)) / HOUR + 1
    assert [ids[int(job.id)] for job in order] == sorted(ids, key=lambda job_id: -sprio[job_id][-1])


def lab_submission(lab: Lab, job_id: str) -> float:
    """When a job was submitted, seconds."""
    return float(lab.run(["env", "SLURM_TIME_FORMAT=%s", "squeue", "-h", "-j", job_id, "-o", "%V"]).stdout)


def test_what_if_reads_the_settings_of_this_slurm(lab: Lab) -> None:
    make_usage(lab)
    command = [COMMANDS / "asrpt-sim", "what-if", "--sacct", "--since", "1days", "-p", "slurm-backfill,fifo", "--json"]
    text = site_text(lab)

    def recorded() -> bool:
        ended = rows(lab, "sacct", "-aXPn", "-S", "now-1days", "-o", "JobID,State")
        return [state for _, state in ended] == ["COMPLETED"] * len(RAN)

    wait_for(recorded, "slurmdbd knows all jobs", 30)
    live = json.loads(lab.run(command, timeout_s=120).stdout)
    simulated = live["notes"]["simulated_slurm"]
    assert simulated["source"] == "scontrol show config"
    settings = simulated["settings"]
    assert (settings["weight_age"], settings["weight_fair_share"], settings["weight_job_size"]) == (1000, 1000, 100)
    assert (settings["half_life_s"], settings["calc_period_s"], settings["max_age_s"]) == (HOUR, 60, HOUR)
    parameters = ("bf_interval_s", "bf_window_s", "bf_resolution_s", "bf_max_job_test")
    assert [settings[name] for name in parameters] == [30, 7 * 24 * HOUR, 300, 1000]
    assert simulated["unknown_accounts"] == 0
    assert [row["policy"] for row in live["rows"]] == ["Slurm as it was", "slurm-backfill", "fifo"]
    assert all(row["jobs"] == len(RAN) for row in live["rows"])
    saved = lab.home() / "slurm.txt"
    saved.write_text(text)
    again = json.loads(lab.run([*command, "--slurm", str(saved)], timeout_s=120).stdout)
    assert again["notes"]["simulated_slurm"] == {**simulated, "source": str(saved)}
    assert again["rows"] == live["rows"]
