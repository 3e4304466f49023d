"""The files with ended jobs: who can read them, and that they stay small and survive damage."""

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.status import ended
from slurm_asrpt.status.document import JobStatus
from slurm_asrpt.status.ended import FOLDER, KEPT_BYTES, add_ended, read_ended

JOB = JobStatus(
    job_id="1", name="train", user="alice", partition="gpu", gpus=4, group="", profile="", predicted_iterations=0,
    submit_time=100.0, state=Phase.ENDED.value, reason="completed", text="COMPLETED", facts={"waits": {"gpus": 5.0}},
    nodes={"n1": 4}, start_time=110.0, end_time=200.0,
)  # fmt: skip
ALICE, BOB = 12_345, 12_346


def numbered(number: int) -> JobStatus:
    return replace(JOB, job_id=str(number), end_time=float(number))


def test_what_is_written_is_read_the_latest_first(tmp_path):
    add_ended(tmp_path, ALICE, [numbered(1), numbered(2)])
    add_ended(tmp_path, ALICE, [numbered(3)])
    assert read_ended(tmp_path, ALICE) == [numbered(3), numbered(2), numbered(1)]
    assert read_ended(tmp_path / "nowhere", ALICE) == []


@pytest.fixture
def public():
    """A directory that every user can enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def read_as(user: int, path: Path) -> bool:
    command = [sys.executable, "-I", "-c", "import sys; open(sys.argv[1]).read()", str(path)]
    return subprocess.run(command, user=user, group=user, extra_groups=[], capture_output=True).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("acl", [True, False])
def test_only_its_user_can_read_a_file(public, acl, monkeypatch):
    def refused(*_: object) -> None:
        raise OSError("no ACLs here")

    before = os.umask(0o077)  # as in asrptd's unit
    if not acl:
        monkeypatch.setattr(ended.os, "setxattr", refused)
    add_ended(public, ALICE, [JOB])
    os.umask(before)
    path = public / FOLDER / f"{ALICE}.jsonl"
    assert read_as(ALICE, path)
    assert not read_as(BOB, path)
    command = [sys.executable, "-I", "-c", "import os, sys; os.listdir(sys.argv[1])", str(path.parent)]
    listed = subprocess.run(command, user=ALICE, group=ALICE, extra_groups=[], capture_output=True)
    assert listed.returncode != 0


def test_the_oldest_jobs_are_forgotten_and_the_file_keeps_its_reader(tmp_path):
    many, number = 400, 0
    path = tmp_path / FOLDER / f"{ALICE}.jsonl"
    while number < 4 * KEPT_BYTES // 400:
        add_ended(tmp_path, ALICE, [numbered(number + place) for place in range(many)])
        number += many
        assert path.stat().st_size <= 2 * KEPT_BYTES
    found = read_ended(tmp_path, ALICE)
    assert [job.end_time for job in found] == [float(last) for last in range(number - 1, number - 1 - len(found), -1)]
    assert 300 < len(found) < number
    assert sorted(path.parent.iterdir()) == [path]
    assert "system.posix_acl_access" in os.listxattr(path)


def test_a_torn_line_costs_one_job(tmp_path):
    add_ended(tmp_path, ALICE, [numbered(1), numbered(2)])
    path = tmp_path / FOLDER / f"{ALICE}.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    with path.open("ab") as file:
        file.write(b"\n[1]\n{}\n")
    add_ended(tmp_path, ALICE, [numbered(3)])
    assert read_ended(tmp_path, ALICE) == [numbered(3), numbered(1)]


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / "target").write_text("")
    (tmp_path / FOLDER / f"{ALICE}.jsonl").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        add_ended(tmp_path, ALICE, [JOB])
    assert (tmp_path / "target").read_text() == ""
