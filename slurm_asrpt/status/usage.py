"""GPUs in use and jobs waiting during the last day: usage.json in paths.run, which the dashboard draws."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.status.document import NodeStatus, Status, publish

FILE_NAME = "usage.json"
STEP_S = 300
KEPT_S = 86400
UNUSABLE, ABSENT = "x", "."
_DIGITS = "0123456789abcdefghijklmnopqrstuvw"
HOLDING = (Phase.STARTING, Phase.RUNNING)
WAITING = (Phase.VIRTUAL, Phase.WAITING, Phase.DELAYED)
_SERIES = ("times", "total", "used", "jobs", "wanted")


@dataclass(frozen=True)
class Usage:
    """Samples, the oldest first; all lists have one length, and so have the strings of ``nodes``.

    times: seconds since the epoch. total, used: GPUs on usable nodes. jobs, wanted: waiting jobs and their GPUs.
    nodes: for each node a character per sample: its GPUs in use in base 33 (32 and more are ``w``), ``x`` if the node
    was idle and unusable, ``.`` before it was there.
    """

    times: list[int] = field(default_factory=list)
    total: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    nodes: dict[str, str] = field(default_factory=dict)

    def due(self, now: float) -> bool:
        """Whether the last sample is old enough for another one; also after the clock has stepped back."""
        return not self.times or not 0 <= now - self.times[-1] < STEP_S

    def with_sample(self, status: Status) -> Usage:
        """With the state of ``status``, without samples older than a day or of nodes that are no longer there."""
        now = status.written
        kept = [at for at, time in enumerate(self.times) if now - KEPT_S < time < now]
        waiting = [job.gpus for job in status.jobs if job.state in WAITING]
        values = (int(now), status.gpus_total, status.gpus_total - status.gpus_free, len(waiting), sum(waiting))
        absent, held = ABSENT * len(self.times), gpus_held(status)
        series = {name: [getattr(self, name)[at] for at in kept] for name in _SERIES}
        nodes = {
            node.name: "".join([self.nodes.get(node.name, absent)[at] for at in kept]) + _sample(node, held)
            for node in status.nodes
        }
        return Usage(
            nodes=nodes, **{name: [*old, new] for (name, old), new in zip(series.items(), values, strict=True)}
        )


def gpus_held(status: Status) -> Counter[str]:
    """GPUs that the managed jobs hold, by node."""
    held = Counter[str]()
    for job in status.jobs:
        if job.state in HOLDING:
            held.update(job.nodes)
    return held


def gpus_used(node: NodeStatus, held: Counter[str]) -> int:
    """GPUs in use; on a node that is down or draining, those of managed jobs."""
    return node.gpus - node.gpus_free if node.usable else held[node.name]


def _sample(node: NodeStatus, held: Counter[str]) -> str:
    used = gpus_used(node, held)
    return _DIGITS[min(used, len(_DIGITS) - 1)] if used or node.usable else UNUSABLE


def read_usage(run_dir: Path) -> Usage:
    """The published samples; none if the file is missing, unreadable or damaged: it is only for a picture."""
    try:
        return _checked(json.loads((run_dir / FILE_NAME).read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Usage()


def _checked(raw: Any) -> Usage:
    """Raises ValueError, TypeError, KeyError, AttributeError."""
    found = Usage(nodes=dict(raw["nodes"]), **{name: [int(value) for value in raw[name]] for name in _SERIES})
    lengths = {len(getattr(found, name)) for name in _SERIES} | {len(samples) for samples in found.nodes.values()}
    if len(lengths) != 1 or not all(isinstance(samples, str) for samples in found.nodes.values()):
        raise ValueError("samples are missing")
    return found


def write_usage(run_dir: Path, usage: Usage, *, private: bool) -> None:
    """Replace the samples. private: as for ``write_status``. Raises OSError."""
    publish(run_dir, FILE_NAME, json.dumps(vars(usage), separators=(",", ":")).encode(), private=private)
