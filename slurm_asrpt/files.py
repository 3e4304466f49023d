"""Files that another process reads at any moment: replaced in one step, or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from errno import EPERM
from pathlib import Path
from typing import BinaryIO


def replace_file(path: Path, data: bytes, mode: int | None = 0o644) -> None:
    """Put ``data`` at ``path`` by writing beside it, syncing and renaming. Raises OSError; nothing is left behind.

    mode: None keeps that of the file replaced, and gives a new one what the umask leaves.
    """
    with replacing(path, mode) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """A file beside ``path`` that takes its place at the end if all went well. As ``replace_file``.

    A link stays and what it leads to is replaced; a terminal, pipe or device (/dev/stdout) is written to as it is.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    path = path.resolve()
    if mode is None:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask()
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    except OSError as error:
        error.filename = str(path)  # nobody knows the other name
        raise
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    sync_folder(path.parent)


def to_folders_owner(path: Path) -> None:
    """Give what root has just made to the owner of its folder, the daemon's user. Others need not, and could not."""
    if os.geteuid() == 0:
        folder = path.parent.stat()
        os.chown(path, folder.st_uid, folder.st_gid, follow_symlinks=False)


@contextmanager
def as_owner(path: Path) -> Iterator[None]:
    """Meanwhile root is the owner of ``path``, the daemon's user: what it makes shuts nobody out. Others stay."""
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
    """The process's umask. It can only be read by setting it, so not while other threads make files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path, mode: int) -> None:
    """A folder that is missing is made with this mode, whatever the umask. Raises OSError."""
    if not path.is_dir():
        path.mkdir(mode=0o700, parents=True)
        path.chmod(mode)


def only_us() -> set[int]:
    """The users whose files decide what this process does: root, and the one that it runs as."""
    return {0, os.geteuid()}


def rulers(folder: Path) -> set[int]:
    """Whose files count in a folder: ``only_us``'s, and its owner's, who rules there anyway.

    Raises OSError, PermissionError where others can write it.
    """
    owners = only_us() | {folder.stat().st_uid}
    check_trusted_folder(folder.resolve(), owners)
    return owners


def read_config(path: Path) -> bytes:
    """The bytes of a plain file that an admin names and only root or we can have written, links followed.

    Raises OSError, PermissionError.
    """
    target = path.resolve(strict=True)
    for folder in {path.parent.resolve(), target.parent}:
        if not folder.stat().st_mode & stat.S_ISVTX:  # in /tmp nobody renames what is somebody else's
            check_trusted_folder(folder, only_us())
    return read_trusted(target, only_us())


def read_trusted(path: Path, owners: Container[int]) -> bytes:
    """The bytes of a plain file that only ``owners`` (user ids) can have written. Raises OSError, PermissionError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        _check_trusted(path, os.fstat(descriptor), stat.S_ISREG, owners)
        return file.read()


def check_trusted_file(path: Path, owners: Container[int]) -> None:
    """Raises OSError unless ``path`` is a plain file, no link, that only ``owners`` can have written."""
    _check_trusted(path, path.lstat(), stat.S_ISREG, owners)


def check_trusted_folder(path: Path, owners: Container[int]) -> None:
    """Raises OSError unless ``path`` is a folder, no link, in which only ``owners`` can make or rename files."""
    _check_trusted(path, path.lstat(), stat.S_ISDIR, owners)


def _check_trusted(path: Path, found: os.stat_result, kind: Callable[[int], bool], owners: Container[int]) -> None:
    if not kind(found.st_mode):
        raise PermissionError(EPERM, "a link or something else stands there instead", str(path))
    if found.st_uid not in owners:
        raise PermissionError(EPERM, f"its owner is user {found.st_uid}", str(path))
    if found.st_mode & 0o022:
        raise PermissionError(EPERM, f"others can write it (mode {found.st_mode & 0o777:o})", str(path))
