"""decisions.jsonl in a pool's directory: what its policy was told and what it assigned, a line for each decision.

Each run of the pool begins with a line that names its policy and slots. Where a driver was killed, a run may end with
an unfinished line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from slurm_asrpt.core.convergence import STOP_SHARE
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.loss_curve import LossLog
from slurm_asrpt.core.rounds.feed import Arrived, Assigned, Decision, RoundEnd
from slurm_asrpt.core.rounds.jobs import Fleet, RoundJob
from slurm_asrpt.errors import AsrptError

FORMAT = 1
MAX_BYTES = 256 << 20
"""A record that has grown so long ends; the pool goes on without."""


@dataclass(frozen=True)
class RecordedRun:
    """A run of a pool. started: seconds since 1970; the times of decisions count from there."""

    policy: str
    fleet: Fleet
    started: float
    decisions: list[Decision] = field(default_factory=list)

    def head(self) -> dict[str, Any]:
        """Its first line."""
        fleet = {"types": self.fleet.types, "kind": self.fleet.kind}
        return {"format": FORMAT, "policy": self.policy, **fleet, "started": self.started}


class DecisionLog:
    """Appends a run to a record. Raises OSError where the file cannot be opened; a full disk ends the record."""

    def __init__(self, path: Path, run: RecordedRun) -> None:
        self._file: IO[str] | None = path.open("a", encoding="utf-8")
        if _unfinished(path):
            self._file.write("\n")
        self._write(run.head())

    def add(self, decision: Decision) -> None:
        self._write(document(decision))

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(f"{json.dumps(line)}\n")
            full = self._file.tell() > MAX_BYTES
        except OSError:
            full = True
        if full:
            self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file:
            with suppress(OSError):  # its buffer does not fit on the disk
                file.close()


def _unfinished(path: Path) -> bool:
    """Whether the last line lacks its end."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() not in (b"", b"\n")


def document(decision: Decision) -> dict[str, Any]:
    """A decision as a line; what is empty is left out."""
    parts = {
        "freed": list(decision.freed),
        "ended": [_ended(each) for each in decision.ended],
        "arrived": [_arrived(each) for each in decision.arrived],
        "assigned": [[each.job, each.round, list(each.gpus), list(each.tasks)] for each in decision.assigned],
    }
    return {"time": decision.time, **{name: values for name, values in parts.items() if values}}


def _ended(end: RoundEnd) -> dict[str, Any]:
    return {"job": end.job, "done": end.done, "last": end.last, "loss": end.loss, "compute_s": end.compute_s}


def _arrived(arrived: Arrived) -> dict[str, Any]:
    job = arrived.job
    losses = job.curve.losses if isinstance(job.curve, LossLog) else []
    sizes = {"tasks": job.tasks, "rounds": job.rounds, "done": arrived.done}
    return {"job": job.id, **sizes, "compute_s": job.compute_s, "history": job.history, "losses": list(losses)}


def parse_decision(line: Mapping[str, Any]) -> Decision:
    """Raises KeyError, TypeError or ValueError for anything else."""
    time = float(line["time"])
    return Decision(
        time,
        tuple(line.get("freed", ())),
        tuple(_parse_end(each) for each in line.get("ended", ())),
        tuple(_parse_arrived(each, time) for each in line.get("arrived", ())),
        tuple(
            Assigned(JobId(job), round, tuple(gpus), tuple(tasks))
            for job, round, gpus, tasks in line.get("assigned", ())
        ),
    )


def _parse_end(end: Mapping[str, Any]) -> RoundEnd:
    return RoundEnd(JobId(end["job"]), end["done"], end["last"], end["loss"], tuple(end["compute_s"]))


def _parse_arrived(found: Mapping[str, Any], time: float) -> Arrived:
    times, kin = tuple(found["compute_s"]), found["history"]
    job = RoundJob(
        JobId(found["job"]),
        time,
        found["tasks"],
        times,
        (0.0,) * len(times),
        found["rounds"],
        history=kin,
        search=kin,
        curve=LossLog(list(found["losses"]), STOP_SHARE),
    )
    return Arrived(job, found["done"])


def read_runs(path: Path) -> list[RecordedRun]:
    """The runs of a record. Raises AsrptError if there is none, and for a damaged one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise AsrptError(f"{path}: no record; a pool makes it unless its sweep file has record = false") from None
    except (OSError, UnicodeDecodeError) as error:
        raise AsrptError(f"{path}: {error}") from error
    runs: list[RecordedRun] = []
    for number, line in enumerate(lines, start=1):
        try:
            _add_line(runs, json.loads(line))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            unfinished = number == len(lines) or '"format"' in lines[number]
            if not unfinished:
                raise AsrptError(f"{path}, line {number}: damaged; remove the file") from error
    return runs


def _add_line(runs: list[RecordedRun], line: Mapping[str, Any]) -> None:
    if "format" not in line:
        runs[-1].decisions.append(parse_decision(line))
        return
    if line["format"] != FORMAT:
        raise ValueError("a record of another release")
    fleet = Fleet(tuple(line["types"]), tuple(line["kind"]))
    runs.append(RecordedRun(line["policy"], fleet, line["started"]))
