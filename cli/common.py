"""What all commands share: errors as one line and an exit code, quiet pipes, Ctrl-C."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer
from typer.completion import get_completion_inspect_parameters

from slurm_asrpt.errors import DEBUG, EXIT_BAD_INPUT, EXIT_BUG, EXIT_INTERRUPTED, ending, printable

T = TypeVar("T")
UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]  # Typer has no public name for it


def with_options(make: Callable[..., T]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: a command's first parameter gives way to the options of ``make`` and gets what ``make`` returns.

    The command's own required arguments come before those of ``make``, its other options after them.
    """
    shared = dict(inspect.signature(make, eval_str=True).parameters)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        first, *own = inspect.signature(command, eval_str=True).parameters.values()

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = {name: values.pop(name) for name in shared}
            command(**{first.name: make(**given)}, **values)

        keyword = inspect.Parameter.KEYWORD_ONLY
        needed = [parameter for parameter in own if parameter.default is inspect.Parameter.empty]
        rest = [parameter for parameter in own if parameter not in needed]
        together = [parameter.replace(kind=keyword) for parameter in (*needed, *shared.values(), *rest)]
        run.__signature__ = inspect.Signature(together)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in together}
        return run

    return decorate


def run_app(app: Callable[..., int | None]) -> NoReturn:
    """Run ``app``, a Typer or a function like one, and leave by ``errors.ENDINGS``; no traceback for users."""
    command = Path(sys.argv[0]).name
    if completing():
        get_completion_inspect_parameters()  # makes the shells known to Typer, as App leaves that out
    code: int | str | None = 0
    try:
        code = app(prog_name=command, standalone_mode=False) or 0  # not standalone: we word its errors, in one line
    except SystemExit as leaving:
        code = leaving.code
    except typer.Abort:
        code = EXIT_INTERRUPTED
    except UsageError as error:
        code = _usage(command, error)
    except (Exception, KeyboardInterrupt) as error:
        code = tell(command, error)
    _flush()
    sys.exit(code)


def completing() -> bool:
    """Whether a shell asks for words that complete a line, in place of the command itself."""
    return f"_{Path(sys.argv[0]).name}_COMPLETE".replace("-", "_").upper() in os.environ


def tell(command: str, error: BaseException) -> int:
    """Say in one line what has ended the command; its exit code."""
    code, words = ending(error)
    if words:
        print(f"{command}: {words}", file=sys.stderr)
    if code == EXIT_BUG and os.environ.get(DEBUG):
        traceback.print_exception(error)
    return code


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
