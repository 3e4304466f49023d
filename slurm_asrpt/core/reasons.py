"""Why a job does not start now, as typed values.

Policies and the daemon create them, and the audit trail stores them; ``status.reason_texts`` has the texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """The phase of a job; asrpt-status shows these words."""

    VIRTUAL = "virtual queue"
    WAITING = "waiting"
    DELAYED = "delayed for placement"
    STARTING = "starting"
    RUNNING = "running"
    LEFT = "left to Slurm"
    ENDED = "ended"


@dataclass(slots=True)  # not frozen, at half the cost, like decisions: a simulation creates one per event
class Reason:
    """Why a job does not start now. ``kind``: stable and machine-readable. ``facts``: the evidence, JSON values."""

    phase: Phase
    kind: str
    facts: Mapping[str, Any]


KINDS: Mapping[str, tuple[str, ...]] = {
    "virtual": ("remaining_s", "work_s"),
    "gpus": ("need", "free"),
    "shape": ("need", "shape", "free", "most"),
    "resources": ("need", "free"),
    "gres": ("need", "free", "gres"),
    "cpus": ("cpus",),
    "whole-nodes": ("whole",),
    "kept-room": ("head", "in_s"),
    "capacity": ("need",),
    "next": (),
    "behind": ("ahead", "head"),
    "priority": ("ahead", "head"),
    "service": ("ahead", "head"),
    "room": ("runs", "need"),
    "interrupting": ("head",),
    "yielding": (),
    "interrupted": ("head",),
    "reserved": ("need", "in_s"),
    "reservation": ("head", "need", "in_s"),
    "ahead": ("reservation", "in_s"),
    "reserved-nodes": ("reservation",),
    "reservation-begins": ("reservation", "in_s"),
    "placement": ("left_s", "ratio"),
    "array": ("more",),
    "array-limit": ("tasks",),
    "dependency": (),
    "dependency-never": (),
    "begin": (),
    "held": ("slurm_reason",),
    "partition-closed": ("partition",),
    "limit": ("slurm_reason",),
    "over-limit": ("limit",),
    "left": ("why",),
    "starting": (),
    "would-start": (),
    "preempting": ("victims", "kinds"),
    "filling": ("head",),
    "slurm-starts": ("why",),
    "not-started": (),
    "not-followed": (),
    "configuring": (),
    "running": (),
}
"""The kinds of reasons, and the facts that each requires.

need, free, most: GPUs. cpus: CPUs. whole: whole nodes. ahead: jobs. more, tasks: array tasks. head: the job that is
next, or that holds a reservation, or for which room is kept. remaining_s, work_s, left_s: seconds. in_s: seconds until
a reservation begins, or until the head can start; None if unknown. ratio: alpha over its minimum. runs: the jobs
that are preempted. reservation, limit: the name of a reservation in Slurm, or of a limit of the site. slurm_reason,
why: texts.
"""


def reason(phase: Phase, kind: str, **facts: Any) -> Reason:
    """A reason. facts: JSON values, at least those of ``KINDS``. Raises KeyError for an unknown kind."""
    KINDS[kind]
    return Reason(phase, kind, facts)


def behind(job_id: str, ahead: int, head: str | None, higher: int = 0) -> Reason:
    """The reason of a job with ``ahead`` jobs before it in the queue, if nothing else is known. head: the next job.

    higher: how many of them have a higher priority.
    """
    if head is None or head == job_id:
        return reason(Phase.WAITING, "next")
    if higher:
        return reason(Phase.WAITING, "priority", ahead=higher, head=head)
    return reason(Phase.WAITING, "behind", ahead=ahead, head=head)
