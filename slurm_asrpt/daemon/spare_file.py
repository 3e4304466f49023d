"""A file to save into while the disk is full: its blocks are written ahead."""

from __future__ import annotations

import logging
import os
from errno import ENOSPC
from pathlib import Path

from slurm_asrpt.daemon.log_once import LogOnce
from slurm_asrpt.files import replace_file

SPARE_BYTES = 1 << 20
"""At least; where more was needed, it has room for twice as much."""


class SpareFile:
    """Blank if it is not used. File systems that never overwrite in place (btrfs, ZFS) refuse that while full."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = path.stat().st_size if path.is_file() else 0
        self._used = self._size > 0
        self._log = LogOnce(logging.ERROR)

    def keep_for(self, size: int) -> None:
        """Have room for so many bytes, and none in use, if the disk has room for that."""
        if not self._used and self._size >= size:
            return
        blank = b" " * (self._size if self._size >= size else max(2 * size, SPARE_BYTES))
        try:
            if len(blank) > self._size:
                replace_file(self.path, blank, 0o600)
            else:
                self._overwrite(blank)
        except OSError as error:
            self._log.trouble(
                f"{self.path} cannot be written ({error.strerror}): nothing can be saved if the disk is full"
            )
        else:
            self._size, self._used = len(blank), False
            self._log.over()

    def write(self, data: bytes, why: str) -> bool:
        """Save these bytes. why: for the log. Returns whether there was room."""
        if len(data) > self._size:
            return False
        try:
            self._overwrite(data.ljust(self._size))
        except OSError:
            return False
        self._used = True
        self._log.trouble(f"{why}; saved in {self.path.name} until there is room")
        return True

    def _overwrite(self, data: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.pwrite(descriptor, data, 0) < len(data):
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
