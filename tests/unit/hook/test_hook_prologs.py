"""The prologs, run as slurmd runs them, on a temporary spool."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

HOOKS = Path(__file__).resolve().parents[3] / "plugin_hooks"


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    for name in ("spool/progress", "spool/hosts"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("asrpt-prolog", "asrpt-task-prolog", "asrpt-epilog", "asrpt-epilog-slurmctld"):
        text = (HOOKS / name).read_text().replace("/var/spool/asrpt", str(tmp_path / "spool"))
        text = text.replace("/var/lib/asrpt-hook", str(tmp_path / "hook"))
        (tmp_path / name).write_text(text)
    return tmp_path / "spool"


def run(spool: Path, name: str, **variables: str) -> list[str]:
    environment = {"PATH": os.environ["PATH"]} | variables
    script = str(spool.parent / name)
    done = subprocess.run(["/bin/sh", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    return done.stdout.splitlines()


def prolog(spool: Path, job: str = "17", uid: str | None = None) -> list[str]:
    return run(spool, "asrpt-prolog", SLURM_JOB_ID=job, SLURM_JOB_UID=uid or str(os.getuid()))


def test_progress_folder(spool: Path) -> None:
    uid = 12345 if os.getuid() == 0 else os.getuid()
    prolog(spool, uid=str(uid))
    status = (spool / "progress" / "17").lstat()
    assert stat.S_ISDIR(status.st_mode)
    group = (spool / "progress").stat().st_gid
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o770, uid, group)
    prolog(spool, uid=str(uid))  # the job's next node


@pytest.mark.skipif(os.getuid() != 0, reason="changes the owner of files")
def test_the_epilog_restores_access_for_asrptd_and_for_a_requeued_job(spool: Path) -> None:
    folder = spool / "progress" / "17"
    os.chown(folder.parent, 23456, 23456)
    prolog(spool, uid="12345")
    (folder / "iterations").write_text("5 10 - 0\n")
    folder.chmod(0)
    os.chown(folder, 12345, 12345)
    run(spool, "asrpt-epilog", SLURM_JOB_ID="17")
    prolog(spool, uid="12345")
    status = folder.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o770, 12345, 23456)
    assert (folder / "iterations").read_text() == "5 10 - 0\n"


@pytest.mark.parametrize("made", ["link", "file", "nothing"])
def test_the_epilog_changes_only_a_directory(spool: Path, made: str) -> None:
    target = spool.parent / "target"
    target.mkdir(mode=0o700)
    if made == "link":
        (spool / "progress" / "17").symlink_to(target)
    elif made == "file":
        (spool / "progress" / "17").touch(mode=0o600)
    run(spool, "asrpt-epilog", SLURM_JOB_ID="17")
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    assert not (spool / "progress" / "17").is_file() or (spool / "progress" / "17").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="becomes other users")
@pytest.mark.parametrize(("uid", "gid", "may"), [(12345, 12345, True), (34567, 23456, True), (34567, 34567, False)])
def test_the_user_and_asrptd_can_read_it_and_others_cannot(spool: Path, uid: int, gid: int, may: bool) -> None:
    for parent in list(spool.parents)[:-2]:  # pytest's own directories are not readable by others
        parent.chmod(parent.stat().st_mode | 0o011)
    folder = spool / "progress" / "17"
    os.chown(folder.parent, 23456, 23456)
    prolog(spool, uid="12345")
    report = "from slurm_asrpt.progress import *; report(5)"
    variables = {"ASRPT_PROGRESS_DIR": str(folder), "PATH": os.environ["PATH"]}
    as_owner = {"user": 12345, "group": 12345, "extra_groups": []}
    subprocess.run([sys.executable, "-c", report], env=variables, cwd=HOOKS.parent, umask=0o077, check=True, **as_owner)
    done = subprocess.run(["cat", folder / "iterations"], capture_output=True, user=uid, group=gid, extra_groups=[])
    assert (done.returncode == 0) == may
    touched = subprocess.run(["touch", folder / "x"], capture_output=True, user=uid, group=gid, extra_groups=[])
    assert (touched.returncode == 0) == may


@pytest.mark.parametrize("dangling", [True, False])
def test_no_link_is_followed(spool: Path, dangling: bool) -> None:
    target = spool.parent / "target"
    if not dangling:
        target.mkdir(mode=0o755)
    (spool / "progress" / "17").symlink_to(target)
    prolog(spool)
    assert target.exists() != dangling
    assert (spool / "progress" / "17").is_symlink()


@pytest.mark.parametrize("job", ["", "../x", "1;2", "17 18"])
def test_invalid_job_ids_are_ignored(spool: Path, job: str) -> None:
    prolog(spool, job)
    assert run(spool, "asrpt-task-prolog", SLURM_JOB_ID=job) == []
    assert list((spool / "progress").iterdir()) == []


def test_a_missing_spool_is_not_an_error(spool: Path) -> None:
    (spool / "progress").rmdir()
    prolog(spool)
    assert run(spool, "asrpt-task-prolog", SLURM_JOB_ID="17") == []


def test_task_prolog_exports(spool: Path) -> None:
    prolog(spool)
    lines = [f"export ASRPT_PROGRESS_DIR={spool}/progress/17"]
    assert run(spool, "asrpt-task-prolog", SLURM_JOB_ID="17") == lines
    (spool / "hosts" / "17").write_text("n1\nn1\n")
    lines += [f"export SLURM_HOSTFILE={spool}/hosts/17", "export SLURM_DISTRIBUTION=arbitrary"]
    assert run(spool, "asrpt-task-prolog", SLURM_JOB_ID="17") == lines


def test_task_prolog_waits_for_the_host_file(spool: Path) -> None:
    (spool / "hosts" / "17.wait").touch()
    timer = threading.Timer(0.4, (spool / "hosts" / "17").write_text, ["n1\n"])
    timer.start()
    started = time.monotonic()
    lines = run(spool, "asrpt-task-prolog", SLURM_JOB_ID="17")
    assert 0.3 < time.monotonic() - started < 3
    assert lines[0].startswith("export SLURM_HOSTFILE=")


def test_task_prolog_gives_up(spool: Path) -> None:
    (spool / "hosts" / "17.wait").touch()
    started = time.monotonic()
    assert run(spool, "asrpt-task-prolog", SLURM_JOB_ID="17") == []
    assert 4.5 < time.monotonic() - started < 8


@pytest.mark.skipif(os.getuid() != 0, reason="changes the owner of directories")
@pytest.mark.parametrize(
    ("owner", "age", "made_anew"), [(54321, 3600, True), (54321, 5, True), (0, 3600, True), (0, 5, False)]
)
def test_a_directory_of_another_users_old_job_is_moved_aside(
    spool: Path, owner: int, age: float, made_anew: bool
) -> None:
    """That user could change its times; a directory of root may be another node's, not yet given to the job's user."""
    folder = spool / "progress" / "17"
    folder.mkdir(mode=0o770)
    (folder / "iterations").write_text("99 100\n")
    os.chown(folder, owner, owner)
    long_ago = time.time() - age
    os.utime(folder, (long_ago, long_ago))
    prolog(spool, uid="12345")
    assert (folder.stat().st_uid == 12345) == made_anew
    assert (folder / "iterations").exists() != made_anew


def test_the_epilog_of_slurmctld_touches_the_wake_up_file(spool: Path) -> None:
    run(spool, "asrpt-epilog-slurmctld")  # without the directory it does nothing
    wakeup = spool.parent / "hook" / "wakeup"
    assert not wakeup.parent.exists()
    wakeup.parent.mkdir()
    for _ in range(2):
        assert run(spool, "asrpt-epilog-slurmctld") == []
        assert wakeup.stat().st_mtime > time.time() - 60
        os.utime(wakeup, (0, 0))
