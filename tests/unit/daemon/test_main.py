"""asrptd's loop: it continues after failures with growing pauses, informs the hook, and ends cleanly."""

import logging
import signal
import time
from pathlib import Path
from threading import Event

import pytest
from slurm_asrpt_cli import asrptd

from slurm_asrpt import __version__
from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.config.settings import PolicySettings, SlurmSettings, parse_settings
from slurm_asrpt.core.job import UNPROFILED
from slurm_asrpt.core.policies import registry
from slurm_asrpt.core.policies.asrpt.options import AsrptOptions
from slurm_asrpt.core.policies.queue_policy import QueuePolicy
from slurm_asrpt.core.policies.registry import policy_class, policy_names
from slurm_asrpt.daemon import main, maintenance, published, setup
from slurm_asrpt.daemon.clock import MAX_PAUSE_S, MAX_RETRY_PAUSE_S, pause_after
from slurm_asrpt.daemon.leader import wait_to_lead
from slurm_asrpt.daemon.main import Daemon
from slurm_asrpt.daemon.maintenance import Maintenance
from slurm_asrpt.errors import AsrptError, InputError, SlurmError, as_one
from slurm_asrpt.history.maintenance import DAY_S
from slurm_asrpt.history.store import FILE_NAME as HISTORY_FILE
from slurm_asrpt.history.store import History, HistoryError, Run
from slurm_asrpt.profile.schema import LIBRARY
from slurm_asrpt.status.document import read_status
from slurm_asrpt.throttle import Throttle
from tests.benches.daemon import make_settings
from tests.benches.fake_slurm import FakeSlurm


@pytest.fixture
def slurm():
    return FakeSlurm()


@pytest.fixture
def make_daemon(slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(main, "CliClient", lambda settings: slurm)
    made = []

    def make(**settings):
        chosen, stopping = make_settings(tmp_path, **settings), Event()
        setup.prepare(chosen)
        made.append(Daemon(chosen, wait_to_lead(chosen.paths.state, stopping), stopping))
        made[-1].published.status_throttle = Throttle(lambda: 0.0)  # a status after each cycle, on slow machines, too
        return made[-1]

    yield make
    for daemon in made:
        daemon.close()


def run_cycles(daemon, outcomes):
    """Run the loop with one cycle for each outcome: None or an exception. Returns the pauses."""
    pauses, left = [], list(outcomes)

    def cycle(now):
        outcome = left.pop(0)
        if not left:
            daemon.stopping.set()
        if outcome is not None:
            raise outcome

    daemon.wakeups.sleep = lambda pause_s, least_s, stopping: pauses.append(pause_s)
    daemon.cycle = cycle
    daemon.run()
    assert left == []
    return pauses


def test_a_damaged_history_is_set_aside_and_the_daemon_continues(make_daemon, tmp_path, caplog):
    path = tmp_path / "state" / HISTORY_FILE
    path.parent.mkdir()
    path.write_bytes(b"rubbish" * 1000)
    daemon = make_daemon()
    assert f"{path} is damaged" in caplog.text
    daemon.run(once=True)
    assert daemon.history.history.runs() == []
    assert [aside.read_bytes() for aside in path.parent.glob("*.damaged-*")] == [b"rubbish" * 1000]


def test_conformal_adjustments_are_restored_from_the_history(make_daemon, tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    missed = {"state": "COMPLETED", "predicted_low": 80, "predicted_iterations": 100, "predicted_high": 120}
    with History(tmp_path / "state" / HISTORY_FILE) as history:
        ended = int(time.time()) - DAY_S
        history.record(Run(str(n), n, end_time=ended + n, uid=7, iterations=900, **missed) for n in range(1, 20))
    daemon = make_daemon()
    daemon.run(once=True)
    assert 800 < daemon.recent.run_adjustment.adjusted(7, 80, 100, 120)[1] <= 900 + 1e-6


def test_old_runs_are_dropped_once_a_day(make_daemon, monkeypatch, caplog):
    daemon = make_daemon()
    predict = daemon.settings.predict.model_copy(update={"keep_days": 10})
    settings = daemon.settings.model_copy(update={"predict": predict})
    daemon.maintenance = Maintenance(settings, daemon.history, daemon.progress)
    daemon.run(once=True)
    now = time.time() + 100 * DAY_S
    for hour, left in ((0, 1), (1, 2), (24, 1), (23, 1)):  # the last one: the clock was set back
        daemon.history.history.record([Run(f"old-{hour}", 1, end_time=1), Run("new", 1, end_time=int(now))])
        daemon.cycle(now + 3600 * hour)
        assert daemon.history.history.count("1", ()) == left
    monkeypatch.setattr(maintenance, "prune", history_is_locked)
    daemon.cycle(now + 50 * 3600)
    assert "locked; retrying tomorrow" in caplog.text


def history_is_locked(*_):
    raise HistoryError("locked")


def hook_lines(daemon):
    return (daemon.settings.paths.hook / "hook.conf").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("error", [SlurmError("away"), ValueError("a bug"), OSError(28, "no space")])
def test_a_failed_cycle_does_not_end_the_loop(make_daemon, error):
    pauses = run_cycles(make_daemon(), [error, None, error, None])
    assert len(pauses) == 4
    assert pauses[0] == pauses[2] == 2.0


@pytest.mark.parametrize(("cost", "pause"), [(0.1, 3.0), (1.0, 3.0), (2.0, 6.0), (300.0, MAX_PAUSE_S)])
def test_an_expensive_cycle_is_followed_by_a_longer_pause(make_daemon, monkeypatch, cost, pause):
    daemon, spent = make_daemon(interval_s=5.0), [100.0]
    daemon.run(once=True)
    began, since = time.time(), time.monotonic()
    monkeypatch.setattr(main.time, "time", lambda: began + 2.0)
    monkeypatch.setattr(main.time, "monotonic", lambda: since + 2.0)
    monkeypatch.setattr(main, "cpu_s", lambda: spent[0])
    monkeypatch.setattr(main.os, "sched_getaffinity", lambda pid: {0, 1})

    def costly(now):
        spent[0] += cost

    daemon.scheduling.scheduler.cycle = costly
    daemon.scheduling.scheduler.between_cycles = lambda pause_s: None
    daemon.cycle(began)
    assert daemon.pause_s(began, None, 0) == pytest.approx(pause)
    assert daemon.pause_s(began, began + 2.0, 0) == pytest.approx(max(1.0, 3 * cost if cost < 10 else pause))


@pytest.mark.parametrize(("cores", "pause"), [(1, 14.0), (2, 6.0), (4, 2.0), (8, 0.0), (64, 0.0)])
def test_cycles_use_at_most_an_eighth_of_the_machine(cores, pause):
    assert pause_after(2.0, cores) == pytest.approx(pause)


def test_pauses_grow_with_failures_up_to_a_minute(make_daemon):
    pauses = run_cycles(make_daemon(), [SlurmError("away")] * 9)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60, 60]


@pytest.mark.parametrize("error", [SlurmError("away"), ValueError("a bug")])
def test_with_once_errors_are_raised(make_daemon, error):
    daemon = make_daemon()

    def fail(now):
        raise error

    daemon.cycle = fail
    with pytest.raises(type(error)):
        daemon.run(once=True)


def test_one_cycle_writes_status_and_hook_conf(make_daemon, slurm):
    job_id = slurm.submit(4)
    daemon = make_daemon()
    daemon.run(once=True)
    status = read_status(daemon.settings.paths.run)
    assert ([row.job_id for row in status.jobs], status.release) == ([job_id], __version__)
    assert "lease_s=600" in hook_lines(daemon)


@pytest.mark.parametrize(("show", "there"), [("off", False), ("anonymous", True), ("names", True)])
def test_the_dashboard_is_written_as_its_setting_says(make_daemon, slurm, show, there):
    slurm.submit(4, user="zelda")
    daemon = make_daemon(dashboard=show)
    daemon.run(once=True)
    page = daemon.settings.paths.run / "dashboard.html"
    assert page.exists() is there
    assert (there and "zelda" in page.read_text()) is (show == "names")


def test_an_expensive_status_is_not_written_in_every_cycle(make_daemon, slurm, monkeypatch):
    slurm.submit(4)
    daemon, clock, shown = make_daemon(), [0.0], []
    daemon.run(once=True)

    def slowly(*_, **__):
        shown.append(clock[0])
        clock[0] += 1.0

    monkeypatch.setattr("slurm_asrpt.daemon.published.write_status", slowly)
    daemon.published.status_throttle = Throttle(lambda: clock[0])
    for _ in range(30):
        daemon.cycle(slurm.now)
        clock[0] += 1.0
    assert shown == [0.0, 10.0, 20.0, 30.0]


@pytest.mark.parametrize("what", ["write_status", "write_hook_conf"])
def test_scheduling_continues_when_status_or_hook_conf_cannot_be_written(make_daemon, slurm, monkeypatch, caplog, what):
    """Otherwise each cycle would fail, with longer and longer pauses."""
    daemon = make_daemon()

    def full(*_, **__):
        raise OSError(28, "No space left on device", "there")

    monkeypatch.setattr(published, what, full)
    daemon.run(once=True)
    job_id, new = slurm.submit(4), []
    slurm.catch_up = lambda: new.append(True)
    for _ in range(3):
        daemon.cycle(slurm.now)
    assert slurm.records[job_id].state == "RUNNING"
    assert new == [True] * 3
    assert caplog.text.count("No space left") == 1
    monkeypatch.undo()
    daemon.cycle(slurm.now)
    assert (daemon.settings.paths.hook / "hook.conf").exists()
    assert read_status(daemon.settings.paths.run).jobs


@pytest.mark.parametrize("mode", ["shadow", "order"])
def test_only_enforce_lets_the_hook_lease(make_daemon, slurm, mode):
    slurm.multifactor = True
    daemon = make_daemon(mode=mode)
    daemon.run(once=True)
    assert "lease_s=0" in hook_lines(daemon)


def test_mode_order_needs_multifactor(make_daemon):
    with pytest.raises(InputError, match="multifactor"):
        make_daemon(mode="order").run()


def test_fairshare_bands_need_fair_share_and_a_policy_with_bands(make_daemon, slurm):
    with pytest.raises(InputError, match=r"fairshare_bands: requires .* and slurmdbd"):
        make_daemon(policy="asrpt-gated", fairshare_bands=4).run()
    slurm.multifactor, slurm.shares = True, {("ann", "lab"): 0.5}
    with pytest.raises(InputError, match=r"fairshare_bands: asrpt does not support bands; use asrpt-gated"):
        make_daemon(policy="asrpt", fairshare_bands=4)


def pauses_at_startup(daemon, slurm, answers_after, stop_after=None):
    """Start on a Slurm that does not answer the first requests, and run one cycle. Returns the pauses."""
    pauses = []

    def sleep(pause_s, least_s, stopping):
        assert least_s == pause_s or slurm.answers, "a submission does not wake one who waits for slurmctld"
        pauses.append(pause_s)
        slurm.answers = len(pauses) >= answers_after
        if len(pauses) == stop_after:
            stopping.set()

    slurm.answers = False
    daemon.wakeups.sleep = sleep
    cycle = daemon.cycle

    def last_cycle(now):
        daemon.stopping.set()
        return cycle(now)

    daemon.cycle = last_cycle
    daemon.run()
    return pauses


def test_asrptd_waits_for_slurm_at_startup(make_daemon, slurm, caplog):
    job_id = slurm.submit(4)
    daemon = make_daemon()
    assert pauses_at_startup(daemon, slurm, answers_after=3)[:3] == [2, 4, 8]
    said = [record.message for record in caplog.records if "does not answer yet" in record.message]
    assert said[0] == "Slurm does not answer yet (squeue failed: slurmctld is away); retrying in 2 s"
    assert len(said) == 3
    assert [row.job_id for row in read_status(daemon.settings.paths.run).jobs] == [job_id]


def test_while_waiting_for_slurm_asrptd_writes_no_hook_conf_and_can_be_stopped(make_daemon, slurm):
    daemon = make_daemon()
    assert pauses_at_startup(daemon, slurm, answers_after=99, stop_after=7) == [2, 4, 8, 16, 32, 60, 60]
    assert not (daemon.settings.paths.hook / "hook.conf").exists()


def test_with_once_asrptd_does_not_wait_for_slurm(make_daemon, slurm):
    daemon = make_daemon()
    slurm.answers = False
    with pytest.raises(SlurmError, match="away"):
        daemon.run(once=True)


def test_a_daemon_reads_profiles_by_name_only(make_daemon, tmp_path):
    """A tag can name no file outside of the profile directories."""
    text = (LIBRARY / "vgg19-dp4.toml").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    profiles = make_daemon().profiles
    assert profiles.get("vgg19-dp4", 4).name == "vgg19-dp4"
    for name in (str(tmp_path / "mine.toml"), "../mine", "./mine.toml"):
        assert profiles.get(name, 4).name == UNPROFILED
        assert "is not a valid profile name" in profiles.problems[name][0]


def test_all_errors_of_an_unusable_profile_are_logged_once(make_daemon, caplog):
    daemon = make_daemon()
    several = as_one([InputError("a.toml: batch: \x1b"), InputError("a.toml: name: no")])
    daemon.profiles._load = lambda name: (_ for _ in ()).throw(several)
    daemon.profiles.get("a", 2)
    for _ in range(2):
        daemon._log_profile_problems()
    said = [record.message for record in caplog.records if "a.toml" in record.message]
    assert said == [r"a.toml: batch: \x1b", "a.toml: name: no; its jobs count as unprofiled"]


def test_a_clean_stop_makes_the_hook_lease_no_more_jobs(make_daemon):
    daemon = make_daemon()
    daemon.run(once=True)
    daemon.close()
    assert "lease_s=0" in hook_lines(daemon)


def test_a_failed_cycle_writes_no_hook_conf(make_daemon, slurm):
    """Otherwise the hook would lease jobs that nobody schedules."""
    daemon = make_daemon()
    slurm.answers = False
    with pytest.raises(SlurmError):
        daemon.run(once=True)
    assert not (daemon.settings.paths.hook / "hook.conf").exists()


def test_an_unknown_policy_is_an_error_that_lists_the_known_ones(tmp_path, slurm, monkeypatch):
    monkeypatch.setattr(main, "CliClient", lambda settings: slurm)
    settings = make_settings(tmp_path)
    wrong = settings.model_copy(update={"policy": settings.policy.model_copy(update={"name": "lottery"})})
    with pytest.raises(AsrptError, match=r"policy\.name: no policy is called 'lottery'; known: .*asrpt"):
        setup.prepare(wrong)


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_can_be_configured_by_name(name):
    """Each policy takes the settings that it knows."""
    settings = parse_settings({"policy": {"name": name, "tau": 3.0}}, "test")
    assert setup.configured_policy(settings).next_wakeup(0.0) is None


@pytest.mark.parametrize("name", sorted({*policy_names()} - {"slurm-backfill"}))  # its settings are Slurm's own
def test_policy_options_and_settings_have_the_same_types_and_defaults(name):
    """Otherwise asrptd and the simulator would run different policies under one name."""
    section = PolicySettings.model_fields
    for key, field in policy_class(name).Options.model_fields.items():
        assert repr(section[key]) == repr(field)


def test_the_default_policy_exists():
    assert PolicySettings().name == DEFAULT_POLICY
    assert DEFAULT_POLICY in policy_names()


class Picky(QueuePolicy):
    Options = AsrptOptions

    def __init__(self, fabric, options):
        raise ValueError("tau is too large")


def test_an_option_that_a_policy_refuses_is_an_input_error(monkeypatch):
    monkeypatch.setattr(registry, "BUILT_IN", {"picky": f"{__name__}:Picky"})
    with pytest.raises(InputError, match="policy: tau is too large"):
        setup.configured_policy(parse_settings({"policy": {"name": "picky"}}, "test"))


@pytest.mark.parametrize(
    ("choice", "fits", "taken"), [("auto", True, True), ("auto", False, False), ("cli", True, False)]
)
def test_pyslurm_is_used_if_it_matches_and_the_settings_allow_it(make_daemon, slurm, monkeypatch, choice, fits, taken):
    quicker = FakeSlurm()

    def load(settings, version):
        if not fits:
            raise SlurmError(f"pyslurm 1.2.3 does not match Slurm {version}")
        return quicker

    monkeypatch.setattr(setup.pyslurm, "load", load)
    daemon = make_daemon()
    daemon.settings = daemon.settings.model_copy(update={"slurm": SlurmSettings(client=choice)})
    used = quicker if taken else slurm
    job_id = used.submit(4)
    daemon.run(once=True)
    assert daemon.client is used
    assert list(daemon.scheduling.jobs) == [job_id]


def test_a_hangup_does_not_end_asrptd(caplog):
    stopping = Event()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    try:
        main.stop_on_signals(stopping)
        signal.raise_signal(signal.SIGHUP)
        assert not stopping.is_set()
        assert "settings are read when asrptd starts" in caplog.text
        signal.raise_signal(signal.SIGTERM)
        assert stopping.is_set()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_it_asks_again_after_days_without_slurm(make_daemon):
    assert make_daemon(interval_s=5.0).pause_s(0.0, None, 5000) == MAX_RETRY_PAUSE_S


def test_host_files_of_jobs_that_ended_unseen_are_removed(make_daemon, slurm, tmp_path):
    hosts, running = tmp_path / "spool" / "hosts", slurm.submit(1)
    daemon = make_daemon()
    for name in ("4711", "4712.wait", running, "notes"):
        (hosts / name).write_text("n1\n")
    daemon.run(once=True)
    assert {path.name for path in hosts.iterdir()} == {running, "notes"}


def test_trouble_with_a_file_is_logged_again_when_it_comes_back(caplog):
    files = published.OptionalFiles()
    for trouble in (True, True, False, True):
        with files.writing(Path("/run/asrpt"), "status.json"):
            if trouble:
                raise OSError(28, "No space left on device")
    assert caplog.text.count("/run/asrpt/status.json cannot be written") == 2


@pytest.mark.parametrize(("mode", "leases"), [("enforce", True), ("shadow", False)])
def test_the_last_line_of_the_log_names_leases_only_if_there_are_any(make_daemon, caplog, mode, leases):
    caplog.set_level(logging.INFO, "asrptd")
    daemon = make_daemon(mode=mode)
    asrptd._run(daemon, once=True)
    assert ("leases run out" in caplog.messages[-1]) is leases
    assert caplog.messages[-1].startswith("stopped")


@pytest.fixture
def looking(make_daemon, slurm):
    """A daemon that looks at slurm.conf before each cycle, after its first one."""

    def start(**settings):
        daemon = make_daemon(**settings)
        daemon.run(once=True)
        daemon.conf_throttle = Throttle(lambda: 0.0)
        return daemon

    return start


def test_scontrol_reconfigure_is_followed_and_no_job_is_lost(looking, slurm):
    daemon = looking()
    running = slurm.submit(12)
    daemon.cycle(slurm.now)
    slurm.tick(1)
    waiting = slurm.submit(12)
    daemon.cycle(slurm.now)
    scheduling = daemon.scheduling
    slurm.tick(1)
    daemon.cycle(slurm.now)
    assert daemon.scheduling is scheduling  # nothing has changed
    slurm.start_delay_s = 20.0
    for _ in range(3):
        slurm.tick(1)
        daemon.cycle(slurm.now)
    assert daemon.scheduling is not scheduling
    assert daemon.slurm.start_delay_s == 20.0
    slurm.end(running)
    for _ in range(3):
        slurm.tick(1)
        daemon.cycle(slurm.now)
    assert slurm.records[waiting].state == "RUNNING"
    assert dict(slurm.starts) == {running: 1, waiting: 1}
    trail = (daemon.settings.paths.state / "audit.jsonl").read_text(encoding="utf-8")
    assert trail.count('"slurm-changed"') == 1


def test_a_slurm_without_a_needed_feature_is_an_error_each_time_and_scheduling_goes_on(looking, slurm):
    slurm.multifactor = True
    daemon = looking(mode="order")
    slurm.multifactor = False
    for _ in range(2):
        with pytest.raises(InputError, match="mode order requires PriorityType=priority/multifactor"):
            daemon.cycle(slurm.now)
    slurm.multifactor = True
    daemon.cycle(slurm.now)
