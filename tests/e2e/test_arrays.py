"""Job arrays on a real Slurm: asrptd starts tasks as it starts jobs; without asrptd, Slurm starts them."""

import json

import pytest

from slurm_asrpt.slurm.records import JobRecord

from .conftest import COMMANDS, LEASE_S, Cluster, wait_for

pytestmark = pytest.mark.e2e


def most_at_once(jobs: list[JobRecord]) -> int:
    return max(sum(other.start_time <= job.start_time < other.end_time for other in jobs) for job in jobs)


def once(cluster: Cluster, name: str, tasks: list[str]) -> list[JobRecord]:
    """The tasks' records after they have ended; each has written its id to the file once."""
    jobs = cluster.wait_all(tasks, "COMPLETED", 90)
    assert sorted(cluster.output(name).split()) == sorted(tasks)
    return [jobs[task] for task in tasks]


def script(name: str, seconds: float = 1) -> str:
    return f"echo ${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}} >> {name}; sleep {seconds}"


def test_asrptd_starts_array_tasks_in_its_order_within_the_task_limit(asrpt: Cluster) -> None:
    blockers = asrpt.block_all()
    bounded = asrpt.submit("--gpus=2", "--array=1-9:2,20%2", script=script("bounded"))
    free = asrpt.submit("-n4", "--gpus-per-task=1", "--array=0-5", script=script("free"))
    wait_for(lambda: f"{free}_5" in asrpt.jobs(), "the array's tasks are jobs", 30)
    wait_for(lambda: asrpt.text_of(bounded).startswith("4 tasks"), "the other tasks of the limited array are shown", 30)
    rows = asrpt.status()
    assert sorted(job_id for job_id in rows if job_id.startswith(f"{bounded}_")) == [f"{bounded}_1", f"{bounded}_3"]
    assert asrpt.text_of(bounded) == "4 tasks of the array will enter the queue as earlier ones start or end"
    explained = json.loads(asrpt.lab.run([COMMANDS / "asrpt-status", "--explain", bounded, "--json"]).stdout)
    assert explained["tasks"] == {"waiting": 6}
    assert explained["next"]["changes"]
    assert len({rows[f"{free}_{task}"]["group"] for task in range(6)}) == 1
    asrpt.cancel(*blockers)
    tasks = [f"{bounded}_{task}" for task in (1, 3, 5, 7, 9, 20)]
    assert most_at_once(once(asrpt, "bounded", tasks)) == 2
    tasks += [f"{free}_{task}" for task in range(6)]
    asrpt.wait_all(tasks, "COMPLETED")
    runs = asrpt.all_recorded(tasks)
    for task in tasks:
        assert asrpt.audit(task, "start"), f"{task} was started by asrptd"
        assert runs[task].state == "COMPLETED"
    assert all(len(asrpt.job(task).gpus_by_node) <= 1 for task in tasks), "no task is split over nodes"


def test_single_tasks_can_be_cancelled_held_and_requeued(asrpt: Cluster) -> None:
    blockers = asrpt.block_all()
    array = asrpt.submit("--gpus=1", "--requeue", "--array=0-7", script=script("parts", 4))
    wait_for(lambda: f"{array}_7" in asrpt.jobs(), "the array's tasks are jobs", 30)
    asrpt.lab.run(["scancel", f"{array}_[1-2]"], user="asrpt1")
    asrpt.scontrol("hold", f"{array}_3", user="asrpt1")
    asrpt.cancel(*blockers)
    asrpt.wait(f"{array}_0", "RUNNING")
    parts = asrpt.lab.home("asrpt1") / "parts"
    wait_for(lambda: parts.exists() and f"{array}_0" in parts.read_text().split(), "its script has begun", 30)
    asrpt.scontrol("requeue", f"{array}_0")
    asrpt.start_again(f"{array}_0")
    asrpt.wait_all([f"{array}_{task}" for task in (4, 5, 6, 7)], "COMPLETED", 90)
    assert asrpt.job(f"{array}_3").state == "PENDING"
    asrpt.scontrol("release", f"{array}_3", user="asrpt1")
    asrpt.wait_all([f"{array}_0", f"{array}_3"], "COMPLETED", 90)
    counts = [asrpt.output("parts").split().count(f"{array}_{task}") for task in range(8)]
    assert counts == [2, 0, 0, 1, 1, 1, 1, 1]


def test_slurm_starts_the_tasks_while_asrptd_is_down_and_asrptd_resumes_later(asrpt: Cluster) -> None:
    blockers = asrpt.block_all()
    array = asrpt.submit("--gpus=1", "--array=0-119", script=script("killed", 0))
    last = f"{array}_119"
    wait_for(lambda: asrpt.text_of(array).startswith("20 tasks"), "a hundred tasks are jobs", 60)
    rest = asrpt.job(array)
    wait_for(
        lambda: asrpt.job(array).eligible_time > rest.eligible_time, "the lease of the other tasks is renewed", LEASE_S
    )
    asrpt.kill_daemon()
    asrpt.cancel(*blockers)
    wait_for(lambda: last in asrpt.jobs(), "Slurm starts the tasks when their leases expire", 60)
    asrpt.start_daemon()
    once(asrpt, "killed", [f"{array}_{task}" for task in range(120)])


def test_disable_releases_all_tasks_at_once(asrpt: Cluster) -> None:
    """Also those that share a record, which Slurm shows as 6-27:3."""
    blockers = asrpt.block_all()
    array = asrpt.submit("--gpus=1", "--array=0-27:3%2", script=script("back"))
    wait_for(lambda: f"{array}_3" in asrpt.jobs(), "some of the array's tasks are jobs", 30)
    assert array in json.loads(asrpt.admin("disable", "--json"))["jobs"]
    waiting = [job for job in asrpt.jobs().values() if job.array_id == array]
    assert len(waiting) == 3
    assert all(job.reason != "BeginTime" for job in waiting)
    asrpt.cancel(*blockers)
    assert most_at_once(once(asrpt, "back", [f"{array}_{task}" for task in range(0, 28, 3)])) == 2
    asrpt.admin("enable")
