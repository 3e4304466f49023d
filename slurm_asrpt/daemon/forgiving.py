"""What others read of asrptd: where it cannot be written, that is told, once, and no job waits for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_asrpt.errors import one_line

LOG = logging.getLogger("asrptd")


class Forgiving:
    """A folder that is full or read-only makes no cycle a failed one, after which asrptd would pause for longer."""

    def __init__(self) -> None:
        self._told: dict[tuple[Path, str], str] = {}

    @contextmanager
    def writing(self, folder: Path, name: str) -> Iterator[None]:
        """Around the writing of a file; what comes of it is tried again in the next cycle."""
        trouble = ""
        try:
            yield
        except OSError as error:
            trouble = one_line(error)
        if trouble and trouble != self._told.get((folder, name)):
            LOG.error("%s/%s is not written: %s; jobs are scheduled all the same", folder, name, trouble)
        self._told[folder, name] = trouble
