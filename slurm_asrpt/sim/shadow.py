"""asrpt-admin shadow-report: what mode enforce would have done to the jobs that asrptd has watched.

The runs of the history come when they came and run as long as they ran; the policy of the settings, with the
predictions that the hook gave at the time, decides when they start (``sim.whatif``, whose limits hold here, too).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from slurm_asrpt.config import PolicySettings
from slurm_asrpt.core.policies import policy_settings
from slurm_asrpt.errors import InputError
from slurm_asrpt.predict.history import Origin, Run
from slurm_asrpt.sim import whatif
from slurm_asrpt.sim.engine import Progress, simulate_named
from slurm_asrpt.sim.evaluation import trace_of_runs
from slurm_asrpt.sim.whatif import Outcome, Past

Floats = NDArray[np.float64]
CHANGE = 0.05
"""A group of jobs whose mean completion changes by less than this share neither wins nor loses."""


@dataclass(frozen=True)
class Share:
    """The jobs of one user or size. Times: means in seconds, under Slurm as it was and under the policy.

    ratio: of the completion times. later: share of the jobs that would have started over a minute later.
    """

    name: str
    jobs: int
    gpu_hours: float
    real_wait_s: float
    wait_s: float
    ratio: float
    later: float

    @property
    def verdict(self) -> str:
        return "wins" if self.ratio < 1 - CHANGE else "loses" if self.ratio > 1 + CHANGE else "same"


@dataclass(frozen=True)
class Report:
    """outcomes: Slurm as it was, then the policy. users: who wins most first. sizes: the smallest first."""

    past: Past
    outcomes: Sequence[Outcome]
    users: Sequence[Share]
    sizes: Sequence[Share]
    interrupted: bool


def report(
    runs: Sequence[Run], node_gpus: Sequence[int], policy: PolicySettings, progress: Progress | None = None
) -> Report:
    """Replay runs on these servers. Raises InputError if nothing can be replayed."""
    watched = [run for run in runs if run.origin is Origin.ASRPTD and run.group_id and run.gpus]
    if not watched:
        raise InputError(
            "asrptd has recorded no job in that time; let it run in mode shadow, or reach back with --since"
        )
    past = _as_predicted(whatif.replay(trace_of_runs(watched), node_gpus), watched)
    chosen = policy.chosen(policy_settings(policy.name))
    result = simulate_named(policy.name, past.cluster.nodes, past.table, past.cluster.fabric, chosen, progress)
    wait = whatif.waits_of(result)
    outcomes = [whatif.outcome(whatif.AS_IT_WAS, past, past.wait), whatif.outcome(policy.name, past, wait)]
    frame = _compared(past, wait)
    users = sorted(_shares(frame, "user"), key=lambda share: (share.ratio, share.name))
    return Report(past, outcomes, users, list(_shares(frame, "size")), result.interrupted)


def _as_predicted(past: Past, runs: Sequence[Run]) -> Past:
    """With the predictions of the time, in seconds of the placement that the job got."""
    told = {f"{run.job_id}@{run.start_time}": run.predicted_iterations * (run.alpha or 1.0) for run in runs}
    predicted = np.array([told[job] for job in past.jobs["job_id"]], dtype=float)
    notes = {
        "predictor": "as the hook gave them",
        "predicted_zero": float((predicted == 0).mean()),
    }
    return replace(past, table=replace(past.table, predicted=predicted), notes={**past.notes, **notes})


def _compared(past: Past, wait: Floats) -> pd.DataFrame:
    """A row for each job whose wait is known both in reality and here."""
    gpus = past.jobs["gpus"].to_numpy()
    frame = pd.DataFrame(
        {
            "user": past.jobs["user"].to_numpy(),
            "size": np.ceil(np.log2(gpus)).astype(int),
            "gpu_s": gpus * past.duration,
            "real": past.wait,
            "wait": wait,
            "duration": past.duration,
        }
    )
    return frame[frame["real"].notna() & frame["wait"].notna()]


def _shares(frame: pd.DataFrame, column: str) -> Iterator[Share]:
    for name, jobs in frame.groupby(column, sort=True):
        real, then = jobs["real"] + jobs["duration"], jobs["wait"] + jobs["duration"]
        yield Share(
            name=str(name) if column == "user" else _size(int(str(name))),
            jobs=len(jobs),
            gpu_hours=float(jobs["gpu_s"].sum()) / 3600,
            real_wait_s=float(jobs["real"].mean()),
            wait_s=float(jobs["wait"].mean()),
            ratio=float(then.sum() / real.sum()),
            later=float((jobs["wait"] > jobs["real"] + 60).mean()),
        )


def _size(power: int) -> str:
    """``1 GPU``, ``2 GPUs``, ``3-4 GPUs``, ``5-8 GPUs``."""
    if power == 0:
        return "1 GPU"
    least, most = 2 ** (power - 1) + 1, 2**power
    return f"{least}-{most} GPUs" if least < most else f"{most} GPUs"


def remarks(found: Report, left: int, vanished: int) -> list[str]:
    """What a reader must know of the data. left, vanished: jobs that the audit trail says so of."""
    said = whatif.remarks(found.past)
    if left:
        said.append(
            f"{left} jobs asrptd would have left to Slurm (arrays, -w, --exclusive ...); the replay starts them too."
        )
    if vanished:
        said.append(f"{vanished} jobs ended while asrptd was away, and are missing.")
    return said


def document(found: Report, notes: Sequence[str]) -> Mapping[str, Any]:
    """What --json prints."""
    return {
        "kind": "asrpt-admin shadow-report",
        "notes": dict(found.past.notes),
        "remarks": list(notes),
        "rows": [{"policy": each.name, **each.figures} for each in found.outcomes],
        "users": [{**vars(share), "verdict": share.verdict} for share in found.users],
        "sizes": [{**vars(share), "verdict": share.verdict} for share in found.sizes],
        "interrupted": found.interrupted,
    }
