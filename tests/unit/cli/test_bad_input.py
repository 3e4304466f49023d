"""Bad input to every command: exit code 2, one line on stderr with the error and a remedy, no files written."""

import sys
from pathlib import Path

import pytest
from slurm_asrpt_cli import admin, asrptd, lab
from slurm_asrpt_cli.status import command as status

MAINS = {"asrptd": asrptd.main, "asrpt-status": status.main, "asrpt-admin": admin.main, "asrpt-lab": lab.main}
READS_SETTINGS = {
    "asrptd": ["asrptd", "--once"],
    "asrpt-status": ["asrpt-status"],
    "retrain": ["asrpt-admin", "retrain"],
    "predict": ["asrpt-admin", "predict"],
}
BAD_SETTINGS = {
    "relative path": (b'[paths]\nstate = "asrpt/state"\n', ["paths.state", "absolute path"]),
    "unknown key": (b"[daemon]\nnonsense = 1\n", ["unknown setting daemon.nonsense", "man 5"]),
    "unknown section": (b"[nonsense]\n", ["unknown setting nonsense", "man 5"]),
    "wrong type": (b"[daemon]\ninterval_s = 'often'\n", ["daemon.interval_s", "often", "fix"]),
    "no address": (b"[daemon]\nmetrics = '9821'\n", ["daemon.metrics", "ADDRESS:PORT", "9821"]),
    "out of range": (b"[daemon]\nlease_s = 1\n", ["daemon.lease_s", "fix"]),
    "hostile value": (b'[daemon]\nmode = "\\u001b[31m\\n"\n', ["daemon.mode", "\\x1b[31m"]),
    "broken TOML": (b"[daemon\n", ["invalid TOML", "fix"]),
    "not text": (b"\xff\xfe\x00", ["invalid TOML", "fix"]),
    "a section that is not a table": (b"daemon = 3\n", ["daemon", "fix"]),
}


def run(command: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{command[0]}", *command[1:]])
    with pytest.raises(SystemExit) as ended:
        MAINS[command[0]]()
    out, err = capfd.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def paths_in(folder: Path) -> bytes:
    keys = ("state", "run", "hook", "spool")
    return b"[paths]\n" + b"".join(f'{key} = "{folder}/{key}"\n'.encode() for key in keys)


@pytest.fixture
def refused(monkeypatch, capfd, tmp_path):
    """Run a command, and check what all refusals have in common."""
    monkeypatch.delenv("ASRPT_CONFIG", raising=False)

    def check(command: list[str], *words: str) -> None:
        before = files(tmp_path)
        code, out, err = run(command, monkeypatch, capfd)
        assert (code, out) == (2, ""), err
        assert err.startswith(command[0])
        assert err.count("\n") == 1
        assert err.endswith("\n")
        assert err.strip().isprintable()
        for word in words:
            assert word in err
        assert files(tmp_path) == before, "something was written"

    return check


def with_settings(command: str, config: Path) -> list[str]:
    words = [*READS_SETTINGS[command], "--config", str(config)]
    if command == "predict":
        script = config.with_name("job.sh")
        script.write_text("#!/bin/sh\n", encoding="ascii")
        words.append(str(script))
    return words


@pytest.mark.parametrize("command", READS_SETTINGS)
@pytest.mark.parametrize("kind", BAD_SETTINGS)
def test_bad_settings_are_refused(command, kind, tmp_path, refused):
    content, words = BAD_SETTINGS[kind]
    config = tmp_path / "asrpt.toml"
    config.write_bytes(content)
    refused(with_settings(command, config), str(config), *words)


@pytest.mark.parametrize("command", READS_SETTINGS)
def test_unreadable_settings_are_refused(command, tmp_path, refused):
    refused(with_settings(command, tmp_path / "missing.toml"), "missing.toml", "cannot be read", "--config")
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    refused(with_settings(command, folder), str(folder), "cannot be read", "--config")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'[policy]\nname = "best"\n', ["policy.name", "'best'", "known: asrpt"]),
        (b'[slurm]\npartitions = ["a b"]\n', ["slurm.partitions", "'a b'"]),
        (b'[group]\nignore_lines = ["a\\nb"]\n', ["group.ignore_lines", "line break"]),
    ],
)
def test_asrptd_refuses_settings_that_it_cannot_follow(content, words, tmp_path, refused):
    config = tmp_path / "asrpt.toml"
    config.write_bytes(content + paths_in(tmp_path))
    refused(["asrptd", "--once", "--config", str(config)], *words)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["asrptd", "--mode", "wild"], ["--mode", "wild", "shadow"]),
        (["asrptd", "--log-level", "loud"], ["--log-level", "loud", "debug"]),
        (["asrptd", "--nonsense"], ["--nonsense", "--help"]),
        (["asrptd", "word"], ["word", "--help"]),
        (["asrpt-status", "--nonsense"], ["--nonsense", "--help"]),
        (["asrpt-status", "--state", "sleepy"], ["--state", "sleepy", "waiting"]),
        (["asrpt-admin", "nonsense"], ["nonsense", "--help"]),
        (["asrpt-admin", "predict"], ["argument", "--help"]),
        (["asrpt-admin", "predict", "/nowhere/job.sh"], ["/nowhere/job.sh", "cannot read", "give the job script"]),
        (["asrpt-admin", "predict", "/"], ["cannot read", "give the job script"]),
        (["asrpt-admin", "predict", "--user", "no such user", "/dev/null"], ["--user", "give a user name"]),
        (["asrpt-lab", "up", "--nodes", "4y8"], ["--nodes", "'4y8'", "example"]),
        (["asrpt-lab", "up", "--nodes", ""], ["--nodes", "empty"]),
        (["asrpt-lab", "up", "--nodes", "0x8"], ["--nodes", "0x8", "example"]),
        (["asrpt-lab", "up", "--nodes", "999999x8"], ["--nodes", "999999x8"]),
        (["asrpt-lab", "up", "--base-port", "many"], ["--base-port", "--help"]),
        (["asrpt-lab", "nonsense"], ["nonsense", "--help"]),
    ],
)
def test_bad_arguments_are_refused(command, words, refused):
    refused(command, *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[[stage]\n", ["TOML"]),
        (b"version = 99\n", ["version"]),
        (b'version = 1\nname = "x"\nnonsense = 1\n', ["unknown key"]),
    ],
)
def test_a_broken_profile_is_an_error_of_one_line_each(content, words, tmp_path, monkeypatch, capfd):
    """asrpt-lab train reads it before it queries Slurm; its messages begin with asrpt-train."""
    profile = tmp_path / "mine.toml"
    profile.write_bytes(content)
    code, out, err = run(["asrpt-lab", "train", "--profile", str(profile)], monkeypatch, capfd)
    assert (code, out) == (2, ""), err
    assert all(line.startswith(f"asrpt-train: {profile}: ") for line in err.splitlines())
    for word in words:
        assert word in err


def test_without_arguments_the_help_is_shown(monkeypatch, capfd):
    for command in ("asrpt-admin", "asrpt-lab"):
        _, out, err = run([command], monkeypatch, capfd)
        assert "Usage" in out + err
