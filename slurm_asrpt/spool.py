"""The directory that the controller and the nodes share, and its small files.

``hosts/<jobid>``           rank map of a running job, one host per rank (written by asrptd, read by TaskProlog)
``hosts/<jobid>.wait``      exists from the start of a job with a rank map until its host file is written
``progress/<jobid>/``       created by the Slurm Prolog, mode 0770; owned by the job's user and asrptd's group
``progress/<jobid>/iterations``  ``<done> <total> <loss> <start>`` on one line, replaced by rename by the job; the last
                            three may be missing; a total of 0 or a loss of ``-`` means unknown
``progress/<jobid>/checkpoint``  ``<iteration>`` of the last checkpoint, replaced by rename by the job
``progress/<jobid>/losses``  ``<iteration> <loss>``, one line per point, at most 256

Other users cannot enter a job's directory, so its files may be readable by all. Thus asrptd, in the directory's group,
reads them without privileges. Everything below ``progress/<jobid>`` belongs to the user and may be anything: a link, a
pipe, a terabyte. It fills the user's quota, but not asrptd's memory. Only regular files that the directory's owner owns
are read, because a file of another owner is a hard link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from slurm_asrpt.progress import CHECKPOINT_NAME, FILE_NAME, LOSSES_NAME, MAX_LOSSES, is_count, parse_losses, to_number

MAX_FILES = 1000
"""Maximum number of files removed from one directory; writers leave two, and a few temporary ones."""
MAX_PROGRESS_BYTES = 256
MAX_LOSSES_BYTES = 64 * MAX_LOSSES


@dataclass(frozen=True)
class Progress:
    """What a job has reported. Iterations count from the beginning of the training; total: 0 if unknown.

    start: iterations done before the job (in a checkpoint of another job). written: seconds since the epoch, by the
    clock of the file server.
    """

    done: int
    total: int = 0
    loss: float | None = None
    start: int = 0
    written: float = 0.0

    @property
    def ran(self) -> int:
        """Iterations that this job has done, including its runs before requeues. Predictors learn from this."""
        return max(0, self.done - self.start)


def hosts_dir(spool: Path) -> Path:
    return spool / "hosts"


def progress_dir(spool: Path) -> Path:
    return spool / "progress"


def read_progress(spool: Path, job_id: str) -> Progress | None:
    """The job's last report, or None."""
    text, written = _read(progress_dir(spool) / job_id, FILE_NAME, MAX_PROGRESS_BYTES)
    return parse_progress(text, written)


def parse_progress(text: bytes, written: float = 0.0) -> Progress | None:
    """Parse a progress file. None if the first word is not a number; other words that are not numbers are ignored."""
    words = [*text.split()[:4], b"", b"", b""]
    if not is_count(words[0]):
        return None
    total, start = (int(word) if is_count(word) else 0 for word in (words[1], words[3]))
    return Progress(int(words[0]), total, to_number(words[2]), start, written)


def read_losses(spool: Path, job_id: str) -> list[tuple[int, float]]:
    """The loss curve that the job has reported, as (iteration, loss); at most 256 points."""
    return parse_losses(_read(progress_dir(spool) / job_id, LOSSES_NAME, MAX_LOSSES_BYTES)[0])


def checkpoint_mark(spool: Path, job_id: str) -> str:
    """A text that changes with each checkpoint that the job reports; "" before the first."""
    text, written = _read(progress_dir(spool) / job_id, CHECKPOINT_NAME, MAX_PROGRESS_BYTES)
    return f"{written!r} {text!r}" if text else ""


def checkpoint_time(mark: str) -> float:
    """When the checkpoint with this mark was reported, by the clock of the file server."""
    return float(mark.partition(" ")[0])


def _read(folder: Path, name: str, most: int) -> tuple[bytes, float]:
    """At most ``most`` bytes of a user's file, and when it was written; none unless it is a regular file of theirs."""
    how = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    with suppress(OSError), _opened(folder, os.O_PATH | os.O_DIRECTORY) as inside, _opened(name, how, inside) as file:
        status = os.fstat(file)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.fstat(inside).st_uid:
            return os.read(file, most), status.st_mtime
    return b"", 0.0


@contextmanager
def _opened(path: Path | str, flags: int, inside: int | None = None) -> Iterator[int]:
    """A descriptor of ``path`` in the directory ``inside``; links are not followed. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def remove_progress(spool: Path, job_id: str) -> None:
    """Delete a job's progress directory, unless it has too many files, or directories with content.

    Such directories come from users and could be nested without limit. Errors are ignored.
    """
    folder = progress_dir(spool) / job_id
    with suppress(OSError):
        with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as inside, os.scandir(inside) as entries:
            for entry in islice(entries, MAX_FILES):
                remove = os.rmdir if entry.is_dir(follow_symlinks=False) else os.unlink
                with suppress(OSError):
                    remove(entry.name, dir_fd=inside)
        folder.rmdir()


def forgotten_hosts(spool: Path, known: Container[str]) -> list[int]:
    """The numbers of jobs not in ``known`` that have a host file or an announcement of one."""
    with suppress(OSError):
        names = {name.removesuffix(".wait") for name in os.listdir(hosts_dir(spool))}
        return sorted(int(name) for name in names if name.isascii() and name.isdigit() and name not in known)
    return []


def forgotten_progress(spool: Path, known: Container[str], before: float) -> list[str]:
    """Jobs not in ``known`` whose directories have not changed since ``before``, seconds since the epoch."""
    with suppress(OSError), os.scandir(progress_dir(spool)) as entries:
        return [e.name for e in entries if e.name not in known and e.stat(follow_symlinks=False).st_mtime < before]
    return []
