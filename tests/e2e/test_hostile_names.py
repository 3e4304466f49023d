"""Job names with shell code, terminal escapes or format breaks: asrpt-status shows them safely."""

import json
import os
import pty
import re
import subprocess
import unicodedata

import pytest

from .conftest import COMMANDS, Cluster, wait_for

pytestmark = pytest.mark.e2e

NAMES = [
    "$(touch pwned-1)",
    "`touch pwned-2`",
    "; touch pwned-3 #",
    "a'b\"c\\d|e",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07\x1b]8;;http://x\x1b\\",
    "\x9b31m\x9d0;c1\x9c",
    "[bold red]x[/]",
    "[/]",
    "two\nlines\r\tand a tab",
    "\u202eright to left\u2066",
    "zero\u200bwidth\ufeff",
    os.fsdecode(b"no utf-8 \xff\xc3"),
    "-J",
    "%s%n{0}",
    "\u5168\u89d2" * 20,
    "x" * 1000,
]
SGR = re.compile(r"\x1b\[[0-9;]*m")  # rich's own codes for bold and dim


def controls(text: str) -> set[str]:
    """Characters that could control a terminal or hide text."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c != "\n"}


def on_terminal(cluster: Cluster, *arguments: str, term: str) -> str:
    """The output of asrpt-status on a terminal."""
    ours, theirs = pty.openpty()
    environment = {**cluster.lab.env, "TERM": term, "COLUMNS": "150", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen([COMMANDS / "asrpt-status", *arguments], env=environment, stdout=theirs) as process:
        os.close(theirs)
        written = b""
        while chunk := _read(ours):
            written += chunk
        os.close(ours)
    assert process.returncode == 0
    return written.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed
        return b""


def test_hostile_job_names_are_shown_safely(asrpt: Cluster):
    asrpt.block_all()
    jobs = [asrpt.submit("--gpus=1", f"--job-name={name}", script="true") for name in NAMES]
    wait_for(lambda: set(jobs) <= set(asrpt.status()), "asrptd knows them", 15)
    rows = asrpt.status()
    for job_id, name in zip(jobs, NAMES, strict=True):
        assert rows[job_id]["name"] == os.fsencode(name).decode(errors="replace")

    shown = {
        arguments: asrpt.lab.run([COMMANDS / "asrpt-status", *arguments]).stdout
        for arguments in ((), ("--long",), ("--parsable",), ("--json",))
    }
    for arguments, text in shown.items():
        assert not controls(text), arguments
    assert len(shown[()].splitlines()) == len(jobs) + 1
    lines = shown[("--parsable",)].splitlines()
    assert len(lines) == len(jobs) + 1
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    assert len(json.loads(shown[("--json",)])["jobs"]) == len(jobs)
    assert "[bold red]x[/]" in shown[()]

    for term in ("dumb", "xterm-256color"):
        table = on_terminal(asrpt, "--all", term=term)
        assert "\x1b[31m" not in table
        assert not controls(SGR.sub("", table))
        *table_rows, note = table.splitlines()
        text = "START: not estimated on this cluster (daemon.forecast_s is 0)"
        assert (len(table_rows), note) == (len(jobs) + 1, text)
    for job_id in jobs[4:14:3]:
        assert not controls(on_terminal(asrpt, "--explain", job_id, term="xterm"))

    log = asrpt.log.read_text(encoding="utf-8")
    audit = (asrpt.paths / "state" / "audit.jsonl").read_text(encoding="utf-8")
    assert not controls(log + audit)
    asrpt.lab.run(["scancel", "--user=root"])
    asrpt.wait_all(jobs, "COMPLETED")
    asrpt.all_recorded(jobs)
    folders = [asrpt.lab.home(), asrpt.lab.home("asrpt1"), asrpt.lab.directory]
    assert not [path for folder in folders for path in folder.rglob("pwned*")]
