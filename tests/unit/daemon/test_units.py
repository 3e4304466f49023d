"""Units of predictions, from a job's end to the next job: history, retraining, table, hook, tag, asrptd."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator

import pytest

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.core.job import JobProfile, Stage
from slurm_asrpt.core.units import Unit
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.history.store import Run, Source
from slurm_asrpt.hook.hook_conf import write_hook_conf
from slurm_asrpt.hook.table import render_table
from slurm_asrpt.hook.tag import Tag, parse_tag
from slurm_asrpt.predict.retrain import retrain
from tests.benches import daemon as module
from tests.benches.daemon import Bench
from tests.benches.lua_hook import INTERPRETERS, LuaHook

UID, ALPHA = 1001, 0.0275  # seconds per iteration of profile "quick"
QUICK = JobProfile("quick", (Stage(4, 0.01, 0.0175),))
SLOW = JobProfile("slow", (Stage(4, 0.1, 0.175),))

pytestmark = pytest.mark.skipif(not INTERPRETERS, reason="no lua5.1, lua5.3 or lua5.4 on PATH")


@pytest.fixture(autouse=True)
def profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.KNOWN, "quick", QUICK)
    monkeypatch.setitem(module.KNOWN, "slow", SLOW)


@pytest.fixture(scope="module", params=INTERPRETERS)
def lua(request: pytest.FixtureRequest) -> Iterator[LuaHook]:
    hook = LuaHook(request.param)
    yield hook
    hook.close()


class Site:
    """A daemon, and the hook that tags its jobs."""

    def __init__(self, bench: Bench, lua: LuaHook) -> None:
        self.bench, self._lua, self.hook = bench, lua, bench.settings.paths.hook
        bench.slurm.now = float(int(time.time()))
        (self.hook / "table.txt").write_bytes(render_table({}))

    def submit(self, script: str, profile: str = "") -> str:
        """Submit a job of 4 GPUs as user 1001. Its name is that of its script, so each script is a group."""
        write_hook_conf(self.hook, ["gpu"], 600, time.time() + 600, GroupSettings())
        text, comment = f"#!/bin/bash\npython {script}.py\n", f"asrpt:profile={profile}"
        asked: dict[str, str | int] = {"name": script, "script": text, "user_id": UID, "tres_per_job": "gres:gpu:4"}
        asked |= {"comment": comment} if profile else {}
        found = self._lua.submit(self.hook, argc=1, argv="", begin_time=0, **asked)
        assert found["log_error"] == []
        (tag,) = (text.partition("=")[2] for text in found["set"] if text.startswith("admin_comment="))
        return self.bench.slurm.submit(4, admin_comment=tag)

    def run(self, script: str, seconds: int, profile: str = "", reported: int = 0) -> Run:
        """Run a job to its end. reported: the iterations that it reports."""
        bench, job_id = self.bench, self.submit(script, profile)
        self.start(job_id)
        bench.slurm.tick(seconds - (bench.slurm.now - bench.slurm.records[job_id].start_time))
        if reported:
            bench.report(job_id, f"{reported} {reported}\n")
        bench.slurm.end(job_id)
        bench.cycle()
        return bench.runs()[job_id]

    def start(self, job_id: str) -> None:
        for _ in range(10):
            self.bench.cycle()
            if job_id in self.bench.scheduling.jobs and self.bench.job_state(job_id) is JobState.RUNNING:
                return
        pytest.fail(f"job {job_id} does not start")

    def retrain(self) -> None:
        retrain(self.bench.settings, self.bench.slurm.now)

    def tag(self, job_id: str) -> Tag:
        tag = parse_tag(self.bench.slurm.records[job_id].admin_comment)
        assert tag is not None
        return tag

    def predicted_s(self, job_id: str) -> float:
        """The median of a pending job's predicted runtime, seconds; users see the mean, which orders the queue."""
        self.bench.cycle()
        job = self.bench.job(job_id).job
        assert job is not None
        row = next(row for row in self.bench.status(self.bench.slurm.now).jobs if row.job_id == job_id)
        assert (row.predicted_mean or row.predicted_iterations) == job.predicted_iterations
        alpha = row.alpha or row.alpha_min or 0.0
        assert (row.predicted_run_s or 0.0) == (row.predicted_mean or row.predicted_iterations) * alpha
        return row.predicted_iterations * alpha


@pytest.fixture
def site(make_bench: Callable[..., Bench], lua: LuaHook) -> Site:
    return Site(make_bench((4, 4, 4, 4), policy="fifo"), lua)


def test_seconds_are_predicted_for_a_job_without_a_profile_of_a_user_whose_jobs_report_iterations(site: Site) -> None:
    site.run("one", 55, "quick", reported=2000)
    run = site.run("two", 110, "quick", reported=4000)
    assert (run.iterations, run.iterations_source) == (4000, Source.REPORTED)
    assert (run.work_s, run.iterations_of) == (110, "quick")
    site.retrain()
    job_id = site.submit("other")
    assert (site.tag(job_id).iterations, site.tag(job_id).level) == (110, "user")
    assert site.predicted_s(job_id) == 110


def test_iterations_are_predicted_for_a_job_with_a_profile_of_a_user_without(site: Site) -> None:
    for script, seconds in (("one", 55), ("two", 110)):
        run = site.run(script, seconds)
        assert (run.iterations, run.work_s, run.iterations_of) == (seconds, seconds, "")
    site.retrain()
    job_id = site.submit("other", "quick")
    assert (site.tag(job_id).iterations, site.tag(job_id).level, site.tag(job_id).unit) == (110, "user", Unit.SECONDS)
    assert site.predicted_s(job_id) == pytest.approx(110, abs=ALPHA)
    run = site.run("other", 90, "quick", reported=3272)
    assert (run.predicted_iterations, run.predicted_by) == (4000, "user")


def test_a_group_with_a_profile_counts_iterations(site: Site) -> None:
    site.run("one", 60, "quick", reported=2000)
    site.retrain()
    job_id = site.submit("one", "quick")
    assert (site.tag(job_id).iterations, site.tag(job_id).unit) == (2000, Unit.ITERATIONS)
    assert site.predicted_s(job_id) == pytest.approx(55)


def test_a_group_with_and_without_its_profile(site: Site) -> None:
    site.run("one", 55, "quick", reported=2000)
    site.retrain()
    job_id = site.submit("one")
    assert (site.tag(job_id).iterations, site.tag(job_id).level) == (55, "group")
    assert site.predicted_s(job_id) == 55
    site.run("two", 110)
    site.retrain()
    job_id = site.submit("two", "quick")
    assert (site.tag(job_id).iterations, site.tag(job_id).level, site.tag(job_id).unit) == (110, "group", Unit.SECONDS)
    assert site.predicted_s(job_id) == pytest.approx(110, abs=ALPHA)


def test_iterations_of_another_profile_are_converted(site: Site) -> None:
    site.run("one", 55, "slow", reported=200)
    site.retrain()
    assert site.predicted_s(site.submit("one", "quick")) == pytest.approx(55, abs=ALPHA)


def test_a_job_whose_profile_cannot_be_used_is_predicted_in_seconds(site: Site) -> None:
    run = site.run("one", 55, "lost", reported=2000)
    assert (run.profile, run.iterations, run.work_s, run.iterations_of) == ("lost", 55, 55, "")
    site.retrain()
    assert site.predicted_s(site.submit("one", "lost")) == 55


def test_iterations_of_a_profile_that_can_no_longer_be_used_are_no_prediction(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.run("one", 55, "quick", reported=2000)
    site.retrain()
    monkeypatch.delitem(module.KNOWN, "quick")
    site.bench.restart()
    job_id = site.submit("one", "quick")
    assert site.tag(job_id).iterations == 2000
    assert site.predicted_s(job_id) == 0


def test_runs_of_earlier_releases_count_their_elapsed_time(site: Site) -> None:
    """Neither work nor the unit was recorded."""
    site.run("one", 55, "quick", reported=2000)
    site.run("two", 110, "quick")
    site.run("three", 70, "lost", reported=2000)
    site.run("four", 30)
    with sqlite3.connect(site.bench.history.path) as connection:
        connection.execute("UPDATE runs SET work_s = 0, iterations_of = ''")
    site.retrain()
    pairs = [("one", 55), ("two", 110), ("three", 70), ("four", 30)]
    assert [site.predicted_s(site.submit(script)) for script, _ in pairs] == [seconds for _, seconds in pairs]
    tags = {script: site.tag(site.submit(script, "quick")) for script, _ in pairs}
    assert {script: (tag.iterations, tag.unit) for script, tag in tags.items()} == {
        "one": (2000, Unit.ITERATIONS),
        "two": (4000, Unit.ITERATIONS),
        "three": (70, Unit.SECONDS),
        "four": (30, Unit.SECONDS),
    }


def test_the_hook_reads_a_table_of_the_former_release_as_that_did(site: Site) -> None:
    site.run("one", 110, "quick", reported=4000)
    site.retrain()
    path = site.hook / "table.txt"
    path.write_bytes(path.read_bytes().replace(b"asrpt-table 5 ", b"asrpt-table 4 ", 1))
    tag = site.tag(site.submit("one"))
    assert (tag.iterations, tag.unit, tag.level) == (110, Unit.ITERATIONS, "group")
    tag = site.tag(site.submit("two", "quick"))
    assert (tag.iterations, tag.unit, tag.level) == (110, Unit.ITERATIONS, "user")  # as stored, with no unit


def test_a_prediction_in_seconds_survives_a_restart(site: Site) -> None:
    site.run("one", 110)
    site.retrain()
    job_id = site.submit("two", "quick")
    site.start(job_id)
    before = site.bench.job(job_id).prediction
    assert before is not None
    assert before.iterations == 4000
    site.bench.restart()
    site.bench.cycle()
    assert site.bench.job(job_id).job is None  # a running job is not admitted again
    assert site.bench.job(job_id).prediction == before
