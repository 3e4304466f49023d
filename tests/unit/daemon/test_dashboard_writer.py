"""asrptd keeps the dashboard fresh as its setting says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt.config.settings import Show
from slurm_asrpt.daemon.dashboard import EVERY_S, Dashboard
from slurm_asrpt.status.usage import STEP_S, read_usage
from tests.unit.conftest import MakeBench
from tests.unit.status.test_dashboard_page import busy

Make = Callable[..., Dashboard]


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def make(tmp_path: Path, clock: list[float]) -> Make:
    return lambda show: Dashboard(tmp_path, show, lambda: clock[0])


def test_off_writes_nothing_and_removes_an_old_page(make: Make, tmp_path: Path, clock: list[float]) -> None:
    make(Show.OFF).publish(busy(), private=False)
    assert list(tmp_path.iterdir()) == []
    make(Show.NAMES).publish(busy(), private=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dashboard.html", "usage.json"]
    make(Show.OFF).publish(busy(), private=False)
    assert list(tmp_path.iterdir()) == []


def test_the_page_is_not_written_in_every_cycle(make: Make, tmp_path: Path, clock: list[float]) -> None:
    dashboard, page = make(Show.NAMES), tmp_path / "dashboard.html"
    dashboard.publish(busy(), private=False)
    assert page.stat().st_mode & 0o777 == 0o644
    page.unlink()
    clock[0] = EVERY_S - 1
    dashboard.publish(busy(), private=False)
    assert not page.exists()
    clock[0] = EVERY_S
    dashboard.publish(busy(), private=False)
    assert page.exists()


def test_with_private_jobs_others_cannot_read_the_page(make: Make, tmp_path: Path) -> None:
    for show in (Show.NAMES, Show.ANONYMOUS):
        make(show).publish(busy(), private=True)
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_samples_survive_a_restart(make: Make, tmp_path: Path) -> None:
    status = busy()
    for at in range(3):
        make(Show.ANONYMOUS).publish(replace(status, written=status.written + at * STEP_S), private=False)
    assert len(read_usage(tmp_path).times) == 3
    assert '"usage":{"times":[' in (tmp_path / "dashboard.html").read_text()


def test_an_anonymous_page_has_no_names_of_a_real_queue(make_bench: MakeBench, make: Make, tmp_path: Path) -> None:
    bench = make_bench()
    for gpus in (4, 4, 8, 16):
        bench.slurm.submit(gpus, user="zelda", name="secretproject", account="hyrule")
    bench.cycle(2)
    status = bench.status(bench.slurm.now)
    make(Show.ANONYMOUS).publish(status, private=False)
    text = (tmp_path / "dashboard.html").read_text()
    assert not [word for word in ("zelda", "secretproject", "hyrule") if word in text]
    assert all(json.dumps(job.job_id) in text for job in status.jobs)
    make(Show.NAMES).publish(status, private=False)
    assert "zelda" in (tmp_path / "dashboard.html").read_text()


def test_a_node_that_is_down_is_not_usable(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.slurm.node_state("n1", "IDLE+DRAIN")
    bench.cycle(1)
    assert [(node.name, node.usable) for node in bench.status(bench.slurm.now).nodes if node.name in ("n1", "n2")] == [
        ("n1", False),
        ("n2", True),
    ]
