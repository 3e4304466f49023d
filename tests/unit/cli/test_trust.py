"""Trust: settings, directories, history and profiles that others can write are refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from slurm_asrpt.config.settings import load_settings
from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.daemon import main, setup
from slurm_asrpt.daemon.leader import wait_to_lead
from slurm_asrpt.daemon.main import Daemon
from slurm_asrpt.errors import AsrptError, InputError
from slurm_asrpt.history.store import FILE_NAME, History, HistoryError
from slurm_asrpt.predict.retrain import retrain
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.profile.schema import LIBRARY
from slurm_asrpt.slurm.client import SlurmConfig
from slurm_asrpt.status.document import read_status
from tests.benches.daemon import make_settings
from tests.benches.fake_slurm import FakeSlurm

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
STRANGER = 54321


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """Set the umask until the end of the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "etc" / "asrpt.toml"
    path.parent.mkdir()
    path.write_text("[daemon]\nlease_s = 77\n")
    path.chmod(0o644)
    return path


def group_writable(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o020)


def world_writable(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


def owned_by_stranger(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)


SPOIL = [group_writable, world_writable, pytest.param(owned_by_stranger, marks=ROOT)]


# settings


@pytest.mark.parametrize("spoil", SPOIL)
@pytest.mark.parametrize("which", ["file", "folder"])
def test_settings_that_others_can_write_are_refused_where_trust_matters(
    config: Path, spoil: Callable[[Path], None], which: str
) -> None:
    assert load_settings(config, trusted=True).daemon.lease_s == 77
    spoil(config if which == "file" else config.parent)
    with pytest.raises(InputError, match=r"refused: (others can write it|its owner is)") as caught:
        load_settings(config, trusted=True)
    assert "chmod go-w" in str(caught.value)
    assert load_settings(config).daemon.lease_s == 77  # for commands that only read


@pytest.mark.parametrize("spoil", SPOIL)
@pytest.mark.parametrize("which", ["link's folder", "target", "target's folder"])
def test_a_link_to_settings_is_followed_and_its_whole_path_checked(
    config: Path, tmp_path: Path, spoil: Callable[[Path], None], which: str
) -> None:
    link = tmp_path / "links" / "asrpt.toml"
    link.parent.mkdir()
    link.symlink_to(config)
    assert load_settings(link, trusted=True).daemon.lease_s == 77
    spoil({"link's folder": link.parent, "target": config, "target's folder": config.parent}[which])
    with pytest.raises(InputError, match="refused"):
        load_settings(link, trusted=True)


def test_trusted_settings_may_be_in_a_sticky_directory(config: Path) -> None:
    config.parent.chmod(0o1777)
    assert load_settings(config, trusted=True).daemon.lease_s == 77


# the daemon's directories


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Daemon]]:
    monkeypatch.setattr(main, "CliClient", lambda settings: FakeSlurm())
    made: list[Daemon] = []

    def make() -> Daemon:
        settings, stopping = make_settings(tmp_path), Event()
        setup.prepare(settings)
        lead = wait_to_lead(settings.paths.state, stopping)
        assert lead is not None
        made.append(Daemon(settings, lead, stopping))
        return made[-1]

    yield make
    for daemon in made:
        daemon.close()


@pytest.mark.parametrize("spoil", SPOIL)
@pytest.mark.parametrize("name", ["state", "run", "hook", "spool", "spool/hosts", "spool/progress"])
def test_a_directory_that_others_can_write_is_refused(
    start: Callable[[], Daemon], tmp_path: Path, name: str, spoil: Callable[[Path], None]
) -> None:
    (tmp_path / name).mkdir(parents=True)
    spoil(tmp_path / name)
    with pytest.raises(AsrptError, match="cannot be used") as caught:
        start()
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_files_have_their_modes_with_any_umask(
    start: Callable[[], Daemon], tmp_path: Path, umask: Callable[[int], int], mask: int
) -> None:
    """slurmctld, TaskProlog and asrpt-status read some files; only the daemon can read the others."""
    for folder in ("state", "run", "hook", "spool"):
        (tmp_path / folder).mkdir(mode=0o755)
    umask(mask)
    daemon = start()
    daemon.run(once=True)
    retrain(daemon.settings, 1e9)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    public = {
        "hook/hook.conf",
        "hook/table.txt",
        "hook/wakeup",
        "hook/profiles.txt",
        "run/status.json",
        "run/forecast.json",
    }
    assert {name: oct(modes.pop(name)) for name in public} == dict.fromkeys(public, oct(0o644))
    folders = {"state", "run", "hook", "spool", "spool/hosts", "spool/progress"}
    assert {name: oct(modes.pop(name)) for name in folders} == dict.fromkeys(folders, oct(0o755))
    assert {name for name in modes if name.startswith("state/")} == modes.keys()
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


def test_a_state_directory_created_by_asrptd_is_private(tmp_path: Path, umask: Callable[[int], int]) -> None:
    settings = make_settings(tmp_path)
    (tmp_path / "state").rmdir()
    umask(0)
    setup.prepare(settings)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


# history, profiles, status


@pytest.mark.parametrize("spoil", SPOIL)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_history_that_others_can_write_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], read_only: bool
) -> None:
    History(tmp_path / FILE_NAME).close()
    spoil(tmp_path / FILE_NAME)
    with pytest.raises(HistoryError, match=r"others can write it|its owner is"):
        History(tmp_path / FILE_NAME, read_only=read_only)


def test_a_history_in_a_world_writable_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o1777)
    with pytest.raises(HistoryError, match="others can write it"):
        History(tmp_path / "state" / FILE_NAME)


@pytest.mark.parametrize("part", ["", "-wal", "-shm"])
def test_a_history_that_is_a_link_is_refused(tmp_path: Path, part: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "other").write_bytes(b"not ours")
    (tmp_path / "state" / f"{FILE_NAME}{part}").symlink_to(tmp_path / "other")
    with pytest.raises(HistoryError, match="a symbolic link, or not of"):
        History(tmp_path / "state" / FILE_NAME)
    assert (tmp_path / "other").read_bytes() == b"not ours"


@pytest.mark.parametrize("spoil", SPOIL)
@pytest.mark.parametrize("which", ["file", "folder"])
def test_a_profile_that_others_can_write_is_refused(tmp_path: Path, spoil: Callable[[Path], None], which: str) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    file = folder / "vgg19-dp4.toml"
    file.write_bytes((LIBRARY / "vgg19-dp4.toml").read_bytes())
    assert isinstance(found := load_named("vgg19-dp4", [folder]), JobProfile)
    assert found.gpus == 4
    spoil(file if which == "file" else folder)
    with pytest.raises(InputError, match="refused"):
        load_named("vgg19-dp4", [folder])


def test_with_private_jobs_only_the_daemons_user_can_read_the_status(
    start: Callable[[], Daemon], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start()
    plain = daemon.client.config()
    monkeypatch.setattr(daemon.client, "config", lambda: SlurmConfig(**{**vars(plain), "private_jobs": True}))
    daemon.run(once=True)
    for name in ("status.json", "forecast.json"):
        assert (tmp_path / "run" / name).stat().st_mode & 0o777 == 0o600
    if os.geteuid():
        return
    child = os.fork()
    if child == 0:  # pragma: no cover
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        try:
            read_status(tmp_path / "run")
        except AsrptError as error:
            os._exit(0 if "PrivateData" in str(error) or "cannot be read" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_asrptd_warns_if_slurm_may_refuse_its_updates(
    start: Callable[[], Daemon], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = start()
    plain = daemon.client.config()
    monkeypatch.setattr(daemon.client, "config", lambda: SlurmConfig(**{**vars(plain), "slurm_uid": 64030}))
    for user, said in ((0, False), (64030, False), (STRANGER, True)):
        caplog.clear()
        monkeypatch.setattr(main.os, "geteuid", lambda user=user: user)
        setup.check_slurm(daemon.settings, daemon.client.config())
        assert ("adminlevel=operator" in caplog.text) == said
