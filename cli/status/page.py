"""asrpt-status --html: the dashboard as a file of the user's own."""

from __future__ import annotations

import sys
from pathlib import Path

from slurm_asrpt_cli._app.options import check_folder

from slurm_asrpt.files import replace_file
from slurm_asrpt.reporting.dashboard import page
from slurm_asrpt.status.document import Status
from slurm_asrpt.status.usage import read_usage

STDOUT = Path("-")


def write_page(found: Status, folder: Path, path: Path) -> None:
    """Write the page; only its owner can read it, because it has names of users. folder: paths.run.

    Raises InputError for a missing directory, OSError.
    """
    text = page(found, read_usage(folder)).encode()
    if path == STDOUT:
        sys.stdout.buffer.write(text)
        return
    check_folder("--html", path)
    replace_file(path, text, mode=0o600)
