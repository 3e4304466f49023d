"""A site as a whole: all rules at once, a busy site's parameters, a backlog, idle GPUs."""

from __future__ import annotations

from benchmarks.rules.figures import Limit
from benchmarks.rules.scenario import (
    ENFORCE,
    LIMITS,
    USERS,
    Scenario,
    Site,
    Work,
    admin,
    mean_completion,
    median_latency,
)
from slurm_asrpt.lab.cluster import Lab


def give_qos(lab: Lab) -> None:
    """A partition gets its QOS: in slurm.conf, slurmctld would not know it at its first start."""
    lab.run(["scontrol", "update", "PartitionName=debug", "QOS=debugging"])


def _maintain(site: Site) -> None:
    """A node will be maintained for half a minute, a minute from now, whatever runs there then."""
    words = "ReservationName=maintenance StartTime=now+60 Duration=00:00:30 Users=root Nodes=n4 Flags=MAINT,IGNORE_JOBS"
    site.lab.run(["scontrol", "create", "reservation", *words.split()])


def _rules(debug: str, long: str) -> str:
    """In slurm.conf. debug, long: the nodes of these partitions."""
    return (
        f"{LIMITS}\nPreemptType=preempt/qos\nPreemptMode=REQUEUE\nPriorityWeightQOS=100000\n"
        "PriorityWeightFairshare=20000\nPriorityWeightAge=1000\nPriorityCalcPeriod=1\n"
        f"PartitionName=debug Nodes={debug} PriorityTier=10 MaxTime=2 State=UP\n"
        f"PartitionName=long Nodes={long} MaxTime=INFINITE State=UP"
    )


def _accounts(gpus: int, minutes: int) -> list[str]:
    """An account tree and QOS. gpus: of account physics, at a time. minutes: GPU-minutes of account grant."""
    return [
        "add qos scavenger UsageFactor=0.1",
        "add qos high Priority=1000",
        "add qos debugging MaxTRESPerUser=gres/gpu=2 MaxWall=2",
        "modify qos normal,high set Preempt=scavenger",
        "add account physics,grant",
        "add account optics,waves parent=physics",
        "add user asrpt1 account=optics",
        "add user asrpt2 account=waves",
        "add user asrpt4 account=grant",
        f"modify account physics set GrpTRES=gres/gpu={gpus}",
        f"modify account grant set GrpTRESMins=gres/gpu={minutes}",
        f"modify user {','.join(USERS)} set qos+=scavenger,high",
    ]


SCENARIOS = [
    Scenario(
        "whole_site",
        "all of a site's rules at once: account tree, fair share, QOS, preemption, tiers, partition QOS, maintenance",
        260,
        [
            Work("small", "asrpt1", 50, 10, 1, 0, 2, options="-A optics"),
            Work("pair", "asrpt2", 25, 12, 2, 0.5, 4, options="-A waves -N1"),
            Work("wide", "asrpt2", 4, 12, 16, 2, 25, ask="-N2 --gpus-per-node=8 -A waves"),
            Work("scavenger", "asrpt3", 14, 40, 2, 0, 1, "--qos=scavenger --requeue", fixed=True),
            Work("node", "asrpt3", 8, 12, 8, 5, 12, ask="-N1 --gpus-per-node=8"),
            Work("debug", "asrpt3", 24, 5, 1, 3, 4, options="-p debug"),
            Work("high", "asrpt4", 12, 8, 2, 10, 8, options="--qos=high"),
            Work("grant", "asrpt4", 24, 10, 2, 1, 3, options="-A grant"),
            Work("either", "asrpt4", 20, 8, 1, 6, 5, options="-p gpu,long"),
            Work("tasks", "asrpt1", 2, 8, 1, 4, 40, options="-A optics", tasks=20, at_once=5),
        ],
        slurm_conf=_rules(debug="n[1-4]", long="n[1-3]"),
        accounting=_accounts(gpus=20, minutes=3),
        managed=("gpu", "debug", "long"),
        prepare=give_qos,
        acts=[
            (30.0, _maintain),
            (110.0, admin("sacctmgr -i modify account grant set GrpTRESMins=gres/gpu=-1")),
        ],
        limits=[
            Limit(("small", "pair", "wide", "tasks"), 20),
            Limit(("debug",), 2),
        ],
        before=[("high", "either")],
        measured=["small", "pair", "wide", "node", "debug", "high", "grant", "either", "tasks"],
        measure=mean_completion,
    ),
    Scenario(
        "large_site",
        "256 GPUs of two types, 700 jobs and 200 array tasks in four minutes, under all of these rules",
        420,
        [
            Work("small", "asrpt1", 200, 30, 1, 0, 1, options="-A optics", vary=0.5),
            Work("typed", "asrpt1", 40, 30, 2, 1, 5, ask="-N1 --gpus=a100:2 -A optics", vary=0.5),
            Work("tasks", "asrpt1", 5, 20, 1, 4, 30, options="-A optics", tasks=40, at_once=20),
            Work("pair", "asrpt2", 80, 40, 2, 0.5, 2.5, options="-A waves -N1", vary=0.5),
            Work("node", "asrpt2", 40, 40, 8, 2, 5, ask="-N1 --gpus-per-node=8 -A waves", vary=0.3),
            Work("wide", "asrpt2", 12, 50, 32, 3, 15, ask="-N4 --gpus-per-node=8 -A waves", vary=0.3),
            Work("widest", "asrpt4", 3, 40, 64, 20, 60, ask="-N8 --gpus-per-node=8 -A grant"),
            Work("scavenger", "asrpt3", 40, 200, 2, 0, 0.5, "--qos=scavenger --requeue", fixed=True),
            Work("by_gpu", "asrpt3", 60, 40, 4, 1, 3, ask="-N1 --gpus=4 --cpus-per-gpu=6", vary=0.5),
            Work("first", "asrpt3", 30, 20, 1, 2, 6),
            Work("second", "asrpt3", 30, 30, 4, 2.1, 6, options="-N1", after="afterok:first"),
            Work("debug", "asrpt3", 40, 10, 1, 3, 5, options="-p debug"),
            Work("high", "asrpt4", 30, 30, 2, 10, 6, options="--qos=high"),
            Work("either", "asrpt4", 40, 30, 1, 6, 5, options="-p gpu,long"),
            Work("cpu", "asrpt4", 60, 30, 0, 4, 3, ask="-n1 -c16"),
        ],
        nodes="16x8:h100,16x8:a100",
        slurm_conf=_rules(debug="n[1-32]", long="n[1-16]"),
        accounting=_accounts(gpus=160, minutes=60),
        managed=("gpu", "debug", "long"),
        prepare=give_qos,
        acts=[
            (60.0, _maintain),
            (150.0, admin("scontrol update NodeName=n7 State=DRAIN Reason=fans")),
            (200.0, admin("scontrol update NodeName=n7 State=RESUME")),
            (220.0, admin("sacctmgr -i modify account grant set GrpTRESMins=gres/gpu=-1")),
        ],
        limits=[
            Limit(("small", "typed", "tasks", "pair", "node", "wide"), 160),
            Limit(("debug",), 2),
        ],
        before=[("high", "either")],
        measured=[
            *("small", "typed", "tasks", "pair", "node", "wide", "widest", "by_gpu", "first", "second"),
            *("debug", "high", "either", "cpu"),
        ],
        measure=mean_completion,
    ),
    Scenario(
        "unhurried",
        "SchedulerParameters of a busy site: defer, batch_sched_delay=12, sched_min_interval=2000000, bf_interval=30",
        230,
        [
            Work("small", "asrpt1", 60, 30, 1, 0, 2, vary=0.5),
            Work("medium", "asrpt2", 30, 40, 2, 0.5, 4, options="-N1", vary=0.5),
            Work("node", "asrpt3", 8, 30, 8, 1, 15, ask="-N1 --gpus-per-node=8"),
            Work("wide", "asrpt4", 4, 30, 16, 1.5, 30, ask="-N2 --gpus-per-node=8"),
            Work("cpu", "asrpt4", 20, 10, 0, 3, 6, ask="-n1 -c8"),
        ],
        slurm_conf=(
            "SchedulerParameters=defer,batch_sched_delay=12,sched_min_interval=2000000,sched_interval=60,bf_interval=30,"
            "bf_continue,default_queue_depth=100,partition_job_depth=50,max_rpc_cnt=150"
        ),
        daemon={},
        modes=(ENFORCE,),
        measure=mean_completion,
    ),
    Scenario(
        "backlog",
        "1,200 jobs and 1,000 array tasks are there at once, 2 to 12 s on 1 to 8 GPUs",
        420,
        [
            *[Work(user, user, 280, 3, 1, number / 10, vary=0.5) for number, user in enumerate(USERS)],
            Work("pair", "asrpt2", 60, 8, 2, 1, vary=0.5),
            Work("node", "asrpt3", 20, 10, 8, 1, ask="-N1 --gpus-per-node=8"),
            Work("tasks", "asrpt4", 2, 3, 1, 2, tasks=500, at_once=500),
        ],
        measure=mean_completion,
    ),
    Scenario(
        "idle_start",
        "a job every few seconds on idle GPUs; seconds are the median from sbatch to the job's first command",
        110,
        [Work("job", "asrpt1", 24, 2, every_s=4.4)],
        nodes="2x8",
        daemon={},
        measure=median_latency,
        stamp=True,
    ),
]
