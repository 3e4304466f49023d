"""Writes the manuals of the commands into man/: ``python -m slurm_asrpt_cli._app.mandoc``.

Commands, arguments, options, defaults and help come from the programs, so that the manuals cannot disagree with them.
The rest is prose, in man/prose, as mdoc(7) with these directives:

    @synopsis                   the synopsis of each command
    @command NAME               a subsection for this command, with its help
    @options NAME               its arguments and options, except those under @common
    @common FLAG FLAG ...       options that several commands share, described once
    @more FLAG                  after one of the last two: prose that follows the help of this option
    @end                        prose again
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main
from slurm_asrpt_cli import admin, asrptd, lab, pool, profile, report, sim
from slurm_asrpt_cli._app.help import SELDOM
from slurm_asrpt_cli.status import command as status

from slurm_asrpt.config.reference import roff, tidy
from slurm_asrpt.errors import InputError
from slurm_asrpt.lab import train

TOOLS = {
    "asrptd": asrptd,
    "asrpt-status": status,
    "asrpt-admin": admin,
    "asrpt-lab": lab,
    "asrpt-sim": sim,
    "asrpt-profile": profile,
    "asrpt-pool": pool,
}
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
    """One command. name: without the tool, as in "history import"; text: its help without the examples."""

    name: str
    text: str
    entries: tuple[Entry, ...]


def of_typer(app: typer.Typer) -> Iterator[Described]:
    """Every command of a tool; first the tool itself if it has options."""
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
    """``default: 3``, ``x>=0`` and ``required`` as sentences."""
    return " ".join(filter(None, (_note(note) for note in notes)))


def _note(note: str) -> str:
    found = _RANGE.fullmatch(note)
    if found:
        low, sign, bound = found.groups()
        return f"From {low} to {bound}." if low else f"{bound} or {'more' if sign == '>' else 'less'}."
    key, _, value = note.partition(": ")
    return f"The default is {value}." if key == "default" else f"{note.capitalize()}."


def of_argparse(name: str, parser: argparse.ArgumentParser) -> Described:
    """A command that uses argparse instead of Typer."""
    return Described(
        name, _without_examples(parser.description or ""), tuple(_action(each) for each in parser._actions)
    )


def _action(action: argparse.Action) -> Entry:
    text = (action.help or "") % vars(action) if action.dest != "help" else "show the options"
    text = f"{text[:1].upper()}{text[1:]}."
    if not action.option_strings:
        return Entry((), str(action.metavar or action.dest), text, required=action.required)
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    return Entry(tuple(sorted(action.option_strings, key=len)), value, text)


# The pages

HEAD = '.\\" Written by python -m slurm_asrpt_cli._app.mandoc from man/prose/{name} and --help; change those.\n'


@dataclass(frozen=True)
class Part:
    """A directive, what it names, and the prose up to the next one."""

    word: str
    names: tuple[str, ...]
    prose: str


def described() -> dict[str, tuple[Described, ...]]:
    """The commands of each tool, as its manual describes them."""
    found = {name: tuple(of_typer(tool.app)) for name, tool in TOOLS.items()}
    found["asrpt-lab"] = tuple(
        of_argparse("train", train.parser()) if command.name == "train" else command for command in of_typer(lab.app)
    )
    found["asrpt-report"] = (of_argparse("", report.parser()),)
    return found


def render(name: str, prose: str, commands: Sequence[Described]) -> str:
    """The manual ``name`` as mdoc(7). Raises InputError for prose that does not match the program."""
    page = _Page(Path(name).stem, commands, list(_parts(prose)))
    return tidy(HEAD.format(name=name) + "".join(page.lines()))


def _parts(prose: str) -> Iterator[Part]:
    word, names, lines = "end", tuple[str, ...](), list[str]()
    for line in prose.splitlines(keepends=True):
        if line.startswith("@"):
            yield Part(word, names, "".join(lines))
            (word, *rest), lines = line[1:].split(), []
            names = tuple(rest)
        else:
            lines.append(line)
    yield Part(word, names, "".join(lines))


class _Page:
    """One manual: its prose, and the commands that it describes."""

    def __init__(self, tool: str, commands: Sequence[Described], parts: Sequence[Part]) -> None:
        self.tool, self.parts = tool, parts
        self.commands = {command.name: command for command in commands}
        flags = [flag for part in parts if part.word == "common" for flag in part.names]
        self.common = {flag: self._first(flag) for flag in flags}
        missing = self.commands.keys() - {" ".join(part.names) for part in parts if part.word == "options"}
        if missing:
            raise InputError(f"man/prose of {tool}: no @options for {', '.join(sorted(missing))}")

    def lines(self) -> Iterator[str]:
        parts = list(self.parts)
        while parts:
            part = parts.pop(0)
            if part.word in ("options", "common"):
                more = dict[str, str]()
                while parts and parts[0].word == "more":
                    following = parts.pop(0)
                    more[following.names[0]] = following.prose
                yield from self._list(part, more)
            elif part.word == "synopsis":
                yield from (_synopsis(self.tool, command) for command in self.commands.values())
            elif part.word == "command":
                yield from self._command(" ".join(part.names))
            elif part.word != "end":
                raise InputError(f"man/prose of {self.tool}: unknown directive @{part.word}")
            yield part.prose

    def _command(self, name: str) -> Iterator[str]:
        yield f".Ss {name}\n{roff(self._known(name).text)}\n"

    def _list(self, part: Part, more: Mapping[str, str]) -> Iterator[str]:
        """Entries as a tagged list, each with its help and the prose under @more."""
        entries = [self.common[flag] for flag in part.names] if part.word == "common" else self._own(part.names)
        unknown = more.keys() - {entry.name for entry in entries}
        if unknown:
            raise InputError(f"man/prose of {self.tool}: @more names unknown options: {', '.join(sorted(unknown))}")
        if entries:
            yield ".Bl -tag -width Ds\n"
            for entry in entries:
                yield _item(entry) + more.get(entry.name, "")
            yield ".El\n"

    def _own(self, names: Sequence[str]) -> list[Entry]:
        return [entry for entry in self._known(" ".join(names)).entries if entry != self.common.get(entry.name)]

    def _known(self, name: str) -> Described:
        if name not in self.commands:
            raise InputError(f"man/prose of {self.tool}: there is no command {name!r}")
        return self.commands[name]

    def _first(self, flag: str) -> Entry:
        """The option, from the first command that has it."""
        for command in self.commands.values():
            for entry in command.entries:
                if entry.name == flag:
                    return entry
        raise InputError(f"man/prose of {self.tool}: no command has {flag}")


def _synopsis(tool: str, command: Described) -> str:
    """The synopsis of a command, with the common options, as in --help."""
    lines = [".Nm", *([f".Cm {command.name}"] if command.name else [])]
    options = [entry for entry in command.entries if entry.flags and not entry.name.startswith("--help")]
    for entry in options:
        if not entry.seldom:
            form = " | ".join(_flag(flag) for flag in _shortest(entry)) + (
                f" Ar {roff(entry.value)}" * bool(entry.value)
            )
            lines.append(f".{form}" if entry.required else f".Op {form}")
    if any(entry.seldom for entry in options):
        lines.append(".Op Ar options")
    for entry in command.entries:
        if not entry.flags:
            form = f"Ar {roff(entry.value)}{' ...' * entry.many}"
            lines.append(f".{form}" if entry.required else f".Op {form}")
    return "\n".join(lines) + "\n"


def _shortest(entry: Entry) -> tuple[str, ...]:
    """The short flag if there is one, else the long one."""
    return entry.flags[:1]


def _flag(flag: str) -> str:
    return f"Fl {roff(flag.removeprefix('-'))}"


def _item(entry: Entry) -> str:
    value = f" Ar {roff(entry.value)}" if entry.value else ""
    title = " , ".join(_flag(flag) for flag in entry.flags) + value if entry.flags else value.strip()
    text = " ".join(filter(None, (entry.text, entry.notes)))
    return f".It {title}\n{roff(text)}\n"


def write(root: Path) -> None:
    """Write all manuals of the source tree at ``root``."""
    commands = described()
    for path in sorted((root / "man" / "prose").iterdir()):
        made = render(path.name, path.read_text(encoding="utf-8"), commands[path.stem])
        (root / "man" / path.name).write_text(made, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2])
