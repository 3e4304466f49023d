"""Input with several mistakes: every reader reports all of them, a line for each."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from slurm_asrpt_cli import admin, asrptd, lab, profile
from slurm_asrpt_cli.sim import main as sim
from slurm_asrpt_cli.status import command as status

from slurm_asrpt.config.settings import GroupSettings, Settings, parse_settings
from slurm_asrpt.daemon import setup
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.errors import MOST_ERRORS, Collected, InputError, as_one, ending, error_lines, one_line
from slurm_asrpt.hook.attachments import parse_attachments
from slurm_asrpt.hook.hook_conf import render_hook_conf
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.pool.sweep import read_sweep
from slurm_asrpt.profile.documents import parse_document
from slurm_asrpt.sim.scenario import parse_policies

MAINS = {
    "asrptd": asrptd.main,
    "asrpt-status": status.main,
    "asrpt-admin": admin.main,
    "asrpt-profile": profile.main,
    "asrpt-sim": sim,
}


def said(reader: Callable[[], object]) -> list[str]:
    """The lines that a reader reports."""
    with pytest.raises(InputError) as caught:
        reader()
    assert ending(caught.value) == (2, "\n".join(error_lines(caught.value)))
    return error_lines(caught.value)


def check(lines: list[str], expected: list[str]) -> None:
    """Each line has its words, and there is no other line."""
    assert len(lines) == len(expected), lines
    for line, words in zip(lines, expected, strict=True):
        assert words in line


# The errors themselves


def test_one_error_stays_itself_and_several_are_one_exception() -> None:
    first, second, third = InputError("a"), InputError("b"), InputError("c")
    assert as_one([first]) is first
    several = as_one([first, second, third])
    assert isinstance(several, InputError)
    assert (str(several), one_line(several)) == ("a (and 2 more errors)",) * 2
    assert str(as_one([first, second])) == "a (and 1 more error)"
    assert error_lines(several) == ["a", "b", "c"]
    assert error_lines(first) == ["a"]


def test_errors_of_steps_within_steps_are_in_order_and_flat() -> None:
    outer, inner = Collected(), Collected()
    for word in ("b", "c"):
        with inner:
            raise InputError(word)
    with outer:
        raise InputError("a")
    with outer:
        inner.check()
    with outer:
        pass
    assert said(outer.check) == ["a", "b", "c"]


def test_only_input_errors_are_collected() -> None:
    errors = Collected()
    with pytest.raises(ZeroDivisionError), errors:
        print(1 // 0)
    errors.check()


def test_a_line_stays_one_line_and_a_file_of_garbage_does_not_fill_the_screen() -> None:
    assert error_lines(as_one([InputError("a\nb"), InputError("c\x1b[2J")])) == ["a b", r"c\x1b[2J"]
    many = error_lines(as_one([InputError(f"no {at}") for at in range(MOST_ERRORS + 7)]))
    assert many[-2:] == [f"no {MOST_ERRORS - 1}", "... and 7 more errors"]
    assert len(error_lines(as_one([InputError("x")] * MOST_ERRORS))) == MOST_ERRORS


# Settings


def wrong_settings() -> dict[str, dict[str, Any]]:
    """Every setting with a value that no setting takes."""
    sections = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {
        name: {key: [{"x": []}] for key in section.model_fields}
        for name, section in sections.items()
        if isinstance(section, type) and issubclass(section, BaseModel)
    }


def test_every_wrong_setting_is_reported_once() -> None:
    wrong = wrong_settings()
    names = [f"{section}.{key}" for section, keys in wrong.items() for key in keys]
    with pytest.raises(InputError) as caught:
        parse_settings(wrong, "asrpt.toml")
    lines = [str(error) for error in caught.value.errors]  # type: ignore[attr-defined]
    assert len(lines) == len(names)
    for name in names:
        assert sum(f" {name}: " in line or f" {name}.0: " in line for line in lines) == 1, name


@given(st.sets(st.sampled_from([(name, key) for name, keys in wrong_settings().items() for key in keys]), min_size=1))
def test_any_wrong_settings_are_all_reported(chosen: set[tuple[str, str]]) -> None:
    raw: dict[str, dict[str, Any]] = {"daemon": {"lease_s": 600}}
    for section, key in chosen:
        raw.setdefault(section, {})[key] = [{"x": []}]
    with pytest.raises(InputError) as caught:
        parse_settings(raw, "asrpt.toml")
    found = getattr(caught.value, "errors", (caught.value,))
    assert len(found) == len(chosen)


def test_a_huge_number_in_the_settings_is_an_error_and_no_bug() -> None:
    check(
        said(lambda: parse_settings({"daemon": {"lease_s": 16**5000, "mode": [16**5000]}}, "x")),
        ["daemon.mode: ", "daemon.lease_s: "],
    )


WRONG = """
[daemon]
lease_s = -1
nonsense = 1
mode = "wild"
[policy]
tau = "x"
"""
MISTAKES = ["daemon.mode: ", "daemon.lease_s: ", "unknown setting daemon.nonsense", "policy.tau: "]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Run a command with the settings of ``tmp_path``: exit code, standard output, lines of standard error."""
    monkeypatch.setenv("ASRPT_CONFIG", str(tmp_path / "asrpt.toml"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[object, str, list[str]]:
        monkeypatch.setattr(sys, "argv", [f"/usr/bin/{words[0]}", *words[1:]])
        with pytest.raises(SystemExit) as ended:
            MAINS[words[0]]()
        out, err = capfd.readouterr()
        return ended.value.code, out, err.splitlines()

    return run


@pytest.mark.parametrize(
    "words",
    [
        ["asrptd", "--once"],
        ["asrpt-admin", "doctor"],
        ["asrpt-admin", "retrain"],
        ["asrpt-status"],
        ["asrpt-profile", "list"],
    ],
)
def test_every_command_reports_all_errors_of_the_settings(words: list[str], command: Any, tmp_path: Path) -> None:
    (tmp_path / "asrpt.toml").write_text(WRONG)
    code, out, lines = command(*words)
    assert (code, out) == (2, "")
    check(lines, MISTAKES)
    assert all(line.startswith(f"{words[0]}: {tmp_path}/asrpt.toml: ") for line in lines)


def test_lab_options_are_checked_together() -> None:
    check(
        said(lambda: lab._settings(["daemon.lease_s=-1", "nonsense", "policy.tau=x", "daemon=3"])),
        ["--set nonsense: must be", "--set daemon=3: must be", "--set: daemon.lease_s: ", "--set: policy.tau: "],
    )


def test_asrptd_checks_all_that_it_must_follow(tmp_path: Path) -> None:
    paths = {name: str(tmp_path / name) for name in ("state", "run", "hook", "spool")}
    chosen = {
        "slurm": {"conf": f"{tmp_path}/none", "partitions": ["a b", "gpu", "c d"]},
        "policy": {"name": "best"},
        "group": {"ignore_lines": ["", "fine"], "features": ["9", "lr"], "ignore_options": ["a b", "c d"]},
    }
    settings = parse_settings({**chosen, "paths": paths}, "x")
    expected = ["slurm.conf: ", "policy.name: ", "slurm.partitions: 'a b'", "slurm.partitions: 'c d'"]
    expected += ["group.ignore_lines: ''", "group.features: '9'", "group.ignore_options: 'a b'"]
    check(said(lambda: setup.prepare(settings)), [*expected, "group.ignore_options: 'c d'"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "rules",
    [
        {"ignore_commands": ["", "ls"], "setup_commands": ["a b"]},
        {"launchers": ["bash", "a/b/c", "*"]},
        {"launchers": ["bash a+ b+"]},
        {"sizes": ["x a", "y a", "tp a"]},
        {"ignore_lines": ["a\nb", ""]},
    ],
)
def test_all_wrong_rules_of_groups_are_reported(rules: dict[str, list[str]]) -> None:
    assert len(said(lambda: render_hook_conf(["gpu"], 0, 0.0, GroupSettings(**rules)))) == 2  # type: ignore[arg-type]


# Profiles

STAGES = """
version = 1
name = "two"
model = "a test"
batch = 8
allreduce = "tree"
device = "none"
date = 2026-11-21
[provenance]
kind = "measured"
origin = "made up"
formula = "none"
[software]
torch = "2.13.0"
[[gpu_type]]
name = "h100"
speed = 2
origin = "made up"
[[stage]]
replicas = 1
forward_s = 0.5
backward_s = 1
bytes_in = 0
bytes_out = 600
param_bytes = 1e6
[[stage]]
replicas = 3
forward_s = 0.25
backward_s = 0.5
bytes_in = 200
bytes_out = 0
param_bytes = 0
"""
STAGE_MISTAKES = {
    'name = "two"\n': ('name = "-"\n', "name: must match"),
    "batch = 8": ("bacth = 8", "bacth: unknown key; did you mean batch?"),
    'allreduce = "tree"': ('allreduce = "star"\npipeline = "x"', "allreduce: must be one of"),
    'device = "none"\n': ("", "device: missing"),
    "date = 2026-11-21": ('date = "x"', "date: must be a date"),
    'kind = "measured"': ('kind = "x"', "provenance.kind: "),
    'formula = "none"': ("formula = 1", "provenance.formula: "),
    'torch = "2.13.0"': ("torch = 2", "software.torch: "),
    "speed = 2\n": ("speed = 0\n", "gpu_type 1: speed: "),
    "replicas = 1": ("replicas = 0", "stage 1: replicas: "),
    "forward_s = 0.5": ("forward_s = -1", "stage 1: forward_s: "),
    "bytes_out = 600": ("byte_out = 600", "stage 1: byte_out: unknown key; did you mean bytes_out?"),
    "forward_s = 0.25\nbackward_s = 0.5": ("forward_s = 0\nbackward_s = 0", "stage 2: forward_s: forward_s and"),
    "bytes_out = 0\nparam_bytes = 0": ("bytes_out = 0\nparam_bytes = -1", "stage 2: param_bytes: "),
}
"""Mistakes that are independent of each other."""


@given(st.sets(st.sampled_from(sorted(STAGE_MISTAKES)), min_size=1))
def test_any_mistakes_in_a_profile_are_all_reported(chosen: set[str]) -> None:
    text = STAGES
    for old in chosen:
        assert old in text
        text = text.replace(old, STAGE_MISTAKES[old][0], 1)
    lines = said(lambda: parse_document(text, "two.toml"))
    expected = sorted(STAGE_MISTAKES[old][1] for old in chosen)
    if 'allreduce = "tree"' in chosen:
        expected = sorted([*expected, "pipeline: must be one of"])
    assert len(lines) == len(expected), lines
    for words in expected:
        assert sum(words in line for line in lines) == 1
    assert all(line.startswith("two.toml: line ") or ": device: missing" in line for line in lines)


BLOCKS = """
version = 1
name = "m"
model = "a test"
batch = 8
device = "none"
iteration_s = "long"
[provenance]
kind = "analytic"
origin = "made up"
[[block]]
name = "a"
forward_s = 1
backward_s = -1
bytes_out = 0
expert_bytes = 5
[[block]]
name = ""
forward_s = 1
backward_s = 1
bytes_out = 0
outliers = 0.5
param_bytes = "x"
expert_bytes = 1
routed_bytes = 1
"""


def test_all_mistakes_in_blocks_are_reported() -> None:
    check(
        said(lambda: parse_document(BLOCKS, "m.toml")),
        [
            "line 8: provenance.formula: missing",
            "line 7: iteration_s: ",
            "line 14: block 1: backward_s: ",
            "line 16: block 1: expert_bytes: must not exceed",
            "line 16: block 1: expert_bytes: needs routed_bytes",
            "line 18: block 2: name: ",
            "line 22: block 2: outliers: ",
            "line 23: block 2: param_bytes: ",
        ],
    )


def test_the_stages_of_a_profile_are_compared_beside_a_wrong_one() -> None:
    stage = "[[stage]]\nreplicas = {}\nforward_s = 1\nbackward_s = 1\nbytes_in = {}\nbytes_out = {}\nparam_bytes = 0\n"
    head = STAGES[: STAGES.index("[[gpu_type]]")]
    text = head + "".join(stage.format(*values) for values in [(1, 5, 5), (1, 6, 7), ('"x"', 7, 7), (1, 7, 8)])
    check(
        said(lambda: parse_document(text, "x")),
        [
            "stage 3: replicas: ",
            "stage 1: bytes_in: must be 0",
            "stage 2: bytes_in: 6 bytes enter",
            "stage 4: bytes_out",
        ],
    )


@pytest.mark.parametrize("first", ["version = 2", 'version = "1"'])
def test_of_a_file_of_another_release_only_the_version_is_reported(first: str) -> None:
    for text in (STAGES, BLOCKS):
        check(said(lambda text=text: parse_document(text.replace("version = 1", first), "x")), ["version: "])
    check(said(lambda: parse_attachments(f"{first}\nnews = 1", "x")), ["version: "])
    assert "version: missing" in said(lambda: parse_document(BLOCKS.replace("version = 1", ""), "x"))[0]


def test_validate_prints_all_errors_of_all_files(command: Any, tmp_path: Path) -> None:
    (tmp_path / "asrpt.toml").write_text("")
    wrong = {"name": "-", "model": "", "version": 1, "batch": 0, "stage": [{"replicas": 0}]}
    (tmp_path / "a.json").write_text(json.dumps(wrong))
    (tmp_path / "b.toml").write_text(BLOCKS)
    code, out, lines = command("asrpt-profile", "validate", "a.json", "b.toml", "vgg19-dp4")
    assert (code, lines) == (2, [])
    shown = out.splitlines()
    assert sum(line.startswith("a.json: ") for line in shown) == 12
    assert sum(line.startswith("b.toml: ") for line in shown) == 8
    assert shown[20:] == ["vgg19-dp4: valid"]
    code, out, _ = command("asrpt-profile", "validate", "a.json", "vgg19-dp4", "--json")
    assert (code, {name: text.splitlines() for name, text in json.loads(out).items()}) == (
        2,
        {"a.json": shown[:12], "vgg19-dp4": []},
    )
    code, out, lines = command("asrpt-profile", "show", "b.toml")
    assert (code, out, lines) == (2, "", [f"asrpt-profile: {line}" for line in shown[12:20]])


def test_asrptd_knows_all_errors_of_a_profile_and_shows_the_owner_the_first() -> None:
    def load(name: str) -> Any:
        return parse_document(BLOCKS, f"{name}.toml")

    profiles = Profiles(load)
    for _ in range(2):  # the second time from the cache
        profiles.get("m", 4)
        assert len(profiles.problems["m"]) == 8
    assert profiles.problem(Tag(group="0" * 16, profile="m"), 4).endswith("(and 7 more errors)")


# Attachments, sweep files, policies


def test_all_wrong_attachments_are_reported() -> None:
    text = 'versoin = 1\n[group]\nx = "p"\n"0123456789abcdef" = "../x"\n[job-name]\na = 1\nb = "good"\n"" = "p"\n'
    check(
        said(lambda: parse_attachments(text, "x")),
        ["versoin: unknown key", "not 16 hexadecimal", "not a valid profile name", "must be a text", "job name ''"],
    )


SWEEP = """
[pool]
keep = 0
polcy = "x"
[[training]]
name = "a"
uses = "m"
grid = { x = [[1], {y = 2}], y = [] }
[[training]]
uses = "m:F"
"""
SECOND = """
[pool]
policy = "best"
[[training]]
name = "../a"
uses = "m:F"
grid = { x = [1, 2, 3] }
[[training]]
name = "b"
uses = "m:F"
with = { x = 1, y = 2, on = 2026-01-01, off = 2026-01-01 }
[[training]]
name = "c"
uses = "m:F"
with = { x = 1, y = 2 }
grid = { x = [1], y = [1] }
"""
THIRD = '[[training]]\nname = "a"\nuses = "m:F"\n' * 2 + '[[training]]\nname = "b"\nuses = "m:F"\n' * 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SWEEP, ["pool.keep", "pool.polcy: no such key", "training 1.uses", "1.grid.x.1: must be a string, a number"]),
        (SECOND, ["pool.policy", "'../a-x=1'", "'b': with.on", "'b': with.off", "'c': x is in both", "'c': y is in"]),
        (THIRD, ["two trainings are called 'a'", "two trainings are called 'b'"]),
    ],
)
def test_all_mistakes_in_a_sweep_file_are_reported(tmp_path: Path, text: str, expected: list[str]) -> None:
    (tmp_path / "sweep.toml").write_text(text)
    more = ["1.grid.x.2: must be", "1.grid.y: ", "training 2.name: missing"] if text == SWEEP else []
    check(said(lambda: read_sweep(tmp_path / "sweep.toml")), [*expected, *more])


def test_all_wrong_policies_and_options_are_reported(command: Any) -> None:
    text = "asrpt:tau=x,delay=y,nonsense=1,split=z,best,fifo"
    expected = ["no setting 'nonsense=1'", "split=z: the values are", "tau=x: ", "delay=y: ", "called 'best'"]
    check(said(lambda: parse_policies(text)), expected)
    code, out, lines = command("asrpt-sim", "compare", "pai-like:9", "--policies", text)
    assert (code, out) == (2, "")
    check(lines, expected)
