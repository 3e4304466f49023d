"""Manual pages and docs are complete: every command, every option, every dependency."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from slurm_asrpt_cli import report
from slurm_asrpt_cli._app.completion import TOOLS

from tests.benches.commands import commands

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = sorted((ROOT / "man").glob("*.[1-8]"))


def page_of(command: str) -> Path:
    return next(path for path in PAGES if path.stem == command)


def options() -> Iterator[tuple[str, str, str]]:
    """(command, subcommand, option) of each Typer app."""
    for command, tool in TOOLS.items():
        root: Any = typer.main.get_command(tool.app)
        for name, sub in commands(root):
            for parameter in sub.params:
                if parameter.param_type_name == "option":
                    # of --hook/--no-hook the manual lists the one that is not the default
                    flags = parameter.secondary_opts if parameter.default is True else parameter.opts
                    yield from ((command, name, flag) for flag in flags if flag != "--help")


def test_each_option_of_asrpt_report_is_in_the_manual() -> None:
    """Not a Typer program, because it must start quickly."""
    text = page_of("asrpt-report").read_text().replace("\\-", "-")
    for flag in re.findall(r"(?:^  |, )(--?[A-Za-z][\w-]*)", report.parser().format_help(), re.MULTILINE):
        assert re.search(rf"[ ,|]{re.escape(flag.removeprefix('-'))}\b", text), flag


def test_each_command_and_the_settings_have_a_page() -> None:
    assert {path.stem for path in PAGES} == {*PROJECT["scripts"], "asrpt.toml"}
    assert {*TOOLS, "asrpt-report"} == set(PROJECT["scripts"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_well_formed(page: Path) -> None:
    if shutil.which("mandoc"):
        command = ["mandoc", "-T", "lint", page]
    elif shutil.which("groff"):
        command = ["groff", "-mandoc", "-Tutf8", "-ww", "-z", page]
    else:
        pytest.skip("neither mandoc nor groff is on this machine")
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = [
        line
        for line in (answer.stdout + answer.stderr).splitlines()
        if "mandoc.db" not in line and "referenced manual not found" not in line  # Slurm's may not be installed
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_its_own_name_and_section(page: Path) -> None:
    text = page.read_text()
    assert f".Dt {page.stem.upper()} {page.suffix[1:]}\n" in text
    assert f".Nm {page.stem}\n" in text
    assert "EXIT STATUS" in text or page.suffix == ".5"


@pytest.mark.parametrize(("command", "sub", "flag"), list(options()))
def test_each_option_is_in_the_manual(command: str, sub: str, flag: str) -> None:
    text = page_of(command).read_text().replace("\\-", "-")
    assert re.search(rf"[ ,|]{re.escape(flag.removeprefix('-'))}\b", text), f"{sub} {flag}"
    assert not sub or f".Cm {sub}\n" in text


ROWS = re.findall(r"^\| (.+) \| (.+) \| `(\S+)::(\w+)` \|$", (ROOT / "docs" / "slurm-features.md").read_text(), re.M)


@pytest.mark.parametrize(("feature", "what", "file", "test"), ROWS)
def test_each_feature_names_an_existing_test(feature: str, what: str, file: str, test: str) -> None:
    assert re.search("managed|left to Slurm|setting|go on|untouched", what), feature
    assert file.startswith("e2e/"), f"{feature}: on a real Slurm"
    assert f"\ndef {test}(" in (ROOT / "tests" / file).read_text()


NAMED = re.compile(r"`(?:tests/)?((?:unit|property|e2e|faults)/\w+\.py)(?:::(\w+))?`")


@pytest.mark.parametrize("page", ["compatibility", "faults", "slurm-features"])
def test_each_test_named_in_a_page_exists(page: str) -> None:
    named = NAMED.findall((ROOT / "docs" / f"{page}.md").read_text())
    assert named
    for file, test in named:
        text = (ROOT / "tests" / file).read_text()
        assert not test or f"\ndef {test}(" in text, f"{file}::{test}"


def test_each_row_of_the_feature_table_is_checked() -> None:
    text = (ROOT / "docs" / "slurm-features.md").read_text()
    assert len(ROWS) == len(re.findall(r"^\|", text, re.M)) - 2 >= 30


def test_each_dependency_has_a_reason() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text()
    wanted = [
        *PROJECT["dependencies"],
        *(name for group in PROJECT["optional-dependencies"].values() for name in group),
    ]
    for requirement in wanted:
        name = re.match(r"[A-Za-z0-9_.-]+", requirement)
        assert name is not None
        assert re.search(rf"^\| `{re.escape(name[0])}` \| .{{8,}}", text, flags=re.MULTILINE), requirement


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not on this machine")
def test_packages_have_this_version_and_require_a_supported_python() -> None:
    spec = (ROOT / "rpm" / "slurm-asrpt.spec").read_text()
    changelog = (ROOT / "debian" / "changelog").read_text()
    assert f"Version: {PROJECT['version']}\n" in spec
    assert changelog.startswith(f"slurm-asrpt ({PROJECT['version']})")
    assert f"python{PROJECT['requires-python'].removeprefix('>=')}}}" in spec


def test_make_alone_lists_its_targets() -> None:
    answer = subprocess.run(["make", "-C", ROOT], capture_output=True, text=True, check=True, timeout=60)
    for target in ("setup", "demo", "test", "lint", "man", "clean"):
        assert re.search(rf"^{target} +\S", answer.stdout, flags=re.MULTILINE), target


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="not a Debian")
def test_installed_packages_are_left_alone() -> None:
    """dpkg itself is installed, so the command installs nothing and prints nothing, also without root."""
    answer = subprocess.run([ROOT / ".ci" / "packages", "dpkg"], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout + answer.stderr == ""


USES = re.compile(rf"(?:^|[\s`/(])({'|'.join(TOOLS)})((?: [^`|;&#<>\n]*)?)", re.MULTILINE)


def flags_of(command: str, words: list[str]) -> set[str]:
    """The options of a command and of its subcommands, as far as words do not name one."""
    node: Any = typer.main.get_command(TOOLS[command].app)
    flags = {"--help", "--help-all", *(flag for each in node.params for flag in each.opts)}
    for word in words:
        node = getattr(node, "commands", {}).get(word, node)
    for _, sub in commands(node):
        flags |= {flag for each in sub.params for flag in (*each.opts, *each.secondary_opts)}
    return flags


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_documents_name_options_that_exist(page: Path) -> None:
    for command, rest in USES.findall(page.read_text()):
        words = rest.split(" -- ")[0].split()
        used = {flag[0] for word in words if (flag := re.match(r"--?[A-Za-z][\w-]*", word))}
        assert used <= flags_of(command, words), f"{command}{rest}"
