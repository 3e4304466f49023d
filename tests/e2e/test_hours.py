"""What takes hours on a site, on a real Slurm with a fast clock: leases, requeues, patience and maintenance."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .conftest import REQUEUE_PAUSE_S, Cluster, own_cluster, quick, wait_for

pytestmark = pytest.mark.e2e

HOUR_S = 3600.0
LEASE_S = 600
"""asrptd's default."""
MINUTES_SPEED, HOURS_SPEED = 40, 360
ALL_GPUS = ("-N2", "--gpus-per-node=4")
RAN = "echo $SLURM_JOB_ID >> ran.out"


@pytest.fixture(scope="module")
def minutes_lab() -> Iterator[Cluster]:
    with own_cluster(720, "2x4", speed=MINUTES_SPEED) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def hours_lab() -> Iterator[Cluster]:
    """Leases of ten minutes would be too short here: asrptd may be late by a second or two of the machine."""
    daemon = {**quick(HOURS_SPEED)["daemon"], "lease_s": 86400}
    settings = {"daemon": daemon, "policy": {"name": "asrpt-gated", "patience_s": HOUR_S}}
    with own_cluster(740, "2x4", settings, speed=HOURS_SPEED) as cluster:
        yield cluster


@pytest.fixture
def minutes(minutes_lab: Cluster) -> Iterator[Cluster]:
    """A lab where ten minutes take 15 s, with asrptd."""
    minutes_lab.start_daemon()
    yield minutes_lab
    minutes_lab.clean()


@pytest.fixture
def hours(hours_lab: Cluster) -> Iterator[Cluster]:
    """A lab where an hour takes 10 s, with asrptd."""
    hours_lab.start_daemon()
    yield hours_lab
    hours_lab.clean()


def test_killed_with_its_guard_every_pending_job_starts_when_its_lease_expires(minutes: Cluster) -> None:
    blockers = minutes.block_all()
    jobs = [minutes.submit("--gpus=1", script=RAN) for _ in range(20)]
    wait_for(lambda: len(minutes.order()) == 20, "all 20 wait", 15)
    minutes.kill_daemon()
    minutes.cancel(*blockers)
    now = minutes.time()
    leased = [job for job in minutes.jobs().values() if job.job_id in jobs and job.eligible_time > now]
    assert len(leased) == 20
    assert max(job.eligible_time for job in leased) <= now + LEASE_S
    done = minutes.wait_all(jobs, "COMPLETED", timeout=LEASE_S / MINUTES_SPEED + 15)
    assert all(done[job.job_id].start_time >= job.eligible_time for job in leased)
    assert sorted(minutes.output("ran.out").split(), key=int) == jobs


def test_a_requeued_job_waits_for_slurms_pause_and_the_next_one_runs_meanwhile(minutes: Cluster) -> None:
    again = "[ $SLURM_RESTART_COUNT ] || sleep 36000"
    requeued = minutes.submit(*ALL_GPUS, "--requeue", script=again)
    minutes.wait(requeued, "RUNNING")
    wait_for(lambda: minutes.audit(requeued, "running"), "asrptd has seen it run", 10)
    behind = minutes.submit(*ALL_GPUS, "-t", "1", script="sleep 10")
    wait_for(lambda: minutes.order() == [behind], "the next one waits", 10)
    before = minutes.time()
    minutes.scontrol("requeue", requeued)
    done = minutes.wait_all([requeued, behind], "COMPLETED", timeout=30)
    assert done[requeued].restarts == 1
    assert done[requeued].start_time >= int(before) + REQUEUE_PAUSE_S
    assert done[behind].end_time <= done[requeued].start_time
    assert len(minutes.audit(requeued, "start")) == 2, "asrptd started both runs"
    assert not minutes.audit(requeued, "not-started")


def test_a_job_that_agrees_yields_to_maintenance_and_runs_again_afterwards(minutes: Cluster) -> None:
    script = "trap 'echo saved' USR1; echo runs; sleep 36000 & while kill -0 $!; do wait $!; done"
    agrees = ("--requeue", "--open-mode=append", "-o", "yields.out", "-t", "600", "--comment=asrpt:interrupt=B:USR1")
    yields = minutes.submit(*ALL_GPUS, *agrees, script=script)
    minutes.wait(yields, "RUNNING")
    wait_for(lambda: minutes.audit(yields, "running"), "asrptd has seen it run", 10)
    words = ["StartTime=now+10minutes", "Duration=3", "Users=root", "Nodes=ALL", "Flags=MAINT,IGNORE_JOBS"]
    minutes.scontrol("create", "reservation", "ReservationName=maint", *words)
    (maintenance,) = minutes.client.reservations(minutes.client.nodes())
    try:
        wait_for(lambda: minutes.audit(yields, "requeued"), "it is requeued", 30)
        again = minutes.wait(yields, "PENDING", "RUNNING")
        assert maintenance.start - 400 < again.submit_time <= maintenance.start
        again = minutes.wait(yields, "RUNNING", timeout=40)
    finally:
        minutes.lab.run(["scontrol", "delete", "ReservationName=maint"], check=False)
    assert again.start_time >= maintenance.end
    assert [entry["reservation"] for entry in minutes.audit(yields, "yields")] == ["maint"]
    wait_for(lambda: minutes.output("yields.out").split().count("runs") == 2, "it runs again", 10)
    assert minutes.output("yields.out").split().count("saved") == 1


def test_a_job_that_has_waited_for_an_hour_goes_before_a_stream_of_shorter_ones(hours: Cluster) -> None:
    hours.predict({("asrpt1", "short"): 600, ("asrpt1", "long"): 7200})
    short = (*ALL_GPUS, "-t", "15", "-J", "short")
    hours.wait(hours.submit(*short, script="sleep 600"), "RUNNING")
    long = hours.submit(*ALL_GPUS, "-t", "180", "-J", "long", script="sleep 1800")
    stream = [hours.submit(*short, script="sleep 600") for _ in range(12)]
    wait_for(lambda: hours.order()[-1:] == [long], "the older and longer one is the last", 5)
    started = hours.wait(long, "RUNNING", timeout=60)
    late, began = started.submit_time + HOUR_S, started.start_time
    jobs = [hours.job(job_id) for job_id in stream]
    before = [job.start_time for job in jobs if job.state != "PENDING"]
    assert began >= late
    assert 3 <= len(before) < len(stream)
    assert max(before) < began
    assert len([start for start in before if start > late]) <= 1, "only one that was about to start went before it"


def test_jobs_that_end_before_maintenance_in_three_hours_use_the_nodes_until_then(hours: Cluster) -> None:
    hours.predict({("asrpt1", "long"): 600, ("asrpt1", "short"): 2400})
    words = ["StartTime=now+3hours", "Duration=10", "Users=root", "Nodes=ALL", "Flags=MAINT"]
    hours.scontrol("create", "reservation", "ReservationName=maint", *words)
    (maintenance,) = hours.client.reservations(hours.client.nodes())
    try:
        long = hours.submit(*ALL_GPUS, "-t", "240", "-J", "long", script="sleep 600")
        short = [hours.submit("-N1", "--gpus=4", "-t", "60", "-J", "short", script="sleep 2400") for _ in range(10)]
        said = "its time limit reaches into reservation maint"
        wait_for(lambda: hours.text_of(long).startswith(said), lambda: hours.text_of(long), 10)
        assert hours.order()[0] == long
        ended = hours.wait(long, "COMPLETED", timeout=60)
    finally:
        hours.lab.run(["scontrol", "delete", "ReservationName=maint"], check=False)
    assert ended.start_time >= maintenance.end
    started = [job for job in hours.jobs().values() if job.job_id in (long, *short) and job.state != "PENDING"]
    filled = [job for job in started if job.start_time < maintenance.start]
    assert len(filled) >= 6, "three in turn on each node, and no time for a fourth"
    assert all(job.start_time + job.time_limit <= maintenance.start for job in filled)
    assert all(job.start_time >= maintenance.end for job in started if job not in filled)
    assert not any(hours.audit(job_id, "not-started") for job_id in (long, *short))
