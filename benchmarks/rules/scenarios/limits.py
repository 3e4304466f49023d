"""Limits of users, accounts and QOS: on GPUs, nodes, jobs, GPU-minutes and billing."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.rules.figures import Limit
from benchmarks.rules.scenario import ENFORCE, LIMITS, USERS, Scenario, Work, admin, mean_completion, others
from slurm_asrpt.lab.cluster import Lab


def bill(lab: Lab) -> None:
    """A GPU costs one unit, and eight CPUs as well."""
    words = "TRESBillingWeights=CPU=0.125,GRES/gpu=1.0"
    lab.run(["scontrol", "update", "PartitionName=gpu", words])


LIMITS_USER = Scenario(
    "limits_user",
    "QOS MaxTRESPU=gres/gpu=8; 200 jobs of 10 s of a user, 3 x 40 of 25 s of others",
    262,
    [
        Work(user, user, 40 if number else 200, 25 if number else 10, at_s=min(number, 1))
        for number, user in enumerate(USERS)
    ],
    slurm_conf=LIMITS,
    accounting=["modify qos normal set MaxTRESPerUser=gres/gpu=8"],
    limits=[Limit((user,), 8) for user in USERS],
)


SCENARIOS = [
    LIMITS_USER,
    replace(
        LIMITS_USER, name="basic_priority", about="limits_user with priority/basic", multifactor=False, modes=(ENFORCE,)
    ),
    Scenario(
        "limits_account",
        "account with GrpTRES=gres/gpu=4 and 24 jobs; 3 x 30 jobs of others",
        60,
        [Work("limited", "asrpt1", 24, 8, options="-A small"), *others(30, 10, 2, at_s=1)],
        slurm_conf=LIMITS,
        accounting=[
            "add account small",
            "add user asrpt1 account=small",
            "modify account small set GrpTRES=gres/gpu=4",
        ],
        limits=[Limit(("limited",), 4)],
    ),
    Scenario(
        "limits_jobs",
        "QOS MaxJobsPerUser=2, and MaxJobs=2 of a user: 12 jobs of 6 s each; 3 x 30 jobs of others",
        60,
        [
            Work("qos", "asrpt1", 12, 6, options="--qos=two"),
            Work("association", "asrpt2", 12, 6),
            *[Work("others", user, 45, 10, 2, at_s=1) for user in USERS[2:]],
        ],
        slurm_conf=LIMITS,
        accounting=[
            "add qos two MaxJobsPerUser=2",
            "modify user asrpt1 set qos+=two",
            "modify user asrpt2 set MaxJobs=2",
        ],
        limits=[Limit(("qos",), 2), Limit(("association",), 2)],
    ),
    Scenario(
        "limits_association",
        "a user with GrpTRES=gres/gpu=4 and 24 jobs; 3 x 30 jobs of others",
        60,
        [Work("limited", "asrpt1", 24, 8), *others(30, 10, 2, at_s=1)],
        slurm_conf=LIMITS,
        accounting=["modify user asrpt1 set GrpTRES=gres/gpu=4"],
        limits=[Limit(("limited",), 4)],
    ),
    Scenario(
        "limits_too_big",
        "a 12-GPU job over its MaxTRESPU=gres/gpu=8 is first in the queue; 4 x 30 jobs behind it",
        80,
        [
            Work("too_big", "asrpt1", 1, 10, gpus=12, fixed=True),
            *[Work(user, user, 30, 10, 2, at_s=1) for user in USERS],
        ],
        slurm_conf=LIMITS,
        accounting=["modify qos normal set MaxTRESPerUser=gres/gpu=8"],
        limits=[Limit((user,), 8) for user in USERS] + [Limit(("too_big",), 0)],
        never=["too_big"],
    ),
    Scenario(
        "limits_stream",
        "account with GrpTRES=gres/gpu=4, and jobs of 1 GPU all the time; one of its jobs needs 4; patience of 30 s",
        150,
        [
            Work("stream", "asrpt1", 60, 10, 1, 0, 2, "-A small"),
            Work("four", "asrpt2", 1, 10, 4, at_s=10, options="-A small -N1", fixed=True),
            *[replace(work, every_s=4) for work in others(30, 10, 2, at_s=1)],
        ],
        slurm_conf=LIMITS,
        accounting=[
            "add account small",
            "add user asrpt1,asrpt2 account=small",
            "modify account small set GrpTRES=gres/gpu=4",
        ],
        policy={"patience_s": 30},
        limits=[Limit(("stream", "four"), 4)],
        measured=["four"],
        modes=(ENFORCE,),
    ),
    Scenario(
        "limits_freed",
        "QOS MaxJobsPerUser=1: 6 short jobs behind one of 40 s, and 4 jobs whose limit is raised after 40 s",
        75,
        [
            Work("freed", "asrpt1", 1, 40, options="--qos=one", fixed=True),
            Work("freed", "asrpt1", 6, 4, at_s=1, options="--qos=one", fixed=True),
            Work("raised", "asrpt2", 4, 30, options="--qos=raised", fixed=True),
        ],
        slurm_conf=LIMITS,
        accounting=[
            "add qos one,raised MaxJobsPerUser=1",
            "modify user asrpt1,asrpt2 set qos+=one,raised",
        ],
        acts=[(40.0, admin("sacctmgr -i modify qos raised set MaxJobsPerUser=10"))],
        limits=[Limit(("freed",), 1), Limit(("raised",), 1, until_s=40)],
    ),
    Scenario(
        "limits_nodes",
        "QOS MaxTRESPerUser=node=2: 120 jobs of 1 GPU of a user, which share nodes; 3 x 30 of 2 GPUs of others",
        110,
        [Work("limited", "asrpt1", 120, 10, 1, 0, 0.3), *others(30, 10, 2, at_s=1)],
        slurm_conf=LIMITS,
        accounting=["add qos two MaxTRESPerUser=node=2", "modify user asrpt1 set qos=two defaultqos=two"],
        measure=mean_completion,
    ),
    Scenario(
        "limits_exclusive",
        "QOS MaxTRESPerUser=gres/gpu=8: 24 jobs with --exclusive of a user get 8 GPUs each; 3 x 30 of 2 of others",
        200,
        [Work("exclusive", "asrpt1", 24, 6, 1, options="--exclusive"), *others(30, 10, 2, at_s=1)],
        slurm_conf=LIMITS,
        accounting=["modify qos normal set MaxTRESPerUser=gres/gpu=8"],
        modes=(ENFORCE,),
    ),
    Scenario(
        "typed_limits",
        "QOS MaxTRESPerUser=gres/gpu:h100=4 on nodes of two types: jobs of a user that name the type, and that do not",
        110,
        [
            Work("typed", "asrpt1", 40, 10, 1, 0, 0.5, ask="--gpus=h100:1 -N1"),
            Work("typed_two", "asrpt1", 12, 10, 2, 0.2, 2, ask="-N1 --gres=gpu:h100:2"),
            Work("untyped", "asrpt1", 30, 10, 1, 0.3, 1, ask="--gpus=1 -N1"),
            *[replace(work, every_s=1) for work in others(40, 10, 2, at_s=1)],
        ],
        nodes="2x8:h100,2x8:a100",
        slurm_conf=f"{LIMITS}\nAccountingStorageTRES=gres/gpu,gres/gpu:h100,gres/gpu:a100",
        accounting=["modify qos normal set MaxTRESPerUser=gres/gpu:h100=4"],
        measure=mean_completion,
    ),
    Scenario(
        "run_minutes",
        "a user with GrpTRESRunMins=gres/gpu=12: 8 jobs of 150 s with limits of 3 minutes; 3 x 12 of others",
        280,
        [
            Work("limited", "asrpt1", 8, 150, options="--time=3", fixed=True),
            *others(12, 24, 2, at_s=1),
        ],
        slurm_conf=f"{LIMITS}\nPriorityCalcPeriod=1",
        accounting=["modify user asrpt1 set GrpTRESRunMins=gres/gpu=12"],
        measured=["limited"],
        measure=mean_completion,
    ),
    Scenario(
        "billing",
        "TRESBillingWeights, and a QOS with MaxTRESPerUser=billing=8: 60 jobs with few and many CPUs; 3 x 30 of others",
        110,
        [
            Work("few", "asrpt1", 40, 10, options="-n1 -c2"),
            Work("many", "asrpt1", 20, 10, options="-N1 -n1 -c16", at_s=0.1),
            *others(30, 10, 2, at_s=1),
        ],
        slurm_conf=LIMITS,
        accounting=["modify qos normal set MaxTRESPerUser=billing=8"],
        prepare=bill,
        measure=mean_completion,
    ),
    Scenario(
        "safe",
        "AccountingStorageEnforce=safe: 48 jobs of an account with 16 GPU-minutes, 3 x 40 of others",
        110,
        [
            Work("limited", "asrpt1", 40, 10, options="-A small --time=1"),
            Work("limited_two", "asrpt1", 8, 10, 2, options="-A small -N1 --time=2"),
            *others(40, 10, 2, at_s=1),
        ],
        slurm_conf="AccountingStorageEnforce=associations,limits,qos,safe\nPriorityCalcPeriod=1",
        accounting=[
            "add account small",
            "add user asrpt1 account=small",
            "modify account small set GrpTRESMins=gres/gpu=16",
        ],
        measure=mean_completion,
    ),
]
