"""What jobs ask for, in many ways; srun; dependencies."""

from __future__ import annotations

from benchmarks.rules.figures import Limit
from benchmarks.rules.scenario import USERS, Scenario, Work, mean_completion
from benchmarks.rules.scenarios.common import LIMITS, label

SCENARIOS = [
    Scenario(
        "left_contiguous",
        "--contiguous -N4 under a stream of small jobs at 1.5 times the capacity",
        150,
        [
            Work("before", "asrpt1", 36, 20, 2, every_s=1 / 1.2, fixed=True),
            Work("contiguous", "asrpt2", 1, 10, 32, at_s=30, ask="--contiguous -N4 --gpus-per-node=8", fixed=True),
            Work("after", "asrpt1", 108, 20, 2, at_s=30.5, every_s=1 / 1.2),
        ],
        before=[("contiguous", "after")],
        measured=["contiguous"],
    ),
    Scenario(
        "cpu_only",
        "a stream of CPU-only jobs that fill the CPUs, and 28 GPU jobs",
        170,
        [
            Work("cpu", "asrpt1", 16, 10, 0, ask="-N1 -n1 -c4", fixed=True),
            Work("cpu", "asrpt1", 110, 10, 0, at_s=1, every_s=1.1, ask="-N1 -n1 -c4", fixed=True),
            Work("gpu", "asrpt2", 28, 10, 1, at_s=20, options="-c4", fixed=True),
        ],
        nodes="2x8",
        cpus=16,
        measured=["gpu"],
    ),
    Scenario(
        "interactive",
        "120 jobs of srun by two users, whose users wait for them, among 180 of sbatch at 1.2 times the capacity",
        170,
        [
            Work("srun", "asrpt1", 80, 8, 1, 0.3, 1.5, interactive=True),
            Work("srun_two", "asrpt2", 40, 10, 2, 0.6, 3, interactive=True),
            Work("small", "asrpt3", 100, 10, 1, 0, 1.2),
            Work("medium", "asrpt4", 60, 20, 2, 0.5, 2),
            Work("node", "asrpt3", 20, 12, 8, 0.7, 6, ask="-N1 --gpus-per-node=8"),
        ],
        measure=mean_completion,
    ),
    Scenario(
        "pipelines",
        "chains by --dependency, failing jobs and their repair, arrays by aftercorr, singletons, jobs over their limit",
        200,
        [
            Work("prepare", "asrpt1", 30, 5, 1, 0, 3),
            Work("train", "asrpt1", 30, 14, 4, 0.1, 3, options="-N1", after="afterok:prepare"),
            Work("evaluate", "asrpt1", 30, 5, 1, 0.2, 3, after="afterok:train"),
            Work("failing", "asrpt2", 30, 3, 2, 1, 3, fails=True),
            Work("repair", "asrpt2", 30, 8, 2, 1.1, 3, after="afternotok:failing"),
            Work("lost", "asrpt2", 30, 8, 2, 1.2, 3, options="--kill-on-invalid-dep=yes", after="afterok:failing"),
            Work("shards", "asrpt3", 4, 6, 1, 2, 20, tasks=10, at_once=10),
            Work("trained", "asrpt3", 4, 8, 2, 2.1, 20, tasks=10, at_once=10, after="aftercorr:shards"),
            Work("segments", "asrpt4", 10, 9, 8, 3, 2, ask="-N1 --gpus-per-node=8 -d singleton"),
            Work("overtime", "asrpt4", 3, 200, 1, 4, 20, options="--time=1"),
            Work("others", "asrpt4", 60, 10, 1, 5, 1.5),
        ],
        never=["lost"],
        limits=[Limit(("segments",), 8)],
        measure=mean_completion,
    ),
    Scenario(
        "mixture",
        "220 jobs and 80 array tasks of 17 kinds: singletons, licenses, --begin, --exclusive, several partitions, ...",
        230,
        [
            Work("array", "asrpt1", 4, 6, 1, 0, 25, tasks=20, at_once=4),
            Work("one", "asrpt1", 40, 10, 1, 1, 3),
            Work("two_nodes", "asrpt2", 12, 12, 8, 2, 10, ask="-N2 --gpus-per-node=4"),
            Work("tasks", "asrpt2", 15, 10, 4, 3, 8, ask="-n4 --gpus-per-task=1"),
            Work("gres", "asrpt3", 15, 12, 3, 4, 8, ask="--gres=gpu:3 -N1"),
            Work("exclusive", "asrpt3", 8, 10, 8, 5, 15, ask="--gpus=1 -N1 --exclusive"),
            Work("cpus", "asrpt4", 15, 12, 2, 6, 8, ask="--gpus=2 --cpus-per-gpu=16"),
            Work("singleton", "asrpt1", 10, 8, 2, 7, options="-d singleton"),
            Work("begin", "asrpt2", 10, 8, 1, 8, begin_s=25),
            Work("license", "asrpt3", 20, 8, 1, 9, 2, options="-L simulator:1"),
            Work("high", "asrpt4", 10, 10, 2, 10, 10, options="--qos=high"),
            Work("nice", "asrpt1", 10, 10, 2, 11, 5, options="--nice=1000"),
            Work("either", "asrpt2", 15, 8, 1, 12, 5, options="-p gpu,second"),
            Work("contiguous", "asrpt3", 6, 8, 4, 13, 15, ask="-N2 --contiguous --gpus-per-node=2"),
            Work("cpu", "asrpt4", 20, 10, 0, 14, 4, ask="-n1 -c8"),
            Work("large", "asrpt4", 4, 12, 16, 15, 25, ask="--gpus=16"),
            Work("ranged", "asrpt2", 10, 10, 6, 16, 10, ask="-N1-3 --gpus=6"),
        ],
        slurm_conf=(
            f"{LIMITS}\nPriorityWeightQOS=100000\nLicenses=simulator:3\n"
            "PartitionName=second Nodes=n[1-4] MaxTime=INFINITE State=UP"
        ),
        accounting=[
            "add qos high Priority=1000",
            f"modify user {','.join(USERS)} set qos+=high",
            "modify user asrpt4 set GrpTRES=gres/gpu=24",
        ],
        managed=("gpu", "second"),
        limits=[
            Limit(("array",), 16),
            Limit(("singleton",), 2),
            Limit(("license",), 3),
            Limit(("cpus", "high", "large"), 24),
        ],
        measure=mean_completion,
    ),
    Scenario(
        "constraints",
        "225 jobs of 17 kinds: features, named nodes, memory, het jobs, tasks by GPU, GrpTRESRunMins, ...",
        230,
        [
            Work("feature", "asrpt1", 20, 10, 2, 0, 5, ask="--gpus=2 -C fast"),
            Work("or", "asrpt1", 15, 8, 1, 1, 6, ask="--gpus=1 -C 'fast|slow'"),
            Work("matching", "asrpt2", 6, 10, 4, 2, 15, ask="-N2 --gpus-per-node=2 -C '[fast*1&slow*1]'"),
            Work("named", "asrpt2", 12, 10, 1, 3, 8, ask="--gpus=1 -w n2"),
            Work("without", "asrpt2", 12, 10, 2, 4, 8, ask="--gpus=2 -N1 -x n1,n2"),
            Work("memory", "asrpt3", 20, 10, 1, 5, 4, ask="--gpus=1 --mem=200G"),
            Work("by_gpu", "asrpt3", 15, 10, 2, 6, 6, ask="--gpus=2 -N1 --mem-per-gpu=60G"),
            Work("tasks", "asrpt3", 10, 12, 8, 7, 10, ask="-N2 --ntasks-per-node=4 --gpus-per-task=1"),
            Work("by_task", "asrpt3", 12, 8, 2, 8, 8, ask="--gpus=2 -N1 --ntasks-per-gpu=4 -c4"),
            Work("het", "asrpt1", 8, 10, 3, 9, 12, ask="--gpus=1 -n1 : --gpus=2 -n1"),
            Work("deadline", "asrpt4", 10, 8, 1, 10, 8, ask="--gpus=1 --deadline=now+300"),
            Work("spread", "asrpt1", 8, 10, 4, 11, 12, ask="-N4 --spread-job --gpus-per-node=1"),
            Work("fewest", "asrpt2", 8, 10, 8, 12, 12, ask="--gpus=8 --use-min-nodes"),
            Work("sockets", "asrpt1", 12, 8, 2, 13, 8, ask="--gpus=2 -N1 -n4 --ntasks-per-socket=4"),
            Work("shared", "asrpt2", 15, 8, 1, 14, 6, ask="--gpus=1 -s"),
            Work("minutes", "asrpt4", 30, 10, 2, 15, 3, ask="--gpus=2 -N1"),
            Work("large", "asrpt1", 12, 12, 12, 16, 9, ask="-N2 --gpus-per-node=6"),
        ],
        slurm_conf=f"{LIMITS}\nPriorityWeightFairshare=100000",
        accounting=[
            "modify user asrpt4 set GrpTRESRunMins=gres/gpu=8",
            "modify qos normal set MaxTRESPerJob=gres/gpu=16",
        ],
        prepare=label,
        limits=[Limit(("minutes", "deadline"), 8)],
        measure=mean_completion,
    ),
]
