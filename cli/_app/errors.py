"""How a command ends: errors as one line and an exit code, quiet pipes, Ctrl-C. Needs no Typer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from slurm_asrpt.errors import DEBUG, EXIT_BUG, ending


def leave(command: str, run: Callable[[], int | None]) -> NoReturn:
    """Run it and leave by ``errors.ENDINGS``; no traceback for users."""
    code: int | str | None = 0
    try:
        code = run() or 0
    except SystemExit as leaving:
        code = leaving.code
    except (Exception, KeyboardInterrupt) as error:
        code = tell(command, error)
    _flush()
    sys.exit(code)


def typed_name() -> str:
    """The command as it was typed, without its folder."""
    return Path(sys.argv[0]).name


def completing() -> bool:
    """Whether a shell asks for words that complete a line, in place of the command itself."""
    return f"_{typed_name()}_COMPLETE".replace("-", "_").upper() in os.environ


def tell(command: str, error: BaseException) -> int:
    """Say in one line what has ended the command; its exit code."""
    code, words = ending(error)
    if words:
        print(f"{command}: {words}", file=sys.stderr)
    if code == EXIT_BUG and os.environ.get(DEBUG):
        import traceback

        traceback.print_exception(error)
    return code


def _flush() -> None:
    """Write out what is buffered here, where a closed pipe can be kept quiet, and not at the interpreter's end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
