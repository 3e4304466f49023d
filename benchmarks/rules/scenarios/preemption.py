"""Preemption by Slurm: by QOS and by partition."""

from __future__ import annotations

from benchmarks.rules.scenario import LIMITS, USERS, Scenario, Work, mean_completion

SCENARIOS = [
    Scenario(
        "preempt_qos",
        "QOS normal preempts QOS scavenger (REQUEUE), which fills the GPUs",
        220,
        [
            Work("scavenger", "asrpt1", 16, 60, 2, options="--qos=scavenger --requeue", fixed=True),
            *[Work("normal", user, 20, 32, 2, at_s=20, every_s=1) for user in USERS[1:3]],
        ],
        slurm_conf=f"{LIMITS}\nPreemptType=preempt/qos\nPreemptMode=REQUEUE",
        accounting=[
            "add qos scavenger",
            "modify qos normal set Preempt=scavenger",
            f"modify user {','.join(USERS)} set qos+=scavenger",
        ],
        before=[("normal", "scavenger")],
        preempts=[("normal", "scavenger")],
        measured=["normal"],
    ),
    Scenario(
        "preempt_tiers",
        "three partitions, preempt/partition_prio: urgent jobs of 4 to 16 GPUs preempt those of both others",
        260,
        [
            Work("low", "asrpt1", 24, 40, 2, options="--requeue", fixed=True),
            *[Work("middle", user, 20, 15, 2, 10, 2.4, options="-p middle --requeue") for user in USERS[1:3]],
            Work("high", "asrpt4", 8, 10, 4, 20, 5, options="-p high -N1"),
            Work("wide", "asrpt4", 5, 10, 16, 22, 12, ask="-p high -N2 --gpus-per-node=8"),
        ],
        slurm_conf=(
            f"{LIMITS}\nPreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
            "PartitionName=middle Nodes=n[1-4] PriorityTier=5 MaxTime=INFINITE State=UP\n"
            "PartitionName=high Nodes=n[1-4] PriorityTier=10 MaxTime=INFINITE State=UP"
        ),
        managed=("gpu", "middle", "high"),
        before=[(one, two) for one in ("high", "wide") for two in ("middle", "low")] + [("middle", "low")],
        preempts=[("high", "middle"), ("wide", "middle"), ("high", "low"), ("wide", "low"), ("middle", "low")],
        measured=["middle", "high", "wide"],
    ),
    Scenario(
        "condo",
        "three groups own a node or two each; in a partition whose jobs they preempt, all may use what is idle",
        220,
        [
            Work("own_one", "asrpt1", 40, 10, 1, 0, 3, options="-A one -p one"),
            Work("own_two", "asrpt2", 25, 15, 2, 0.5, 5, options="-A two -p two -N1"),
            Work("own_three", "asrpt3", 10, 12, 8, 1, 12, ask="-N1 --gpus-per-node=8", options="-A three -p three"),
            Work("both_one", "asrpt1", 25, 12, 2, 1.5, 5, options="-A one -p one,shared -N1 --requeue"),
            Work("both_two", "asrpt2", 15, 12, 4, 2, 8, options="-A two -p two,shared -N1 --requeue"),
            Work("shared", "asrpt4", 40, 15, 1, 2.5, 3, options="-p shared --requeue"),
            Work("shared_wide", "asrpt4", 5, 12, 16, 3, 25, ask="-N2 --gpus-per-node=8", options="-p shared --requeue"),
        ],
        slurm_conf=(
            f"{LIMITS}\nPreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
            "PartitionName=one Nodes=n1 PriorityTier=10 PreemptMode=OFF AllowAccounts=one MaxTime=INFINITE State=UP\n"
            "PartitionName=two Nodes=n2 PriorityTier=10 PreemptMode=OFF AllowAccounts=two MaxTime=INFINITE State=UP\n"
            "PartitionName=three Nodes=n[3-4] PriorityTier=10 PreemptMode=OFF AllowAccounts=three State=UP\n"
            "PartitionName=shared Nodes=n[1-4] PriorityTier=1 PreemptMode=REQUEUE MaxTime=INFINITE State=UP"
        ),
        accounting=[
            "add account one,two,three",
            "add user asrpt1 account=one",
            "add user asrpt2 account=two",
            "add user asrpt3 account=three",
        ],
        managed=("gpu", "one", "two", "three", "shared"),
        measure=mean_completion,
    ),
]
