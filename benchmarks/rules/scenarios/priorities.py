"""What sets the order in Slurm: QOS, nice, an admin, tiers of partitions, fair share."""

from __future__ import annotations

from benchmarks.rules.scenario import LIMITS, USERS, Scenario, Site, Work, blockers


def _raise_and_top(site: Site) -> None:
    """An admin sets the priority of some jobs, and moves others to the top of their user's."""
    site.lab.run(["scontrol", "update", f"JobId={','.join(site.ids['raised'])}", "Priority=10000000"])
    site.lab.run(["scontrol", "top", ",".join(site.ids["topped"])])


SCENARIOS = [
    Scenario(
        "qos_priority",
        "PriorityWeightQOS; jobs with a high QOS among others on full GPUs",
        75,
        [
            blockers(25),
            *[Work("normal", user, 24, 8, 2, at_s=2) for user in USERS[:2]],
            *[Work("high", user, 16, 8, 2, at_s=2, options="--qos=high") for user in USERS[:3]],
        ],
        slurm_conf=f"{LIMITS}\nPriorityWeightQOS=100000",
        accounting=["add qos high Priority=1000", f"modify user {','.join(USERS)} set qos+=high"],
        before=[("high", "normal")],
    ),
    Scenario(
        "nice",
        "jobs with --nice=10000, submitted first, among others on full GPUs",
        75,
        [
            blockers(25),
            Work("nice", "asrpt1", 48, 8, 2, at_s=2, options="--nice=10000"),
            *[Work("others", user, 16, 8, 2, at_s=2.1) for user in USERS[:3]],
        ],
        before=[("others", "nice")],
    ),
    Scenario(
        "admin_priority",
        "scontrol update Priority= and scontrol top on jobs at the end of the queue",
        75,
        [
            blockers(40),
            Work("others1", "asrpt1", 40, 8, 2, at_s=2),
            Work("others2", "asrpt2", 40, 8, 2, at_s=2),
            Work("raised", "asrpt1", 6, 8, 2, at_s=2.1, fixed=True),
            Work("topped", "asrpt2", 6, 8, 2, at_s=2.1, fixed=True),
        ],
        acts=[(25.0, _raise_and_top)],
        before=[("raised", "others1"), ("raised", "others2"), ("topped", "others2")],
        ruled_from_s=25.0,
    ),
    Scenario(
        "tiers",
        "partitions with PriorityTier 10 and 1 on the same nodes",
        75,
        [
            blockers(25),
            *[Work("low", user, 24, 8, 2, at_s=2) for user in USERS[:2]],
            *[Work("urgent", user, 16, 8, 2, at_s=2.1, options="-p urgent") for user in USERS[:3]],
        ],
        slurm_conf="PartitionName=urgent Nodes=n[1-4] PriorityTier=10 MaxTime=INFINITE State=UP",
        managed=("gpu", "urgent"),
        before=[("urgent", "low")],
    ),
    Scenario(
        "fairshare",
        "PriorityWeightFairshare: a user has had all GPUs for a minute and more, when two others submit",
        150,
        [
            Work("heavy", "asrpt1", 224, 10, 2),
            *[Work("light", user, 24, 8, 2, at_s=80, every_s=0.5) for user in USERS[1:3]],
        ],
        slurm_conf=f"{LIMITS}\nPriorityWeightFairshare=100000\nPriorityCalcPeriod=1\nPriorityWeightAge=0",
        before=[("light", "heavy")],
        ruled_from_s=80.0,
    ),
]
