"""The folder shared by the controller and the nodes, and the small files in it.

``hosts/<jobid>``           rank map of a running job, one host per rank (written by asrptd, read by TaskProlog)
``hosts/<jobid>.wait``      present from the release of a mapped job until its host file is written
``progress/<jobid>/``       made by the Slurm Prolog, owned by the job's user, mode 0700
``progress/<jobid>/iterations``  ``<done> <total>`` on one line, replaced by rename by the job
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

MAX_PROGRESS_BYTES = 256


def hosts_dir(spool: Path) -> Path:
    return spool / "hosts"


def progress_dir(spool: Path) -> Path:
    return spool / "progress"


def read_progress(spool: Path, job_id: str) -> int | None:
    """Iterations that the job has reported so far, or None. What stands in the file is the user's: data only."""
    path = progress_dir(spool) / job_id / "iterations"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        words = file.read(MAX_PROGRESS_BYTES).split()
    if not words or not words[0].isdigit() or len(words[0]) > 15:
        return None
    return int(words[0])


def remove_progress(spool: Path, job_id: str) -> None:
    """Delete a job's progress folder; nothing happens where there is none or we may not."""
    shutil.rmtree(progress_dir(spool) / job_id, ignore_errors=True)
