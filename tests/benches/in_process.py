"""A command in the tests' own process: one of its own would start for most of a second."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest


def in_process(
    main: Callable[[], object], command: str, *words: str | Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What the command's main function prints, and its exit code. ASRPT and SBATCH variables are unset."""
    line = [command, *map(str, words)]
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("ASRPT", "SBATCH"))} | environment
    out, err = StringIO(), StringIO()
    with (
        patch.dict(os.environ, variables, clear=True),
        patch.object(sys, "argv", line),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    gc.enable()  # asrpt-status disables it
    return subprocess.CompletedProcess(line, int(ended.value.code or 0), out.getvalue(), err.getvalue())
