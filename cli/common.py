"""What all commands share: errors as one line and an exit code, quiet pipes, Ctrl-C."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import typer

from slurm_asrpt.errors import EXIT_INTERRUPTED, AsrptError, one_line


def run_app(app: typer.Typer) -> NoReturn:
    """Run ``app`` and leave the process: 0 ok, 1 failure, 2 bad input, 130 after Ctrl-C; no traceback for users."""
    command = Path(sys.argv[0]).name
    code: int | str | None = 0
    try:
        app(prog_name=command)
    except SystemExit as leaving:  # Typer's own end, also after a usage error
        code = leaving.code
    except AsrptError as error:
        print(f"{command}: {one_line(error)}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        pass  # `| head` has read all it wanted
    _flush()
    sys.exit(code)


def _flush() -> None:
    """Write out what is buffered here, where a closed pipe can be kept quiet, and not at the interpreter's end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
