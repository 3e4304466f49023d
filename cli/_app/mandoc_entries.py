"""What a manual says of a command by itself: its text, arguments and options, as Typer or argparse know them."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import typer.main
from slurm_asrpt_cli._app.help import SELDOM

_NOTES = re.compile(r"  \[([^]]*)\]$")
_RANGE = re.compile(r"(?:(-?[0-9.]+)<=)?x(?:([<>])=(-?[0-9.]+))?")


@dataclass(frozen=True)
class Entry:
    """An argument or option. flags: "-p, --policies"; value: "POLICIES" or ""; notes: default and bounds, in words."""

    flags: tuple[str, ...]
    value: str
    text: str
    notes: str = ""
    seldom: bool = False
    required: bool = False
    many: bool = False

    @property
    def name(self) -> str:
        """The last flag, which is the long one; of an argument its value."""
        return self.flags[-1] if self.flags else self.value


@dataclass(frozen=True)
class Described:
    """One command. name: without the tool's, "history import"; text: its help without the examples."""

    name: str
    text: str
    entries: tuple[Entry, ...]


def of_typer(app: typer.Typer) -> Iterator[Described]:
    """Every command of a tool; the tool itself first where it has options of its own."""
    root: Any = typer.main.get_command(app)
    if hasattr(root, "commands") and root.params:
        yield _described("", root)
    yield from _walk("", root)


def _walk(name: str, command: Any) -> Iterator[Described]:
    subs = getattr(command, "commands", None)
    if subs is None:
        yield _described(name, command)
        return
    for word, sub in subs.items():
        yield from _walk(f"{name} {word}".strip(), sub)


def _described(name: str, command: Any) -> Described:
    context = command.make_context(name, [], resilient_parsing=True)
    parameters = [parameter for parameter in command.get_params(context) if not getattr(parameter, "hidden", False)]
    return Described(name, _without_examples(command.help or ""), tuple(_entry(each, context) for each in parameters))


def _without_examples(text: str) -> str:
    paragraphs = itertools.takewhile(lambda each: not each.startswith(("\b", "Example")), text.split("\n\n"))
    return " ".join(" ".join(paragraphs).split())


def _entry(parameter: Any, context: Any) -> Entry:
    shown, text = parameter.get_help_record(context)
    found = _NOTES.search(text)
    if parameter.param_type_name == "argument":
        value, many = shown.partition(" ")[0].rstrip("."), parameter.nargs != 1
        return Entry((), value, parameter.help or "", required=parameter.required, many=many)
    notes = _in_words(found[1].split("; ")) if found else ""
    flags = (*sorted(parameter.opts, key=len), *parameter.secondary_opts)
    value = "" if parameter.is_flag else shown.rpartition(" ")[2].strip("<>")
    if flags == ("--help-all",):
        return Entry(flags, "", "Show all options.")
    seldom = getattr(parameter, "rich_help_panel", None) == SELDOM
    return Entry(flags, value, text[: found.start()] if found else text, notes, seldom, parameter.required)


def _in_words(notes: Sequence[str]) -> str:
    """``default: 3``, ``x>=0`` and ``required`` as sentences; what says nothing is left out."""
    return " ".join(filter(None, (_note(note) for note in notes)))


def _note(note: str) -> str:
    found = _RANGE.fullmatch(note)
    if found:
        low, sign, bound = found.groups()
        return f"From {low} to {bound}." if low else f"{bound} or {'more' if sign == '>' else 'less'}."
    key, _, value = note.partition(": ")
    return f"The default is {value}." if key == "default" else f"{note.capitalize()}."


def of_argparse(name: str, parser: argparse.ArgumentParser) -> Described:
    """The same of a command that has to start without Typer."""
    return Described(
        name, _without_examples(parser.description or ""), tuple(_action(each) for each in parser._actions)
    )


def _action(action: argparse.Action) -> Entry:
    text = (action.help or "") % vars(action) if action.dest != "help" else "show the options"
    text = f"{text[:1].upper()}{text[1:]}."
    if not action.option_strings:
        return Entry((), str(action.metavar or action.dest), text, required=True)
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    return Entry(tuple(sorted(action.option_strings, key=len)), value, text)
