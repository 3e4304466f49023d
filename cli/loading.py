"""Tools of several commands: the one that is called is loaded alone, as all together take a second to import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import typer.main
from slurm_asrpt_cli.helping import App, Version
from typer.core import TyperGroup


class Tools(App):
    """A tool of several commands. modules: where each of them is, there added by ``add_commands``."""

    def __init__(self, modules: Mapping[str, str] | None = None, **given: Any) -> None:
        group = type("Group", (_Group,), {"modules": modules})
        super().__init__(no_args_is_help=True, cls=group, **given)
        self.callback()(_tool)


def _tool(version: Version = False) -> None:
    """Nothing to do before the command; the help is the tool's own."""


class _Group(TyperGroup):
    modules: Mapping[str, str] | None

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if self.modules:
            self.commands: Any = _Commands(self.modules)

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names; TyperGroup's loads them all."""
        return list(self.commands)


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
