"""Which jobs use which profile, as the admin's file says it: read again when it has changed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from slurm_asrpt.errors import InputError, one_line
from slurm_asrpt.hook.attachments import Attachments, read_attachments

LOG = logging.getLogger("asrptd")


class Attached:
    """A file that cannot be used changes nothing: what was attached before stays so, and the log says why.

    check: raises InputError for what hook.conf cannot hold.
    """

    def __init__(self, path: Path, check: Callable[[Attachments], object]) -> None:
        self._path, self._check = path, check
        self._seen: tuple[int, ...] | None = None
        self._known = Attachments()

    def follow(self) -> Attachments:
        """As of now."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                found = read_attachments(self._path)
                self._check(found)
                self._known = found
            except InputError as error:
                LOG.error("%s; what was attached before counts", one_line(error))
        return self._known

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
