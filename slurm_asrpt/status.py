"""status.json: what asrptd shows to users. Written by the daemon by rename, read by asrpt-status. Schema 1."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import AsrptError

SCHEMA = 1
FILE_NAME = "status.json"


@dataclass  # not frozen: one per job and cycle is made, at half the price
class JobStatus:
    """One row. Times are seconds since the epoch, durations seconds; None where not known.

    rank: 1 is next to start; None once started or when left to Slurm.
    state: a value of core.policies.base.Phase. reason: the typed reason; text: the same in words.
    nodes: chosen (starting), real (running), or last considered (delayed) GPUs per node.
    iterations_done: as the job reports them, so counted from the beginning of its training. iterations_total: of the
    whole training, reported, else predicted. alpha_observed: seconds per iteration between reports. remaining_s: of a
    running job, from its reports, else predicted. predicted_..., remaining_low and _high: the 10-90% intervals, None
    where nothing is predicted or the job itself has said how much is left.
    start_earliest, _median, _latest: with 10, 50 and 90% a waiting job has started by then, by a simulation of
    start_made; None: later than was simulated. start_unknown: why a waiting job has none of these.
    band: by fair-share, 1 goes first; None where nobody asked for bands.
    """

    job_id: str
    name: str
    user: str
    partition: str
    gpus: int
    group: str
    profile: str
    predicted_iterations: int
    predicted_run_s: float | None
    submit_time: float
    start_time: float | None
    state: str
    reason: str
    text: str
    facts: dict[str, Any]
    rank: int | None
    nodes: dict[str, int]
    iterations_done: int | None = None
    alpha: float | None = None
    alpha_min: float | None = None
    iterations_total: int | None = None
    alpha_observed: float | None = None
    remaining_s: float | None = None
    predicted_low: int | None = None
    predicted_high: int | None = None
    predicted_run_low_s: float | None = None
    predicted_run_high_s: float | None = None
    remaining_low_s: float | None = None
    remaining_high_s: float | None = None
    start_earliest: float | None = None
    start_median: float | None = None
    start_latest: float | None = None
    start_made: float | None = None
    start_unknown: str = ""
    band: int | None = None


@dataclass(frozen=True)
class Status:
    """leader: host, pid and since when, of the writing asrptd. forecast_s: seconds between two estimates, or 0."""

    written: float
    mode: str
    policy: str
    interval_s: float
    gpus_total: int
    gpus_free: int
    jobs: list[JobStatus] = field(default_factory=list)
    schema: int = SCHEMA
    leader: str = ""
    forecast_s: float = 0.0


def withdrawn_after(forecast_s: float) -> float:
    """Seconds after which an estimate of a start says nothing any more."""
    return max(300.0, 3 * forecast_s)


def write_status(run_dir: Path, status: Status, *, private: bool = False) -> None:
    """Replace the status. private: for nobody but root and the daemon's user. Raises OSError."""
    temporary = run_dir / f".{FILE_NAME}.{os.getpid()}"
    rows = [vars(job) for job in status.jobs]  # asdict() would copy every one, at ten times the cost
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps({**vars(status), "jobs": rows}))
        os.fchmod(descriptor, 0o600 if private else 0o644)
    temporary.replace(run_dir / FILE_NAME)


def read_status(run_dir: Path) -> Status:
    """The daemon's last word. Raises AsrptError where there is none or it is of another schema."""
    path = run_dir / FILE_NAME
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.get("schema") != SCHEMA:
            raise AsrptError(f"{path}: schema {raw.get('schema')}, this asrpt-status reads {SCHEMA}; update it")
        jobs = [JobStatus(**job) for job in raw.pop("jobs")]
        return Status(jobs=jobs, **raw)
    except FileNotFoundError:
        raise AsrptError(f"{path} is not there: asrptd has not run yet (systemctl status asrptd)") from None
    except PermissionError:
        raise AsrptError(f"{path} is for SlurmUser and root alone: slurm.conf has PrivateData=jobs") from None
    except OSError as error:
        raise AsrptError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise AsrptError(f"{path} is damaged; asrptd writes it anew each cycle, so try again") from error
