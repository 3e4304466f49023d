"""The commands of asrpt-admin history."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from slurm_asrpt_cli.admin import main

from slurm_asrpt.history.importing import FIELDS
from slurm_asrpt.history.store import History, Run

RUN = Run("1", 1000, 900, 2000, "COMPLETED", user="ann", uid=1000, group_id="0" * 16, job_name="\x1b[2J", iterations=5)
PROGRAM = "import sys; sys.argv[0] = 'asrpt-admin'; from slurm_asrpt_cli.admin import main; main()"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "asrpt.toml").write_text(
        f'[paths]\nstate = "{tmp_path}/state"\nhook = "{tmp_path}/hook"\n[slurm]\npartitions = ["gpu", "big"]\n'
    )
    return tmp_path / "state"


@dataclass(frozen=True)
class Answer:
    returncode: int
    stdout: str
    stderr: str


def history(state: Path, *args: str | Path) -> Answer:
    """Run the command in this process, which is faster than starting one."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", newline=""), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["asrpt-admin", "history", *map(str, args)])
        patch.setattr(sys, "stdin", io.StringIO())
        patch.setenv("ASRPT_CONFIG", str(state.parent / "asrpt.toml"))
        with pytest.raises(SystemExit) as left:
            main()
        out.flush()
    return Answer(int(left.value.code or 0), out.buffer.getvalue().decode(), err.getvalue())  # type: ignore[attr-defined]


def fill(state: Path, *runs: Run) -> None:
    state.mkdir(exist_ok=True)
    with History(state / "history.sqlite") as opened:
        opened.record(runs)


def test_export_and_import_again(state: Path) -> None:
    fill(state, RUN)
    table = state.parent / "runs.csv"
    assert history(state, "export", "-o", table).returncode == 0
    assert stat.S_IMODE(table.stat().st_mode) == 0o600
    assert history(state, "export").stdout.encode() == table.read_bytes()
    lines = history(state, "export", "--format", "jsonl").stdout
    assert json.loads(lines)["job_name"] == RUN.job_name
    assert "\x1b" not in lines

    shutil.rmtree(state)
    done = history(state, "import", "--csv", table, "--json")
    assert json.loads(done.stdout) == {
        "read": 1, "added": 1, "updated": 0, "there": 0, "skipped": {}, "dry_run": False, "interrupted": False
    }  # fmt: skip
    with History(state / "history.sqlite", read_only=True) as opened:
        assert opened.runs() == [RUN]
    assert stat.S_IMODE((state / "history.sqlite").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_a_dry_run_creates_nothing(state: Path) -> None:
    table = state.parent / "runs.csv"
    table.write_text("job_id,start,end\n1,5,9\n")
    done = history(state, "import", "--csv", table, "--dry-run")
    assert "1 would be added" in done.stdout
    assert not state.exists()


SACCT = """#!/bin/sh
printf '%s\\n' "$@" >> {folder}/asked
for word; do case $word in --delimiter=*) d=${{word#*=}};; esac; done
printf '%s\\n' "$(printf '{titles}' | sed "s/#/$d/g")" "$(printf '{row}' | sed "s/#/$d/g")"
{more}
"""


def fake_sacct(folder: Path, more: str = "") -> dict[str, str]:
    (folder / "bin").mkdir()
    now = str(int(time.time()) - 1000)
    cells = {"JobID": "5", "UID": "1000", "Submit": now, "Start": now, "End": now, "ElapsedRaw": "9", "JobName": "x"}
    cells |= {"State": "TIMEOUT", "AllocTRES": "gres/gpu=1", "User": "ann", "Partition": "gpu"}
    row = "#".join(cells.get(title, "") for title in FIELDS)
    script = folder / "bin" / "sacct"
    script.write_text(SACCT.format(folder=folder, titles="#".join(FIELDS), row=row, more=more))
    script.chmod(0o755)
    return {"PATH": f"{folder}/bin:{os.environ['PATH']}"}


def test_sacct_is_queried_for_all_runs_and_then_for_new_ones(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", fake_sacct(state.parent)["PATH"])
    asked = state.parent / "asked"
    first = json.loads(history(state, "import", "--sacct", "--since", "20days", "--json").stdout)
    assert (first["added"], first["there"]) == (1, 2)
    assert asked.read_text().count("--partition=gpu,big\n") == 3  # windows of a week
    asked.unlink()
    second = json.loads(history(state, "import", "--sacct", "--json").stdout)
    assert (second["added"], second["there"]) == (0, 1)
    assert asked.read_text().count("--starttime=") == 1
    assert "TIMEOUT 1" in history(state, "stats").stdout


def test_sacct_is_that_of_the_settings(state: Path) -> None:
    fake_sacct(state.parent)
    with (state.parent / "asrpt.toml").open("a") as settings:
        settings.write(f'bin_dir = "{state.parent}/bin"\n')
    done = history(state, "import", "--sacct", "--since", "2days")
    assert (done.returncode, done.stderr) == (0, "")
    assert (state.parent / "asked").exists()


def test_after_ctrl_c_the_runs_read_so_far_are_kept(state: Path) -> None:
    more = f"[ -e {state.parent}/once ] && sleep 60; touch {state.parent}/once"
    environment = {**os.environ, **fake_sacct(state.parent, more), "ASRPT_CONFIG": str(state.parent / "asrpt.toml")}
    command = [sys.executable, "-c", PROGRAM, "history", "import", "--sacct", "--since", "20days"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while (state.parent / "asked").exists() is False or (state.parent / "asked").read_text().count("--starttime") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "1 added" in out) == (130, True)
    assert err.startswith("asrpt-admin: interrupted")
    assert "Traceback" not in err
    assert json.loads(history(state, "stats", "--json").stdout)["runs"] == 1


def test_stats(state: Path) -> None:
    fill(state, RUN)
    found = json.loads(history(state, "stats", "--json").stdout)
    assert (found["runs"], found["learnable"], found["states"], found["origins"]) == (
        1, 1, {"COMPLETED": 1}, {"asrptd": 1}
    )  # fmt: skip
    assert "by origin      asrptd 1" in history(state, "stats").stdout


def test_forget_asks_for_confirmation_unless_disabled(state: Path) -> None:
    fill(state, RUN)
    (state / "history.sqlite.damaged-7").touch()
    refused = history(state, "forget", "ann")  # no answer to the prompt
    assert refused.returncode != 0
    assert "Remove 1 run of ann?" in refused.stderr
    assert json.loads(history(state, "stats", "--json").stdout)["runs"] == 1
    done = history(state, "forget", "ann", "--yes")
    assert "next asrpt-admin retrain" in done.stdout
    assert "history.sqlite.damaged-7" in done.stdout
    assert json.loads(history(state, "stats", "--json").stdout)["runs"] == 0
    assert json.loads(history(state, "forget", "--yes", "--json", "ann").stdout)["removed"] == 0


def test_without_runs_forget_does_not_ask(state: Path) -> None:
    fill(state, RUN)
    done = history(state, "forget", "nobody")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "asrpt-admin: nobody: the history has no runs of this user\n"


def test_shipped_traces_can_be_imported_by_name(state: Path) -> None:
    done = history(state, "import", "--trace", "philly", "--dry-run", "--json")
    assert json.loads(done.stdout)["added"] > 0


def test_check(state: Path) -> None:
    fill(state, *(Run(str(i), 1) for i in range(2000)))
    assert "no damage, 2,000 runs" in history(state, "check").stdout
    path = state / "history.sqlite"
    raw = bytearray(path.read_bytes())
    raw[8 * 4096 : 20 * 4096] = b"\xff" * 12 * 4096
    path.write_bytes(raw)
    done = history(state, "check")
    assert (done.returncode, done.stderr.count("\n"), "Traceback" in done.stderr) == (1, 1, False)
    assert str(path) in done.stderr
    assert "aside" in done.stderr
    assert path.read_bytes() == raw  # tools only report


@pytest.mark.parametrize(
    "args",
    [
        ["import"],
        ["import", "--sacct", "--csv", "x"],
        ["import", "--csv", "/no/such"],
        ["import", "--csv", "/etc/passwd"],
        ["import", "--csv", "/etc/passwd", "--column", "job_id"],
        ["import", "--csv", "/etc/passwd", "--column", "colour=red"],
        ["import", "--csv", "/dev/null"],
        ["import", "--csv", "/etc"],
        ["import", "--jsonl", "/no/such"],
        ["import", "--jsonl", "/etc/passwd"],
        ["import", "--dump", "/etc/passwd"],
        ["import", "--dump", "/no/such"],
        ["import", "--trace", "/etc/passwd"],
        ["import", "--trace", "/etc/passwd", "--begin", "soon"],
        ["import", "--sacct", "--since", "soon"],
        ["import", "--sacct", "--partition", "a b"],
        ["import", "--dump", "/dev/null", "--since", "30days"],
        ["import", "--dump", "/dev/null", "--format", "swf"],
        ["export", "-o", "/"],
        ["export", "--format", "xml"],
        ["frob"],
    ],
)
def test_bad_input(state: Path, args: list[str]) -> None:
    fill(state)
    done = history(state, *args)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("option", ["--csv", "--jsonl"])
def test_a_missing_file_is_not_reported_as_a_trace(state: Path, option: str) -> None:
    assert history(state, "import", option, "/no/such").stderr.endswith("; name the file\n")
    assert "trace" not in history(state, "import", option, "/etc").stderr


@pytest.mark.parametrize("command", [["stats"], ["export"], ["check"], ["forget", "--yes", "ann"]])
def test_without_a_history(state: Path, command: list[str]) -> None:
    done = history(state, *command)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no history yet" in done.stderr
    assert not state.exists()
