"""A job without a profile whose earlier runs suffered from distant nodes waits for near ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.core.job import LEARNED, UNPROFILED
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.history.store import Run
from slurm_asrpt.predict.model_store import active_name
from slurm_asrpt.predict.retrain import models_folder, retrain
from slurm_asrpt.status.document import COMMUNICATION
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import GROUP, FakeSlurm

SWITCHES = {f"n{at}": (f"leaf{(at + 1) // 2}", "top") for at in (1, 2, 3, 4)}
NEAR, FAR = 0.8, 6.4
Make = Callable[..., Bench]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made = list[Bench]()

    def start(mode: str = "enforce", communication: bool = True) -> Bench:
        tables = {"fabric": {"beyond_bytes_per_s": [0.15625e9]}, "predict": {"communication": communication}}
        slurm = FakeSlurm(sizes=(4, 4, 4, 4), switches=dict(SWITCHES))
        made.append(Bench(tmp_path, slurm, mode=mode, policy="asrpt-gated", tables=tables))
        return made[-1]

    yield start
    for bench in made:
        bench.close()


def learn(bench: Bench, slower: float = 2.0) -> None:
    """Ten earlier runs, half of them across the spine, and a model that has learned from them."""
    bench.history.record([past(number, FAR if number % 2 else NEAR, slower) for number in range(10)])
    retrain(bench.settings, bench.slurm.now)


def past(number: int, link_s: float, slower: float, **more: Any) -> Run:
    seconds = 1000 + number
    fields: dict[str, Any] = {
        "uid": 1001,
        "group_id": GROUP,
        "gpus": 8,
        "state": "COMPLETED",
        "iterations": 1000,
        "speed": 1.0,
        "link_s": link_s,
        "iteration_s": 0.5 * (slower if link_s == FAR else 1.0),
        "switches": 1 + (link_s == FAR),
        "nodes": {"n1": 4, "n2": 4},
        **more,
    }
    return Run(f"9{number}", number, end_time=number + seconds, **fields)


def crowded(bench: Bench) -> tuple[str, str]:
    """One free node below each leaf: a job on a neighbor of the free one, and a job that needs both."""
    first, second, third = (bench.slurm.submit(4) for _ in range(3))
    bench.cycle(3)
    taken = {name: job for job in (first, second, third) for name in bench.slurm.records[job].gpus_by_node}
    pair = {"n1": "n2", "n2": "n1", "n3": "n4", "n4": "n3"}
    free = next(iter(set(pair) - set(taken)))
    gone = next(taken[name] for name in taken if name != pair[free])
    bench.slurm.end(gone)
    waiting = bench.slurm.submit(8)
    bench.cycle(3)
    return taken[pair[free]], waiting


def test_it_waits_for_nodes_under_one_switch(make: Make) -> None:
    bench = make()
    learn(bench)
    neighbor, waiting = crowded(bench)
    assert bench.state(waiting) == "PENDING"
    job = bench.job(waiting).job
    assert job is not None
    assert (job.profile.name, job.profiled) == (LEARNED, False)
    bench.slurm.end(neighbor)
    bench.cycle(3)
    assert bench.state(waiting) == "RUNNING"
    assert len({SWITCHES[name] for name in bench.slurm.records[waiting].gpus_by_node}) == 1


@pytest.mark.parametrize(("slower", "enabled"), [(1.0, True), (2.0, False)])
def test_without_such_runs_or_if_turned_off_it_starts_at_once(make: Make, slower: float, enabled: bool) -> None:
    bench = make(communication=enabled)
    learn(bench, slower)
    _, job_id = crowded(bench)
    assert bench.state(job_id) == "RUNNING"
    job = bench.job(job_id).job
    assert job is not None
    assert job.profile.name == UNPROFILED


def test_a_new_model_is_followed_by_jobs_that_wait(make: Make) -> None:
    bench = make()
    bench.slurm.submit(16)
    bench.cycle(2)
    waiting = bench.slurm.submit(8)
    bench.cycle()
    assert bench.job_state(waiting) is JobState.QUEUED
    learn(bench)
    bench.cycle()
    job = bench.job(waiting).job
    assert job is not None
    assert job.profile.name == LEARNED


def test_a_named_profile_is_not_replaced(make: Make) -> None:
    bench = make()
    learn(bench)
    job_id = bench.slurm.submit(8, profile="wrong-size")  # cannot be used, and says so
    bench.slurm.submit(4)
    bench.cycle(2)
    job = bench.job(job_id).job
    assert job is not None
    assert job.profile.name == UNPROFILED


def test_users_are_told_why(make: Make) -> None:
    bench = make()
    learn(bench)
    _, waiting = crowded(bench)
    rows = {row.job_id: row for row in bench.status(bench.slurm.now).jobs}
    text = "5 of 10 earlier runs had nodes farther apart and took 2.0 times as long"
    assert rows[waiting].facts[COMMUNICATION] == text


def test_a_run_is_recorded_with_its_spread_and_in_seconds_of_its_best_placement(make: Make) -> None:
    bench = make(mode="shadow")
    learn(bench)
    _, before = bench.slurm.submit(4, leased=False), bench.slurm.submit(12, leased=False)
    job_id = bench.slurm.submit(8, leased=False)
    bench.cycle()
    bench.slurm.end(before)  # Slurm itself starts it, on n2 and n3
    bench.cycle(100)
    bench.report(job_id, "200 1000\n")
    bench.slurm.end(job_id)
    bench.cycle()
    run = bench.runs()[job_id]
    elapsed = run.end_time - run.start_time
    assert (run.link_s, run.switches, run.speed) == (pytest.approx(FAR), 2, 1.0)
    assert run.iteration_s == pytest.approx(elapsed / 200)
    assert run.profile == run.iterations_of == ""
    assert run.work_s == run.iterations < 0.6 * elapsed  # in its best placement, it would take half as long


def test_shadow_learns_too(make: Make) -> None:
    bench = make(mode="shadow")
    job_id = bench.slurm.submit(8, leased=False)
    bench.cycle(100)
    bench.slurm.end(job_id)
    bench.cycle()
    run = bench.runs()[job_id]
    assert run.link_s > 0
    assert run.switches in (1, 2)
    assert run.iteration_s == 0


def test_a_damaged_file_changes_nothing(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    bench = make()
    learn(bench)
    bench.cycle()
    bench.slurm.tick(10)
    retrain(bench.settings, bench.slurm.now)
    models = models_folder(bench.settings)
    path = models / active_name(models) / "communication.txt"
    path.write_bytes(path.read_bytes().replace(b"group", b"grovp"))
    _, waiting = crowded(bench)
    assert bench.state(waiting) == "PENDING"
    assert [each for each in caplog.messages if "its checksum does not match" in each][1:] == []
