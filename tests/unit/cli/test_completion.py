"""The completion scripts in real shells, typed on a terminal."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_asrpt_cli._app import completers, completion

from slurm_asrpt.status.document import write_status
from tests.benches.terminal import Terminal
from tests.unit.status.test_status_command import STATUS, WAITING

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "completion"
READY = "ready>"
STARTS = {
    "bash": ["--noprofile", "--norc", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "--interactive"],
}
SETS = {
    "bash": f"for f in {SCRIPTS}/bash/*; do . $f; done; bind 'set bell-style none'; PS1='{READY} '; clear",
    "zsh": f"fpath=({SCRIPTS}/zsh $fpath); autoload -U compinit; compinit -u -D; PS1='{READY} '; clear",
    "fish": f"set fish_complete_path {SCRIPTS}/fish; function fish_prompt; echo '{READY} '; end; clear",
}


@pytest.fixture(params=STARTS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"{request.param} is not on this machine")
    settings = tmp_path / "asrpt.toml"
    settings.write_text(f'[paths]\nrun = "{tmp_path}"\n[slurm]\npartitions = ["gpu-big"]\n')
    mine = replace(WAITING, job_id="4711_3", user=pwd.getpwuid(os.getuid()).pw_name)
    others = replace(WAITING, job_id="4799", user="somebody")
    write_status(tmp_path, replace(STATUS, written=time.time(), jobs=[mine, others]))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(tmp_path), "ASRPT_CONFIG": str(settings)}
    with Terminal([program, *STARTS[request.param]], environment) as terminal:
        terminal.press(SETS[request.param] + "\r")
        terminal.until(lambda text: text.startswith(READY))
        yield terminal


def test_words_are_completed(shell: Terminal) -> None:
    for typed, whole in (
        ("asrpt-admin shad", "asrpt-admin shadow-report"),
        ("asrpt-status --state waiting,delay", "--state waiting,delayed"),
        ("asrpt-status --explain 47", "--explain 4711_3"),
        ("asrpt-report 5 --to", "5 --total"),
    ):
        shell.press(f"{typed}\t")
        shell.until(shows(whole))
        shell.press("\x15")
        shell.until(lambda text, whole=whole: whole not in text)  # type: ignore[misc]


def shows(words: str) -> Callable[[str], bool]:
    return lambda text: words in text


@pytest.mark.parametrize("name", completion.FILES)
def test_each_command_has_a_script_for_each_shell(name: str) -> None:
    found = {path.name for path in (SCRIPTS / name).iterdir()}
    assert found == {completion.FILES[name].format(tool) for tool in completion.NAMES}
    for tool in completion.NAMES:
        assert tool in (SCRIPTS / name / completion.FILES[name].format(tool)).read_text()


def test_the_generator_writes_completion_scripts(tmp_path: Path) -> None:
    """The texts are not compared: other releases of Typer write other scripts."""
    completion.write(tmp_path)
    assert len(list((tmp_path / "completion").rglob("*asrpt*"))) == 3 * len(completion.NAMES)


@given(st.lists(st.text()), st.text())
def test_only_words_without_special_characters_are_offered(words: list[str], typed: str) -> None:
    for word in completers.one_of(lambda: words)(typed):
        assert word in words
        assert word.startswith(typed)
        assert not set(word) & set("$`\"'\\;&|<>(){}*?[]!# \n\t\x1b")


def test_the_last_of_several_words_is_completed() -> None:
    assert completers.some_of(lambda: ["one", "only", "two"])("two,on") == ["two,one", "two,only"]


def test_a_failing_completer_offers_nothing() -> None:
    def fails() -> list[str]:
        raise OSError("no such file")

    assert completers.one_of(fails)("") == []
