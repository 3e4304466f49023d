"""Partitions that share nodes, give each to one user, or have limits of their own."""

from __future__ import annotations

from benchmarks.rules.scenario import ENFORCE, LIMITS, USERS, Scenario, Work, mean_completion

SCENARIOS = [
    Scenario(
        "shared_nodes",
        "a partition of CPU-only jobs may use 16 of 64 CPUs of each GPU node (MaxCPUsPerNode); 60 GPU jobs beside them",
        130,
        [
            *[Work("cpu", "asrpt1", 40, 10, 0, 0.5 * n, 2, ask=f"-N1 -n1 -c{n} -p cpu", vary=0.3) for n in (3, 5)],
            Work("large_cpu", "asrpt2", 8, 10, 0, 4, 10, ask="-N1 -n1 -c14 -p cpu"),
            *[Work("gpu", user, 30, 12, 4, number, 2.6, options="-N1 -c20") for number, user in enumerate(USERS[2:])],
        ],
        slurm_conf="PartitionName=cpu Nodes=n[1-4] MaxTime=INFINITE MaxCPUsPerNode=16 State=UP",
        managed=("gpu", "cpu"),
        measure=mean_completion,
    ),
    Scenario(
        "gpu_cpu_caps",
        "a partition of GPU jobs may use 16 of 64 CPUs of each node (MaxCPUsPerNode), another one the others; 145 jobs",
        130,
        [
            Work("many_cpus", "asrpt1", 40, 10, 1, 0, 1.2, options="-N1 -c5 -p capped"),
            Work("few_cpus", "asrpt2", 40, 10, 2, 1, 1.2, options="-N1 -c1 -p capped"),
            Work("wide", "asrpt3", 5, 12, 8, 4, 20, options="-N2 -c2 -p capped"),
            Work("free", "asrpt4", 60, 10, 2, 2, 1.5, options="-N1 -c8"),
        ],
        slurm_conf="PartitionName=capped Nodes=n[1-4] MaxTime=INFINITE MaxCPUsPerNode=16 State=UP",
        managed=("gpu", "capped"),
        measure=mean_completion,
        modes=(ENFORCE,),
    ),
    Scenario(
        "overlapping",
        "two partitions on the same nodes with as many jobs each, of which asrptd manages one",
        200,
        [
            *[
                Work(f"{where}_{role}", user, count, seconds, gpus, at_s, 110 / count, options=f"-N1 -p {partition}")
                for where, partition, user in (("managed", "gpu", "asrpt1"), ("other", "other", "asrpt2"))
                for role, count, seconds, gpus, at_s in (
                    ("one", 60, 10, 1, 0),
                    ("two", 30, 12, 2, 1),
                    ("node", 8, 12, 8, 2),
                )
            ],
        ],
        measured=["managed_one", "managed_two", "managed_node"],
        measure=mean_completion,
    ),
    Scenario(
        "exclusive_user",
        "200 jobs of four users in a partition with ExclusiveUser=YES: no node has jobs of two users",
        150,
        [
            Work(role, user, count, 10, gpus, number + 0.3 * gpus, 100 / count, "-N1 -p own", vary=0.3)
            for number, user in enumerate(USERS)
            for role, count, gpus in (("one", 25, 1), ("two", 15, 2), ("four", 10, 4))
        ],
        slurm_conf="PartitionName=own Nodes=n[1-4] MaxTime=INFINITE State=UP ExclusiveUser=YES",
        managed=("gpu", "own"),
        modes=(ENFORCE,),
        measure=mean_completion,
    ),
    Scenario(
        "partition_limits",
        "EnforcePartLimits=NO: jobs over MaxTime and MaxNodes of a partition, QOS that let them, jobs without a limit",
        150,
        [
            Work("over_time", "asrpt1", 20, 10, 1, 0, 2, options="-p short --time=10"),
            Work("over_nodes", "asrpt1", 10, 10, 16, 0.5, 4, ask="-N2 --gpus-per-node=8", options="-p short"),
            Work("longer", "asrpt2", 25, 10, 1, 1, 3, options="-p short --time=10 --qos=long"),
            Work("wider", "asrpt2", 5, 10, 16, 1.5, 20, ask="-N2 --gpus-per-node=8", options="-p short --qos=long"),
            Work("timeless", "asrpt3", 50, 10, 1, 2, 2, options="--time=UNLIMITED"),
            Work("either", "asrpt4", 30, 10, 2, 2.5, 3, options="-p short,gpu -N1 --time=10"),
            Work("either_long", "asrpt4", 20, 10, 2, 3, 4, options="-p short,gpu -N1 --time=10 --qos=long"),
            Work("cpu", "asrpt3", 20, 10, 0, 3.5, 4, ask="-n1 -c16", options="--time=UNLIMITED"),
            Work("node", "asrpt4", 6, 10, 8, 4, 15, ask="-N1 --gpus-per-node=8"),
        ],
        slurm_conf=(f"{LIMITS}\nEnforcePartLimits=NO\nPartitionName=short Nodes=n[1-4] MaxTime=2 MaxNodes=1 State=UP"),
        accounting=[
            "add qos long Flags=PartitionTimeLimit,PartitionMaxNodes",
            "modify user asrpt2,asrpt4 set qos+=long",
        ],
        managed=("gpu", "short"),
        never=["over_time", "over_nodes"],
        measure=mean_completion,
    ),
]
