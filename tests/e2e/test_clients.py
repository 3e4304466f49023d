"""Every Slurm client does the same: read, lease, pin, unpin, and report errors."""

import time
from dataclasses import replace

import pytest

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm import pyslurm, writeback
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.slurm.records import PENDING, JobRecord, Update
from slurm_asrpt.slurm.request import read_request

from .conftest import Cluster, wait_for

pytestmark = pytest.mark.e2e


@pytest.fixture(params=["cli", "pyslurm"])
def client(request: pytest.FixtureRequest, cluster: Cluster) -> SlurmClient:
    settings = SlurmSettings(conf=str(cluster.lab.slurm_conf))
    if request.param == "cli":
        return CliClient(settings)
    try:
        return pyslurm.load(settings, CliClient(settings).config().version)
    except SlurmError as why_not:
        pytest.skip(str(why_not))


def settled(job: JobRecord) -> JobRecord:
    """The record without what Slurm's next pass sets: the reason, and from when on the job's age counts."""
    return replace(job, reason="", accrue_time=0.0)


def waiting(cluster: Cluster, *options: str) -> str:
    """A job in the unmanaged partition that is pending for ten minutes."""
    return cluster.submit("-p", "other", "--begin=now+600", *options)


def pending(cluster: Cluster, *options: str) -> JobRecord:
    """A new job that Slurm has not started yet when it is read: it starts those that fit within a second."""
    for _ in range(50):
        found = cluster.job(cluster.submit(*options))
        if found.state == PENDING:
            return found
    pytest.fail("Slurm starts every job before it can be read")


def test_the_cluster_is_read(client: SlurmClient, cluster: Cluster) -> None:
    config = client.config()
    assert config.cluster == f"lab{cluster.lab.spec.base_port}"
    assert not config.multifactor
    assert config.memory_consumed
    nodes = client.nodes()
    assert [(n.name, n.gpus, n.gpus_used, n.usable) for n in nodes] == [(f"n{i}", 4, 0, True) for i in range(1, 5)]


@pytest.mark.parametrize(
    ("options", "gpus", "per_node", "unit"),
    [
        (["--gpus=3", "-N1"], 3, None, 1),
        (["-n6", "--gpus-per-task=1"], 6, None, 1),
        (["-n2", "--gpus-per-task=2", "--mem-per-gpu=100"], 4, None, 2),
        (["-N2", "--gres=gpu:2"], 4, 2, 1),
        (["-N2-3", "--gpus=6", "--mem=200"], 6, None, 1),
    ],
)
def test_all_requests_of_a_job_are_read(
    client: SlurmClient, cluster: Cluster, options: list[str], gpus: int, per_node: int | None, unit: int
) -> None:
    job_id = waiting(cluster, *options)
    job = next(j for j in client.jobs() if j.job_id == job_id)
    ask = read_request(job, client.nodes(), ["other"])
    assert (ask.gpus, ask.request.per_node, ask.request.unit) == (gpus, per_node, unit)
    assert settled(job) == settled(cluster.job(job_id))  # every field as squeue reports it


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (["-N1", "-n1", "-c4", "--gpus=1"], 1),
        (["-n1", "-c4", "--gres=gpu:2"], 1),
        (["-N1-3", "--gpus=2"], 1),
        (["-N2", "-n4", "--gpus-per-task=1"], 2),
        (["-n4", "--ntasks-per-node=2", "--gres=gpu:1"], 2),
        (["-n3", "-c40", "--gres=gpu:1"], 3),
    ],
)
def test_a_held_job_requests_as_much_as_another(cluster: Cluster, options: list[str], nodes: int) -> None:
    """Slurm shows one node too many for some."""
    held = cluster.job(cluster.submit("--hold", *options))
    other = pending(cluster, *options)
    found = read_request(held, cluster.client.nodes(), ["gpu"])
    assert found == read_request(other, cluster.client.nodes(), ["gpu"])
    ran = cluster.wait(cluster.submit("-p", "other", *options), "RUNNING", "COMPLETED")
    assert len(ran.gpus_by_node) == nodes
    assert sum(ran.gpus_by_node.values()) == found.gpus
    assert found.request.min_nodes <= nodes <= (found.request.max_nodes or nodes)


@pytest.mark.parametrize(
    "options", [["-w", "n1"], ["-x", "n1,n3"], ["--exclusive"], ["--contiguous"], ["--array=1-5%2"], ["--hold"]]
)
def test_jobs_left_to_slurm_are_read(client: SlurmClient, cluster: Cluster, options: list[str]) -> None:
    job_id = waiting(cluster, "--gpus=4", "-N1", *options)
    assert [settled(job) for job in client.jobs() if job.job_id == job_id] == [settled(cluster.job(job_id))]


def test_a_job_name_with_invalid_utf8_does_not_stop_the_read(client: SlurmClient, cluster: Cluster) -> None:
    name = b"a\xff\nJobId=1".decode(errors="surrogateescape")
    first, second = waiting(cluster, f"--job-name={name}", "--gpus=1"), waiting(cluster, "--gpus=2")
    assert {first, second} <= {job.job_id for job in client.jobs()}


@pytest.mark.parametrize("options", [["--gpus=2"], ["-n2", "--gpus-per-task=1"]])
def test_a_job_with_mincpus_starts_after_its_pin_has_been_taken_off(
    client: SlurmClient, cluster: Cluster, options: list[str]
) -> None:
    job_id = cluster.submit_or_skip("-p", "other", "--begin=now+600", "--mincpus=16", *options, script="sleep 30")
    before = cluster.job(job_id)
    raised = writeback.raised_cpus(before, before.cpus, 1)
    undo = writeback.unpin(job_id, writeback.original(before), 4, 1, client.config(), bool(raised))
    pin = writeback.pin(job_id, {"n2": 2}, multifactor=False, cpus=raised)
    held = Update(job_id, {**pin.fields, "StartTime": "now+300"}, {**pin.then, "StartTime": "now+300"})
    assert client.update([held, undo]) == ["", ""]
    assert client.update([writeback.hand_over(job_id)]) == [""]
    cluster.wait(job_id, "RUNNING")
    cluster.cancel(job_id)


def test_a_lease_a_pin_and_its_removal(client: SlurmClient, cluster: Cluster) -> None:
    job_id = cluster.submit("-p", "other", "--begin=now+600", "--gpus=5", script="sleep 30")
    before = cluster.job(job_id)
    assert client.update([writeback.lease(job_id, 300)]) == [""]
    assert cluster.job(job_id).eligible_time == pytest.approx(time.time() + 300, abs=5)
    undo = writeback.unpin(job_id, writeback.original(before), 4, 2, client.config())
    pin = writeback.pin(job_id, {"n2": 1, "n3": 4}, multifactor=False)
    held = Update(job_id, {**pin.fields, "StartTime": "now+300"})
    assert client.update([held, undo]) == ["", ""]
    after = cluster.job(job_id)
    assert (after.required_nodes, after.tasks, after.cpus) == ("", before.tasks, before.cpus)
    assert client.update([pin]) == [""]
    cluster.wait(job_id, "RUNNING")
    assert cluster.job(job_id).nodes == "n[2-3]"
    wait_for(lambda: client.allocations([job_id]) == {job_id: {"n2": 4, "n3": 1}}, "the allocation is read", 5)
    running = next(j for j in client.jobs() if j.job_id == job_id)
    assert running.gpus_by_node == {"n2": 4, "n3": 1}
    assert [n.gpus_used for n in client.nodes()] == [0, 4, 1, 0]
    assert "no longer pending" in client.update([writeback.lease(job_id, 300)])[0]


def test_each_update_has_its_own_result(client: SlurmClient, cluster: Cluster) -> None:
    one, two = waiting(cluster, "--gpus=1"), waiting(cluster, "--gpus=1")
    errors = client.update([writeback.lease(one, 200), writeback.lease("999999", 200), writeback.hand_over(two)])
    assert (errors[0], errors[2]) == ("", "")
    assert "Invalid job id" in errors[1]
    cluster.wait(two, "RUNNING", "COMPLETED")
    assert cluster.job(one).state == "PENDING"


def test_an_unreachable_controller_is_an_error(client: SlurmClient, cluster: Cluster) -> None:
    cluster.lab.stop_slurmctld()
    try:
        with pytest.raises(SlurmError):
            client.jobs()
    finally:
        cluster.lab.start_slurmctld()
        cluster.lab.wait_for_nodes()
