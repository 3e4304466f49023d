"""A daemon that does not enforce removes leases, pins and site factors from pending jobs."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from slurm_asrpt import switch
from slurm_asrpt.config.settings import Mode, parse_settings
from slurm_asrpt.daemon import disable as disable_module
from slurm_asrpt.daemon.disable import disable as disable_command
from slurm_asrpt.daemon.disable import release_if_gone
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.errors import AsrptError, InputError, SlurmError
from slurm_asrpt.hook.hook_conf import valid_until
from slurm_asrpt.status.document import write_status
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import FakeSlurm

NOBODY = 65534
PINNED_FIELDS = ("min_nodes", "max_nodes", "tasks", "required_nodes", "priority")


def pinned_fields(bench, job_id):
    """The fields of a job that a pin overwrites."""
    return {name: getattr(bench.slurm.records[job_id], name) for name in PINNED_FIELDS}


def switch_mode(bench, mode):
    daemon = bench.settings.daemon.model_copy(update={"mode": mode})
    bench.settings = bench.settings.model_copy(update={"daemon": daemon})
    bench.restart()


def disable(bench):
    bench.mode.disabled = True


def restart_in_shadow(bench):
    switch_mode(bench, Mode.SHADOW)


@pytest.fixture(params=[disable, restart_in_shadow])
def stop_enforcing(request):
    return request.param


def test_all_leases_are_released_in_one_cycle(bench, stop_enforcing):
    blocker = bench.slurm.submit(12)
    bench.cycle(2)
    jobs = [bench.slurm.submit(4) for _ in range(3)]
    bench.cycle(3)
    late = bench.slurm.submit(4)  # leased by the hook, not yet seen by any cycle
    stop_enforcing(bench)
    bench.slurm.writes.clear()
    bench.cycle()
    assert [bench.slurm.records[j].eligible_time <= bench.slurm.now for j in (*jobs, late)] == [True] * 4
    assert {u.job_id for u in bench.slurm.writes} == {*jobs, late}
    assert bench.state(blocker) == "RUNNING"
    written = len(bench.slurm.writes)
    bench.cycle(5)
    assert len(bench.slurm.writes) == written
    assert {e["job"] for e in bench.audit("handed-back")} == {*jobs, late}


def test_a_job_that_slurm_lets_nobody_change_is_released_all_the_same(bench, stop_enforcing):
    """Slurm rejects the update, but has set its begin time."""
    bench.slurm.submit(12)
    bench.cycle(2)
    waiting, over = bench.slurm.submit(4), bench.slurm.submit(4)
    bench.cycle(3)
    bench.slurm.over_limit = {over}
    stop_enforcing(bench)
    bench.cycle(2)
    assert bench.slurm.records[over].eligible_time <= bench.slurm.now
    assert {e["job"] for e in bench.audit("handed-back")} == {waiting, over}
    assert not bench.audit("hand-back-refused")


def test_removing_a_pin_restores_all_fields_it_overwrote(bench, stop_enforcing):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(8, min_nodes=1, max_nodes=3)
    before = pinned_fields(bench, job_id)
    bench.cycle()
    assert bench.slurm.records[job_id].required_nodes
    stop_enforcing(bench)
    bench.cycle()
    assert pinned_fields(bench, job_id) == before
    assert bench.slurm.records[job_id].eligible_time <= bench.slurm.now
    bench.slurm.starts_jobs = True
    bench.cycle(2)
    assert bench.state(job_id) == "RUNNING"
    assert bench.slurm.resized == []


def test_releasing_a_job_that_just_started_does_not_resize_it(bench, stop_enforcing):
    """The job starts between the last read and the removal of its pin."""
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(8)
    bench.cycle()
    stop_enforcing(bench)
    jobs = bench.slurm.jobs

    def jobs_and_a_start():
        found = jobs()
        bench.slurm.jobs, bench.slurm.starts_jobs = jobs, True
        bench.slurm.tick(0)
        return found

    bench.slurm.jobs = jobs_and_a_start
    bench.cycle(2)
    assert bench.state(job_id) == "RUNNING"
    assert bench.slurm.resized == []


def test_holds_dependencies_and_begin_times_of_owners_are_kept(bench, stop_enforcing):
    begin = int(bench.slurm.now) + 5000
    comment = bench.slurm.records[bench.slurm.submit(1)].admin_comment
    held, dependent = bench.slurm.submit(4), bench.slurm.submit(4, reason="Dependency", dependency="afterok:1")
    early, later = bench.slurm.submit(4, admin_comment=f"{comment};b={begin}"), bench.slurm.submit(4)
    bench.slurm.change(early, eligible_time=float(begin))
    bench.slurm.hold(held)
    bench.cycle(2)
    bench.slurm.change(later, eligible_time=bench.slurm.now + 9000)
    bench.cycle(2)
    stop_enforcing(bench)
    bench.cycle()
    records = bench.slurm.records
    assert records[held].priority == 0
    assert records[held].eligible_time <= bench.slurm.now
    assert records[dependent].reason == "Dependency"
    assert records[early].eligible_time == begin
    assert records[later].eligible_time > bench.slurm.now + 8000


def test_releasing_a_lease_restores_the_owners_begin_time(bench):
    begin = bench.slurm.now + 300
    comment = bench.slurm.records[bench.slurm.submit(1)].admin_comment
    job_id = bench.slurm.submit(4, admin_comment=f"{comment};b={begin:.0f}")  # the hook: the later of both
    bench.cycle()
    disable(bench)
    bench.cycle()
    assert bench.slurm.records[job_id].eligible_time == pytest.approx(begin, abs=2)
    assert bench.state(job_id) == "PENDING"


def test_site_factors_are_reset_where_they_were_set(make_bench):
    bench = make_bench(mode="order")
    bench.slurm.starts_jobs = False
    jobs = [bench.slurm.submit(12, leased=False) for _ in range(3)]
    owners = bench.slurm.submit(12, leased=False)
    bench.slurm.change(owners, eligible_time=bench.slurm.now + 7000)
    bench.cycle(2)
    bench.restart()
    disable(bench)
    bench.slurm.writes.clear()
    bench.cycle(3)
    zeroed = [u.job_id for u in bench.slurm.writes if u.fields == {"SiteFactor": "0"}]
    assert set(jobs) <= set(zeroed)
    assert len(zeroed) == len(bench.slurm.writes)
    assert bench.slurm.records[owners].eligible_time > bench.slurm.now + 6000


def test_a_pin_that_slurm_does_not_remove_stays_leased_and_is_retried(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(8)
    bench.cycle()
    disable(bench)
    bench.slurm.errors[job_id] = "Slurm temporarily unable to accept job"
    bench.cycle(2)
    assert bench.slurm.records[job_id].required_nodes
    bench.slurm.errors.clear()
    bench.cycle()
    assert bench.slurm.records[job_id].required_nodes == ""
    assert bench.slurm.records[job_id].eligible_time <= bench.slurm.now


def test_disable_shows_in_the_status_and_enable_resumes_scheduling(bench):
    blocker = bench.slurm.submit(12)
    bench.cycle(2)
    job_id = bench.slurm.submit(12)
    disable(bench)
    bench.cycle(2)
    assert bench.status(bench.slurm.now).mode == "disabled"
    bench.slurm.starts_jobs = False
    bench.slurm.end(blocker)
    bench.cycle(2)
    bench.mode.disabled = False
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.PINNED
    assert bench.slurm.records[job_id].required_nodes
    bench.slurm.starts_jobs = True
    bench.cycle(2)
    assert (bench.state(job_id), bench.slurm.starts[job_id]) == ("RUNNING", 1)


def test_in_shadow_begin_times_of_users_are_never_changed(make_bench):
    """--begin=now+600, as long as a lease would be."""
    bench = make_bench(mode="shadow")
    begin = int(bench.slurm.now) + 600
    comment = bench.slurm.records[bench.slurm.submit(1, leased=False)].admin_comment
    job_id = bench.slurm.submit(4, leased=False, admin_comment=f"{comment};b={begin}")
    bench.slurm.change(job_id, eligible_time=float(begin), state="PENDING", nodes="", gpus_by_node={})
    bench.cycle(3)
    assert bench.slurm.writes == []


def test_the_disable_switch_can_be_set_and_reset(tmp_path):
    assert not switch.is_off(tmp_path)
    assert not switch.turn_on(tmp_path)
    switch.turn_off(tmp_path)
    assert switch.is_off(tmp_path)
    assert switch.turn_on(tmp_path)
    assert not switch.is_off(tmp_path)


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        ("Job is no longer pending execution for job 2", False),
        ("Job has already finished for job 2", False),
        ("Access/permission denied for job 2", True),
    ],
)
def test_only_real_refusals_of_a_release_are_audited(bench, error, refused):
    bench.slurm.submit(12)
    bench.cycle(2)
    waiting = bench.slurm.submit(4)
    bench.cycle(2)
    disable(bench)
    bench.slurm.errors[waiting] = error
    bench.cycle()
    assert [entry["event"] for entry in bench.audit(job_id=waiting) if entry["event"].startswith("hand")] == [
        "hand-back-refused"
    ] * refused


def test_without_a_daemon_disable_releases_the_jobs_itself(bench):
    bench.slurm.now = time.time()
    blocker = bench.slurm.submit(12)
    bench.cycle(2)
    waiting = bench.slurm.submit(4)
    bench.cycle(2)
    bench.slurm.starts_jobs = False
    bench.slurm.end(blocker)
    bench.cycle()
    assert bench.slurm.records[waiting].required_nodes
    bench.stop()
    done = disable_command(bench.settings, bench.slurm, lambda seconds: None)
    assert (done.by, done.jobs, done.refused) == ("asrpt-admin", [waiting], [])
    assert bench.slurm.records[waiting].required_nodes == ""
    again = disable_command(bench.settings, bench.slurm, lambda seconds: None)
    assert again.jobs == []
    assert valid_until((bench.settings.paths.hook / "hook.conf").read_bytes()) <= time.time()
    bench.start()  # the next daemon finds the switch and the history
    bench.mode.disabled = switch.is_off(bench.settings.paths.state)
    bench.slurm.writes.clear()
    bench.cycle(3)
    assert bench.slurm.writes == []


def test_with_a_daemon_disable_waits_for_its_next_cycle(bench, monkeypatch):
    bench.slurm.now = time.time()
    bench.slurm.submit(12)
    bench.cycle(2)
    waiting = bench.slurm.submit(4)
    bench.cycle()

    def a_cycle_passes(seconds):
        bench.mode.disabled = switch.is_off(bench.settings.paths.state)
        bench.cycle()
        write_status(bench.settings.paths.run, bench.status(time.time()))

    done = disable_command(bench.settings, bench.slurm, a_cycle_passes)
    assert (done.by, done.jobs) == ("asrptd", [waiting])
    monkeypatch.setattr(disable_module, "PATIENCE_S", -10.0)  # from here on, asrptd does not answer
    with pytest.raises(AsrptError, match="systemctl stop asrptd"):
        disable_command(bench.settings, bench.slurm, lambda seconds: None)


def test_a_daemon_that_is_gone_is_not_disabled_by_the_release(bench):
    bench.slurm.now = time.time()
    blocker = bench.slurm.submit(12)
    bench.cycle(2)
    waiting = bench.slurm.submit(4)
    bench.cycle(2)
    assert release_if_gone(bench.settings, bench.slurm) is None, "it leads"
    bench.stop()
    done = release_if_gone(bench.settings, bench.slurm)
    assert (done.jobs, done.refused) == ([waiting], [])
    assert bench.slurm.records[waiting].eligible_time <= bench.slurm.now
    assert release_if_gone(bench.settings, bench.slurm).jobs == []
    bench.start()
    assert not switch.is_off(bench.settings.paths.state)
    bench.cycle()
    assert bench.slurm.records[waiting].eligible_time > bench.slurm.now, "the next one takes it over"
    assert bench.state(blocker) == "RUNNING"


def test_a_release_waits_for_slurm_until_the_leases_are_over(bench, monkeypatch):
    bench.cycle()
    bench.stop()
    bench.slurm.answers = False
    asked = []

    def later(seconds):
        asked.append(seconds)
        bench.slurm.answers = len(asked) == 3

    monkeypatch.setattr(disable_module.time, "sleep", later)
    assert release_if_gone(bench.settings, bench.slurm).jobs == []
    assert len(asked) == 3
    bench.slurm.answers = False
    monkeypatch.setattr(disable_module.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(disable_module.time, "monotonic", iter(range(0, 10_000, 500)).__next__)
    with pytest.raises(SlurmError):
        release_if_gone(bench.settings, bench.slurm)


def test_disable_fails_where_asrptd_has_never_run(tmp_path):
    settings = parse_settings({"paths": {"state": str(tmp_path / "none")}}, "test")
    with pytest.raises(InputError, match="has not run here"):
        disable_command(settings, FakeSlurm(), lambda seconds: None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_disable_as_root_keeps_files_writable_for_the_daemons_user():
    folder = Path(tempfile.mkdtemp(prefix="asrpt-own-"))
    folder.chmod(0o755)
    bench = Bench(folder, FakeSlurm(now=time.time()))
    try:
        bench.slurm.submit(12)
        bench.cycle(2)
        waiting = bench.slurm.submit(4)
        bench.cycle()
        bench.stop()
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        assert disable_command(bench.settings, bench.slurm, lambda seconds: None).jobs == [waiting]
        assert os.geteuid() == os.getegid() == 0
        assert {path.stat().st_uid for path in folder.rglob("*")} == {NOBODY}
    finally:
        bench.history.close()
        shutil.rmtree(folder)


def test_a_line_of_the_trail_that_a_crash_has_torn_does_not_hide_who_was_released(tmp_path):
    trail = tmp_path / "audit.jsonl"
    trail.write_text('{"time": 1.0, "event": "handed-back", "job": "1"}\n{"time": 2.0, "eve', encoding="utf-8")
    since = disable_module._TrailSince(trail)
    audit = AuditWriter(tmp_path)
    audit.record(3.0, "handed-back", "7")
    audit.flush()
    assert since.released() == (["7"], [])
