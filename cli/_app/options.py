"""What all commands of Typer share: options in common, and wrong ones in one line."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import typer
from slurm_asrpt_cli._app.errors import completing, leave, typed_name
from typer.completion import get_completion_inspect_parameters

from slurm_asrpt.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, printable

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
    command = typed_name()
    if completing():
        get_completion_inspect_parameters()  # makes the shells known to Typer, as App leaves that out

    def run() -> int | None:
        try:
            return app(prog_name=command, standalone_mode=False)  # not standalone: we word its errors, in one line
        except typer.Abort:
            return EXIT_INTERRUPTED
        except UsageError as error:
            return _usage(command, error)

    leave(command, run)


def _usage(command: str, error: typer.BadParameter) -> int:
    """Wrong options or arguments; a command that is typed without any shows its help."""
    if sys.argv[1:]:
        where = error.ctx.command_path if error.ctx else command
        message = printable(" ".join(error.format_message().split()).rstrip("."))
        print(f"{where}: {message}; {where} --help lists the options", file=sys.stderr)
    else:
        error.show()
    return EXIT_BAD_INPUT
