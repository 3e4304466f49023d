"""Why a job does not start now, as typed values.

Policies, the daemon and the audit trail make and keep them; ``status.reason_texts`` puts them into words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """Where a job stands; the words are what asrpt-status shows."""

    VIRTUAL = "virtual queue"
    WAITING = "waiting"
    DELAYED = "delayed for placement"
    STARTING = "starting"
    RUNNING = "running"
    LEFT = "left to Slurm"


@dataclass(slots=True)  # not frozen, like decisions: a simulation makes one per event, at half the cost
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
    "capacity": ("need",),
    "next": (),
    "behind": ("ahead", "head"),
    "service": ("ahead", "head"),
    "room": ("runs", "need"),
    "interrupting": ("head",),
    "interrupted": ("head",),
    "reserved": ("need", "in_s"),
    "reservation": ("head", "need", "in_s"),
    "ahead": ("reservation", "in_s"),
    "reserved-nodes": ("reservation",),
    "placement": ("left_s", "ratio"),
    "array": ("more",),
    "dependency": (),
    "dependency-never": (),
    "begin": (),
    "held": ("slurm_reason",),
    "limit": ("slurm_reason",),
    "left": ("why",),
    "starting": (),
    "not-started": (),
    "not-followed": (),
    "configuring": (),
    "running": (),
}
"""The kinds of reasons, and the facts that each needs.

need, free, most: GPUs. ahead: jobs. more: array tasks. head: the job that is next, or that holds a reservation.
remaining_s, work_s, left_s: seconds. in_s: seconds until a reservation begins, None if unknown. ratio: alpha over its
minimum. runs: the jobs that are interrupted. reservation: one of Slurm's, by name. slurm_reason, why: texts.
"""


def reason(phase: Phase, kind: str, **facts: Any) -> Reason:
    """A reason. facts: JSON values, at least those of ``KINDS``. Raises KeyError for an unknown kind."""
    KINDS[kind]
    return Reason(phase, kind, facts)


def behind(job_id: str, ahead: int, head: str | None) -> Reason:
    """The reason of a job of which only the place is known: ``ahead`` jobs come first, and ``head`` is next."""
    if head is None or head == job_id:
        return reason(Phase.WAITING, "next")
    return reason(Phase.WAITING, "behind", ahead=ahead, head=head)
