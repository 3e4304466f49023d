"""Daemons that die or are restarted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from benchmarks.rules.scenario import ENFORCE, USERS, Scenario, Site, Work, admin, longest_idle, mean_completion


def kill_asrptd(site: Site) -> None:
    if site.asrptd:
        os.kill(site.asrptd, signal.SIGKILL)


def _restart_asrptd(site: Site) -> None:
    """asrptd dies, and its unit starts it again."""
    kill_asrptd(site)
    site.asrptd = site.start()


def _restart_slurmctld(site: Site) -> None:
    """In order: if it crashes, Slurm drains nodes on which jobs have just started, by chance on either side."""
    site.lab.stop_slurmctld()
    site.lab.start_slurmctld()


def _restart_slurmd(node: str) -> Callable[[Site], object]:
    """An update of the package: the node's jobs go on."""

    def act(site: Site) -> None:
        site.lab.stop_node(node)
        site.lab.start_node(node)

    return act


SCENARIOS = [
    Scenario(
        "restarts",
        "slurmctld and a slurmd are restarted, asrptd is killed, scontrol reconfigure, the partition is down for 10 s",
        200,
        [
            Work("small", "asrpt1", 100, 10, 1, 0, 1.2),
            Work("medium", "asrpt2", 50, 15, 2, 0.5, 2.4, ask="-N1 --gres=gpu:2"),
            Work("node", "asrpt3", 16, 12, 8, 1, 7, ask="-N1 --gpus-per-node=8"),
            Work("wide", "asrpt4", 8, 15, 16, 1.5, 14, ask="-N2 --gpus-per-node=8"),
            Work("tasks", "asrpt4", 3, 8, 1, 2, 30, tasks=20, at_once=6),
        ],
        acts=[
            (20.0, _restart_slurmctld),
            (40.0, _restart_asrptd),
            (55.0, admin("scontrol reconfigure")),
            (65.0, _restart_slurmd("n2")),
            (75.0, admin("scontrol update PartitionName=gpu State=DOWN")),
            (85.0, admin("scontrol update PartitionName=gpu State=UP")),
        ],
        modes=(ENFORCE,),
        measure=mean_completion,
    ),
    Scenario(
        "inactive",
        "the partition is set to State=INACTIVE for half a minute, with some 100 jobs waiting; 200 in all",
        160,
        [
            Work("small", "asrpt1", 120, 10, 1, 0, 0.2),
            Work("medium", "asrpt2", 60, 12, 2, 0.5, 0.4, ask="-N1 --gres=gpu:2"),
            Work("node", "asrpt3", 20, 12, 8, 1, 1.2, ask="-N1 --gpus-per-node=8"),
        ],
        acts=[
            (30.0, admin("scontrol update PartitionName=gpu State=INACTIVE")),
            (60.0, admin("scontrol update PartitionName=gpu State=UP")),
        ],
        modes=(ENFORCE,),
        measure=mean_completion,
    ),
    Scenario(
        "asrptd_killed",
        "asrptd is killed with a queue; seconds are the longest time in which most GPUs are idle",
        90,
        [Work("job", user, 40, 10, 2, fixed=True) for user in USERS[:3]],
        daemon={},
        acts=[(25.0, kill_asrptd)],
        ruled_from_s=25.0,
        modes=(ENFORCE,),
        measure=longest_idle,
    ),
]
