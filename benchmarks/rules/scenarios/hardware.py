"""What nodes are like: switches, odd counts of GPUs, slices, sockets, threads, disks, few CPUs."""

from __future__ import annotations

import re

from benchmarks.rules.figures import Limit
from benchmarks.rules.scenario import LEAF, USERS, Scenario, Work, label, mean_completion
from slurm_asrpt.lab.cluster import Lab


def two_sockets(lab: Lab) -> None:
    """Half of each node's cores and GPUs are on either socket; the nodes keep four cores for themselves."""
    conf, gres = lab.slurm_conf, lab.paths.etc / "gres.conf"
    text = re.sub(r"Sockets=1 CoresPerSocket=(\d+)", _halved, conf.read_text(encoding="utf-8"))
    text = text.replace(" State=UNKNOWN", " CoreSpecCount=4 MemSpecLimit=12000 State=UNKNOWN")
    conf.write_text(text, encoding="utf-8")
    bound = r"\1[0-3] Cores=0-31\n\1[4-7] Cores=32-63"
    gres.write_text(re.sub(r"(?m)^(.*)\[0-7\]$", bound, gres.read_text(encoding="utf-8")), encoding="utf-8")
    lab.restart()
    label(lab)


def _halved(cores: re.Match[str]) -> str:
    return f"Sockets=2 CoresPerSocket={int(cores[1]) // 2}"


def local_disks(lab: Lab) -> None:
    """All nodes have 800 GB of local scratch, and two of them two NVMe disks each."""
    conf, gres = lab.slurm_conf, lab.paths.etc / "gres.conf"
    text = re.sub("(?m)^GresTypes=.*$", "GresTypes=gpu,nvme,scratch", conf.read_text(encoding="utf-8"))
    text = re.sub("(?m)^(NodeName=n[23] .*Gres=gpu:8)", r"\1,nvme:2", text)
    conf.write_text(re.sub("(?m)^(NodeName=.*Gres=gpu:8[^ ]*)", r"\1,scratch:800G", text), encoding="utf-8")
    with gres.open("a", encoding="utf-8") as file:
        file.write("NodeName=n[1-4] Name=scratch Count=800G Flags=CountOnly\nNodeName=n[2,3] Name=nvme Count=2\n")
    lab.restart()


SCENARIOS = [
    Scenario(
        "topology",
        "topology/tree, two switches: 20 jobs of 16 GPUs, three times as long across both, among 100 small ones",
        170,
        [
            *[Work("small", user, 50, 14, 2, number, 2.4) for number, user in enumerate(USERS[:2])],
            Work("wide", "asrpt3", 20, 16, 16, 3, 6, ask="--gpus=16", across=3),
        ],
        nodes=f"{2 * LEAF}x8",
        topology=f"tree:2x{LEAF}",
        measure=mean_completion,
    ),
    Scenario(
        "odd_servers",
        "servers of 7 GPUs: 24 jobs of 8 GPUs, which fill no number of servers, among 120 small ones",
        170,
        [
            *[Work("small", user, 60, 14, 1, number, 2) for number, user in enumerate(USERS[:2])],
            Work("eight", "asrpt3", 24, 14, 8, 3, 5),
        ],
        nodes="4x7",
        measure=mean_completion,
    ),
    Scenario(
        "slices",
        "nodes with whole GPUs and MIG slices: jobs by type, by --gpus without a type, of several slices",
        200,
        [
            Work("slice", "asrpt1", 80, 10, 1, 0, 1.3, ask="--gpus=1g.10gb:1"),
            Work("slices", "asrpt2", 30, 12, 2, 0.5, 3, ask="-N1 --gpus-per-node=1g.10gb:2"),
            Work("gres", "asrpt2", 20, 12, 1, 0.7, 5, ask="-N1 --gres=gpu:a100:1"),
            Work("whole", "asrpt3", 30, 14, 2, 1, 4, ask="-N1 --gpus-per-node=a100:2"),
            Work("wide", "asrpt3", 8, 12, 4, 2, 15, ask="-N2 --gpus-per-node=a100:2"),
            Work("any", "asrpt4", 40, 8, 1, 3, 3, ask="--gpus=1"),
        ],
        nodes="3x2:a100+7:1g.10gb",
        limits=[Limit(("gres", "whole", "wide"), 6), Limit(("slice", "slices"), 21)],
        measure=mean_completion,
    ),
    Scenario(
        "two_sockets",
        "nodes of two sockets with half of the GPUs each, which keep four cores for themselves: 13 kinds of requests",
        230,
        [
            Work("one", "asrpt1", 60, 10, 1, 0, 2, ask="--gpus=1 -n1 -c8"),
            Work("bound", "asrpt2", 30, 10, 1, 0.5, 4, ask="--gres=gpu:1 -n1 -c8 --gres-flags=enforce-binding"),
            Work("bound_two", "asrpt2", 15, 12, 2, 1, 8, ask="--gres=gpu:2 -n1 -c14 --gres-flags=enforce-binding"),
            Work("many_cores", "asrpt3", 15, 10, 1, 2, 8, ask="--gpus=1 -n1 -c24"),
            Work("by_task", "asrpt3", 20, 12, 4, 3, 6, ask="-N1 -n4 --gpus-per-task=1 -c7"),
            Work("by_socket", "asrpt1", 10, 10, 4, 4, 12, ask="-N1 --gpus-per-socket=2 --sockets-per-node=2 -n2"),
            Work("tasks_by_socket", "asrpt1", 10, 10, 2, 5, 12, ask="-N1 -n4 --ntasks-per-socket=2 --gpus=2"),
            Work("one_socket", "asrpt4", 10, 10, 4, 6, 12, ask="-N1 -n1 -c28 --gres=gpu:4 --sockets-per-node=1"),
            Work("node", "asrpt4", 10, 12, 8, 7, 12, ask="-N1 --gpus-per-node=8 --ntasks-per-node=8 -c7"),
            Work("wide", "asrpt2", 5, 12, 16, 8, 24, ask="-N2 --gpus-per-node=8 --ntasks-per-node=8 -c7"),
            Work("preferred", "asrpt3", 20, 10, 1, 9, 6, ask="--gpus=1 -n1 -c6 --prefer=fast"),
            Work("overcommitted", "asrpt4", 10, 10, 2, 10, 12, ask="-N1 -n32 -O --gpus=2"),
            Work("memory", "asrpt1", 20, 10, 1, 11, 6, ask="--gpus=1 -n1 -c2 --mem=120G"),
        ],
        prepare=two_sockets,
        measure=mean_completion,
    ),
    Scenario(
        "one_task_per_core",
        "CR_ONE_TASK_PER_CORE and CR_Pack_Nodes on cores of two threads, a partition with LLN: jobs of many tasks",
        150,
        [
            Work("tasks", "asrpt1", 40, 10, 1, 0, 2.5, ask="-N1 -n8 --gpus=1"),
            Work("by_gpu", "asrpt1", 30, 10, 2, 0.5, 3, ask="-N1 -n2 --gpus-per-task=1"),
            Work("threads", "asrpt2", 30, 10, 1, 1, 3, ask="-n1 -c8 --gpus=1"),
            Work("odd", "asrpt2", 20, 10, 2, 1.5, 5, ask="-N1 -n3 -c3 --gpus=2"),
            Work("memory", "asrpt3", 20, 10, 1, 2, 5, ask="-N1 -n6 --gpus=1 --mem-per-cpu=8G"),
            Work("node", "asrpt4", 8, 12, 8, 2.5, 12, ask="-N1 --gpus-per-node=8 --ntasks-per-node=8"),
            Work("wide", "asrpt4", 4, 12, 16, 3, 25, ask="-N2 --gpus-per-node=8 --ntasks-per-node=8"),
            Work("cpu", "asrpt3", 20, 10, 0, 4, 4, ask="-n12"),
        ],
        slurm_conf=(
            "SelectTypeParameters=CR_Core_Memory,CR_ONE_TASK_PER_CORE,CR_Pack_Nodes\n"
            "PartitionName=least Nodes=n[1-4] MaxTime=INFINITE State=UP LLN=YES"
        ),
        managed=("gpu", "least"),
        threads=2,
        measure=mean_completion,
    ),
    Scenario(
        "local_disks",
        "jobs with scratch or NVMe disks of their nodes (other generic resources), scarcer than GPUs, among others",
        230,
        [
            Work("small", "asrpt1", 60, 10, 1, 0, 1.6),
            Work("scratch", "asrpt2", 40, 12, 1, 0.3, 2.4, ask="--gres=gpu:1,scratch:300G -n1"),
            Work("disk", "asrpt3", 25, 10, 1, 0.6, 3, ask="--gres=gpu:1,nvme:1 -n1"),
            Work("pair", "asrpt2", 20, 15, 2, 1, 5, ask="-N1 --gpus=2 --gres=scratch:100G"),
            Work("node", "asrpt4", 10, 12, 8, 2, 10, ask="-N1 --gres=gpu:8,scratch:400G"),
            Work("wide", "asrpt4", 5, 15, 16, 5, 20, ask="-N2 --gpus-per-node=8"),
            Work("disks", "asrpt1", 10, 12, 4, 7, 10, ask="-N1 --gres=gpu:4,nvme:2"),
        ],
        prepare=local_disks,
        measure=mean_completion,
    ),
    Scenario(
        "short_of_cpus",
        "one GPU and half of the CPUs, half of the memory or a disk of a node: such jobs among others of few GPUs",
        230,
        [
            Work("cpus", "asrpt1", 40, 20, 1, 0, 2, ask="--gpus=1 -n1 -c30"),
            Work("memory", "asrpt2", 20, 15, 1, 0.4, 4, ask="--gpus=1 -n1 -c1 --mem=240G"),
            Work("disk", "asrpt3", 20, 15, 1, 0.8, 4, ask="--gres=gpu:1,nvme:1 -n1"),
            Work("small", "asrpt3", 60, 25, 1, 1, 1.4, ask="--gpus=1 -n1 -c1 --mem=4G", vary=0.3),
            Work("pair", "asrpt4", 30, 30, 2, 1.2, 2.8, ask="--gpus=2 -N1 -n1 -c1 --mem=4G", vary=0.3),
        ],
        prepare=local_disks,
        measure=mean_completion,
    ),
]
