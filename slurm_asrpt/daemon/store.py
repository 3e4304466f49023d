"""state.json: what the daemon must not forget; written before Slurm is touched, replaced by rename."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import AsrptError, InputError

FILE_NAME = "state.json"
LOCK_NAME = "lock"


def _add_site_factor(state: dict[str, Any]) -> None:
    for job in _jobs(state):
        job["site_factor"] = None


MIGRATIONS: tuple[Callable[[dict[str, Any]], None], ...] = (_add_site_factor,)
"""Step i leads from schema i + 1 to i + 2; a step once released is never changed."""
SCHEMA = len(MIGRATIONS) + 1


def _jobs(state: dict[str, Any]) -> list[dict[str, Any]]:
    """What was saved of each job, as far as it is anything."""
    jobs = state.get("jobs")
    return [job for job in jobs.values() if isinstance(job, dict)] if isinstance(jobs, dict) else []


class Store:
    """The state folder of one daemon. Raises AsrptError if another daemon holds it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._last = ""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AsrptError(f"another asrptd holds {folder}; one daemon per state folder") from None
        except OSError as error:
            raise AsrptError(f"the state folder {folder} cannot be used ({error.strerror})") from error

    def close(self) -> None:
        os.close(self._lock)

    def save(self, state: dict[str, Any]) -> None:
        """Durable before it returns; nothing is written where nothing changed."""
        text = json.dumps({"schema": SCHEMA, **state})
        if text == self._last:
            return
        temporary = self.path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)  # the new name, too
        finally:
            os.close(folder)
        self._last = text

    def load(self) -> dict[str, Any] | None:
        """The last state, or None where there is none or it is unreadable (then it is kept aside).

        Raises InputError for the state of a later release: it may know of jobs what this one would lose.
        """
        try:
            state = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(state, dict) and isinstance(state.get("schema"), int):
                return _migrated(state, self.path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            pass
        self.path.replace(self.path.with_suffix(".damaged"))
        return None


def _migrated(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """The state as this release writes it. Raises InputError for a later one, ValueError for none at all."""
    schema = state["schema"]
    if schema > SCHEMA:
        raise InputError(
            f"{path} has schema {schema}, this release reads up to {SCHEMA}; install the later release again, "
            f"or run its asrpt-admin disable and move the file aside"
        )
    if schema < 1:
        raise ValueError(f"schema {schema}")
    for step in MIGRATIONS[schema - 1 :]:
        step(state)
    return {**state, "schema": SCHEMA}


def held(folder: Path) -> bool:
    """Whether a daemon holds this state folder now. Raises OSError."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
