"""A restart: the same order, no job started twice, and no job lost with a damaged state file."""

import errno
import json

import pytest

from slurm_asrpt.daemon import state as store
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.leader import LeaderLock
from slurm_asrpt.daemon.state import SCHEMA, StateStore
from slurm_asrpt.errors import AsrptError, InputError


def queue_order(bench):
    return [str(job_id) for job_id, _ in bench.scheduler.decider.policy.queue(bench.slurm.now)]


def state_file(bench):
    return bench.settings.paths.state / "state.json"


def queue_up(bench, lengths=(500, 20, 900, 100)):
    """A full cluster, and pending jobs of different predicted runtimes."""
    blocker = bench.slurm.submit(12)
    bench.cycle(2)
    jobs = [bench.slurm.submit(12, iterations=n) for n in lengths]
    bench.cycle(3)
    return blocker, jobs


def test_a_restart_resumes_the_same_policy_order(bench):
    queue_up(bench)
    before = queue_order(bench)
    left = bench.scheduler.decider.policy.dump()
    bench.restart()
    bench.cycle()
    assert queue_order(bench) == before
    assert bench.scheduler.decider.policy.dump()["machine"]["jobs"] != []
    assert [j[0] for j in bench.scheduler.decider.policy.dump()["machine"]["jobs"]] == [
        j[0] for j in left["machine"]["jobs"]
    ]


def test_a_restart_keeps_the_service_on_the_virtual_machine(bench):
    blocker, _ = queue_up(bench, lengths=(50, 40))
    bench.cycle(30)
    before = bench.scheduler.decider.policy.dump()["machine"]
    bench.restart()
    bench.cycle()
    after = bench.scheduler.decider.policy.dump()["machine"]
    gpu_seconds = (after["clock"] - before["clock"]) * sum(bench.slurm.sizes)
    lost = {job: left for job, left, _, _ in before["jobs"]}
    served = sum(lost.pop(job) - left for job, left, _, _ in after["jobs"]) + sum(lost.values())
    assert served == pytest.approx(gpu_seconds)
    assert bench.job_state(blocker) is JobState.RUNNING


def test_a_restart_keeps_pins_and_starts_no_job_twice(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle()
    bench.restart()
    bench.cycle()
    assert bench.job_state(job_id) is JobState.PINNED
    assert len(bench.audit("start", job_id)) == 1
    bench.slurm.starts_jobs = True
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING
    assert bench.audit("running", job_id)[0]["as_planned"]


def test_a_pin_from_before_a_restart_is_withdrawn(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle()
    bench.restart()
    bench.cycle(11)
    assert any(w.get("ReqNodeList") == "" for w in bench.writes(job_id))
    assert bench.slurm.records[job_id].required_nodes in ("", "n1")
    assert bench.job_state(job_id) is not JobState.LEFT_TO_SLURM


def test_a_job_with_a_reused_id_inherits_no_state(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle()
    bench.stop()
    bench.slurm.change(job_id, submit_time=bench.slurm.now + 50, required_nodes="", min_nodes=1, max_nodes=0)
    bench.start()
    bench.scheduler.cycle(bench.slurm.now)
    assert len(bench.audit("start", job_id)) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 0}', '{"schema": "2"}', "\x00\xff"])
def test_a_damaged_state_file_is_set_aside_and_the_daemon_starts_fresh(bench, text, caplog):
    blocker, jobs = queue_up(bench)
    bench.stop()
    state_file(bench).write_bytes(text.encode("latin-1"))
    bench.start()
    bench.cycle()
    assert state_file(bench).with_suffix(".damaged").read_bytes() == text.encode("latin-1")
    assert "state.json is damaged and was renamed to " in caplog.text
    assert set(queue_order(bench)) == set(jobs)
    assert bench.job_state(blocker) is JobState.RUNNING


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s.update(jobs=[1, 2]),
        lambda s: s.update(jobs=None),
        lambda s: s["jobs"].update({key: {} for key in s["jobs"]}),
        lambda s: s["jobs"].update(dict.fromkeys(s["jobs"], 7)),
        lambda s: [job.update(pin={"gpus": 3}) for job in s["jobs"].values()],
        lambda s: [job.update(place="nowhere") for job in s["jobs"].values()],
        lambda s: [job.pop("lease_until") for job in s["jobs"].values()],  # written by an older release
        lambda s: s.update(policy=[]),
        lambda s: s.update(policy={}),
        lambda s: s["policy"].pop("fifo"),
        lambda s: s["policy"].update(delays={"1": {"kappa": 1}}),
        lambda s: s["policy"]["machine"].update(jobs=[[1]]),
        lambda s: s["policy"]["machine"].update(clock="yesterday"),
        lambda s: s.update(policy_name="another"),
    ],
)
def test_an_invalid_json_state_loses_no_job(bench, damage):
    blocker, jobs = queue_up(bench)
    bench.stop()
    state = json.loads(state_file(bench).read_text(encoding="utf-8"))
    damage(state)
    state_file(bench).write_text(json.dumps(state), encoding="utf-8")
    bench.start()
    bench.cycle(2)
    assert set(queue_order(bench)) == set(jobs)
    assert all(bench.job_state(j) is JobState.QUEUED for j in jobs)
    assert bench.job_state(blocker) is JobState.RUNNING


def test_jobs_that_came_and_went_while_asrptd_was_down_are_noticed(bench):
    _, jobs = queue_up(bench)
    bench.stop()
    bench.slurm.end(jobs[0], "CANCELLED")
    bench.slurm.forget(jobs[1])
    new = bench.slurm.submit(12, iterations=5)
    bench.start()
    bench.cycle()
    assert set(queue_order(bench)) == {new, *jobs[2:]}


def test_a_run_recorded_before_a_restart_is_not_overwritten(bench):
    job_id = bench.slurm.submit(4, profile="flat")
    bench.cycle(5)
    bench.report(job_id, "77 100\n")
    bench.slurm.end(job_id)
    bench.cycle()
    before = bench.runs()[job_id]
    assert before.iterations == 77
    bench.restart()
    bench.cycle()
    assert bench.runs()[job_id] == before


def test_a_run_that_ended_while_asrptd_was_down_is_recorded(bench):
    job_id = bench.slurm.submit(4, profile="flat")
    bench.cycle(5)
    bench.stop()
    bench.slurm.tick(15)
    bench.slurm.end(job_id)
    bench.start()
    bench.cycle()
    run = bench.runs()[job_id]
    assert run.nodes == {"n1": 4}
    assert run.iterations == 10  # 20 s of 2 s each


def test_a_job_requeued_while_asrptd_was_down_loses_its_node_list(bench):
    job_id = bench.slurm.submit(12)
    bench.cycle(2)
    bench.stop()
    bench.slurm.tick(5)
    bench.slurm.requeue(job_id)
    assert bench.slurm.records[job_id].required_nodes
    bench.slurm.node_state("n1", "DOWN*")
    bench.start()
    bench.cycle(2)
    # Slurm's own pause after a requeue holds it, then the policy
    assert bench.job_state(job_id) is not JobState.LEFT_TO_SLURM
    assert bench.slurm.records[job_id].required_nodes == ""


def test_a_cached_dump_is_replaced_when_a_saved_value_changes(bench):
    job_id = bench.slurm.submit(12)
    bench.cycle()
    job = bench.job(job_id)
    before = job.dump()
    assert job.dump() is before
    job.begin_time_set(5.0)
    assert json.loads(job.dump()) == {**json.loads(before), "begin": 5.0}


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_an_unreadable_state_file_is_not_treated_as_damaged(bench, monkeypatch, number):
    """A file server may recover soon, and only the state file has the fields that pins overwrote."""
    queue_up(bench)
    before = state_file(bench).read_text()
    bench.stop()

    def fails(*_, **__):
        raise OSError(number, "not now")

    with monkeypatch.context() as patch:
        patch.setattr(store.Path, "read_bytes", fails)
        with pytest.raises(AsrptError, match=r"state\.json cannot be read \(not now\)"):
            bench.start()
    bench.leader.close()
    bench.start()
    assert state_file(bench).read_text() == before


def test_an_unchanged_state_is_not_rewritten(tmp_path):
    lead = LeaderLock(tmp_path)
    assert lead.take()
    store = StateStore(lead)
    store.save({}, {}, 1.0)
    before = (tmp_path / "state.json").stat().st_mtime_ns
    store.save({}, {}, 1.0)
    assert (tmp_path / "state.json").stat().st_mtime_ns == before
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600
    store.save({}, {"1": "{}"}, 2.0)
    assert store.load()["jobs"] == {"1": {}}
    lead.close()


def test_the_state_of_an_older_release_is_loaded(bench):
    """Schema 1 had no site factors."""
    queue_up(bench)
    before = queue_order(bench)
    bench.stop()
    state = json.loads(state_file(bench).read_text())
    for job in state["jobs"].values():
        del job["site_factor"]
    state_file(bench).write_text(json.dumps({**state, "schema": 1}))
    bench.start()
    bench.cycle()
    assert queue_order(bench) == before
    assert not bench.audit("job-state-lost")
    assert json.loads(state_file(bench).read_text())["schema"] == SCHEMA


def test_the_state_of_a_later_release_is_refused_and_kept(bench):
    queue_up(bench)
    bench.stop()
    text = json.dumps({"schema": SCHEMA + 1, "jobs": {}})
    state_file(bench).write_text(text)
    with pytest.raises(InputError, match=f"schema {SCHEMA + 1}.*reads up to {SCHEMA}. Install"):
        bench.start()
    assert state_file(bench).read_text() == text
