"""A job that could start at once does, however long the interval; if asrptd is killed, Slurm schedules soon after."""

import signal
from collections.abc import Iterator

import pytest

from slurm_asrpt.daemon.guard import PATIENCE_S

from .conftest import SOON_S, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

SPEED = 20
HOURS: dict[str, dict[str, float]] = {"daemon": {"interval_s": 6 * 3600.0, "lease_s": 86400, "unpin_after_s": 100.0}}


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    with own_cluster(100, "2x4", HOURS, speed=SPEED) as cluster:
        yield cluster


def test_submissions_and_ends_start_jobs_long_before_the_next_cycle(lab: Cluster) -> None:
    lab.start_daemon()
    all_gpus = ("-N2", "--gpus-per-node=4")
    jobs = [lab.submit(*all_gpus, script="sleep 40") for _ in range(3)]
    array = lab.submit("--array=1-4", "--gpus=1", script="true")
    began = lab.time()
    done = lab.wait_all(jobs, "COMPLETED")
    wait_for(lambda: len(lab.runs()) >= 7, f"the tasks of {array} and all others have ended", 30)
    assert all(job.start_time < began + 2 * SOON_S * SPEED for job in done.values())
    assert lab.stop_daemon() == 0


def test_killed_its_waiting_jobs_go_back_to_slurm_within_a_minute(lab: Cluster) -> None:
    lab.start_daemon()
    blockers = lab.block_all()
    jobs = [lab.submit("--gpus=1", script="true") for _ in range(200)]
    wait_for(lambda: len(lab.order()) == len(jobs), "all wait", 60)
    killed = lab.time()
    lab.stop_daemon(signal.SIGKILL)
    lab.cancel(*blockers)
    wait_for(lambda: any(lab.job(job_id).state == "COMPLETED" for job_id in jobs), "Slurm has started one", 60)
    first = min(job.start_time for job in lab.jobs().values() if job.job_id in jobs and job.start_time)
    assert killed + PATIENCE_S - 1 <= first
    lab.wait_all(jobs, "COMPLETED", timeout=90)
    assert "handed 200 waiting jobs back to Slurm" in lab.log.read_text(encoding="utf-8")
