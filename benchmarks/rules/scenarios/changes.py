"""Owners and admins change jobs, nodes, partitions and QOS while jobs are pending and running."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.rules.scenario import LIMITS, USERS, Scenario, Site, Work, admin, label, mean_completion, others
from slurm_asrpt.lab import processes
from slurm_asrpt.lab.accounting import start_slurmdbd


def _drain(site: Site) -> None:
    site.lab.run(["scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=disk"])


def _down(site: Site) -> None:
    """A node fails: Slurm requeues its jobs."""
    site.lab.run(["scontrol", "update", "NodeName=n3", "State=DOWN", "Reason=power"])


def _resume(node: str) -> Callable[[Site], object]:
    """Bring a node back, unless Slurm has done so by itself, as its slurmd was never gone."""
    return lambda site: site.lab.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)


def _pending(site: Site, role: str) -> list[str]:
    """The jobs of a role that wait, by id."""
    listed = site.lab.run(["squeue", "-h", "-t", "PD", "-o", "%A"]).stdout.split()
    return [job_id for job_id in site.ids[role] if job_id in listed]


def _hold(site: Site) -> None:
    """An admin holds half of the pending jobs of a user."""
    for job_id in _pending(site, "small")[::2]:
        site.lab.run(["scontrol", "hold", job_id], check=False)


def _release(site: Site) -> None:
    for job_id in _pending(site, "small"):
        site.lab.run(["scontrol", "release", job_id], check=False)


def _change(site: Site) -> None:
    """An admin gives some pending jobs another size, and others another time limit."""
    for number, job_id in enumerate(_pending(site, "medium")):
        change = "TimeLimit=3" if number % 2 else "Gres=gpu:3"
        site.lab.run(["scontrol", "update", f"JobId={job_id}", change], check=False)


def _update(role: str, every: int, *changes: str) -> Callable[[Site], object]:
    """Owners change some of their pending jobs: each of every so many gets one of the changes."""

    def act(site: Site) -> None:
        for number, job_id in enumerate(_pending(site, role)[::every]):
            change = changes[number % len(changes)].split()
            site.lab.run(["scontrol", "update", f"JobId={job_id}", *change], check=False)

    return act


def _stop_slurmdbd(site: Site) -> None:
    daemon = processes.read_daemon(site.lab.paths.pids / "slurmdbd.pid")
    processes.end([daemon] if daemon else [], patience_s=5.0)


def _start_slurmdbd(site: Site) -> None:
    start_slurmdbd(site.lab.paths, site.lab.env)


def _on_running(verb: str, role: str, most: int) -> Callable[[Site], object]:
    """An admin requeues or suspends some running jobs of a role."""

    def act(site: Site) -> None:
        running = site.lab.run(["squeue", "-h", "-t", "R", "-n", role, "-o", "%A"]).stdout.split()
        for job_id in running[:most]:
            site.lab.run(["scontrol", verb, job_id], check=False)

    return act


def _cancel(role: str, every: int) -> Callable[[Site], object]:
    """A user cancels every so many of the jobs of a role, whether they wait or run."""
    return lambda site: site.lab.run(["scancel", *site.ids[role][::every]], check=False)


def _throttle(site: Site) -> None:
    """More tasks of an array may run at a time, and then fewer."""
    for job_id, most in zip(site.ids["tasks"], (12, 2), strict=False):
        site.lab.run(["scontrol", "update", f"JobId={job_id}", f"ArrayTaskThrottle={most}"], check=False)


def _resume_jobs(site: Site) -> None:
    for job_id in site.lab.run(["squeue", "-h", "-t", "S", "-o", "%A"]).stdout.split():
        site.lab.run(["scontrol", "resume", job_id], check=False)


SCENARIOS = [
    Scenario(
        "churn",
        "two GPU types, arrays; pending and running jobs are cancelled, arrays changed, jobs requeued and suspended",
        200,
        [
            Work("small", "asrpt1", 60, 10, 1, 0, 1.6),
            Work("typed", "asrpt2", 30, 12, 2, 0.5, 3, ask="--gpus=h100:2 -N1 --requeue"),
            Work("other", "asrpt3", 20, 12, 4, 1, 4, ask="-N1 --gpus-per-node=a100:4"),
            Work("both", "asrpt3", 6, 10, 12, 2, 15, ask="-N2 --gpus-per-node=6"),
            Work("tasks", "asrpt4", 3, 6, 1, 3, 20, tasks=40, at_once=6),
            Work("cancelled", "asrpt4", 40, 10, 2, 4, 0.5),
            Work("wide", "asrpt2", 6, 12, 16, 5, 16, ask="-N2 --gpus-per-node=8"),
        ],
        nodes="2x8:h100,2x8:a100",
        acts=[
            (20.0, _cancel("cancelled", 2)),
            (30.0, _throttle),
            (35.0, _on_running("requeue", "typed", 3)),
            (45.0, _cancel("cancelled", 1)),
            (60.0, _on_running("suspend", "small", 3)),
            (75.0, _resume_jobs),
        ],
        never=["cancelled"],
        measure=mean_completion,
    ),
    Scenario(
        "admin_day",
        "a node is drained, one fails, both come back; jobs are held, released, changed, requeued",
        200,
        [
            Work("small", "asrpt1", 80, 10, 1, 0, 1.2),
            Work("medium", "asrpt2", 50, 15, 2, 0.5, 2, ask="-N1 --gres=gpu:2 --requeue"),
            Work("node", "asrpt3", 16, 12, 8, 1, 6, ask="-N1 --gpus-per-node=8 --requeue"),
            Work("wide", "asrpt4", 8, 15, 16, 1.5, 12, ask="-N2 --gpus-per-node=8 --requeue"),
        ],
        acts=[
            (20.0, _drain),
            (30.0, _hold),
            (40.0, _change),
            (50.0, _resume("n2")),
            (60.0, _on_running("requeue", "medium", 4)),
            (70.0, _release),
            (80.0, _down),
            (100.0, _resume("n3")),
        ],
        measure=mean_completion,
    ),
    Scenario(
        "restless",
        "owners change their pending jobs in twelve ways, hold and release them; slurmdbd is away for half a minute",
        200,
        [
            Work("small", "asrpt1", 90, 10, 1, 0, 1.1),
            Work("medium", "asrpt2", 60, 15, 2, 0.5, 1.7, options="-N1"),
            Work("tasks", "asrpt3", 3, 8, 1, 1, 20, tasks=20, at_once=10),
            Work("node", "asrpt3", 14, 12, 8, 1.5, 7, ask="-N1 --gpus-per-node=8"),
            Work("wide", "asrpt4", 7, 15, 16, 2, 14, ask="-N2 --gpus-per-node=8"),
        ],
        slurm_conf=(f"{LIMITS}\nPriorityWeightQOS=100000\nPartitionName=second Nodes=n[1-4] MaxTime=INFINITE State=UP"),
        accounting=[
            "add qos high Priority=1000",
            f"modify user {','.join(USERS)} set qos+=high",
            "modify qos normal set MaxTRESPerUser=gres/gpu=16",
        ],
        managed=("gpu", "second"),
        prepare=label,
        acts=[
            (12.0, _update("small", 2, "TimeLimit=3", "Nice=100", "Partition=second", "QOS=high")),
            (18.0, _update("medium", 2, "ReqNodeList=n2", "ExcNodeList=n[1-2]", "Features=fast", "Partition=second")),
            (24.0, _update("node", 1, "QOS=high", "ReqNodeList=n3")),
            (26.0, _hold),
            (30.0, _stop_slurmdbd),
            (36.0, _update("tasks", 1, "TimeLimit=2", "Nice=50")),
            (40.0, _update("medium", 3, "NumNodes=1-2", "StartTime=now+20", "Gres=gpu:3", "MinCPUsNode=4")),
            (46.0, _release),
            (50.0, _update("wide", 1, "Partition=second", "TimeLimit=3")),
            (56.0, _cancel("tasks", 2)),
            (60.0, _start_slurmdbd),
            (66.0, _update("small", 3, "Features=slow", "StartTime=now+15", "ReqNodeList=n1")),
            (74.0, _update("medium", 2, "Features=", "ReqNodeList=", "ExcNodeList=")),
        ],
        measure=mean_completion,
    ),
    Scenario(
        "moving_nodes",
        "an admin moves nodes between partitions, one of them hidden, changes features, limits and the default",
        200,
        [
            Work("small", "asrpt1", 80, 10, 1, 0, 1.2),
            Work("medium", "asrpt2", 40, 15, 2, 0.5, 2.5, options="-N1 --time=2 -p gpu"),
            Work("fast", "asrpt2", 20, 10, 1, 0.7, 5, options="-C fast -p gpu"),
            Work("hidden", "asrpt3", 40, 10, 1, 1, 2.5, options="-p hidden"),
            Work("either", "asrpt3", 20, 10, 2, 1.2, 5, options="-p gpu,hidden -N1"),
            Work("node", "asrpt4", 8, 12, 8, 1.5, 12, ask="-N1 --gpus-per-node=8"),
            Work("wide", "asrpt4", 4, 15, 16, 2, 25, ask="-N2 --gpus-per-node=8", options="-p gpu"),
        ],
        nodes="5x8",
        slurm_conf=("PartitionName=hidden Nodes=n[4-5] MaxTime=INFINITE State=UP Hidden=YES"),
        managed=("gpu", "hidden"),
        prepare=label,
        acts=[
            (10.0, admin("scontrol update PartitionName=gpu Nodes=n[1-3]")),
            (30.0, admin("scontrol update PartitionName=hidden Nodes=n[3-5]")),
            (45.0, admin("scontrol update NodeName=n1 AvailableFeatures=slow ActiveFeatures=slow")),
            (50.0, admin("scontrol update PartitionName=gpu MaxTime=1")),
            (60.0, admin("scontrol update PartitionName=hidden Nodes=n5")),
            (65.0, admin("scontrol update PartitionName=gpu Nodes=n[1-4] MaxTime=INFINITE")),
            (80.0, admin("scontrol update PartitionName=hidden Default=YES")),
            (90.0, admin("scontrol update NodeName=n1 AvailableFeatures=fast ActiveFeatures=fast")),
        ],
        measure=mean_completion,
    ),
    Scenario(
        "qos_removed",
        "40 jobs of a user wait with a QOS of high priority, which an admin takes from the user; 3 x 40 jobs of others",
        110,
        [Work("high", "asrpt1", 40, 10, 1, options="--qos=high"), *others(40, 10, 2, at_s=1)],
        slurm_conf=f"{LIMITS}\nPriorityWeightQOS=100000",
        accounting=["add qos high Priority=1000 MaxTRESPerUser=gres/gpu=8", "modify user asrpt1 set qos+=high"],
        acts=[(6.0, admin("sacctmgr -i modify user asrpt1 set qos-=high"))],
        measured=["others"],
        never=["high"],
        measure=mean_completion,
    ),
]
