"""How a command runs and ends: errors as one line and an exit code, quiet pipes, Ctrl-C."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import typer
from typer.completion import get_completion_inspect_parameters

from slurm_asrpt.errors import DEBUG, EXIT_BAD_INPUT, EXIT_BUG, EXIT_INTERRUPTED, ending, printable

UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]  # Typer has no public name for it


def run_app(app: Callable[..., int | None]) -> NoReturn:
    """Run ``app``, a Typer or a function like one, and exit with a code of ``errors.ENDINGS``. Prints no traceback."""
    command = Path(sys.argv[0]).name
    if f"_{command}_COMPLETE".replace("-", "_").upper() in os.environ:  # a shell asks for completions
        get_completion_inspect_parameters()  # registers the shells with Typer, which App leaves out
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may not fit the terminal's encoding
    code: int | str | None = 0
    try:
        code = _run(app, command) or 0
    except SystemExit as leaving:
        code = leaving.code
    except (Exception, KeyboardInterrupt) as error:
        code = _report(command, error)
    _flush()
    sys.exit(code)


def _run(app: Callable[..., int | None], command: str) -> int | None:
    try:
        return app(prog_name=command, standalone_mode=False)  # standalone, Typer would print errors in its own words
    except typer.Abort:
        return EXIT_INTERRUPTED
    except UsageError as error:
        return _report_usage(command, error)


def _report_usage(command: str, error: typer.BadParameter) -> int:
    """Print what is wrong with the options or arguments; a command or group without any shows its help."""
    is_help = error.ctx is not None and error.message == error.ctx.get_help()  # of a group without a subcommand
    if sys.argv[1:] and not is_help:
        where = error.ctx.command_path if error.ctx else command
        message = printable(" ".join(error.format_message().split()).rstrip("."))
        print(f"{where}: {message}; {_advice(where, message)}", file=sys.stderr)
    else:
        error.show()
    return EXIT_BAD_INPUT


def _advice(where: str, message: str) -> str:
    if message.startswith("No such option") and any(word.startswith("--what-if") for word in sys.argv):
        return "options for sbatch follow after -- (asrpt-status --what-if JOBSCRIPT -- --ntasks=8)"
    if where.endswith(" evaluate") and "unexpected extra argument" in message:
        return "name a trace by --data (asrpt-admin evaluate --data jobs.csv)"
    if where.endswith(" history import") and "unexpected extra argument" in message:
        return "say what the file is: --csv FILE, --jsonl FILE, --dump FILE (output of sacct) or --trace FILE"
    return f"{where} --help lists the options"


def _report(command: str, error: BaseException) -> int:
    """Print what ended the command, a line for each error, with a traceback if ASRPT_DEBUG is set; the exit code."""
    code, words = ending(error)
    for line in filter(None, words.split("\n")):
        print(f"{command}: {line}", file=sys.stderr)
    if code == EXIT_BUG and os.environ.get(DEBUG):
        import traceback

        traceback.print_exception(error)
    return code


def _flush() -> None:
    """Write out what is buffered now, where a closed pipe can be ignored, and not when the interpreter exits."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
