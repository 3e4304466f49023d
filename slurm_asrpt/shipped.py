"""The project's data files: in a checkout, else where pip installed them."""

from __future__ import annotations

import sys
from pathlib import Path

HOOKS, ETC = "plugin_hooks", "etc"
PACKAGE = Path(__file__).resolve().parent


def folders(name: str) -> list[Path]:
    """Candidates for a directory of the project, likeliest first."""
    return [PACKAGE.parent / name, Path(sys.prefix) / "share" / "slurm-asrpt" / name]


def shipped(name: str, file: str) -> bytes:
    """The contents of one of the project's data files. Raises FileNotFoundError."""
    paths = [folder / file for folder in folders(name)]
    return next((path for path in paths if path.is_file()), paths[0]).read_bytes()
