"""Incremental reads of a real Slurm's queue give what squeue's JSON gives."""

from __future__ import annotations

import time
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.incremental import SPREAD_S, IncrementalQueue, prints_records, prints_single_jobs
from slurm_asrpt.slurm.records import PENDING, JobRecord
from tests.e2e.conftest import Cluster, wait_for

pytestmark = pytest.mark.e2e


class IncrementalClient(CliClient):
    """A client that reads incrementally even with few jobs.

    reads: number of full reads. skipped_s: its clock is that much ahead.
    """

    def __init__(self, settings: SlurmSettings) -> None:
        super().__init__(settings)
        self.reads, self.skipped_s = 0, 0.0
        self._queue = self._new_queue()

    def _new_queue(self) -> IncrementalQueue:
        readers = (self._lines, self._all_jobs, self._allocated_gres, lambda: time.monotonic() + self.skipped_s)
        some = self._some_jobs if prints_single_jobs(self._version) else None
        return IncrementalQueue(*readers, many=0, task_lines=not prints_records(self._version), some=some)

    def reread_jobs(self) -> list[JobRecord]:
        """Read all jobs in full, then their lines, so that later changes are noticed."""
        self._queue = self._new_queue()
        return [*self.jobs(), *self.jobs()]

    def _all_jobs(self) -> list[JobRecord]:  # nothing else shows whether a read was a full one
        self.reads += 1
        return super()._all_jobs()


@pytest.fixture
def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> IncrementalClient:
    monkeypatch.setattr("slurm_asrpt.throttle.PAUSE_FACTOR", 1e6)  # fields that squeue lacks are not read either
    return IncrementalClient(SlurmSettings(conf=str(cluster.lab.slurm_conf)))


FIELDS = (
    "state reason submit_time eligible_time priority restarts dependency exit_code nodes"
    " gpus_by_node gpus_by_type gpu_indexes"
)
PASSING = attrgetter(*FIELDS.split())


def shown_fields(jobs: list[JobRecord]) -> dict[str, tuple[Any, ...]]:
    """The fields of each job that the lines show, without Slurm's expected start and end of pending jobs."""
    times = {job.job_id: () if job.state == PENDING else (job.start_time, job.end_time) for job in jobs}
    return {job.job_id: (*PASSING(job), *times[job.job_id]) for job in jobs}


def without_estimates(job: JobRecord) -> JobRecord:
    """The pending job without the start and end that Slurm expects."""
    return replace(job, start_time=0.0, end_time=0.0)


def wait_until_equal(client: CliClient, cluster: Cluster, *job_ids: str) -> None:
    """Wait until both reads show the same fields of these jobs; Slurm can change one, its reason say, between them."""

    def fields(of: CliClient) -> list[tuple[Any, ...]]:
        shown = shown_fields(of.jobs())
        return [shown[job_id] for job_id in job_ids]

    wait_for(lambda: fields(client) == fields(cluster.client), "both reads show the same jobs", 10)


def test_incremental_reads_equal_full_json_reads(cluster: Cluster, client: IncrementalClient) -> None:
    blockers = cluster.block_all()
    first = cluster.submit("--gpus=2", "-J", "line\nJobId=7 JobState=RUNNING")
    held, gone, later = (cluster.submit("--gpus=1", script="sleep 600") for _ in range(3))
    after = cluster.submit("--gpus=1", f"--dependency=afterany:{first}")
    cluster.submit("--array=1-4%2", "--gpus=1")
    ended = cluster.submit("-p", "other", script="exit 3")
    running = cluster.submit("-p", "other", "--requeue", script="sleep 600")
    cluster.wait(running, "RUNNING")
    starts = cluster.submit("-p", "other", "--hold", "-N1", "--gpus=4", "-t30", script="sleep 600")
    assert client.jobs()
    cluster.scontrol("release", starts)
    cluster.scontrol("update", f"JobId={starts}", "Priority=4294967000")  # before all others
    cluster.cancel(blockers[0])
    cluster.wait(starts, "RUNNING")
    cluster.scontrol("hold", held)
    cluster.scontrol("update", f"JobId={later}", "StartTime=now+3hours", "NumNodes=1-4")
    cluster.start_now(first)
    cluster.cancel(gone)
    cluster.wait(ended, "FAILED")
    wait_for(lambda: cluster.job(first).reason != "None", "Slurm has tried to start it", 30)
    compared = (first, held, gone, later, after, ended, running, starts)
    assert shown_fields(client.jobs()).keys() == shown_fields(cluster.client.jobs()).keys() >= set(compared)
    wait_until_equal(client, cluster, *compared)
    assert sum(cluster.job(starts).gpus_by_node.values()) == 4
    assert {job.max_nodes for read in (client, cluster.client) for job in read.jobs() if job.job_id == later} == {4}
    assert client.reads == 1
    array, even = cluster.submit("--array=1-9%3", "--gpus=1"), cluster.submit("--array=0-20:2", "--gpus=1")
    assert array in shown_fields(client.reread_jobs())
    client.reads = 0
    for task in (4, 1):
        cluster.scontrol("update", f"JobId={array}_{task}", "StartTime=now+2hours")
        tasks = {job.job_id: job for job in client.jobs() if job.array_id == array}
        assert tasks.keys() == ({array, f"{array}_4"} if task == 4 else {array, f"{array}_4", f"{array}_1"})
    assert tasks[array].array_tasks == "2-3,5-9"

    def records(of: CliClient) -> dict[str, JobRecord]:
        return {job.job_id: without_estimates(job) for job in of.jobs() if job.array_id in (array, even)}

    cluster.scontrol("update", f"JobId={even}_0", "StartTime=now+2hours")

    # Slurm can set the reason of a pending task between the two reads
    wait_for(lambda: records(client) == records(cluster.client), "both have the same records of the arrays", 10)
    assert client.reads == 0
    cluster.scontrol("requeue", running)
    cluster.wait(running, PENDING)
    wait_until_equal(client, cluster, running)


def test_changes_that_no_column_shows_are_read_between_two_cycles(cluster: Cluster, client: IncrementalClient) -> None:
    """Where squeue prints single jobs, without reading all."""
    cluster.block_all()
    array, changed, ended = cluster.submit("--array=0-4", "--gpus=1"), cluster.submit("--gpus=1"), cluster.submit()
    cluster.cancel(ended)
    cluster.scontrol("update", f"JobId={array}_2", "StartTime=now+2hours")
    client.reread_jobs()
    client.reads = 0
    node = cluster.client.nodes()[0].name
    for job in (f"{array}_2", changed):
        cluster.scontrol("update", f"JobId={job}", f"ExcNodeList={node}")
    assert {job.excluded_nodes for job in client.jobs()} == {""}
    client.skipped_s += SPREAD_S
    client.catch_up()
    excluded = {job.job_id for job in client.jobs() if job.excluded_nodes == node}
    assert excluded == {f"{array}_2", changed}
    assert client.reads == (not prints_single_jobs(client.run("squeue", "--version")))
