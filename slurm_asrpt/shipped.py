"""The project's data files: in a checkout, else where pip installed them."""

from __future__ import annotations

import os
import stat
import sys
from errno import EPERM
from pathlib import Path

HOOKS, ETC = "plugin_hooks", "etc"
PACKAGE = Path(__file__).resolve().parent


def folders(name: str) -> list[Path]:
    """Possible locations of a directory of the project, most likely first."""
    return [PACKAGE.parent / name, Path(sys.prefix) / "share" / "slurm-asrpt" / name]


def shipped(name: str, file: str) -> bytes:
    """The content of a shipped file. Raises FileNotFoundError."""
    return _shipped_path(name, file).read_bytes()


def shipped_code(name: str, file: str) -> bytes:
    """The content of a shipped file that Python runs. Raises FileNotFoundError.

    Raises PermissionError if users who cannot write this package could have written it.
    """
    path, package = _shipped_path(name, file), PACKAGE.stat()
    with path.open("rb") as opened:
        for found in (os.fstat(opened.fileno()), path.parent.stat()):
            if not _as_safe(found, package):
                why = f"user {found.st_uid} owns it, mode {stat.S_IMODE(found.st_mode):o}: others could have written it"
                raise PermissionError(EPERM, why, str(path))
        return opened.read()


def _as_safe(found: os.stat_result, package: os.stat_result) -> bool:
    more = found.st_mode & 0o022 & ~package.st_mode
    other_group = found.st_mode & 0o020 and found.st_gid != package.st_gid
    return found.st_uid in {0, os.geteuid(), package.st_uid} and not more and not other_group


def _shipped_path(name: str, file: str) -> Path:
    paths = [folder / file for folder in folders(name)]
    return next((path for path in paths if path.is_file()), paths[0])
