"""state.json: the state that survives a restart. It is saved before updates are sent to Slurm, by rename.

If the disk is full, it is saved into state.spare instead, whose blocks are there already.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurm_asrpt.daemon.jobs.table import EndedJobs, JobTable
from slurm_asrpt.daemon.leader import LeaderLock
from slurm_asrpt.daemon.policy_feed import PolicyFeed
from slurm_asrpt.daemon.spare_file import SpareFile
from slurm_asrpt.errors import AsrptError, InputError, one_line
from slurm_asrpt.files import FULL_DISK, replace_file
from slurm_asrpt.switch import OperatingMode

LOG = logging.getLogger("asrptd")
FILE_NAME = "state.json"
SPARE_NAME = "state.spare"
UNSAVED_S = 10.0
"""If nothing can be saved for so long, the waiting jobs are released to Slurm: no job starts meanwhile."""
UNSAVED = "the state cannot be saved: waiting jobs are released to Slurm until it can; a restart may not know them"


class NotSavedError(AsrptError):
    """What a restart must know could not be saved, so nothing that depends on it may be written to Slurm."""


def _add_site_factor(state: dict[str, Any]) -> None:
    for job in _jobs(state):
        job["site_factor"] = None


MIGRATIONS: tuple[Callable[[dict[str, Any]], None], ...] = (_add_site_factor,)
"""Step i migrates schema i + 1 to i + 2; a released step is never changed."""
SCHEMA = len(MIGRATIONS) + 1


def _jobs(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The saved jobs, without malformed ones."""
    jobs = state.get("jobs")
    return [job for job in jobs.values() if isinstance(job, dict)] if isinstance(jobs, dict) else []


class StateStore:
    """state.json of the leading asrptd, and the file to save into if the disk is full."""

    def __init__(self, leader: LeaderLock) -> None:
        self.leader, self.path = leader, leader.folder / FILE_NAME
        self._spare = SpareFile(leader.folder / SPARE_NAME)
        self._last = ""

    def save(self, state: Mapping[str, Any], jobs: Mapping[str, str], now: float) -> None:
        """Save the state durably, if it has changed. jobs: each as JSON text. Raises LeadershipLostError, OSError."""
        self.leader.check()
        rows = ", ".join(f"{json.dumps(job_id)}: {text}" for job_id, text in jobs.items())
        state_text = ", ".join(part for part in (json.dumps(state)[1:-1], f'"jobs": {{{rows}}}') if part)
        if state_text == self._last:
            return
        self._write(f'{{"schema": {SCHEMA}, "time": {now!r}, {state_text}}}'.encode())
        self._last = state_text

    def _write(self, data: bytes) -> None:
        """Raises OSError."""
        try:
            replace_file(self.path, data, 0o600)
        except OSError as error:
            error.filename = error.filename or self.path  # the error of a full disk has no file name
            if error.errno not in FULL_DISK or not self._spare.write(data, f"{self.path}: {error.strerror}"):
                raise
        else:
            self._spare.keep_for(len(data))

    def amend(self, saved: Mapping[str, Any], jobs: Mapping[str, str], now: float) -> None:
        """Save the loaded state with these jobs updated. Raises LeadershipLostError, OSError."""
        rows = saved.get("jobs")
        before = {job_id: json.dumps(job) for job_id, job in rows.items()} if isinstance(rows, dict) else {}
        kept = {key: value for key, value in saved.items() if key not in ("schema", "time", "jobs")}
        self.save(kept, {**before, **jobs}, now)

    def load(self) -> dict[str, Any] | None:
        """The last state. None if there is none, or it is damaged; then the file is set aside.

        Raises InputError for the state of a later release, because this release would lose parts of it; and AsrptError
        if the file cannot be read now, because a file server may only be down for a moment.
        """
        spare, state = self._spared(), None
        try:
            state = _parsed(self.path.read_bytes(), self.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise AsrptError(f"{self.path} cannot be read ({error.strerror})") from error
        except ValueError:
            aside = self.path.with_suffix(".damaged")
            self.path.replace(aside)
            LOG.error("%s is damaged and was renamed to %s; the queue is rebuilt from Slurm's jobs", self.path, aside)
        return spare if spare and (not state or spare["time"] > state["time"]) else state

    def _spared(self) -> dict[str, Any] | None:
        """The state in the spare file; None if it is blank or half written. Raises InputError as ``load``."""
        with suppress(OSError, ValueError):
            return _parsed(self._spare.path.read_bytes(), self._spare.path)
        return None


def _parsed(data: bytes, path: Path) -> dict[str, Any]:
    """The state in a file. Raises ValueError for anything else, InputError for a later schema."""
    try:
        state = json.loads(data)
        if isinstance(state, dict) and isinstance(state.get("schema"), int):
            state["time"] = float(state.get("time", 0.0))
            return _migrated(state, path)
    except (TypeError, RecursionError) as error:
        raise ValueError("no state") from error
    raise ValueError("no state")


def _migrated(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """The state in the current schema. Raises InputError for a later schema, ValueError for an invalid one."""
    schema = state["schema"]
    if schema > SCHEMA:
        raise InputError(
            f"{path} has schema {schema}; this release reads up to {SCHEMA}. Install the later release again, "
            f"or run its asrpt-admin disable and move the file aside"
        )
    if schema < 1:
        raise ValueError(f"schema {schema}")
    for step in MIGRATIONS[schema - 1 :]:
        step(state)
    return {**state, "schema": SCHEMA}


class StateSaver:
    """Saves jobs, policy, and what asrptd has learned.

    While nothing can be saved (a read-only disk), the mode is "unsaved" after UNSAVED_S: as if asrptd were disabled.
    """

    def __init__(
        self,
        store: StateStore,
        saved: Mapping[str, Any],
        feed: PolicyFeed,
        jobs: JobTable,
        ended: EndedJobs,
        learned: Mapping[str, Callable[[], Any]],
        mode: OperatingMode,
    ) -> None:
        """saved: the state saved by the previous daemon. learned: what else is saved, by its key in the file."""
        self._mode, self._failing_since = mode, math.inf
        self._store, self._saved, self._feed = store, saved, feed
        self._jobs, self._ended, self._learned = jobs, ended, learned

    def cycle_began(self, now: float) -> None:
        """Set whether the mode is unsaved: not within a cycle, so that all parts of it are of one mode."""
        unsaved = now - self._failing_since >= UNSAVED_S
        if unsaved is not self._mode.unsaved:
            LOG.warning("%s", UNSAVED if unsaved else f"the state is saved again: mode {self._mode.configured}")
        self._mode.unsaved = unsaved

    def save(self, now: float) -> None:
        """Save the state durably. Raises LeadershipLostError, and NotSavedError unless the mode is unsaved."""
        try:
            self._save(now)
            self._failing_since = math.inf
        except OSError as error:
            self._failing_since = min(self._failing_since, now)
            if not self._mode.unsaved:
                raise NotSavedError(one_line(error)) from error

    def _save(self, now: float) -> None:
        """Raises LeadershipLostError, OSError."""
        jobs = {job.record.job_id: job.dump() for job in (*self._ended.pinned(), *self._jobs.values())}
        if not self._feed.resumed:  # the policy has not taken up its state yet
            self._store.amend(self._saved, jobs, now)
            return
        learned = {key: dump() for key, dump in self._learned.items()}
        self._store.save({**self._feed.dump(), **learned}, jobs, now)
