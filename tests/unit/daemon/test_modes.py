"""Shadow writes nothing, order writes only SiteFactors; recorded runs, the status, and the audit trail."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.config.settings import Mode
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.daemon.writes.order import TOP, new_priorities
from slurm_asrpt.errors import InputError
from slurm_asrpt.history.store import Source
from slurm_asrpt.status.document import read_status, write_status
from tests.benches.daemon import FLAT


def test_shadow_decides_and_writes_nothing(make_bench):
    bench = make_bench(mode="shadow")
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(6, profile="tail", leased=False)
    bench.slurm.submit(12, leased=False)
    bench.slurm.submit(4, leased=False, features="fast")
    bench.cycle(8)
    assert len(bench.audit("start", job_id)) == 1
    bench.cycle(22)
    assert bench.audit("not-followed", job_id)  # Slurm did not start it: its GPUs are not reserved forever
    assert bench.slurm.writes == []
    assert not bench.hosts(job_id).parent.exists()
    bench.slurm.starts_jobs = True
    bench.cycle(2)
    assert len(bench.audit("running", job_id)) == 1


def test_in_shadow_users_do_not_see_that_slurm_did_not_follow(make_bench):
    bench = make_bench(mode="shadow")
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(6, leased=False)
    kinds = set()
    for _ in range(60):
        bench.cycle()
        kinds.add(bench.job(job_id).reason.kind)
    assert len(bench.audit("not-followed", job_id)) > 1
    assert not bench.audit("not-started", job_id)
    assert "not-followed" in kinds
    assert "not-started" not in kinds


def test_enforce_replans_what_shadow_decided(make_bench):
    """The README recommends to go from shadow to enforce: no job may be stuck on a start that was never written."""
    bench = make_bench(mode="shadow")
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(6, leased=False)
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.PINNED
    bench.settings = bench.settings.model_copy(
        update={"daemon": bench.settings.daemon.model_copy(update={"mode": Mode.ENFORCE})}
    )
    bench.slurm.starts_jobs = True
    bench.restart()
    bench.cycle(3)
    assert bench.job_state(job_id) is JobState.RUNNING


def test_order_writes_descending_site_factors_and_nothing_else(make_bench):
    bench = make_bench(mode="order")
    bench.slurm.starts_jobs = False
    jobs = [bench.slurm.submit(12, iterations=n, leased=False) for n in (10**6, 10**3, 10**5)]
    bench.cycle(2)
    assert {key for u in bench.slurm.writes for key in u.fields} == {"SiteFactor"}
    written = {u.job_id: int(u.fields["SiteFactor"]) for u in bench.slurm.writes}
    assert sorted(jobs, key=lambda j: -written[j]) == [jobs[1], jobs[2], jobs[0]]
    count = len(bench.slurm.writes)
    bench.cycle(3)
    assert len(bench.slurm.writes) == count  # the order has not changed


def test_priorities_of_as_few_jobs_as_possible_change():
    first = new_priorities(["a", "b", "c"], {}, {}, 1000)
    assert first["a"] > first["b"] > first["c"]
    assert new_priorities(["b", "c"], first, {}, 1000) == {}
    moved = new_priorities(["c", "a", "b"], first, {}, 1000)
    assert moved.keys() == {"c"}
    assert moved["c"] > first["a"]


@given(
    order=st.permutations([str(number) for number in range(12)]),
    live=st.dictionaries(st.integers(0, 11).map(str), st.integers(1, 3000)),
    step=st.integers(1, 5000),
)
def test_new_priorities_descend_along_the_order(order, live, step):
    changes = new_priorities(order, live, {}, step)
    found = [{**live, **changes}[job_id] for job_id in order]
    assert all(one > other for one, other in pairwise(found))
    assert all(1 <= priority <= TOP for priority in found)
    assert all(changes[job_id] != live[job_id] for job_id in changes.keys() & live.keys())
    assert new_priorities(order, {**live, **changes}, {}, step) == {}


@given(
    order=st.permutations([str(number) for number in range(12)]),
    live=st.dictionaries(st.integers(0, 11).map(str), st.integers(1, 3000)),
    fixed=st.dictionaries(st.integers(0, 11), st.integers(100, 10**9), max_size=3),
)
def test_new_priorities_respect_those_set_by_an_admin(order, live, fixed):
    values = sorted(fixed.values(), reverse=True)
    fixed = {order[at]: priority for at, priority in zip(sorted(fixed), values, strict=True)}
    live = {job_id: priority for job_id, priority in live.items() if job_id not in fixed}
    changes = new_priorities(order, live, fixed, 1000)
    assert not changes.keys() & fixed.keys()
    found = [{**live, **changes, **fixed}[job_id] for job_id in order]
    room = all(one - other > 12 for one, other in pairwise([*values, 1]))
    assert all(one > other for one, other in pairwise(found)) or not room


def test_an_array_has_one_place_in_mode_order(make_bench):
    bench = make_bench(mode="order", policy="asrpt-gated")
    bench.slurm.starts_jobs = False
    long, array, short = (
        bench.slurm.submit(12, iterations=10**6, leased=False),
        bench.slurm.submit(12, iterations=10**5, leased=False, array_tasks="0-3"),
        bench.slurm.submit(12, iterations=10**3, leased=False),
    )
    bench.cycle(2)
    live = {job_id: bench.slurm.records[job_id].priority for job_id in (long, array, short)}
    assert live[short] > live[array] > live[long]
    assert [row.reason for row in bench.status(bench.slurm.now).jobs if row.job_id == array] != ["left"]
    bench.slurm.starts_jobs = True
    bench.cycle(2)
    assert bench.state(short) == "RUNNING"
    bench.slurm.starts_jobs = False
    bench.slurm.end(short)
    bench.cycle(2)
    assert bench.job_state(array) is JobState.PINNED
    bench.slurm.records[array] = replace(bench.slurm.records[array], array_tasks="1-3")
    bench.cycle(1)
    assert bench.job_state(array) in (JobState.QUEUED, JobState.PINNED)
    assert not bench.audit("not-started", array)


def test_reported_iterations_of_a_profiled_job_are_recorded(bench):
    job_id = bench.slurm.submit(4, profile="flat")
    bench.cycle(10)
    folder = bench.report(job_id, "123 1000\n")
    bench.slurm.end(job_id)
    bench.cycle()
    run = bench.runs()[job_id]
    assert (run.iterations, run.iterations_source) == (123, Source.REPORTED)
    assert not folder.exists()


def test_iterations_before_the_checkpoint_are_not_recorded(bench):
    job_id = bench.slurm.submit(4, profile="flat")
    bench.cycle(10)
    bench.report(job_id, "523 1000 0.25 500\n")
    bench.slurm.end(job_id)
    bench.cycle()
    assert (bench.runs()[job_id].iterations, bench.runs()[job_id].iterations_source) == (23, Source.REPORTED)


@pytest.mark.parametrize("text", [None, "", "many 1000", "-5 10", "0 1000", "9" * 30, "40 100 - 40"])
def test_without_a_valid_report_iterations_are_elapsed_time_over_alpha(bench, text):
    job_id = bench.slurm.submit(4, profile="flat")
    bench.cycle(10)
    if text is not None:
        bench.report(job_id, text)
    bench.slurm.end(job_id)
    bench.cycle()
    run = bench.runs()[job_id]
    assert run.alpha == 2.0
    assert (run.iterations, run.iterations_source) == (5, Source.ELAPSED)


def test_an_unprofiled_job_counts_seconds_whatever_it_reports(bench):
    job_id = bench.slurm.submit(4)
    bench.cycle(10)
    bench.report(job_id, "123 1000\n")
    bench.slurm.end(job_id, "FAILED")
    bench.cycle()
    run = bench.runs()[job_id]
    assert (run.iterations, run.state) == (10, "FAILED")


def test_missing_profiles_and_those_for_other_gpu_counts_are_ignored(bench):
    jobs = [bench.slurm.submit(2, profile="flat"), bench.slurm.submit(2, profile="nowhere")]
    bench.cycle(2)
    assert [bench.job(j).job.profiled for j in jobs] == [False, False]
    problems = bench.profiles.problems
    assert "is for 4 GPUs" in problems["flat"][0]
    assert problems["nowhere"] == ["no profile nowhere"]


def test_the_profile_cache_is_bounded():
    loaded = []

    def load(name):
        loaded.append(name)
        if name.startswith("no"):
            raise InputError(f"no profile {name}")
        return FLAT

    profiles = Profiles(load, most=3)
    for name in ("flat", "no1", "no2", "flat", "no3"):
        profiles.get(name, 4)
    assert profiles.problems.keys() == {"no2", "no3"}  # no1 is the least recently used
    assert profiles.get("flat", 4) is FLAT
    assert loaded == ["flat", "no1", "no2", "no3"]
    profiles.get("no1", 4)
    assert loaded[-1] == "no1"
    for number in range(100):
        profiles.get(f"no{number}", 4)
    assert len(profiles.problems) <= 3


def test_a_job_cancelled_before_its_start_is_not_recorded(bench):
    bench.slurm.submit(12)
    waiting = bench.slurm.submit(12)
    bench.cycle(2)
    bench.slurm.end(waiting, "CANCELLED")
    bench.cycle()
    assert waiting not in bench.runs()
    assert not bench.audit("ended", waiting)


def test_untagged_and_unmanaged_jobs_are_not_recorded(bench):
    foreign = bench.slurm.submit(2, partition="other", leased=False, admin_comment="")
    bench.cycle()
    bench.slurm.end(foreign)
    bench.cycle()
    assert bench.runs() == {}


def test_the_status_lists_running_jobs_first_then_pending_ones_by_rank(bench, tmp_path):
    running = bench.slurm.submit(12, iterations=100)
    bench.cycle(120)
    long, short = bench.slurm.submit(12, iterations=10**6), bench.slurm.submit(12, iterations=10**3)
    left = bench.slurm.submit(2, reservation="r", leased=False)
    bench.slurm.starts_jobs = False
    bench.cycle(2)
    status = bench.status(bench.slurm.now)
    rows = {row.job_id: row for row in status.jobs}
    assert status.jobs[0].job_id == running
    assert rows[running].rank is None
    assert rows[running].nodes == {"n1": 4, "n2": 4, "n3": 4}
    assert (rows[short].rank, rows[long].rank) == (1, 2)
    assert rows[short].predicted_run_s == 1000
    assert rows[left].text == "left to Slurm: asrptd does not plan in its reservation"
    assert status.gpus_total == 12
    write_status(tmp_path, status)
    assert read_status(tmp_path) == status
    assert (tmp_path / "status.json").stat().st_mode & 0o777 == 0o644


def test_the_status_shows_progress(bench):
    job_id = bench.slurm.submit(4, profile="flat")
    bench.cycle(2)
    bench.report(job_id, "42 100\n")
    (row,) = bench.status(bench.slurm.now).jobs
    assert (row.iterations_done, row.iterations_total) == (42, 100)
    assert row.alpha == row.alpha_min == 2.0
    assert row.remaining_s == 58 * 2.0


def test_without_reports_the_remaining_time_is_the_predicted_one(bench):
    bench.slurm.submit(4, profile="flat", iterations=10)
    bench.cycle(11)
    (row,) = bench.status(bench.slurm.now).jobs
    assert row.iterations_done is None
    assert row.remaining_s == 20 - (bench.slurm.now - row.start_time)
    bench.cycle(20)
    (row,) = bench.status(bench.slurm.now).jobs
    assert row.remaining_s is None


def test_iterations_of_unprofiled_jobs_are_not_compared_with_seconds(bench):
    job_id = bench.slurm.submit(4, iterations=10)
    bench.cycle(6)
    bench.report(job_id, "5000\n")
    (row,) = bench.status(bench.slurm.now).jobs
    assert (row.iterations_done, row.iterations_total) == (5000, None)
    assert row.remaining_s == 10 - (bench.slurm.now - row.start_time)


def test_every_audit_line_is_a_json_object_with_time_and_event(bench):
    bench.slurm.submit(12)
    bench.slurm.submit(12, profile='no"such')
    bench.cycle(40)
    text = (bench.settings.paths.state / "audit.jsonl").read_text(encoding="utf-8")
    entries = [json.loads(line) for line in text.splitlines()]
    assert {"cluster", "queued", "start", "running"} <= {e["event"] for e in entries}
    assert [e["time"] for e in entries] == sorted(e["time"] for e in entries)
    assert (bench.settings.paths.state / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_wait_is_audited_when_its_reason_changes_not_each_cycle(bench):
    bench.slurm.submit(12)
    bench.cycle(2)
    job_id = bench.slurm.submit(4)
    bench.cycle(20)
    assert len(bench.audit("wait", job_id)) == 1
    assert bench.job_state(job_id) is JobState.QUEUED


def test_a_job_that_slurm_does_not_start_for_weeks_fails_no_cycle(make_bench):
    bench = make_bench(mode="shadow")
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(6, leased=False)
    bench.cycle()
    bench.job(job_id).failures = 5000
    bench.cycle(60)
    assert bench.job(job_id).failures > 5000
