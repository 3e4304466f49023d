"""asrpt-status --explain of a whole array."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from slurm_asrpt_cli.status.explain import show_explanation

from slurm_asrpt.status.document import write_status
from tests.benches.daemon import Bench


def explanation(bench: Bench, job_id: str, capsys: pytest.CaptureFixture[str], as_json: bool = False) -> str:
    write_status(bench.folder, bench.status(bench.slurm.now))
    show_explanation(bench.folder, job_id, as_json)
    return capsys.readouterr().out


@pytest.mark.parametrize("tasks", ["0-9", "0-149"])
def test_an_array_is_explained_by_its_own_id(
    make_bench: Callable[..., Bench], capsys: pytest.CaptureFixture[str], tasks: str
) -> None:
    """Also while some of its tasks are not split off yet."""
    bench = make_bench(policy="asrpt-gated")
    array = bench.slurm.submit(4, 50, array_tasks=tasks)
    bench.cycle(5)
    waiting = {"0-9": 7, "0-149": 147}[tasks]
    said = " ".join(explanation(bench, array, capsys).split())
    assert f"Array {array} (train), user asrpt1, partition gpu" in said
    assert f"Tasks 3 running ({array}_0, {array}_1, {array}_2), {waiting} waiting ({array}_3, {array}_4" in said
    assert f"Next {array}_3, waiting, position 1 in the queue GPUs 4, no profile, for each task Why" in said
    raw = json.loads(explanation(bench, array, capsys, as_json=True))
    assert (raw["array"], raw["tasks"]) == (array, {"running": 3, "waiting": waiting})
    assert raw["next"] == json.loads(explanation(bench, f"{array}_3", capsys, as_json=True))
    assert json.loads(explanation(bench, f"{array}_[3-9%4]", capsys, as_json=True)) == raw  # as squeue writes it


def test_an_array_with_all_tasks_running_has_no_next_task(
    make_bench: Callable[..., Bench], capsys: pytest.CaptureFixture[str]
) -> None:
    bench = make_bench(policy="asrpt-gated")
    array = bench.slurm.submit(1, 50, array_tasks="1-2")
    bench.cycle(5)
    assert "Next" not in explanation(bench, array, capsys)
    assert json.loads(explanation(bench, array, capsys, as_json=True))["next"] is None


def test_an_array_without_split_off_tasks_is_explained_as_one_job(
    make_bench: Callable[..., Bench], capsys: pytest.CaptureFixture[str]
) -> None:
    bench = make_bench(mode="shadow", policy="asrpt-gated")
    array = bench.slurm.submit(1, 50, array_tasks="1-2", leased=False, eligible_time=2e9)
    bench.cycle(2)
    assert f"Job              {array} (train)" in explanation(bench, array, capsys)
