"""Our Typer: --help shows a screenful, --help-all the rest; a tool imports only the command that is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
import typer.main
from slurm_asrpt_cli._app.completers import BY_METAVAR
from typer.core import TyperCommand, TyperGroup

from slurm_asrpt import __version__

SELDOM = "Seldom used options"

_SHOW_ALL = "slurm_asrpt_cli._app.help"

seldom: Callable[..., Any] = functools.partial(typer.Option, rich_help_panel=SELDOM)
"""Declares an option that only --help-all shows."""

F = TypeVar("F", bound=Callable[..., Any])


HELP_ALL = "--help-all"


def _with_help(command: Any, args: list[str]) -> list[str]:
    """The arguments, with --help for --help-all where that would show nothing more: nobody need know where it does."""
    if args[:1] != [HELP_ALL] or any(HELP_ALL in parameter.opts for parameter in command.params):
        return args
    return ["--help", *args[1:]]


class Group(TyperGroup):
    """A tool, or commands below a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Click's."""
        found: list[str] = super().parse_args(ctx, _with_help(self, args))
        return found


class Command(TyperCommand):
    """Shows names as manuals do, and seldom used options only with --help-all."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Click's, but no value may be empty: it comes from an unset variable, and would select everything."""
        args = _with_help(self, args)
        if "" in args or any(word.endswith("=") for word in args):
            _refuse_empty(self, ctx, args)
        found: list[str] = super().parse_args(ctx, args)
        return found

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows the command's name in the usage line."""
        arguments = [parameter for parameter in self.params if parameter.param_type_name == "argument"]
        return [self.options_metavar or "", *(_in_usage(argument) for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options; the seldom used ones in a section of their own, with --help-all only."""
        parts: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], SELDOM: []}
        for part, row in _rows(self.get_params(ctx), ctx):
            parts[part].append(row)
        if not everything_asked_for(ctx):
            parts[SELDOM] = []
        for title, rows in parts.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


FREE = ("args", "--job-name", "--comment")
"""What may be empty, as for sbatch: the arguments of a script, the name of a job, a comment."""


def _refuse_empty(command: Any, ctx: Any, args: list[str]) -> None:
    """Raises BadParameter for an option or argument whose value is empty."""
    given, _, _ = command.make_parser(ctx).parse_args(args=list(args))
    for parameter in command.params:
        value, option = given.get(parameter.name), parameter.param_type_name == "option"
        empty = "" in value if isinstance(value, list | tuple) else value == ""
        if empty and parameter.opts[0] not in FREE and (option or "--" not in args):  # after --, they are a script's
            ctx.fail(f"{parameter.opts[0] if option else parameter.metavar} is empty")


def everything_asked_for(ctx: Any) -> bool:
    """Whether --help-all was given."""
    return bool(ctx.meta.pop(_SHOW_ALL, False))


class App(typer.Typer):
    """A Typer with the settings of all our commands. versioned: its command is a tool and has --version."""

    versioned = False

    def __init__(self, **given: Any) -> None:
        given = {"cls": Group, **given}
        super().__init__(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, **given)

    def command(self, name: str | None = None, **given: Any) -> Callable[[F], F]:
        """As Typer's; adds --help-all if the command has seldom used options."""
        register = super().command(name, cls=Command, **given)

        def decorate(function: F) -> F:
            register(_furnished(function, self.versioned))
            return function

        return decorate


class Tool(App):
    """A tool of one command."""

    versioned = True


def _show_version(context: typer.Context, value: bool) -> None:
    if value and not context.resilient_parsing:
        print(f"slurm-asrpt {__version__}")
        raise typer.Exit


_VERSION: dict[str, Any] = {"is_eager": True, "callback": _show_version, "help": "Print the version."}
Version = Annotated[bool, typer.Option("--version", "-V", **_VERSION)]
_SeldomVersion = Annotated[bool, seldom("--version", "-V", **_VERSION)]


def _in_usage(argument: Any) -> str:
    name = f"{argument.metavar or argument.name.upper()}{'' if argument.nargs == 1 else '...'}"
    return name if argument.required else f"[{name}]"


def _rows(parameters: list[Any], ctx: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    """The section of each parameter, and its row there."""
    for parameter in parameters:
        row = parameter.get_help_record(ctx)
        if row is None:
            continue
        if parameter.param_type_name == "argument":
            yield "Arguments", (row[0].partition(" <")[0], parameter.help or "")
        else:
            yield getattr(parameter, "rich_help_panel", None) or "Options", row


def _furnished(function: Callable[..., Any], versioned: bool) -> Callable[..., Any]:
    """The command with --version, --help-all and shell completion of its values added."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    told = [each for parameter in parameters for each in getattr(parameter.annotation, "__metadata__", ())]
    for each in told:
        each.autocompletion = BY_METAVAR.get(each.metavar)
    count = sum(each.rich_help_panel == SELDOM for each in told)

    def run(*, help_all: bool = False, version: bool = False, **values: Any) -> Any:
        return function(**values)

    if versioned:
        parameters.append(_flag("version", _SeldomVersion if count else Version))
    if count:
        parameters.append(_flag("help_all", Annotated[bool, help_all_option(f"{count + versioned} more options")]))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def help_all_option(more: str) -> Any:
    """The option --help-all. more: what it shows in addition."""
    return typer.Option(HELP_ALL, is_eager=True, callback=_show_all, help=f"Show this and {more}.")


def _flag(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)


def _show_all(context: typer.Context, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.meta[_SHOW_ALL] = True
        print(context.get_help())
        raise typer.Exit


HelpAll = Annotated[bool, help_all_option("the seldom used commands")]


class Listed(NamedTuple):
    """A command as --help of its tool lists it."""

    where: str
    """``MODULE:FUNCTION``, or ``MODULE:APP`` for commands below it. The module is imported when the command is called:
    all together take up to a second."""
    summary: str
    seldom: bool = False
    """Whether only --help-all lists it."""
    up_to_script: bool = False
    """Whether its options end at a script, as those of sbatch: what follows are the script's arguments."""

    @property
    def module(self) -> str:
        return self.where.partition(":")[0]


class Tools(App):
    """A tool with several commands. listed: the commands by name; None: they are added as to a Typer."""

    def __init__(self, listed: Mapping[str, Listed] | None = None, **given: Any) -> None:
        super().__init__(no_args_is_help=True, cls=type("Group", (_Group,), {"listed": listed}), **given)
        large = any(command.seldom for command in (listed or {}).values())
        self.callback()(_large_tool if large else _tool)


def _tool(version: Version = False) -> None:
    """The options of a tool."""


def _large_tool(version: Version = False, help_all: HelpAll = False) -> None:
    """The options of a tool with seldom used commands."""


class _Group(Group):
    listed: Mapping[str, Listed] | None

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if self.listed:
            self.commands: Any = _Commands(self.listed)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands; TyperGroup's method would import them all."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands; the seldom used ones in a section of their own, with --help-all only."""
        if not self.listed:
            super().format_commands(ctx, formatter)
            return
        for title, seldom in (("Commands", False), ("Seldom used commands", True)):
            rows = [(name, each.summary) for name, each in self.listed.items() if each.seldom == seldom]
            if rows and (not seldom or everything_asked_for(ctx)):
                with formatter.section(title):
                    formatter.write_dl(rows)


class _Commands(Mapping[str, Any]):
    """The commands by name, imported on access."""

    def __init__(self, listed: Mapping[str, Listed]) -> None:
        self._listed = listed

    def __getitem__(self, name: str) -> Any:
        return _loaded(name, self._listed[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)


@cache
def _loaded(name: str, listed: Listed) -> Any:
    app, found = App(), getattr(import_module(f"slurm_asrpt_cli.{listed.module}"), listed.where.partition(":")[2])
    # the summary is also what the shells' completion shows
    how: dict[str, Any] = {"name": name, "short_help": listed.summary}
    if isinstance(found, App):
        app.add_typer(found, **how)
    else:
        app.command(**how, context_settings={"allow_interspersed_args": not listed.up_to_script})(found)
    return typer.main.get_group(app).commands[name]
