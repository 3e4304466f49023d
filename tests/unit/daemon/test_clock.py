"""Clock steps: no job waits for a wrong time, and nothing is written while two clocks disagree."""

import json
import threading

import pytest

from slurm_asrpt.daemon import main, setup
from slurm_asrpt.daemon.clock import ClockStepDetector, check_same_clock
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.leader import wait_to_lead
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.forecast.snapshot import PUBLISHED
from slurm_asrpt.slurm.client import SlurmConfig
from slurm_asrpt.slurm.parse import parse_config_time
from slurm_asrpt.throttle import Throttle
from tests.benches.daemon import make_settings
from tests.benches.fake_slurm import FakeSlurm

HOUR = 3600.0


class Clocks:
    """time.time and time.monotonic of one machine; only the first can step."""

    def __init__(self, now=1_000_000.0):
        self.now, self.stepped = now, 0.0

    def time(self):
        return self.now + self.stepped

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_a_clock_step_is_reported_once_and_drift_is_not():
    clocks = Clocks()
    watch = ClockStepDetector(clocks)
    clocks.now += 5
    assert watch.step() == 0
    clocks.stepped = -HOUR
    assert watch.step() == -HOUR
    assert watch.step() == 0
    clocks.stepped += 1.5
    assert watch.step() == 0
    clocks.stepped += 1.5
    assert watch.step() == 3


@pytest.mark.parametrize(
    ("there", "fits"), [(0.0, True), (1000.0, True), (996.0, True), (900.0, False), (4600.0, False)]
)
def test_slurmctlds_clock_must_agree_with_asrptds(there, fits):
    config = SlurmConfig("22.05.8", "c", False, False, time=there)
    if fits:
        check_same_clock(config, 1000.0)
    else:
        with pytest.raises(SlurmError, match=r"slurmctld's clock differs from asrptd's by [-+]\d+ s"):
            check_same_clock(config, 1000.0)


def test_slurmctlds_time_is_parsed():
    assert parse_config_time("Configuration data as of 1792891800\nA = b\n") == 1792891800
    for text in ("", "Configuration data as of yesterday\n", "x = Configuration data as of 1792891800\n"):
        assert parse_config_time(text) == 0.0


@pytest.fixture
def clocks(monkeypatch):
    clocks = Clocks()
    monkeypatch.setattr(main.time, "time", clocks.time)
    monkeypatch.setattr(main.time, "monotonic", clocks.monotonic)
    return clocks


@pytest.fixture(params=["asrpt", "asrpt-gated"])
def daemon(request, clocks, tmp_path, monkeypatch):
    """asrptd on the host of slurmctld, so that both have the same clock."""
    slurm = FakeSlurm(now=clocks.time())
    monkeypatch.setattr(main, "CliClient", lambda settings: slurm)
    settings, stopping = make_settings(tmp_path, policy=request.param), threading.Event()
    setup.prepare(settings)
    daemon = main.Daemon(settings, wait_to_lead(settings.paths.state, stopping), stopping)
    daemon.run(once=True)
    yield daemon
    daemon.close()


def run_cycles(daemon, clocks, count):
    for _ in range(count):
        daemon.cycle(clocks.time())
        clocks.now += 1
        daemon.client.tick(clocks.time() - daemon.client.now)


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_jobs_are_scheduled_normally_after_a_clock_step(daemon, clocks, step):
    slurm = daemon.client
    blocker = slurm.submit(12)
    run_cycles(daemon, clocks, 2)
    jobs = [slurm.submit(12, iterations=20), slurm.submit(4, iterations=10)]
    run_cycles(daemon, clocks, 3)
    clocks.stepped = step
    slurm.tick(step)
    run_cycles(daemon, clocks, 2)
    leases = [slurm.records[job_id].eligible_time - clocks.time() for job_id in jobs]
    assert all(lease <= 602 for lease in leases)
    slurm.end(blocker)
    for _ in range(2):
        run_cycles(daemon, clocks, 40)
        for job_id in jobs:
            if slurm.records[job_id].state == "RUNNING":
                slurm.end(job_id)
    assert [slurm.records[job_id].state for job_id in jobs] == ["COMPLETED", "COMPLETED"]
    assert dict(slurm.starts) == dict.fromkeys((blocker, *jobs), 1)
    trail = (daemon.settings.paths.state / "audit.jsonl").read_text(encoding="utf-8")
    assert f'"clock-step", "seconds": {step}' in trail


def test_a_pin_that_slurm_ignored_is_withdrawn_after_a_step_back(daemon, clocks):
    slurm = daemon.client
    slurm.starts_jobs = False
    job_id = slurm.submit(4)
    run_cycles(daemon, clocks, 2)
    assert daemon.scheduling.jobs[job_id].state is JobState.PINNED
    clocks.stepped = -HOUR
    slurm.tick(-HOUR)
    run_cycles(daemon, clocks, 14)
    assert any(u.fields.get("ReqNodeList") == "" for u in slurm.writes)


def test_forecasts_continue_after_a_step_back(daemon, clocks):
    """Otherwise what-ifs would start an hour ahead, and no job would get an estimate for an hour."""
    slurm = daemon.client
    slurm.submit(12)
    slurm.submit(12)
    run_cycles(daemon, clocks, 3)
    clocks.stepped = -HOUR
    slurm.tick(-HOUR)
    run_cycles(daemon, clocks, 2)
    run_cycles(daemon, clocks, 130)
    published = json.loads((daemon.settings.paths.run / PUBLISHED).read_text(encoding="utf-8"))
    assert clocks.time() - 70 < published["now"] <= clocks.time()


def test_nothing_is_written_while_the_clocks_differ(daemon, clocks, monkeypatch):
    """asrptd on another host than slurmctld."""
    slurm = daemon.client
    config = slurm.config
    monkeypatch.setattr(slurm, "config", lambda: SlurmConfig("22.05.8", "c", False, False, time=clocks.now))
    job_id = slurm.submit(4)
    before = len(slurm.writes)
    clocks.stepped = -HOUR
    for _ in range(3):
        with pytest.raises(SlurmError, match=r"slurmctld's clock differs from asrptd's by \+3600 s"):
            daemon.cycle(clocks.time())
    assert len(slurm.writes) == before
    clocks.stepped = 0.0
    run_cycles(daemon, clocks, 2)
    assert slurm.records[job_id].state == "RUNNING"
    assert config().version == "22.05.8"


def test_leases_are_no_owners_begin_times_where_slurm_shows_its_settings_slowly(daemon, clocks, monkeypatch):
    """All cycles look at them here. A lease counts from when Slurm reads it."""
    slurm = daemon.client
    config = slurm.config

    def slowly():
        clocks.now += 30
        slurm.tick(30)
        return config()

    monkeypatch.setattr(slurm, "config", slowly)
    daemon.conf_throttle = Throttle(lambda: 0.0)
    slurm.submit(12)
    run_cycles(daemon, clocks, 1)
    job_id = slurm.submit(12)
    for _ in range(30):
        run_cycles(daemon, clocks, 1)
        assert daemon.scheduling.jobs[job_id].not_before == 0.0


def test_a_step_back_during_a_cycle_does_not_lengthen_the_pause(daemon, clocks):
    began = clocks.time()
    clocks.stepped = -HOUR
    assert daemon.pause_s(began, None, 0) == daemon.settings.daemon.interval_s


def test_a_saved_queue_from_the_future_is_loaded_after_a_step_back(bench):
    bench.slurm.submit(12)
    bench.cycle(2)
    jobs = [bench.slurm.submit(12, iterations=n) for n in (30, 20)]
    bench.cycle(2)
    bench.stop()
    bench.slurm.tick(-HOUR)
    bench.start()
    bench.cycle(2)
    assert {str(job_id) for job_id, _ in bench.scheduler.decider.policy.queue(bench.slurm.now)} == set(jobs)
    machine = bench.scheduler.decider.policy.dump()["machine"]
    assert machine["clock"] <= bench.slurm.now


def test_a_daemon_waits_until_slurmctlds_clock_agrees(daemon, clocks, monkeypatch):
    slurm, asked = daemon.client, []

    def config():
        asked.append(clocks.time())
        return SlurmConfig("22.05.8", "c", False, False, time=clocks.now if len(asked) > 2 else 5.0)

    monkeypatch.setattr(slurm, "config", config)
    monkeypatch.setattr(daemon.wakeups, "sleep", lambda *_: daemon.stopping.set() if len(asked) > 2 else None)
    job_id = slurm.submit(4)
    daemon.run()
    assert len(asked) == 3
    assert job_id in daemon.scheduling.jobs
