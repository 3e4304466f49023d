"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from slurm_asrpt.errors import InputError

T = TypeVar("T")

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file; default: $ASRPT_CONFIG."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check_folder(option: str, path: Path) -> None:
    """Raises InputError if the file cannot be made because its directory does not exist, or it is one itself."""
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise InputError(f"{option} {path}: no such directory; name a file in an existing one")


def with_options(make: Callable[..., T]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: replace a command's first parameter by the options of ``make``, and pass it what ``make`` returns.

    The command's own required arguments come before the options of ``make``, its other options after them.
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
