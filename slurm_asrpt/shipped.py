"""Where the project's files that are no Python lie: in a checkout, else where pip has installed them."""

from __future__ import annotations

import sys
from pathlib import Path

HOOKS, ETC = "plugin_hooks", "etc"
PACKAGE = Path(__file__).resolve().parent


def folders(name: str) -> list[Path]:
    """Where a folder of ours may be, the likeliest first."""
    return [PACKAGE.parent / name, Path(sys.prefix) / "share" / "slurm-asrpt" / name]


def shipped(name: str, file: str) -> bytes:
    """A file of ours. Raises FileNotFoundError."""
    paths = [folder / file for folder in folders(name)]
    return next((path for path in paths if path.is_file()), paths[0]).read_bytes()
