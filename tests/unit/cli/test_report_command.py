"""asrpt-report in job scripts: fast, quiet, and never the reason for a job to fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_asrpt_cli import report

from slurm_asrpt.progress import FOLDER_VARIABLE

pytestmark = pytest.mark.usefixtures("job")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["7"], "7 0 - 0\n"),
        (["7", "--total", "10"], "7 10 - 0\n"),
        (["7", "--loss", "0.25"], "7 0 0.25 0\n"),
        (["7", "--loss=-1e-3"], "7 0 -0.001 0\n"),
        (["7", "--loss", "nan"], "7 0 - 0\n"),
        (["700", "--start", "500"], "700 0 - 500\n"),
    ],
)
def test_asrpt_report_writes_the_progress_line(job: Path, arguments: list[str], line: str) -> None:
    assert report.main(arguments) == 0
    assert (job / "iterations").read_text() == line


def test_a_checkpoint_is_reported_with_the_progress(job: Path) -> None:
    assert report.main(["checkpointed", "700", "--total", "1000"]) == 0
    assert (job / "checkpoint").read_text() == "700\n"
    assert (job / "iterations").read_text() == "700 1000 - 0\n"


def test_total_and_start_are_kept_for_later_calls(job: Path) -> None:
    report.main(["600", "--total", "1000", "--start", "500", "--loss", "2"])
    report.main(["700", "--loss", "1"])
    assert (job / "iterations").read_text() == "700 1000 1 500\n"
    assert (job / "losses").read_text() == "600 2\n700 1\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-1"],
        ["x"],
        ["1.5"],
        ["٣"],
        ["9" * 20],
        ["1", "2"],
        ["checkpointed"],
        ["saved", "1"],
        ["1", "--loss", "x"],
        ["1", "--total"],
        ["1", "--bo\x1b"],
    ],
)
def test_bad_input_is_one_line_and_exit_2(job: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        report.main(arguments)
    captured = capsys.readouterr()
    assert leaving.value.code == 2
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("asrpt-report: ")
    assert "\x1b" not in captured.err
    assert list(job.iterdir()) == []


def test_outside_of_a_job_and_on_other_ranks_asrpt_report_is_silent(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert report.main(["7"]) == 0
    monkeypatch.delenv("SLURM_PROCID")
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert report.main(["7"]) == 0
    assert capsys.readouterr() == ("", "")
    assert list(job.iterdir()) == []


def test_a_failed_write_prints_an_error_and_exits_with_0(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(job / "gone\x1b[31m"))
    assert report.main(["7"]) == 0
    error = capsys.readouterr().err
    assert "cannot be written" in error
    assert error.count("\n") == 1
    assert "\x1b" not in error


def test_the_help_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit) as leaving:
        report.main(["--help"])
    text = capsys.readouterr().out
    assert leaving.value.code == 0
    assert "Examples:" in text
    assert max(map(len, text.splitlines())) <= 60


def test_asrpt_report_imports_no_large_packages() -> None:
    code = "import slurm_asrpt_cli.report, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"typer", "rich", "click", "pydantic", "numpy", "pandas", "asyncio"} & set(done.stdout.split())


def test_asrpt_report_is_installed(job: Path) -> None:
    program = Path(sys.executable).parent / "asrpt-report"
    done = subprocess.run([program, "12", "--total", "30"], capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (job / "iterations").read_text() == "12 30 - 0\n"
