"""``profiles.txt``: which profiles there are, so that the hook can tell an owner at submission that one is missing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.daemon.profiles import LoadProfile
from slurm_asrpt.errors import InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.profile.schema import UNCUT, find_profile, known_names

FILE_NAME = "profiles.txt"
ANY = 0
"""Stands for the GPUs of a model that is cut for each job, and of a profile that cannot be read."""


class ProfileNames:
    """Writes the names when the site's profiles change.

    ``NAME=GPUS``, a profile per line, after an empty first line; GPUS is 0 if the number of GPUs is open.
    """

    def __init__(self, folders: Sequence[Path], load: LoadProfile) -> None:
        self._folders, self._load = folders, load
        self._written: object = None

    def write(self, hook_dir: Path) -> bool:
        """Replace the file if a profile has changed; returns whether that was so. Raises OSError."""
        stamp = [_stamp(folder) for folder in self._folders]
        if stamp == self._written:
            return False
        lines = [f"{name}={self._gpus(name)}\n" for name in known_names(self._folders)]
        replace_file(hook_dir / FILE_NAME, ("\n" + "".join(lines)).encode())
        self._written = stamp
        return True

    def _gpus(self, name: str) -> int:
        try:
            if find_profile(name, self._folders).parent == UNCUT:
                return ANY  # a shipped model; to read them all takes longer than the rest of the first cycle
            found = self._load(name)
        except InputError:
            return ANY
        return found.gpus if isinstance(found, JobProfile) else ANY


def _stamp(folder: Path) -> list[tuple[str, int, int]]:
    """The profiles of a directory, each with its size and the time of its last change."""
    try:
        with os.scandir(folder) as entries:
            return sorted(_stamp_of(entry) for entry in entries if entry.name.endswith(".toml"))
    except OSError:
        return []


def _stamp_of(entry: os.DirEntry[str]) -> tuple[str, int, int]:
    """Of one profile. One that cannot be looked at, as behind a broken link, must not hide changes of the others."""
    try:
        found = entry.stat()
    except OSError:
        return entry.name, -1, 0
    return entry.name, found.st_size, found.st_mtime_ns
