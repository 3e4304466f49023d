"""Tools of several commands: the one that is called is loaded alone, as all together take a second to import."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import typer.main
from slurm_asrpt_cli._app.help import App, HelpAll, Version, everything_asked_for
from typer.core import TyperGroup


class Tools(App):
    """A tool of several commands. modules: where each of them is, there added by ``add_commands``.

    seldom: the commands that --help leaves to --help-all.
    """

    def __init__(
        self, modules: Mapping[str, str] | None = None, seldom: Collection[str] = frozenset(), **given: Any
    ) -> None:
        group = type("Group", (_Group,), {"modules": modules, "seldom": seldom})
        super().__init__(no_args_is_help=True, cls=group, **given)
        self.callback()(_large_tool if seldom else _tool)


def _tool(version: Version = False) -> None:
    """Nothing to do before the command; the help is the tool's own."""


def _large_tool(version: Version = False, help_all: HelpAll = False) -> None:
    """The same of one with seldom used commands."""


class _Group(TyperGroup):
    modules: Mapping[str, str] | None
    seldom: Collection[str]

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if self.modules:
            self.commands: Any = _Commands(self.modules)

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names; TyperGroup's loads them all."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write them; the seldom used ones in a part of their own, or not at all."""
        width = formatter.width - 6 - max(map(len, self.commands))
        parts: dict[str, list[tuple[str, str]]] = {"Commands": [], "Seldom used commands": []}
        for name in self.commands if everything_asked_for(ctx) else [n for n in self.commands if n not in self.seldom]:
            title = "Seldom used commands" if name in self.seldom else "Commands"
            parts[title].append((name, self.commands[name].get_short_help_str(width)))
        for title, rows in parts.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class _Commands(Mapping[str, Any]):
    """By name, loaded when they are asked for."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def __getitem__(self, name: str) -> Any:
        return _in_module(self._modules[name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


@cache
def _in_module(module: str) -> Mapping[str, Any]:
    app = App()
    import_module(f"slurm_asrpt_cli.{module}").add_commands(app)
    return typer.main.get_group(app).commands
