"""asrpt-pool status, and what run makes of its job."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_asrpt_cli import pool
from slurm_asrpt_cli.pool.status import live_lines, page

from slurm_asrpt.errors import AsrptError, SlurmError
from slurm_asrpt.pool import slurm_job
from slurm_asrpt.pool.folder import PoolFolder
from slurm_asrpt.pool.slurm_job import SlurmJob, this_job
from slurm_asrpt.pool.status import PoolStatus, TrainingStatus, parse_status
from tests.benches.pool import COMMAND
from tests.benches.terminal import LEAVE_ALTERNATE_SCREEN, Terminal

TRAININGS = (
    TrainingStatus("a-lr=0.1", "done", 9, 9, 4, 0.123456, 50.0, ""),
    TrainingStatus("a-lr=0.2", "running", 3, 9, 4, 1.5, None, ""),
    TrainingStatus("b", "failed", 1, 2, 3, None, 60.0, "ValueError: no such layer"),
    TrainingStatus("c", "waiting", 0, 0, 0, None, None, ""),
)
STATUS = PoolStatus("running", "17", 0.0, 100.0, 3, 4, 51, 90, 12, 1, 150.0, 300.0, "", TRAININGS)


def text(lines: object) -> list[str]:
    return ["".join(piece for piece, _ in line) for line in lines]  # type: ignore[attr-defined]


def test_the_table_of_a_pool() -> None:
    assert text(page(STATUS, 101.0, None)) == [
        "job 17 running: 4 trainings: 1 done, 1 running, 1 waiting, 1 failed",
        "51 of 90 tasks; 3 of 4 slots, 50% busy, 1 executor lost; elapsed 00:01:41",
        "",
        "TRAINING  STATE    ROUNDS     LOSS  WHY",
        "a-lr=0.1  done        9/9  0.12346  -",
        "a-lr=0.2  running     3/9      1.5  -",
        "b         failed      1/2        -  ValueError: no such layer",
        "c         waiting       -        -  -",
    ]


def test_a_pool_that_has_ended_and_one_that_is_silent() -> None:
    ended = replace(STATUS, state="stopped", job_id="", lost=0, slots_s=0.0, note="c: not added", trainings=())
    assert text(page(ended, 9999.0, None))[:3] == [
        "stopped: no trainings",
        "51 of 90 tasks; 3 of 4 slots; elapsed 00:01:40",
        "c: not added",
    ]
    assert text(page(STATUS, 190.0, None))[0].startswith("job 17 running, but silent for 1.5 min: ")


def test_no_training_runs_once_the_pool_has_stopped() -> None:
    lines = text(page(replace(STATUS, state="stopped", job_id=""), 9999.0, None))
    assert lines[0] == "stopped: 4 trainings: 1 done, 1 stopped, 1 waiting, 1 failed"
    assert lines[5] == "a-lr=0.2  stopped     3/9      1.5  -"


def test_the_live_view_fits_the_terminal_and_shows_what_runs_first() -> None:
    lines = text(live_lines(STATUS, 101.0, 50, 6))
    assert max(map(len, lines)) <= 50
    assert [line.split()[0] for line in lines if line] == ["job", "51", "TRAINING", "a-lr=0.2", "b"]


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = PoolFolder(tmp_path)
    folder.write_status(STATUS.document())
    assert parse_status(folder.read_status()) == STATUS
    with pytest.raises(AsrptError, match="another release"):
        parse_status({**STATUS.document(), "format": 2})


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/asrpt-pool", *words])
    with pytest.raises(SystemExit) as ended:
        pool.main()
    return ended.value.code


def test_status_prints_json_and_refuses_to_watch_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "sweep.toml"
    sweep.touch()
    assert run(monkeypatch, "status", str(sweep)) == 1
    assert "has not run yet" in capsys.readouterr().err
    (tmp_path / "sweep.pool").mkdir()
    PoolFolder(tmp_path / "sweep.pool").write_status(STATUS.document())
    assert run(monkeypatch, "status", str(sweep), "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(STATUS.document()))
    assert run(monkeypatch, "status", str(sweep), "--watch") == 2
    assert run(monkeypatch, "status", str(sweep)) == 0
    assert capsys.readouterr().out.splitlines()[3].split() == ["TRAINING", "STATE", "ROUNDS", "LOSS", "WHY"]


def test_slots_are_an_option_outside_of_jobs_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep.toml").touch()
    for name, value in {"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": "100"}.items():
        monkeypatch.setenv(name, value)
    assert run(monkeypatch, "run", str(tmp_path / "sweep.toml"), "--slots", "2") == 2
    assert "use sbatch --ntasks" in capsys.readouterr().err


def test_the_live_view_follows_the_pool_and_restores_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").touch()
    folder = PoolFolder(tmp_path / "sweep.pool")
    folder.make()
    folder.write_status(STATUS.document())
    with Terminal([str(COMMAND), "status", str(tmp_path / "sweep.toml"), "--watch"], {}) as terminal:
        terminal.until(lambda shown: "a-lr=0.2  running     3/9" in shown)
        moved = replace(TRAININGS[1], rounds_done=4)
        folder.write_status(replace(STATUS, trainings=(TRAININGS[0], moved)).document())
        terminal.until(lambda shown: "a-lr=0.2  running     4/9" in shown)
        terminal.press("\x03")
        assert terminal.ended() == 130
        assert LEAVE_ALTERNATE_SCREEN in terminal.sent
        assert b"Traceback" not in terminal.sent


# The job


def test_a_job_has_a_slot_for_each_task() -> None:
    told = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "8", "SLURM_JOB_END_TIME": "1000", "SLURM_CPUS_PER_TASK": "4"}
    job = this_job(told)
    assert job == SlurmJob("17", 8, 1000.0, "4")
    words = job.keepers()
    assert words[:3] == ["srun", "--ntasks=8", "--cpus-per-task=4"]
    assert words[-1] == "slurm_asrpt.pool.keeper"
    assert this_job({}) is None


@pytest.mark.parametrize(("told", "ends"), [("2026-11-24T17:00:00\n", True), ("N/A", False), ("1795000000", True)])
def test_older_slurms_are_asked_for_the_end(monkeypatch: pytest.MonkeyPatch, told: str, ends: bool) -> None:
    monkeypatch.setattr(slurm_job, "_slurm", lambda command: told)
    job = this_job({"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"})
    assert job is not None
    assert job.tasks == 2
    assert (job.ends_s is not None) is ends


def test_a_task_of_an_array_names_itself_not_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last task has the array's number as its own."""
    asked = list[list[str]]()

    def slurm(command: list[str]) -> str:
        asked.append(command)
        return "2026-11-24T17:00:00\n"

    monkeypatch.setattr(slurm_job, "_slurm", slurm)
    job = this_job({"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"})
    assert job is not None
    assert job.ends_s is not None
    job.requeue()
    assert asked == [["squeue", "-h", "-j", "17_3", "-O", "EndTime:40"], ["scontrol", "requeue", "17_3"]]


def test_what_slurm_refuses_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="scontrol"):
        SlurmJob("17", 1).requeue()
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'Requested operation is presently disabled' >&2\nexit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    with pytest.raises(SlurmError, match="scontrol requeue 17: Requested operation is presently disabled"):
        SlurmJob("17", 1).requeue()
