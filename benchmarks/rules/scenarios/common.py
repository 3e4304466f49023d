"""What scenarios of several subjects use."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from benchmarks.rules.scenario import USERS, Site, Work
from slurm_asrpt.lab.cluster import Lab

LIMITS = "AccountingStorageEnforce=associations,limits,qos"
"""In slurm.conf: without it, Slurm enforces no limits and knows no QOS."""


def admin(command: str) -> Callable[[Site], object]:
    """An admin types this command."""
    return lambda site: site.lab.run(shlex.split(command))


def label(lab: Lab) -> None:
    """Two nodes have one feature, two have another."""
    for nodes, feature in (("n[1-2]", "fast"), ("n[3-4]", "slow")):
        lab.run(
            ["scontrol", "update", f"NodeName={nodes}", f"AvailableFeatures={feature}", f"ActiveFeatures={feature}"]
        )


def blockers(seconds: float) -> Work:
    """A job on all GPUs of each node, so that a queue builds up."""
    return Work("blocker", "asrpt4", 4, seconds, gpus=8, options="-N1", fixed=True)


def others(count: int, seconds: float, gpus: int = 1, at_s: float = 0.0) -> list[Work]:
    """Jobs of three users without a limit."""
    return [Work("others", user, count, seconds, gpus, at_s) for user in USERS[1:]]
