"""Atomic replacement of files that other processes read, and checks that only trusted users can write a file."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC, EPERM
from pathlib import Path
from typing import BinaryIO

FULL_DISK = frozenset({ENOSPC, EDQUOT})
"""Error numbers."""


def replace_file(path: Path, data: bytes, mode: int | None = 0o644, *, durable: bool = True) -> None:
    """Write ``data`` to a temporary file beside ``path``, sync it, and rename it. Raises OSError; cleans up.

    mode: None keeps the mode of the replaced file; a new file gets the umask's. durable: whether it must survive a
    crash of the machine, for which the disk is waited for.
    """
    with replacing(path, mode, durable=durable) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, mode: int | None = None, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A temporary file that replaces ``path`` when the block ends without an exception. As ``replace_file``.

    A symbolic link is followed: its target is replaced. Terminals, pipes and devices (/dev/stdout) are written to.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    import tempfile  # takes a while, and asrpt-status does without

    path = path.resolve()
    if mode is None:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask()
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    except OSError as error:
        error.filename = str(path)  # the user does not know the temporary name
        raise
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            yield file
            file.flush()
            if durable:
                os.fsync(descriptor)
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError) and error.filename is None:  # a full disk: writing names no file
            error.filename = str(path)
        raise
    if durable:
        sync_folder(path.parent)


def give_to_folder_owner(path: Path) -> None:
    """If root, give a new file to the owner of its directory, the daemon's user. Other users cannot."""
    if os.geteuid() == 0:
        folder = path.parent.stat()
        os.chown(path, folder.st_uid, folder.st_gid, follow_symlinks=False)


@contextmanager
def as_owner(path: Path) -> Iterator[None]:
    """Run the block as the owner of ``path``, the daemon's user, so that this user can use what root creates."""
    owner, groups = path.stat(), os.getgroups()
    if os.geteuid() or not owner.st_uid:
        yield
        return
    os.setgroups([owner.st_gid])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def umask() -> int:
    """The process's umask. Reading it sets it for a moment: do not call this while other threads create files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path, mode: int) -> None:
    """Create a missing directory with this mode, regardless of the umask. Raises OSError."""
    if not path.is_dir():
        path.mkdir(mode=0o700, parents=True)
        path.chmod(mode)


def trusted_users() -> set[int]:
    """The trusted users: root and the user of this process."""
    return {0, os.geteuid()}


def trusted_owners(folder: Path) -> set[int]:
    """The users trusted in a directory: ``trusted_users`` and its owner.

    Raises OSError, and PermissionError if others can write it.
    """
    owners = trusted_users() | {folder.stat().st_uid}
    check_trusted_folder(folder.resolve(), owners)
    return owners


def read_config(path: Path) -> bytes:
    """Read a config file, links followed, that only root or this process's user can have written.

    Raises OSError, PermissionError.
    """
    target = path.resolve(strict=True)
    for folder in {path.parent.resolve(), target.parent}:
        if not folder.stat().st_mode & stat.S_ISVTX:  # in a sticky directory like /tmp, only owners can rename files
            check_trusted_folder(folder, trusted_users())
    return read_trusted(target, trusted_users())


def read_trusted(path: Path, owners: Container[int]) -> bytes:
    """Read a regular file that only ``owners`` (user ids) can have written. Raises OSError, PermissionError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        _check_trusted(path, os.fstat(descriptor), stat.S_ISREG, owners)
        return file.read()


def check_trusted_file(path: Path, owners: Container[int]) -> None:
    """Raises OSError unless ``path`` is a regular file, not a link, that only ``owners`` can write."""
    _check_trusted(path, path.lstat(), stat.S_ISREG, owners)


def check_trusted_folder(path: Path, owners: Container[int]) -> None:
    """Raises OSError unless ``path`` is a directory, not a link, where only ``owners`` can create or rename files."""
    _check_trusted(path, path.lstat(), stat.S_ISDIR, owners)


def _check_trusted(path: Path, found: os.stat_result, kind: Callable[[int], bool], owners: Container[int]) -> None:
    if not kind(found.st_mode):
        raise PermissionError(EPERM, "a symbolic link, or not of the expected file type", str(path))
    if found.st_uid not in owners:
        raise PermissionError(EPERM, f"its owner is user {found.st_uid}", str(path))
    if found.st_mode & 0o022:
        raise PermissionError(EPERM, f"others can write it (mode {found.st_mode & 0o777:o})", str(path))
