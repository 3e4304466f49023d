"""The manuals match the commands and man/prose, and all examples are valid commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from slurm_asrpt_cli import report
from slurm_asrpt_cli._app import mandoc
from slurm_asrpt_cli._app.completion import TOOLS
from slurm_asrpt_cli._app.mandoc import Described, Entry

from slurm_asrpt.config.reference import tidy
from slurm_asrpt.errors import InputError
from tests.benches.commands import commands
from tests.unit.docs.test_glossary import COMMANDS, help_of

ROOT = Path(__file__).parents[3]

ASK = Entry(("-a", "--ask"), "WHAT", "Ask for it.", "The default is 3.")
JSON = Entry(("--json",), "", "Print JSON.")
ONE = Described("one", "Do one.", (Entry((), "FILE", "The file.", required=True), ASK, JSON))
TWO = Described("two", "Do two. It's .hidden.", (JSON,))
WHOLE = (
    ".Sh COMMANDS\n@command one\n@options one\n@more --ask\nTwice.\n@end\n@command two\n@options two\n@common --json\n"
)


def test_the_manual_pages_are_up_to_date(tmp_path: Path) -> None:
    (tmp_path / "man").mkdir()
    (tmp_path / "man" / "prose").symlink_to(ROOT / "man" / "prose")
    mandoc.write(tmp_path)
    for path in (tmp_path / "man").glob("*.[18]"):
        assert path.read_text() == (ROOT / "man" / path.name).read_text(), "run make man"


def test_each_command_has_prose() -> None:
    assert {path.stem for path in (ROOT / "man" / "prose").iterdir()} == mandoc.described().keys()


def test_a_page_combines_prose_and_the_commands_options() -> None:
    made = mandoc.render("x.1", WHOLE, [ONE, TWO])
    assert ".Ss one\nDo one.\n" in made
    assert ".It Ar FILE\nThe file.\n.It Fl a , \\-ask" not in made
    assert ".It Fl a , Fl \\-ask Ar WHAT\nAsk for it.\nThe default is 3.\nTwice.\n.El\n" in made
    assert made.count("Print JSON.") == 1
    assert "Do two.\nIt\\(aqs .hidden.\n" in made


@pytest.mark.parametrize(
    ("prose", "words"),
    [
        ("@options one\n", "two"),
        (WHOLE.replace("--ask", "--gone"), "--gone"),
        (WHOLE + "@command three\n", "three"),
        (WHOLE.replace("--json", "--yaml"), "--yaml"),
        (WHOLE + "@picture\n", "@picture"),
    ],
)
def test_prose_that_does_not_match_the_command_is_refused(prose: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        mandoc.render("x.1", prose, [ONE, TWO])


def test_options_that_differ_are_not_shared() -> None:
    other = Described("two", "Do two.", (Entry(("--json",), "", "Print something else."),))
    made = mandoc.render("x.1", WHOLE, [ONE, other])
    assert made.count("Fl \\-json") == 2


def test_long_lines_are_folded_except_in_examples() -> None:
    long = "word " * 30 + ".dot " * 10
    page = tidy(f"{long}\n.Bd -literal\n{long}\n.Ed\n.It {long}\n")
    prose, _, rest = page.partition(".Bd")
    assert max(map(len, prose.splitlines())) <= 80
    assert not re.search(r"^\.dot", prose, re.M)
    assert f"{long}\n.Ed\n.It {long}\n" in rest


# examples


def examples(text: str) -> Iterator[str]:
    """Our command lines in ``text``, with or without a prompt or indentation."""
    text = re.sub(r"\s*\\e?\n\s*(\.Dl)?[\\ ]*", " ", text)
    for line in text.splitlines():
        found = re.match(r"(?:\.Dl |[ ]{2,})?(?:[$#] )?(?:\.venv/bin/)?(asrpt(?:d|-[a-z]+)\b.*)", line)
        if found and "COMMAND" not in line:
            yield re.split(r" {2,}| [|&#>]| && ", found[1].replace("\\-", "-").replace("\\e", "\\"))[0]


def examples_in_manuals() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "man").glob("*.[158]")):
        for line in examples(path.read_text().partition(".Sh EXAMPLES")[2]):
            yield path.name, line


def examples_in_help() -> Iterator[tuple[str, str]]:
    for tool, name, _ in COMMANDS:
        for line in examples(help_of(tool, name).partition("Example")[2].partition("Options:")[0]):
            yield f"{tool} {name}", line


def examples_in_docs() -> Iterator[tuple[str, str]]:
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]):
        blocks = re.findall(r"^    \S.*$", path.read_text(), re.M)
        for line in examples("\n".join(blocks)):
            yield path.name, line


@cache
def tool_of(name: str) -> Any:
    return typer.main.get_command(TOOLS[name].app)


def parse(line: str) -> None:
    """Parse a command line; raises the command's own error for unknown words."""
    tool, *words = shlex.split(re.sub(r"\$\(\(.*?\)\)|\"\$\w+\"", "1", line))
    if tool == "asrpt-report":
        report.parser().parse_args(words)
        return
    command = tool_of(tool)
    while hasattr(command, "commands"):
        if words[0] == "--root":
            del words[:2]
        command = command.commands[words.pop(0)]
    if words != ["--help"]:
        command.make_context(tool, words)


@pytest.mark.parametrize(("where", "line"), [*examples_in_manuals(), *examples_in_help(), *examples_in_docs()])
def test_examples_are_valid_commands(where: str, line: str) -> None:
    parse(line)


def test_the_help_of_a_tool_lists_each_command_with_its_own_summary() -> None:
    for name, module in TOOLS.items():
        for command, listed in getattr(module, "COMMANDS", {}).items():
            assert tool_of(name).commands[command].get_short_help_str(200) == listed.summary


@pytest.mark.parametrize("tool", ["admin", "pool", "profile", "sim"])
def test_the_help_of_a_tool_imports_no_command(tool: str) -> None:
    help_and_modules = "app(['--help'], standalone_mode=False); print(*sys.modules)"
    code = f"import sys; from slurm_asrpt_cli.{tool} import app; {help_and_modules}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith(f"slurm_asrpt_cli.{tool}.")]


def test_every_command_has_an_example() -> None:
    lines = {line for _, line in (*examples_in_manuals(), *examples_in_help())}
    for tool, module in TOOLS.items():
        for name, _ in commands(typer.main.get_command(module.app)):
            assert (tool, name) == ("asrpt-lab", "train") or any(
                re.match(rf"{tool}( --root \S+)?{' ' * bool(name)}{name}\b", line) for line in lines
            ), name
