"""Sweeps: each cell once, the same results in every process, and named failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.errors import AsrptError, InputError, SlurmError
from slurm_asrpt.sim import backends, sweep
from slurm_asrpt.sim.backends import run_dask, run_local, submit_array
from slurm_asrpt.sim.scenario import Scenario, make_scenario, parse_policies
from slurm_asrpt.sim.sweep import collect, make_sweep, parse_grid, read_sweep, run_cell, to_run, write_sweep
from slurm_asrpt.slurm import commands

BASE = make_scenario(
    "pai-like:500:4", None, {"servers": 8}, {"jobs": 80, "models": "none", "load": 0.8, "predictor": "mean"}
)


def small(policies: str = "fifo,asrpt", **grid: list[Any]) -> sweep.Sweep:
    return make_sweep(BASE, parse_policies(policies), grid or {"seed": [0, 1]})


def written(folder: Path, cells: sweep.Sweep) -> sweep.Sweep:
    write_sweep(folder, cells)
    return cells


def ignore(cell: Scenario, error: str) -> None: ...


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("load=0.8,1.1", {"load": [0.8, 1.1]}),
        ("seed=0..3", {"seed": [0, 1, 2, 3]}),
        ("seed=5,0..1,5", {"seed": [5, 0, 1]}),
        ("load=none,1", {"load": [None, 1.0]}),
        ("predictor=mean,forest", {"predictor": ["mean", "forest"]}),
    ],
)
def test_grids_by_text(text: str, expected: dict[str, list[Any]]) -> None:
    assert parse_grid([text]) == expected


@pytest.mark.parametrize(
    "text", ["load", "x=1", "load=", "load=a", "seed=3..1", "seed=0..99999999", "seed=1.5", "nic=none"]
)
def test_invalid_grids_are_a_one_line_error(text: str) -> None:
    with pytest.raises(InputError, match=f"--grid {text}"):
        parse_grid([text])


def test_a_key_given_twice_and_a_sweep_too_large_are_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        parse_grid(["load=1", "load=2"])
    with pytest.raises(InputError, match="maximum"):
        small(seed=list(range(1000)), jobs=list(range(1, 1001)))


def test_invalid_values_are_rejected_before_any_run() -> None:
    with pytest.raises(InputError, match="load"):
        small(load=[1.0, -1.0])
    with pytest.raises(InputError, match="server"):
        small(servers=[0])


def test_every_combination_is_a_cell_and_can_be_loaded(tmp_path: Path) -> None:
    cells = small(load=[0.5, 1.0], nic=[1.0, 10.0, 50.0])
    assert len({cell.name for cell in cells.cells}) == 2 * 2 * 3
    assert {cell.cluster.nic_gbit for cell in cells.cells} == {1.0, 10.0, 50.0}
    write_sweep(tmp_path, cells)
    assert read_sweep(tmp_path) == cells


def figures(folder: Path, cells: sweep.Sweep) -> list[dict[str, Any]]:
    found = collect(folder, cells)
    assert (found.failed, found.missing) == ({}, [])
    return found.rows


def test_several_processes_give_the_same_results_as_one(tmp_path: Path) -> None:
    cells = written(tmp_path / "one", small())
    written(tmp_path / "two", cells)
    run_local(tmp_path / "one", cells.cells, 1, ignore)
    run_local(tmp_path / "two", cells.cells, 2, ignore)
    rows = figures(tmp_path / "one", cells)
    assert figures(tmp_path / "two", cells) == rows
    assert len({row["mean_jct_s"] for row in rows}) == 4


def test_a_dask_cluster_gives_the_same_results(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    cells = written(tmp_path / "here", small())
    written(tmp_path / "dask", cells)
    run_local(tmp_path / "here", cells.cells, 1, ignore)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        run_dask(tmp_path / "dask", cells.cells, cluster.scheduler_address, ignore)
    assert figures(tmp_path / "dask", cells) == figures(tmp_path / "here", cells)


def test_a_lost_dask_cluster_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    cells = written(tmp_path / "dask", small())

    def lost(calls: object) -> None:
        raise RuntimeError("scheduler-connection-lost")

    monkeypatch.setattr("joblib.Parallel", lambda **options: lost)
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        pytest.raises(AsrptError, match=r"Dask's scheduler or a worker was lost; run the same .* go on$"),
    ):
        run_dask(tmp_path / "dask", cells.cells, cluster.scheduler_address, ignore)


def test_without_dask_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"slurm-asrpt\[dask\]"):
        run_dask(tmp_path, [], "tcp://127.0.0.1:1", ignore)


def test_completed_cells_are_not_run_again(tmp_path: Path) -> None:
    cells = written(tmp_path, small())
    assert run_cell(tmp_path, cells.cells[0]) == ""
    assert to_run(tmp_path, cells) == list(cells.cells[1:])
    more = written(tmp_path, small(seed=[0, 1, 2]))
    assert len(to_run(tmp_path, more)) == 5


def test_a_failed_cell_is_named_and_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = written(tmp_path, small())
    bad = cells.cells[1]

    def fail(cell: Scenario, progress: object = None) -> Any:
        if cell == bad:
            raise ZeroDivisionError("oh")
        return run(cell)

    run = sweep.run_scenario
    monkeypatch.setattr(sweep, "run_scenario", fail)
    told: dict[str, str] = {}
    run_local(tmp_path, cells.cells, 1, lambda cell, error: told.update({cell.name: error}))
    assert told[bad.name] == "ZeroDivisionError: oh"
    assert collect(tmp_path, cells).failed == {bad.name: "ZeroDivisionError: oh"}
    assert to_run(tmp_path, cells) == [bad]
    monkeypatch.setattr(sweep, "run_scenario", run)
    run_local(tmp_path, to_run(tmp_path, cells), 1, ignore)
    assert collect(tmp_path, cells).failed == {}


def test_an_interrupted_cell_has_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurm_asrpt.sim.recorder import Recorder

    cells = written(tmp_path, small())

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, "started", stop)
    with pytest.raises(KeyboardInterrupt):
        run_local(tmp_path, cells.cells, 1, ignore)
    assert to_run(tmp_path, cells) == list(cells.cells)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(InputError, match="not from a sweep"):
        write_sweep(tmp_path, small())
    with pytest.raises(InputError, match="no sweep there"):
        read_sweep(tmp_path)


FAKE = f"""#!{sys.executable}
import json, os, subprocess, sys
arguments = sys.argv[1:]
place = os.path.dirname(os.path.abspath(__file__))
json.dump(arguments, open(os.path.join(place, "arguments"), "w"))
at = next(i for i, a in enumerate(arguments) if not a.startswith("-"))
first, last = next(a for a in arguments if a.startswith("--array=")).removeprefix("--array=").split("-")
for task in range(int(first), int(last) + 1):
    subprocess.run(["sh", *arguments[at:]], env=dict(os.environ, SLURM_ARRAY_TASK_ID=str(task)))
print("42;cluster")
"""


@pytest.fixture
def fake_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An sbatch that runs the tasks at once and records its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(FAKE)
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_a_job_array_runs_each_cell_for_any_directory_name(tmp_path: Path, fake_sbatch: Path) -> None:
    folder = tmp_path / "a b;touch pwned $(id) %j"
    cells = written(folder, small(seed=[0]))  # each cell is a process
    assert submit_array(SlurmSettings(), folder, cells.cells, ["--partition=x y", "--comment=$(touch pwned)"]) == "42"
    arguments = json.loads((fake_sbatch / "arguments").read_text())
    assert "--array=0-1" in arguments
    assert "--comment=$(touch pwned)" in arguments
    assert f"--output={folder}/logs/%A_%a.log".replace(" %j/", " %%j/") in arguments
    assert (folder / "task.sh").read_text() == backends.SCRIPT
    assert not list(tmp_path.rglob("pwned"))
    run_local(written_elsewhere(tmp_path, cells), cells.cells, 1, ignore)
    assert figures(folder, cells) == figures(tmp_path / "elsewhere", cells)


def test_sbatch_is_that_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text('#!/bin/sh\necho "$SLURM_CONF;cluster"\n')
    (tmp_path / "sbatch").chmod(0o755)
    settings = SlurmSettings(bin_dir=str(tmp_path), conf="/mine/slurm.conf")
    assert submit_array(settings, tmp_path, small().cells) == "/mine/slurm.conf"


def written_elsewhere(tmp_path: Path, cells: sweep.Sweep) -> Path:
    written(tmp_path / "elsewhere", cells)
    return tmp_path / "elsewhere"


def test_errors_of_sbatch_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = written(tmp_path, small())

    def refuse(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 1, b"", b"sbatch: error: Invalid job array specification\x1b\n")

    monkeypatch.setattr(commands.subprocess, "run", refuse)
    with pytest.raises(SlurmError, match=r"Invalid job array specification\\x1b; MaxArraySize"):
        submit_array(SlurmSettings(), tmp_path, cells.cells)


def test_a_missing_sbatch_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AsrptError, match=r"set slurm\.bin_dir or PATH"):
        submit_array(SlurmSettings(), tmp_path, small().cells)
