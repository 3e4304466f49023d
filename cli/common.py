"""What all commands share: errors as one line and an exit code, quiet pipes, Ctrl-C."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import typer

from slurm_asrpt.errors import EXIT_INTERRUPTED, AsrptError, one_line

# the base of all usage errors: newer releases of Typer bring their own click
USAGE_ERROR: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def run_app(app: typer.Typer) -> NoReturn:
    """Run ``app`` and leave the process: 0 ok, 1 failure, 2 bad input, 130 after Ctrl-C; no traceback for users."""
    command = Path(sys.argv[0]).name
    code: int | str | None = 0
    try:
        ended = app(prog_name=command, standalone_mode=False)
        code = ended if isinstance(ended, int) else 0  # of a typer.Exit
    except SystemExit as leaving:
        code = leaving.code
    except USAGE_ERROR as error:
        code = _usage(command, error)
    except AsrptError as error:
        print(f"{command}: {one_line(error)}", file=sys.stderr)
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        pass  # `| head` has read all it wanted
    _flush()
    sys.exit(code)


def _usage(command: str, error: Any) -> int:
    """One line for a wrong option or argument; the help where nothing was given at all."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        said = one_line(Exception(error.format_message())).rstrip(".")
        print(f"{command}: {said}; {command} --help shows how it is used", file=sys.stderr)
    return int(error.exit_code)


def _flush() -> None:
    """Write out what is buffered here, where a closed pipe can be kept quiet, and not at the interpreter's end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
