"""Whatever an enforcing or ordering daemon has left on waiting jobs, one that does not enforce takes off again."""

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
from slurm_asrpt.errors import AsrptError, InputError, SlurmError
from slurm_asrpt.hook.hook_conf import valid_until
from slurm_asrpt.status.document import write_status
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import FakeSlurm

NOBODY = 65534
RIGHTS = ("min_nodes", "max_nodes", "tasks", "required_nodes", "priority")


def rights(bench, job_id):
    """What of a job a pin overwrites."""
    return {name: getattr(bench.slurm.records[job_id], name) for name in RIGHTS}


def switch_mode(bench, mode):
    daemon = bench.settings.daemon.model_copy(update={"mode": mode})
    bench.settings = bench.settings.model_copy(update={"daemon": daemon})
    bench.restart()


def disable(bench):
    bench.mode.disabled = True


def after_sigkill(bench):
    switch_mode(bench, Mode.SHADOW)


@pytest.fixture(params=[disable, after_sigkill])
def way_back(request):
    return request.param


def test_leases_are_handed_back_in_one_cycle(bench, way_back):
    blocker = bench.slurm.submit(12)
    bench.cycle(2)
    jobs = [bench.slurm.submit(4) for _ in range(3)]
    bench.cycle(3)
    late = bench.slurm.submit(4)  # leased by the hook, and no cycle has seen it
    way_back(bench)
    bench.slurm.writes.clear()
    bench.cycle()
    assert [bench.slurm.records[j].eligible_time <= bench.slurm.now for j in (*jobs, late)] == [True] * 4
    assert {u.job_id for u in bench.slurm.writes} == {*jobs, late}
    assert bench.state(blocker) == "RUNNING"
    written = len(bench.slurm.writes)
    bench.cycle(5)
    assert len(bench.slurm.writes) == written
    assert {e["job"] for e in bench.audit("handed-back")} == {*jobs, late}


def test_a_pin_comes_off_and_all_it_overwrote_comes_back(bench, way_back):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(8, min_nodes=1, max_nodes=3)
    before = rights(bench, job_id)
    bench.cycle()
    assert bench.slurm.records[job_id].required_nodes
    way_back(bench)
    bench.cycle()
    assert rights(bench, job_id) == before
    assert bench.slurm.records[job_id].eligible_time <= bench.slurm.now
    bench.slurm.starts_jobs = True
    bench.cycle(2)
    assert bench.state(job_id) == "RUNNING"
    assert bench.slurm.resized == []


def test_a_start_meanwhile_is_not_resized(bench, way_back):
    """The job starts between the last look and the undoing of its pin."""
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(8)
    bench.cycle()
    way_back(bench)
    jobs = bench.slurm.jobs

    def and_then_it_starts():
        found = jobs()
        bench.slurm.jobs, bench.slurm.starts_jobs = jobs, True
        bench.slurm.tick(0)
        return found

    bench.slurm.jobs = and_then_it_starts
    bench.cycle(2)
    assert bench.state(job_id) == "RUNNING"
    assert bench.slurm.resized == []


def test_holds_dependencies_and_begin_times_stay_their_owners(bench, way_back):
    begin = int(bench.slurm.now) + 5000
    comment = bench.slurm.records[bench.slurm.submit(1)].admin_comment
    held, dependent = bench.slurm.submit(4), bench.slurm.submit(4, reason="Dependency", dependency="afterok:1")
    early, later = bench.slurm.submit(4, admin_comment=f"{comment};b={begin}"), bench.slurm.submit(4)
    bench.slurm.change(early, eligible_time=float(begin))
    bench.slurm.hold(held)
    bench.cycle(2)
    bench.slurm.change(later, eligible_time=bench.slurm.now + 9000)
    bench.cycle(2)
    way_back(bench)
    bench.cycle()
    records = bench.slurm.records
    assert records[held].priority == 0
    assert records[held].eligible_time <= bench.slurm.now
    assert records[dependent].reason == "Dependency"
    assert records[early].eligible_time == begin
    assert records[later].eligible_time > bench.slurm.now + 8000


def test_a_lease_over_a_begin_time_gives_way_to_it(bench):
    begin = bench.slurm.now + 300
    comment = bench.slurm.records[bench.slurm.submit(1)].admin_comment
    job_id = bench.slurm.submit(4, admin_comment=f"{comment};b={begin:.0f}")  # the hook: the later of both
    bench.cycle()
    disable(bench)
    bench.cycle()
    assert bench.slurm.records[job_id].eligible_time == pytest.approx(begin, abs=2)
    assert bench.state(job_id) == "PENDING"


def test_the_order_is_taken_back_from_those_that_have_it(make_bench):
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


def test_a_pin_that_slurm_keeps_stays_leased_and_is_tried_again(bench):
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


def test_disabled_it_says_so_and_enabled_again_it_plans_anew(bench):
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


def test_what_users_set_in_mode_shadow_is_theirs(make_bench):
    """--begin=now+600, as long as a lease would be."""
    bench = make_bench(mode="shadow")
    begin = int(bench.slurm.now) + 600
    comment = bench.slurm.records[bench.slurm.submit(1, leased=False)].admin_comment
    job_id = bench.slurm.submit(4, leased=False, admin_comment=f"{comment};b={begin}")
    bench.slurm.change(job_id, eligible_time=float(begin), state="PENDING", nodes="", gpus_by_node={})
    bench.cycle(3)
    assert bench.slurm.writes == []


def test_the_switch_is_a_file(tmp_path):
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
def test_what_has_begun_or_ended_meanwhile_was_not_refused(bench, error, refused):
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


def test_without_a_daemon_the_command_does_it_itself(bench):
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
    bench.start()  # the next daemon finds the mark, and what it needs to learn from
    bench.mode.disabled = switch.is_off(bench.settings.paths.state)
    bench.slurm.writes.clear()
    bench.cycle(3)
    assert bench.slurm.writes == []


def test_with_a_daemon_the_command_waits_for_it(bench, monkeypatch):
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
    monkeypatch.setattr(disable_module, "PATIENCE_S", -10.0)  # from here on it does not answer
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


def test_where_asrptd_has_never_run_there_is_nothing_to_hand_back(tmp_path):
    settings = parse_settings({"paths": {"state": str(tmp_path / "none")}}, "test")
    with pytest.raises(InputError, match="has not run here"):
        disable_command(settings, FakeSlurm(), lambda seconds: None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_root_leaves_nothing_that_the_daemons_user_could_not_write():
    folder = Path(tempfile.mkdtemp(prefix="asrpt-own-", dir="/tmp"))
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
