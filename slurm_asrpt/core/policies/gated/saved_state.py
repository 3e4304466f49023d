"""The state that asrpt-gated saves for a restart of the daemon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies.gated.estimates import Estimates
from slurm_asrpt.core.policies.gated.idle_time import Overruns
from slurm_asrpt.core.policies.gated.interruptions import Interruptions
from slurm_asrpt.core.policies.gated.late_share import LateShare
from slurm_asrpt.core.policies.gated.options import GatedOptions
from slurm_asrpt.core.policies.gated.servers import Reservation, bits
from slurm_asrpt.core.policies.gated.similar import SimilarJobs
from slurm_asrpt.core.policies.running_jobs import RunningJob
from slurm_asrpt.core.policies.saved_amounts import amounts_of, read_amounts


@dataclass(frozen=True)
class Queued:
    """A waiting job: its rank, the start of its wait, and its estimated runtime (None in earlier releases)."""

    job_id: JobId
    rank: float
    since: float
    seconds: float | None


@dataclass(frozen=True)
class Kept:
    """The servers reserved for a late job, and when they are predicted to be free."""

    job_id: JobId
    time: float
    servers: Sequence[str]


@dataclass(frozen=True)
class State:
    """The saved state, as values.

    started: for each running job its predicted runtime, its time limit, the runtime of a similar job, its α/α̃_min, and
    its runtime in earlier runs. estimates, similar, late, overruns, interruptions (None if there are none): as they
    dump themselves. claims: of waiting jobs that have preempted others, the servers by name, these, and until when.
    outlived: by server name, when servers with overdue jobs are expected to be free.
    """

    order: Sequence[Queued]
    returns: int
    runs: Mapping[JobId, RunningJob]
    started: Mapping[JobId, tuple[float, float, float, float, float]]
    estimates: Mapping[str, Any]
    similar: Sequence[Any]
    late: Sequence[Any]
    kept: Kept | None
    outlived: Mapping[str, float]
    interruptions: Mapping[str, Any] | None = None
    claims: Mapping[JobId, tuple[Sequence[str], Sequence[JobId], float]] = field(default_factory=dict)
    overruns: Mapping[str, Any] = field(default_factory=dict)

    def dump(self) -> dict[str, Any]:
        """The state as JSON values."""
        kept = self.kept
        return {
            "order": [[one.job_id, one.rank, one.since, one.seconds] for one in self.order],
            "returns": self.returns,
            "runs": {job_id: _row(run) for job_id, run in self.runs.items()},
            "started": {
                job_id: [predicted, limit if math.isfinite(limit) else None, similar, slowdown, *([had] if had else [])]
                for job_id, (predicted, limit, similar, slowdown, had) in self.started.items()
            },
            "estimates": dict(self.estimates),
            "similar": list(self.similar),
            "late": list(self.late),
            "kept": None if kept is None else [kept.job_id, kept.time, list(kept.servers)],
            "outlived": dict(self.outlived),
            "overruns": dict(self.overruns),
            **({} if self.interruptions is None else {"interruptions": dict(self.interruptions)}),
        }


def read_state(raw: Mapping[str, Any]) -> State:
    """A state saved by this or an earlier release. Raises ValueError if it is invalid."""
    try:
        rows = raw["runs"].items()
        return State(
            order=[_queued(row) for row in raw["order"]],
            returns=int(raw["returns"]),
            runs={JobId(job_id): _run(*row) for job_id, row in rows},
            started={JobId(job_id): _started(row) for job_id, row in raw.get("started", {}).items()},
            estimates=_estimates(raw.get("estimates", {})),
            similar=_similar(raw.get("similar", [])),
            late=_late(raw.get("late", [0.0, 0.0, 0, {}])),
            kept=_kept(raw["kept"]),
            outlived={str(name): float(time) for name, time in raw.get("outlived", {}).items()},
            interruptions=_interruptions(raw.get("interruptions")),
            overruns=_overruns(raw.get("overruns", {})),
            claims={
                JobId(job_id): ([str(name) for name in names], [JobId(one) for one in victims], float(until))
                for job_id, (names, victims, until) in (raw.get("interruptions") or {"claims": {}})["claims"].items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"not a state of policy asrpt-gated: {error!r}") from error


def saved_reservation(held: Reservation | None, nodes: Sequence[Node]) -> Kept | None:
    """The part of a reservation to save; only those of jobs that go first survive a restart."""
    if held is None or not held.kept:
        return None
    return Kept(held.job.id, held.time, [nodes[at].name for at in bits(held.mask)])


def restore_reservation(kept: Kept | None, nodes: Sequence[Node], jobs: Mapping[JobId, Job]) -> Reservation | None:
    """The saved reservation, if the job still waits and all its servers still exist."""
    bit = {node.name: 1 << at for at, node in enumerate(nodes)}
    job = jobs.get(kept.job_id) if kept else None
    if kept is None or job is None or not bit.keys() >= set(kept.servers):
        return None
    return Reservation(job, sum(bit[name] for name in kept.servers), kept.time, kept=True)


def _row(run: RunningJob) -> list[Any]:
    amounts = amounts_of(run.held)
    return [run.start, run.end, dict(run.gpus), *([amounts] if amounts else [])]


def _run(start: float, end: float, gpus: Mapping[str, int], amounts: Sequence[Any] = ()) -> RunningJob:
    """The inverse; states before 2026-11-29 have no amounts. Raises TypeError, ValueError, AttributeError."""
    return RunningJob(float(start), float(end), dict(gpus), held=read_amounts(amounts))


def _queued(row: Sequence[Any]) -> Queued:
    """A waiting job; states before 2026-11-22 have no runtime. Raises TypeError, ValueError, IndexError."""
    seconds = row[3] if len(row) > 3 else None
    return Queued(JobId(row[0]), float(row[1]), float(row[2]), None if seconds is None else float(seconds))


def _started(row: Sequence[Any]) -> tuple[float, float, float, float, float]:
    """Raises TypeError, ValueError."""
    predicted, limit, *others = row
    similar = others.pop(0) if len(others) > 1 else 0.0  # states before decision 34 have none
    slowdown, had = others if len(others) > 1 else (others[0], 0.0)
    return float(predicted), math.inf if limit is None else float(limit), float(similar), float(slowdown), float(had)


def _interruptions(raw: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The same, if it is valid. Raises KeyError, TypeError, ValueError, AttributeError."""
    if raw is not None:
        Interruptions(GatedOptions()).load(raw)
    return raw


def _estimates(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same, if it is valid. Raises KeyError, TypeError, ValueError."""
    Estimates().load(raw)
    return raw


def _similar(raw: Sequence[Any]) -> Sequence[Any]:
    """The same, if it is valid. Raises TypeError, ValueError."""
    SimilarJobs().load(raw, {})
    return raw


def _late(raw: Sequence[Any]) -> Sequence[Any]:
    """The same, if it is valid. Raises TypeError, ValueError."""
    LateShare(1.0).load(raw)
    return raw


def _overruns(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same, if it is valid. Raises TypeError, ValueError, AttributeError."""
    Overruns().load(raw)
    return raw


def _kept(raw: Any) -> Kept | None:
    """A reservation. Raises TypeError, ValueError."""
    if raw is None:
        return None
    job_id, time, names = raw
    return Kept(JobId(job_id), float(time), [str(name) for name in names])
