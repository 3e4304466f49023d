"""What all commands share: errors as one line and an exit code, quiet pipes, Ctrl-C."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import typer

from slurm_asrpt.errors import EXIT_BAD_INPUT, EXIT_FAILURE, EXIT_INTERRUPTED, AsrptError, one_line, printable

UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]  # Typer has no public name for it


def run_app(app: typer.Typer) -> NoReturn:
    """Run ``app`` and leave the process: 0 ok, 1 failure, 2 bad input, 130 after Ctrl-C; no traceback for users."""
    command = Path(sys.argv[0]).name
    code: int | str | None = 0
    try:
        code = app(prog_name=command, standalone_mode=False) or 0  # not standalone: we word its errors, in one line
    except SystemExit as leaving:
        code = leaving.code
    except (typer.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except UsageError as error:
        code = _usage(command, error)
    except AsrptError as error:
        print(f"{command}: {one_line(error)}", file=sys.stderr)
        code = error.exit_code
    except BrokenPipeError:
        pass  # `| head` has read all it wanted
    except OSError as error:  # a full disk, a folder that has become unwritable
        print(f"{command}: {printable(f'{error.filename}: {error.strerror}')}", file=sys.stderr)
        code = EXIT_FAILURE
    _flush()
    sys.exit(code)


def _usage(command: str, error: typer.BadParameter) -> int:
    """Wrong options or arguments; a command that is typed without any shows its help."""
    if sys.argv[1:]:
        where = error.ctx.command_path if error.ctx else command
        message = printable(" ".join(error.format_message().split()).rstrip("."))
        print(f"{where}: {message}; {where} --help lists the options", file=sys.stderr)
    else:
        error.show()
    return EXIT_BAD_INPUT


def _flush() -> None:
    """Write out what is buffered here, where a closed pipe can be kept quiet, and not at the interpreter's end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
