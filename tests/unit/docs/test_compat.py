"""The table of docs/compatibility.md, and the environment inside another Debian."""

import pytest

from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab import other_release
from tests.trials.compat import counts, total, with_rows

PAGE = """# Releases

| Slurm | Passed | Date |
|---|---|---|
| 22.05.8 | 1 | 2026-11-24 |
| 26.05.1 | 2 | 2026-11-24 |

Text with a | 24.11.5 | in it.

| Slurm | Jobs |
|---|---|
| 24.11.5 | 600 |
"""


def test_a_row_replaces_the_older_one_of_its_release():
    rows = ["| 22.05.8 | 1 | 2026-11-24 |", "| 24.11.5 | 7 | 2026-11-28 |", "| 26.05.5 | 9 | 2026-11-28 |"]
    page = with_rows(PAGE, rows[:0:-1])
    assert "\n".join(["|---|---|---|", *rows, "", "Text with a | 24.11.5 | in it."]) in page
    assert page.endswith("| 24.11.5 | 600 |\n"), "other tables stay"
    assert with_rows(page, []) == page


def test_a_test_whose_setup_failed_counts_as_failed(tmp_path):
    report = tmp_path / "r.xml"
    report.write_text('<testsuites><testsuite tests="10" failures="2" errors="1" skipped="3"/></testsuites>')
    assert counts(report) == (4, 3, 3)


def test_a_release_can_be_tested_in_parts():
    assert total([(4, 1, 0), (3, 0, 2)]) == (7, 1, 2)


def test_no_variable_of_this_machine_is_passed_into_another_root():
    own = {"SLURM_CONF": "/etc/x", "ASRPT_CONFIG": "/y", "TMPDIR": "/z", "VIRTUAL_ENV": "/v", "PATH": "/p", "TERM": "t"}
    inside = other_release.environment(own)
    assert inside.keys().isdisjoint({"SLURM_CONF", "ASRPT_CONFIG", "TMPDIR", "VIRTUAL_ENV"})
    assert inside["TERM"] == "t"
    assert inside["PATH"].startswith("/opt/asrpt/bin:")
    assert "/p" not in inside["PATH"].split(":")


def test_the_mirror_is_the_named_one_or_apts_own(monkeypatch):
    monkeypatch.setenv(other_release.MIRROR_VARIABLE, "http://mirror.example/debian")
    assert other_release.mirror() == "http://mirror.example/debian"
    monkeypatch.delenv(other_release.MIRROR_VARIABLE)
    monkeypatch.setattr(other_release, "run", lambda command, what: "\n")
    with pytest.raises(MachineError, match="ASRPT_DEBIAN_MIRROR"):
        other_release.mirror()
