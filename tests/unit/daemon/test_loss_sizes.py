"""HLAS-P on a Slurm in memory: sizes from the losses that jobs report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from slurm_asrpt_cli.admin.audit import what
from slurm_asrpt_cli.status.explain import explain_command

from slurm_asrpt.core.convergence import REDUCED
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.lab.train import loss_at
from slurm_asrpt.spool import progress_dir
from slurm_asrpt.status.document import JobStatus
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import GROUP

ALPHA = 160.0
HLAS = {"queues": 3, "first_gpu_s": 40.0, "min_run_s": 5.0, "predict": "loss", "alpha_gpu_s": ALPHA}
SLOW, FAST = 100_000, 33
GPUS = 2


@pytest.fixture
def make(make_bench: Callable[..., Bench]) -> Callable[..., Bench]:
    def bench(**policy: Any) -> Bench:
        """One node of four GPUs."""
        tables = {"policy": {**HLAS, **policy}, "interrupt": {"grace_s": 4.0}}
        return make_bench((4,), mode="enforce", policy="hlas", tables=tables)

    return bench


def submit(bench: Bench, iterations: int = 0, level: str = "", **fields: Any) -> str:
    """A job of two GPUs that may be preempted. iterations, level: its prediction, seconds."""
    tag = Tag(GROUP, iterations=iterations, level=level, interrupt="B:USR1").format()
    return bench.slurm.submit(GPUS, **{"requeue": True, "admin_comment": tag, **fields})


def report(bench: Bench, job_id: str, converges: int, total: int = 0) -> None:
    """A report of a job that does an iteration each second."""
    record = bench.slurm.records[job_id]
    done = int(bench.slurm.now - record.start_time)
    bench.report(str(record.number), f"{done} {total} {loss_at(done, converges)} 0\n")
    curve = "".join(f"{at} {loss_at(at, converges)}\n" for at in range(done + 1))
    (progress_dir(bench.settings.paths.spool) / str(record.number) / "losses").write_text(curve, encoding="utf-8")


def train(bench: Bench, seconds: int, jobs: dict[str, int], total: int = 0) -> None:
    """Run cycles in which these jobs report, each with the iteration at which its loss converges, while they run."""
    for _ in range(seconds):
        bench.cycle()
        for job_id, converges in jobs.items():
            if bench.state(job_id) == "RUNNING":
                report(bench, job_id, converges, total)


def row(bench: Bench, job_id: str) -> JobStatus:
    return next(job for job in bench.status(bench.slurm.now).jobs if job.job_id == job_id)


def fast_and_slow(bench: Bench) -> tuple[str, str]:
    """Two jobs with the same service, the one that converges later submitted first."""
    slow, fast = submit(bench), submit(bench)
    train(bench, 25, {slow: SLOW, fast: FAST})
    assert (bench.state(slow), bench.state(fast)) == ("RUNNING", "RUNNING")
    return fast, slow


@pytest.mark.parametrize(("predict", "first"), [("loss", "fast"), ("none", "slow")])
def test_the_job_that_converges_sooner_goes_first(make: Callable[..., Bench], predict: str, first: str) -> None:
    """A job of four GPUs preempts both; then one of two leaves room for one of them."""
    bench = make(predict=predict)
    fast, slow = fast_and_slow(bench)
    assert (row(bench, fast).queue, row(bench, slow).queue) == ((2, 3) if predict == "loss" else (2, 2))
    wide = bench.slurm.submit(4)
    train(bench, 8, {slow: SLOW, fast: FAST})
    assert [bench.state(job_id) for job_id in (fast, slow, wide)] == ["PENDING", "PENDING", "RUNNING"]
    narrow = bench.slurm.submit(GPUS)
    bench.restart()
    bench.cycle(2)
    bench.slurm.end(wide)
    bench.cycle(4)
    running = {"fast": fast, "slow": slow}[first]
    assert bench.state(narrow) == "RUNNING"
    assert [bench.state(job_id) == "RUNNING" for job_id in (fast, slow)] == [running == fast, running == slow]


def test_the_job_that_converges_later_is_preempted(make: Callable[..., Bench]) -> None:
    """By attained service alone, it would be the other one, which has run for longer."""
    bench = make()
    fast = submit(bench)
    train(bench, 3, {fast: FAST})
    slow = submit(bench)
    train(bench, 24, {fast: FAST, slow: SLOW})
    bench.slurm.submit(GPUS)
    bench.cycle(8)
    assert (bench.state(fast), bench.state(slow)) == ("RUNNING", "PENDING")


def test_a_prediction_is_recorded_explained_and_used_until_it_is_attained(
    make: Callable[..., Bench], capsys: pytest.CaptureFixture[str]
) -> None:
    bench = make()
    fast, slow = fast_and_slow(bench)
    (entry,) = bench.audit("size-predicted", slow)
    expected = entry["expected_gpu_s"]
    assert expected == entry["gpu_s"] + ALPHA
    assert entry["ends"] > 1000
    assert "its loss curve ends at iteration" in what(entry)
    assert not any(each["expected_gpu_s"] for each in bench.audit("size-predicted", fast))
    assert "less than 0.0444 more expected" in what(bench.audit("size-predicted", fast)[-1])
    assert (row(bench, slow).expected_gpu_s, row(bench, fast).expected_gpu_s) == (expected, None)
    explain_command(bench.status(bench.slurm.now), row(bench, slow), as_json=False)
    said = f"so far, {expected / 3600:.3g} expected by its losses (hlas-p); queue 3 (queue 1 runs first)"
    assert said in capsys.readouterr().out
    train(bench, 75, {slow: SLOW, fast: FAST})
    first, second = bench.audit("size-predicted", slow)
    assert first == entry
    assert second["gpu_s"] >= expected


def test_a_job_without_losses_is_ranked_by_its_service(make: Callable[..., Bench]) -> None:
    bench = make()
    job = submit(bench, iterations=10_000, level="group")
    for _ in range(25):
        bench.cycle()
        bench.report(job, f"{bench.slurm.now - bench.slurm.records[job].start_time:.0f}\n")
    assert (row(bench, job).queue, row(bench, job).expected_gpu_s) == (2, None)
    assert bench.audit("size-predicted") == []


@pytest.mark.parametrize(("level", "weight"), [("group", 0.5), ("user", 0.5), ("cluster", 1.0), ("", 1.0)])
def test_similar_jobs_that_have_ended_count_half(make: Callable[..., Bench], level: str, weight: float) -> None:
    bench = make()
    job = submit(bench, iterations=500, level=level)
    train(bench, 25, {job: SLOW})
    entry = bench.audit("size-predicted", job)[-1]
    more, past = entry["expected_gpu_s"] - entry["gpu_s"], entry["past_gpu_s"]
    assert past == (500.0 * GPUS if weight < 1 else None)
    last = 0.0 if past is None else (1 - weight) * (past - entry["gpu_s"])
    by_curve = ALPHA if entry["left_gpu_s"] is not None else 0.0
    assert more == pytest.approx(weight * by_curve + last)


def test_a_job_does_not_outrun_the_total_that_it_reports(make: Callable[..., Bench]) -> None:
    bench = make()
    job = submit(bench)
    train(bench, 25, {job: SLOW}, total=60)
    assert row(bench, job).expected_gpu_s is None
    assert all(each["left_gpu_s"] <= 60 * GPUS for each in bench.audit("size-predicted", job))


def test_a_task_that_lags_behind_others_of_its_array_is_expected_to_attain_less(make: Callable[..., Bench]) -> None:
    """The tasks of an array are taken for a search, whose losers are stopped."""
    bench = make()
    tasks = [submit(bench, job_id=f"50_{number}", number=50 + number) for number in range(2)]
    records = bench.slurm.records
    for number, old in enumerate(tasks):
        records[f"50_{number}"] = records.pop(old)
    first, second = "50_0", "50_1"
    train(bench, 25, {first: SLOW, second: SLOW * 100})
    behind, ahead = bench.audit("size-predicted", second)[-1], bench.audit("size-predicted", first)[-1]
    assert (behind["lags"], ahead["lags"]) == (True, False)
    assert behind["expected_gpu_s"] == pytest.approx(behind["gpu_s"] + ALPHA * REDUCED)
    assert "lags behind others of its array" in what(behind)


@pytest.mark.parametrize("predict", ["loss", "none"])
def test_losses_are_only_read_for_a_policy_that_uses_them(make: Callable[..., Bench], predict: str) -> None:
    bench = make(predict=predict)
    job = submit(bench)
    train(bench, 25, {job: SLOW})
    seen = bench.progress.look({job: bench.slurm.records[job].start_time})
    assert bool(seen[job].losses) == bool(bench.audit("size-predicted")) == (predict == "loss")
