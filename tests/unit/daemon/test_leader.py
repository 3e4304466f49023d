"""Of several asrptd on one state directory, one leads and the others stand by; without the lock nothing is written."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from slurm_asrpt.daemon import leader as leader_module
from slurm_asrpt.daemon import main, setup
from slurm_asrpt.daemon.leader import LeaderLock, LeadershipLostError, wait_to_lead
from slurm_asrpt.daemon.state import StateStore
from slurm_asrpt.errors import AsrptError
from slurm_asrpt.status.document import read_status
from tests.benches.daemon import make_settings
from tests.benches.fake_slurm import FakeSlurm

HOLD = """
import sys, time
from pathlib import Path
from slurm_asrpt.daemon.leader import LeaderLock
lead = LeaderLock(Path(sys.argv[1]))
print(lead.take() and lead.name, flush=True)
time.sleep(600)
"""


@pytest.fixture
def lead(tmp_path):
    lead = LeaderLock(tmp_path / "state")
    yield lead
    lead.close()


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock, and its name."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "state")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    yield process, process.stdout.readline().strip()
    process.kill()
    process.communicate()


def test_one_daemon_leads_and_its_name_can_be_read(lead):
    assert lead.take()
    second = LeaderLock(lead.folder)
    assert not second.take()
    assert second.holder() == lead.name
    assert f" pid {os.getpid()} since 20" in lead.name
    lead.check()
    lead.close()
    assert second.take()
    second.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_standby_takes_over_however_the_leader_ended(tmp_path, other, number, caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(leader_module, "STANDBY_S", 0.01)
    process, name = other
    killer = threading.Timer(0.2, process.send_signal, [number])
    killer.start()
    lead = wait_to_lead(tmp_path / "state", threading.Event())
    killer.join()
    assert lead is not None
    assert process.wait() == -number
    said = [record.message for record in caplog.records]
    assert said == [
        f"standing by: {name} leads; this asrptd takes over when it ends",
        f"leading: {lead.name}",
    ]
    lead.close()


def test_a_standby_can_be_stopped(tmp_path, other, monkeypatch):
    monkeypatch.setattr(leader_module, "STANDBY_S", 0.01)
    stopping = threading.Event()
    threading.Timer(0.1, stopping.set).start()
    assert wait_to_lead(tmp_path / "state", stopping) is None


def test_with_once_asrptd_does_not_stand_by(tmp_path, other):
    with pytest.raises(AsrptError, match=r"another asrptd leads \(.* pid \d+ since .*stop it first"):
        wait_to_lead(tmp_path / "state", threading.Event(), once=True)


def test_an_unusable_state_directory_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AsrptError, match="cannot be used"):
        LeaderLock(tmp_path / "file" / "state")
    (tmp_path / "lock").mkdir()
    with pytest.raises(AsrptError, match="cannot be used"):
        LeaderLock(tmp_path).take()


def test_the_lock_files_text_cannot_control_a_terminal(lead):
    assert lead.take()
    lead.path.write_bytes(b"\x1b[2J\xff" + b"x" * 10_000)
    assert lead.holder().startswith("\\x1b[2J")
    assert len(lead.holder()) < 300


@pytest.mark.parametrize("damage", ["deleted", "taken"])
def test_a_daemon_that_lost_the_lock_saves_nothing(lead, damage):
    assert lead.take()
    store = StateStore(lead)
    store.save({}, {}, 1.0)
    before = store.path.read_bytes()
    lead.path.unlink()
    second = LeaderLock(lead.folder)
    if damage == "taken":
        assert second.take()
        lead.close()  # both locks belong to this process: within a second, their names would be the same
        second.name = "elsewhere pid 1 since today"
        second.path.write_text(second.name)
    with pytest.raises(LeadershipLostError, match="it is missing" if damage == "deleted" else "elsewhere pid 1"):
        store.save({}, {"1": "{}"}, 2.0)
    assert store.path.read_bytes() == before
    second.close()


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    slurm = FakeSlurm()
    monkeypatch.setattr(main, "CliClient", lambda settings: slurm)
    settings, stopping = make_settings(tmp_path), threading.Event()
    setup.prepare(settings)
    return main.Daemon(settings, wait_to_lead(settings.paths.state, stopping), stopping)


def test_the_status_names_the_leader(daemon):
    daemon.run(once=True)
    assert read_status(daemon.settings.paths.run).leader == daemon.leader.name
    daemon.close()


def test_a_daemon_that_lost_the_lead_ends_and_leaves_hook_conf_to_the_other(daemon):
    daemon.run(once=True)
    hook = daemon.settings.paths.hook / "hook.conf"
    before = hook.read_bytes()
    daemon.leader.path.write_text("elsewhere pid 1 since today")
    writes = len(daemon.client.writes)
    daemon.client.submit(4)
    with pytest.raises(LeadershipLostError, match="elsewhere pid 1"):
        daemon.run()
    daemon.close()
    assert hook.read_bytes() == before
    assert b"lease_s=600" in before
    assert len(daemon.client.writes) == writes
