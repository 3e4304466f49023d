"""The disk of asrptd's state directory is full or read-only, on a real Slurm: jobs start, and none twice."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_asrpt.daemon.state import SPARE_NAME
from slurm_asrpt.status.document import read_status

from .conftest import QUICK, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

MEGABYTES = 6
RAN = "echo $SLURM_JOB_ID >> ran.out; sleep 1"


def mount(*arguments: str) -> None:
    if subprocess.run(["mount", *arguments], check=False).returncode:
        pytest.skip("may not mount a file system")


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """The directory is a file system of its own."""
    status = path.stat()
    options = f"size={MEGABYTES}m,mode=700,uid={status.st_uid},gid={status.st_gid}"
    mount("-t", "tmpfs", "-o", options, "tmpfs", str(path))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def fill(path: Path) -> None:
    """Until not a byte is left."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Above the directory is a read-only mount of it: what is open there for writing would forbid a remount."""
    mount("--bind", str(path), str(path))
    try:
        mount("-o", "remount,bind,ro", str(path))
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture
def site() -> Iterator[Cluster]:
    """With leases that no test waits for."""
    with own_cluster(400, "1x4", {"daemon": {**QUICK["daemon"], "lease_s": 600}}) as cluster:
        state = cluster.paths / "state"
        with small_disk(state):
            yield cluster
            cluster.stop_daemon()


def test_jobs_start_on_a_full_disk_and_after_a_kill(site: Cluster) -> None:
    state = site.paths / "state"
    site.start_daemon()
    before = site.submit("--gpus=4", script=RAN)
    site.wait(before, "COMPLETED")
    wait_for(lambda: (state / SPARE_NAME).is_file(), "the spare file is there", 10)
    fill(state / "filler")
    jobs = [site.submit("--gpus=4", script=RAN) for _ in range(6)]
    site.wait(jobs[1], "COMPLETED")
    site.kill_daemon()
    site.start_daemon()
    site.wait_all(jobs, "COMPLETED")
    assert sorted(site.output("ran.out").split(), key=int) == [before, *jobs]
    assert site.log.read_text().count("saved in state.spare until there is room") >= 2, "before the kill and after it"
    assert not site.audit(jobs[-1], "ended"), "in audit.spare"
    (state / "filler").unlink()
    after = site.submit("--gpus=4", script=RAN)
    site.wait(after, "COMPLETED")
    wait_for(lambda: all(site.audit(job, "ended") for job in [*jobs, after]), "the audit trail is written", 15)
    wait_for(lambda: not (state / SPARE_NAME).read_bytes().strip(), "the spare file is blank", 10)
    assert site.recorded(jobs[-1]).state == "COMPLETED"


def test_slurm_starts_the_jobs_while_the_disk_is_read_only(site: Cluster) -> None:
    site.start_daemon()
    before = site.submit("--gpus=4", script=f"{RAN}; sleep 10")
    site.wait(before, "RUNNING")
    jobs = [site.submit("--gpus=4", script=RAN) for _ in range(3)]
    wait_for(lambda: set(jobs) <= set(site.order()), "asrptd knows them", 30)
    with read_only(site.paths / "state"):
        jobs += [site.submit("--gpus=4", script=RAN) for _ in range(2)]
        site.wait_all([before, *jobs], "COMPLETED")
        jobs.append(site.submit("--gpus=4", script=RAN))
        site.wait(jobs[-1], "COMPLETED")
        assert read_status(site.paths / "run").mode == "unsaved"
    wait_for(
        lambda: read_status(site.paths / "run").mode == "enforce", "asrptd goes on, as the hook knows before it", 30
    )
    after = site.submit("--gpus=4", script=RAN)
    site.wait(after, "COMPLETED")
    assert sorted(site.output("ran.out").split(), key=int) == [before, *jobs, after]
    wait_for(lambda: site.audit(after, "start"), "asrptd started it", 15)
    wait_for(lambda: all(site.audit(job, "ended") for job in jobs), "the audit trail is written", 15)
