"""Snapshots for asrpt-admin: of the next cycle, when it asks."""

from __future__ import annotations

import logging
from pathlib import Path

from slurm_asrpt.audit.snapshot import FILE_NAME, WANTED, to_bytes
from slurm_asrpt.daemon.witness import Decided
from slurm_asrpt.errors import one_line
from slurm_asrpt.files import replace_file

LOG = logging.getLogger("asrptd")


def serve(state: Path, decided: Decided) -> None:
    """Write this decision down if a snapshot is wanted. One that cannot be written keeps no job waiting."""
    if not (state / WANTED).exists():
        return
    try:
        (state / WANTED).unlink()
        replace_file(state / FILE_NAME, to_bytes(decided.document, decided.answer), 0o600)
    except OSError as error:
        LOG.warning("no snapshot: %s", one_line(error))
