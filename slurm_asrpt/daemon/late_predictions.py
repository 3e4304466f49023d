"""Predictions for waiting jobs that had none when they were submitted: runs like theirs may have ended since."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.log_once import LogOnce
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.errors import one_line
from slurm_asrpt.hook import table
from slurm_asrpt.hook.group import keys_of, profiled_keys_of
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.slurm.request import gpus_of

MOST_LOOKUPS = 100
"""In a cycle. Jobs of one group share a lookup, which takes some 0.1 ms."""

_WAITING = (JobState.INELIGIBLE, JobState.QUEUED)


class LatePredictions:
    """Looks such jobs up again when the hook's table has changed; jobs that have a prediction keep it."""

    def __init__(self, hook: Path, audit: AuditWriter) -> None:
        """hook: the directory of the table."""
        self._path, self._audit, self._log = hook / table.FILE_NAME, audit, LogOnce()
        self._version: tuple[int, ...] | None = None
        self._todo: list[str] = []
        self._answers: dict[Any, table.Answer] = {}

    def follow(self, pending: Sequence[ManagedJob], now: float) -> None:
        """Give predictions to pending jobs that have none, as far as the table has them now."""
        version = _version(self._path)
        if version != self._version:
            self._version, self._answers = version, {}
            self._todo = [job.record.job_id for job in pending if _unseen(job)] if version else []
        if not self._todo:
            return
        try:
            self._look_up({job.record.job_id: job for job in pending}, now)
        except (OSError, ImportError, ValueError) as error:  # no Lua, or a file of the hook that others can write
            self._todo = []
            self._log.trouble(f"{one_line(error)}; waiting jobs without a prediction get none")
        else:
            self._log.over()

    def _look_up(self, there: Mapping[str, ManagedJob], now: float) -> None:
        """Look up some of the jobs. Raises OSError, ImportError, ValueError."""
        most = len(self._answers) + MOST_LOOKUPS
        while self._todo and len(self._answers) < most:
            job = there.get(self._todo.pop())
            tag = _unseen(job) if job is not None else None
            if job is None or tag is None:
                continue
            found = self._answer(tag, job)
            if found.order:
                job.predicted_late(found)
                self._audit.record(now, "predicted-late", job.record.job_id, figure=found.order, unit=found.unit)

    def _answer(self, tag: Tag, job: ManagedJob) -> table.Answer:
        uid, gpus = job.record.uid, gpus_of(job.record)
        asked = (tag.group, tag.program, uid, gpus, tag.profile, tuple(sorted(tag.features.items())))
        if asked not in self._answers:
            chain = keys_of(tag.group, tag.program, uid, gpus, tag.features)
            profiled = profiled_keys_of(tag.group, uid, gpus, tag.features, tag.profile)
            self._answers[asked], _ = table.lookup(self._path, chain, tag.features, profiled)
        return self._answers[asked]


def _unseen(job: ManagedJob) -> Tag | None:
    """The tag of a job that waits without a prediction; None for others, and for jobs that are left to Slurm."""
    tag = job.tag
    return tag if tag is not None and not tag.order and not tag.left and job.state in _WAITING else None


def _version(path: Path) -> tuple[int, ...] | None:
    """Differs for each table; None without one."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
