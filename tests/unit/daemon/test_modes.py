"""Shadow writes nothing, order writes only SiteFactors; recorded runs, the status, and the audit trail."""

import json

import pytest

from slurm_asrpt.config.settings import Mode
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.daemon.writes.order import factors
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
    assert bench.audit("not-started", job_id)  # Slurm did not start it: its GPUs are not reserved forever
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
    assert len(bench.audit("not-started", job_id)) > 1
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


def test_site_factors_of_as_few_jobs_as_possible_change():
    first = factors(["a", "b", "c"], {})
    assert first["a"] > first["b"] > first["c"]
    assert factors(["b", "c"], first) == {}
    moved = factors(["c", "a", "b"], first)
    together = {**first, **moved}
    assert together["c"] > together["a"] > together["b"]


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
    assert "is for 4 GPUs" in problems["flat"]
    assert problems["nowhere"] == "no profile nowhere"


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
    assert rows[left].text == "left to Slurm: it runs in a reservation"
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
