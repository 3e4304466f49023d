"""The directory of a pool: what stays when its job ends, and how the login node reaches it while it runs.

``trainings/<name>/spec.json``       what the training is; its checkpoint is used only for the same
``trainings/<name>/checkpoint.npz``  its state after the last round that was saved
``trainings/<name>/log``             what its code prints, and its traceback
``added/<time>-<process>.json``      trainings that asrpt-pool add has added; they stay part of the pool
``decisions.jsonl``  what the policy has decided, run after run (``pool/decisions.py``)
``status.json``                      how far the pool is, written every second or two
``stop``                             asrpt-pool stop has asked the pool to end; removed when it does
``lock``                             held by the driver

The directory's mode is 0700: whoever can write it can run code as its owner.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from slurm_asrpt.errors import AsrptError, InputError, one_line
from slurm_asrpt.files import make_folder, replace_file
from slurm_asrpt.pool.snapshot import Checkpoint, read_checkpoint, write_checkpoint
from slurm_asrpt.pool.sweep import Spec, read_spec

CHECKPOINT = "checkpoint.npz"


class PoolFolder:
    """The files of a pool."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trainings = path / "trainings"
        self.decisions = path / "decisions.jsonl"
        self._added, self._stop = path / "added", path / "stop"

    def make(self) -> None:
        """Create the directories. Raises OSError."""
        for folder in (self.path, self.trainings, self._added):
            make_folder(folder, 0o700)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock. Raises InputError if another driver has it."""
        with self._lock_file() as file:
            if not _lock(file):
                raise InputError(f"{self.path}: another asrpt-pool runs this pool; see asrpt-pool status")
            yield

    @property
    def running(self) -> bool:
        """Whether a driver holds the lock."""
        with self._lock_file() as file:
            return not _lock(file)

    def _lock_file(self) -> IO[bytes]:
        return (self.path / "lock").open("ab")

    # Trainings

    def prepare(self, spec: Spec) -> Checkpoint | None:
        """Make a training's directory. Returns its checkpoint.

        Raises InputError if the directory is that of another training of this name, AsrptError for a damaged file.
        """
        folder = self.trainings / spec.name
        folder.mkdir(exist_ok=True)
        told = folder / "spec.json"
        if told.exists():
            self._check_same(told, spec)
        else:
            replace_file(told, json.dumps(spec.document(), sort_keys=True).encode())
        return read_checkpoint(folder / CHECKPOINT)

    def _check_same(self, told: Path, spec: Spec) -> None:
        if _read_json(told) != json.loads(json.dumps(spec.document())):
            raise InputError(
                f"training {spec.name!r} has other settings than its checkpoint; rename it, or remove {told.parent}"
            )

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        """Raises OSError."""
        write_checkpoint(self.trainings / name / CHECKPOINT, checkpoint)

    # Control

    def add(self, specs: Sequence[Spec]) -> None:
        """Add trainings to the pool, now or when it runs next. Raises OSError."""
        self.make()
        content = json.dumps([spec.document() for spec in specs]).encode()
        replace_file(self._added / f"{time.time_ns():020d}-{os.getpid()}.json", content)

    def added(self, seen: set[str], warn: Callable[[str], object] = lambda trouble: None) -> tuple[Spec, ...]:
        """The trainings added by files that are not in ``seen``, to which they are added.

        warn: told of files that are damaged, or hold something else.
        """
        found = [path for path in sorted(self._added.glob("*.json")) if path.name not in seen]
        seen.update(path.name for path in found)
        specs: list[Spec] = []
        for path in found:
            try:
                specs += read_specs(path)
            except AsrptError as error:
                warn(f"not added: {one_line(error)}")
        return tuple(specs)

    def ask_to_stop(self) -> None:
        """Raises OSError."""
        self._stop.touch()

    def take_stop(self) -> bool:
        """Whether asrpt-pool stop was called since the last time."""
        with suppress(FileNotFoundError):
            self._stop.unlink()
            return True
        return False

    def write_status(self, document: dict[str, Any]) -> None:
        """Raises OSError."""
        replace_file(self.path / "status.json", json.dumps(document).encode())

    def read_status(self) -> dict[str, Any]:
        """Raises AsrptError if there is none."""
        path = self.path / "status.json"
        if not path.exists():
            raise AsrptError(f"{self.path}: this pool has not run yet; start it with asrpt-pool run in a job")
        found: dict[str, Any] = _read_json(path)
        return found


def _lock(file: IO[bytes]) -> bool:
    """Whether the lock was free; it is held until the file is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_specs(path: Path) -> list[Spec]:
    """The trainings in a file of ``PoolFolder.add``. Raises AsrptError."""
    found = _read_json(path)
    if not isinstance(found, list):
        raise AsrptError(f"{path}: damaged (no list of trainings); remove it")
    return [read_spec(str(path), each) for each in found]


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise AsrptError(f"{path}: damaged ({error}); remove it") from None
