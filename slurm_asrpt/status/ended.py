"""Ended jobs, as asrptd publishes them: a file per user, which only this user and asrptd's user can read.

``ended/<uid>.jsonl`` in paths.run: a ``JobStatus`` per line, the latest last. The directory can be entered but not
listed.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from slurm_asrpt.files import make_folder, replacing
from slurm_asrpt.status.document import JobStatus, known

FOLDER = "ended"
KEPT_BYTES = 512 * 1024
"""What remains of a file that has grown to twice this size: the last five hundred jobs or so."""
LONGEST = 64 * 1024
"""More than a line has."""
_ACL = "system.posix_acl_access"
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NOBODY = 0xFFFFFFFF
_READ, _WRITE = 4, 2


def add_ended(run_dir: Path, uid: int, jobs: Sequence[JobStatus]) -> None:
    """Append the jobs to the file of this user, and forget the oldest ones. Raises OSError."""
    folder = run_dir / FOLDER
    make_folder(folder, 0o711)
    path = folder / f"{uid}.jsonl"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        if not file.tell():
            _let_read(descriptor, uid)
        # after a crash the last line may be torn: an empty line costs nothing, and the next job is not lost with it
        file.write(b"".join(b"\n" + json.dumps(known(job)).encode() for job in jobs) + b"\n")
        large = file.tell() > 2 * KEPT_BYTES
    if large:
        _shorten(path, uid)


def _shorten(path: Path, uid: int) -> None:
    """Keep the last jobs. Raises OSError."""
    data = _end_of(path, KEPT_BYTES)
    with replacing(path, 0o600, durable=False) as file:
        _let_read(file.fileno(), uid)
        file.write(data[data.find(b"\n") + 1 :])


def _let_read(descriptor: int, uid: int) -> None:
    """Let this user read the file, by an ACL.

    On a file system without ACLs it becomes the user's own file if asrptd is root, and remains private otherwise.
    """
    entries = ((_OWNER, _READ | _WRITE, _NOBODY), (_USER, _READ, uid), (_GROUP, 0, _NOBODY))
    rest = ((_MASK, _READ, _NOBODY), (_OTHER, 0, _NOBODY))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in (*entries, *rest))
    try:
        os.setxattr(descriptor, _ACL, acl)
    except OSError:
        os.fchmod(descriptor, 0o600)
        if os.geteuid() == 0:
            os.fchown(descriptor, uid, -1)


def _end_of(path: Path, size: int) -> bytes:
    """The last bytes: a file that its user owns may be of any size. Raises OSError."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size)


def read_ended(run_dir: Path, uid: int) -> list[JobStatus]:
    """The ended jobs of this user, the latest first; of all users if the caller may list the directory and is not
    this user alone (root, asrptd's user). Lines that are damaged or from another release are left out."""
    found = [job for path in _readable(run_dir / FOLDER, uid) for job in _jobs(path)]
    return sorted(found, key=lambda job: job.end_time or 0.0, reverse=True)


def _readable(folder: Path, uid: int) -> Iterable[Path]:
    try:
        return sorted(folder.glob("*.jsonl")) if os.access(folder, os.R_OK) else [folder / f"{uid}.jsonl"]
    except OSError:
        return []


def _jobs(path: Path) -> Iterator[JobStatus]:
    try:
        lines = _end_of(path, 2 * KEPT_BYTES + LONGEST).split(b"\n")
    except OSError:  # no job has ended yet, or the file system has no ACLs
        return
    names = {field.name for field in fields(JobStatus)}
    for line in filter(None, lines):
        try:
            yield JobStatus(**{name: value for name, value in json.loads(line).items() if name in names})
        except (ValueError, TypeError, AttributeError):
            continue
