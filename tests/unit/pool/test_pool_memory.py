"""What does not fit into a slot is refused before its first task, with the sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_asrpt.pool import memory
from slurm_asrpt.pool.memory import MB, DoesNotFitError, Needs, check_fits, machine_bytes, slurm_bytes, used_bytes
from tests.benches.pool import Pool

SWEEP = """
[pool]
slot_memory_mb = 150

[[training]]
name = "line"
uses = "pool_models:Line"
with = { tasks = 1, rounds = 1, rows = 1 }
grid = { features = [1_000, 6_000_000] }
"""


def test_a_training_that_does_not_fit_fails_alone_in_one_line_with_the_sizes(tmp_path: Path) -> None:
    pool = Pool(tmp_path, SWEEP)
    code, out, err = pool.run(slots=1)
    assert (code, err) == (1, "")
    small, large = pool.status().trainings
    assert (small.state, large.state) == ("done", "failed")
    head, _, tail = large.why.partition(" MB of memory (state 45.8 MB, with copies; ")
    assert head.startswith("needs ")
    assert 150 < float(head.removeprefix("needs ")) < 250
    assert tail.endswith(" MB without it), and a slot has 150.0 MB")
    assert (pool.folder.trainings / large.name / "log").read_text() == f"{large.why}\n"
    assert out.splitlines()[-1] == "done: 1 training done, 1 failed"


def test_what_fits_by_a_byte_is_not_refused() -> None:
    needs = Needs(parameters=100, gradients=100, optimizer=50)
    assert (needs.computing, needs.host) == (250, 700)
    check_fits(needs, used=300, limit=1000)
    with pytest.raises(DoesNotFitError, match=r"^needs 0.0 MB of memory .*, and a slot has 0.0 MB$"):
        check_fits(needs, used=301, limit=1000)


def test_what_a_process_has_already_counts_once() -> None:
    assert Needs(parameters=100, there=100).host == Needs(parameters=100).host - 100


def test_a_model_on_a_gpu_must_fit_there_and_its_copies_on_the_host() -> None:
    needs = Needs(3 << 30, 3 << 30, 6 << 30, device_free=11 << 30)
    with pytest.raises(DoesNotFitError) as told:
        check_fits(needs, 0, 1 << 50)
    assert str(told.value) == (
        "needs 12.0 GB of GPU memory (parameters 3.0 GB, optimizer 6.0 GB, and gradients), and 11.0 GB are free"
    )
    fitting = Needs(3 << 30, 3 << 30, 6 << 30, device_free=12 << 30)
    check_fits(fitting, 0, 27 << 30)
    with pytest.raises(DoesNotFitError, match=r"needs 27\.1 GB of memory \(.*; 0\.1 GB|102\.4 MB"):
        check_fits(fitting, 107374182, 27 << 30)


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"SLURM_MEM_PER_CPU": "2000"}, 2000),
        ({"SLURM_MEM_PER_CPU": "2000", "SLURM_CPUS_PER_TASK": "3"}, 6000),
        ({"SLURM_MEM_PER_NODE": "9000"}, 2250),
        ({"SLURM_MEM_PER_NODE": "0"}, None),
        ({"SLURM_MEM_PER_GPU": "5000", "SLURM_GPUS_PER_TASK": "a100:2"}, 10000),
        ({"SLURM_MEM_PER_GPU": "5000"}, 5000),
        ({"SLURM_MEM_PER_CPU": "much"}, None),
    ],
)
def test_what_slurm_allocated_to_each_of_four_tasks_of_a_node(environment: dict[str, str], found: int | None) -> None:
    assert slurm_bytes(environment, 4) == (found and found * MB)


def test_the_memory_of_a_machine_and_of_its_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < used_bytes() < machine_bytes()
    (tmp_path / "info").write_text("MemTotal:  2048 kB\nMemFree: 1 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "info")
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "max")
    assert machine_bytes() == 2 * MB
    (tmp_path / "max").write_text("max\n")
    assert machine_bytes() == 2 * MB
    (tmp_path / "max").write_text("1048576\n")
    assert machine_bytes() == MB
    monkeypatch.setattr(memory, "STATUS", tmp_path / "info")
    assert used_bytes() == 0


def test_others_that_are_loaded_make_room(tmp_path: Path) -> None:
    """Each alone fits; together with what stays loaded of the others, they would not."""
    hold = SWEEP.replace("[1_000, 6_000_000]", "[1_000_000]").replace("Line", "Hoard")
    pool = Pool(tmp_path, hold.replace("grid = {", "grid = { seed = [0, 1, 2], "))
    code, out, _ = pool.run(slots=1)
    assert (code, out.splitlines()[-1]) == (0, "done: 3 trainings done"), out
