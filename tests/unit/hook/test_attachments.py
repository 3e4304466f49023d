"""attachments.toml, and asrpt-profile attach, which writes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_asrpt_cli.profile import app
from typer.testing import CliRunner

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.daemon.profiles import AttachmentsFile
from slurm_asrpt.errors import InputError
from slurm_asrpt.hook.attachments import (
    GROUP,
    JOB_NAME,
    MAX_ATTACHMENTS,
    Attachments,
    attach,
    format_attachments,
    parse_attachments,
    read_attachments,
)
from slurm_asrpt.hook.group import attached
from slurm_asrpt.hook.hook_conf import render_hook_conf

ID = "93eb1d3f0bc79e52"
profiles = st.sampled_from(["vgg19-dp4", "llama-3-8b", "a.b_c+d"])
ids = st.binary(min_size=8, max_size=8).map(bytes.hex)
patterns = st.text(min_size=1, max_size=30).filter(lambda text: text.isprintable() and text == text.strip())


@given(st.dictionaries(ids, profiles), st.dictionaries(patterns, profiles))
def test_attachments_are_read_as_written(groups: dict[str, str], names: dict[str, str]) -> None:
    found = Attachments()
    for kind, entries in ((GROUP, groups), (JOB_NAME, names)):
        for what, profile in entries.items():
            found = attach(found, kind, what, profile)
    assert parse_attachments(format_attachments(found), "f") == found
    for what in list(found.names):
        found = attach(found, JOB_NAME, what, "")
    assert found == Attachments(groups)


@pytest.mark.parametrize(
    ("pattern", "name", "is_one"),
    [
        ("llama-*", b"llama-7", True),
        ("llama-*", b"llama-", True),
        ("llama-*", b"my-llama-7", False),
        ("*llama*", b"my-llama-7", True),
        ("a*a", b"a", False),
        ("a*b*b", b"ab", False),
        ("a*b*b", b"axbyb", True),
        ("*", b"", True),
        ("tr.in", b"train", False),
        ("*é", "caf\u00e9".encode(), True),
        ("x*", b"x\n\xff", True),
    ],
)
def test_an_asterisk_matches_any_text(pattern: str, name: bytes, is_one: bool) -> None:
    assert attached(Attachments(names={pattern: "p"}), "0" * 16, name) == ("p" if is_one else "")


def test_groups_have_precedence_over_names_and_long_patterns_over_short_ones() -> None:
    found = Attachments({ID: "by-group"}, {"train*": "short", "train-llama*": "long", "*": "any"})
    assert attached(found, ID, b"train-llama-1") == "by-group"
    assert attached(found, "0" * 16, b"train-llama-1") == "long"
    assert attached(found, "0" * 16, b"train-1") == "short"
    assert attached(found, "0" * 16, b"x") == "any"
    assert attached(Attachments(), ID, b"x") == ""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("version = 2", "this release reads version 1"),
        ('version = 1\n[groups]\n"x" = "y"', "did you mean group"),
        ('version = 1\n[group]\n"x" = "y"', "not 16 hexadecimal digits"),
        ('version = 1\n[job-name]\n"x" = "../../etc/passwd"', "is not a valid profile name"),
        ('version = 1\n[job-name]\n"x\\u001b[2J" = "p"', "job name"),
        ('version = 1\n[job-name]\n"" = "p"', "use 1 to 128 printable characters"),
        ("version = 1\n[job-name]\nx = 1", "must be a text"),
        ("version", "invalid TOML"),
    ],
)
def test_an_invalid_file_is_rejected(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_attachments(text, "attachments.toml")


def test_the_maximum_number_of_attachments_fits_into_hook_conf() -> None:
    found = Attachments(
        {f"{i:016x}": "p" * 30 for i in range(MAX_ATTACHMENTS)}, {f"{i:060}": "p" * 30 for i in range(MAX_ATTACHMENTS)}
    )
    assert render_hook_conf(["gpu"], 0, 0, GroupSettings(), found).count(b"\nattach_") == 2 * MAX_ATTACHMENTS
    with pytest.raises(InputError, match=f"more than {MAX_ATTACHMENTS}"):
        attach(found, JOB_NAME, "one more", "p")


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "attachments.toml"
    assert read_attachments(path) == Attachments()
    path.write_text(format_attachments(Attachments({ID: "p"})))
    path.chmod(0o644)
    assert read_attachments(path).groups == {ID: "p"}
    path.chmod(0o666)
    with pytest.raises(InputError, match=r"others can write it .*chmod go-w"):
        read_attachments(path)


def test_asrptd_reloads_the_file_and_keeps_the_previous_one_if_invalid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "attachments.toml"
    following = AttachmentsFile(path, lambda found: render_hook_conf(["gpu"], 0, 0, GroupSettings(), found))
    assert following.current() == Attachments()
    path.write_text(format_attachments(Attachments({ID: "p"})))
    assert following.current().groups == {ID: "p"}
    path.write_text("version = 1\n[group]\nnonsense")
    assert [following.current().groups for _ in range(3)] == [{ID: "p"}] * 3
    assert len([r for r in caplog.records if "the previous attachments stay in force" in r.message]) == 1
    caplog.clear()
    path.write_text("version = 1\n[group]\na = 1\nb = 2")
    assert following.current().groups == {ID: "p"}
    assert [(".a: " in r.message, ".b: " in r.message) for r in caplog.records] == [(True, False), (False, True)]
    assert [r.message.endswith("stay in force") for r in caplog.records] == [False, True]
    too_large = {f"{i:0128}": "p" * 64 for i in range(MAX_ATTACHMENTS)}
    path.write_text(
        format_attachments(Attachments(too_large, {"é" * 100 + str(i): "p" * 64 for i in range(MAX_ATTACHMENTS)}))
    )
    assert following.current().groups == {ID: "p"}
    path.unlink()
    assert following.current() == Attachments()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "asrpt.toml").write_text(f'[paths]\nattachments = "{tmp_path}/attachments.toml"\nprofiles = []\n')
    monkeypatch.setenv("ASRPT_CONFIG", str(tmp_path / "asrpt.toml"))
    return lambda *words: CliRunner().invoke(app, ["attach", *words])


def test_attach_list_and_remove_again(run: Any, tmp_path: Path) -> None:
    assert "no profiles are attached" in run().output
    first = json.loads(run("vgg19-dp4", "--job-name", "vgg-*", "--json").output)
    assert first == {"kind": "job-name", "what": "vgg-*", "profile": "vgg19-dp4", "changed": True}
    assert json.loads(run("vgg19-dp4", "-J", "vgg-*", "--json").output)["changed"] is False
    run("llama-3-8b-tp4", "--group", ID)
    assert (tmp_path / "attachments.toml").stat().st_mode & 0o777 == 0o644
    assert {row["what"]: row["profile"] for row in json.loads(run("--json").output)} == {
        "vgg-*": "vgg19-dp4",
        ID: "llama-3-8b-tp4",
    }
    assert run("--remove", "--group", ID).exit_code == 0
    assert "has no profile" in run("--remove", "--group", ID).output
    assert [row["what"] for row in json.loads(run("--json").output)] == ["vgg-*"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["vgg19-dp4"], "give --group"),
        (["--remove"], "give --group"),
        (["--group", ID], "give a profile"),
        (["vgg19-dp4", "--remove", "--group", ID], "--remove takes no profile"),
        (["vgg19-dp4", "--group", ID, "--job-name", "x"], "give only one of"),
        (["vgg19-dpx", "--group", ID], "did you mean"),
        (["/etc/passwd", "--group", ID], "not a valid profile name"),
        (["llama-3-8b-tp3pp99", "--group", ID], "cannot be cut into 99 stages"),
        (["vgg19-dp4", "--job-name", "a\nb"], "use 1 to 128 printable characters"),
        (["vgg19-dp4", "--job-name", os.fsdecode(b"\xff")], "use 1 to 128 printable characters"),
    ],
)
def test_invalid_arguments_are_reported_and_nothing_is_written(
    run: Any, tmp_path: Path, words: list[str], complaint: str
) -> None:
    answer = run(*words)
    assert isinstance(answer.exception, InputError)
    assert complaint in str(answer.exception)
    assert not (tmp_path / "attachments.toml").exists()


def test_a_failed_write_is_reported_with_a_remedy(run: Any, tmp_path: Path) -> None:
    (tmp_path / "asrpt.toml").write_text('[paths]\nattachments = "/proc/attachments.toml"\nprofiles = []\n')
    assert "as root" in str(run("vgg19-dp4", "--group", ID).exception)
