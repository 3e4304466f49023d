"""Parsers on recorded output of real Slurm releases: all releases pass the same checks."""

import json
from pathlib import Path

import pytest

from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.slurm.parse import parse_jobs, parse_update_errors
from slurm_asrpt.slurm.records import RUNNING_STATES, Update
from slurm_asrpt.slurm.request import LeftToSlurm, read_request
from tests.benches.recorded_client import RecordedClient

FOLDERS = sorted(p for p in (Path(__file__).parents[2] / "recorded").iterdir() if (p / "squeue.json").exists())


@pytest.fixture(params=FOLDERS, ids=lambda p: p.name)
def folder(request):
    return request.param


@pytest.fixture
def client(folder) -> SlurmClient:
    return RecordedClient(folder)


@pytest.fixture
def jobs(folder, client):
    """Records by their names in the recording; ``array`` has the array's pending tasks."""
    ids = json.loads((folder / "ids.json").read_text(encoding="utf-8"))
    records = {job.job_id: job for job in client.jobs()}
    named = {name: records[job_id] for name, job_id in ids.items() if job_id in records}
    return named | {"array-task": records[f"{ids['array']}_0"]}


def test_the_supported_releases_are_recorded():
    assert {"22.05", "24.11", "26.05"} <= {f.name for f in FOLDERS}


def test_recorded_config_is_read(folder, client):
    config = client.config()
    assert config.version.startswith(folder.name)
    assert not config.multifactor
    assert config.memory_consumed


def test_recorded_nodes_are_in_table_order_with_their_gpus(client):
    nodes = client.nodes()
    assert [(n.name, n.index, n.gpus, n.gpu_type) for n in nodes] == [
        ("n1", 0, 8, "h100"), ("n2", 1, 8, "h100"), ("n3", 2, 8, "h100"), ("n4", 3, 4, "t4"),
    ]  # fmt: skip
    assert all(n.usable and not n.completing and not n.other_gres for n in nodes)
    assert all(n.partitions == {"gpu", "other"} and n.cpus == 64 and n.memory == 512_000 for n in nodes)


def test_gpus_used_by_node_and_by_job_agree(client):
    used = dict.fromkeys((n.name for n in client.nodes()), 0)
    for job in client.jobs():
        for name, count in job.gpus_by_node.items():
            used[name] += count
    assert used == {n.name: n.gpus_used for n in client.nodes()}


def test_allocations_from_squeue_and_scontrol_agree(client):
    by_squeue = {str(j.number): dict(j.gpus_by_node) for j in client.jobs() if j.gpus_by_node}
    everyone = [str(job.number) for job in client.jobs()]
    assert client.allocations(everyone) == by_squeue
    assert client.allocations(everyone[:1]) == {}


def test_an_uneven_allocation_is_read(jobs):
    assert jobs["uneven"].gpus_by_node == {"n1": 2, "n2": 3, "n3": 1}
    assert jobs["uneven"].nodes == "n[1-3]"


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("done", "COMPLETED", "None"),
        ("failed", "FAILED", "NonZeroExitCode"),
        ("cancelled-running", "CANCELLED", "None"),
        ("cancelled-waiting", "CANCELLED", "BeginTime"),
        ("total", "RUNNING", "None"),
        ("array-task", "RUNNING", "None"),
        ("array", "PENDING", "JobArrayTaskLimit"),
        ("resources", "PENDING", "Resources"),
        ("held", "PENDING", "JobHeldUser"),
        ("dependency", "PENDING", "Dependency"),
        ("begin", "PENDING", "BeginTime"),
        ("leased", "PENDING", "BeginTime"),
    ],
)
def test_recorded_job_states_are_read(jobs, name, state, reason):
    assert (jobs[name].state, jobs[name].reason) == (state, reason)


def test_states_of_completing_jobs_are_read(folder):
    """A requeued job whose processes still run is not pending yet; 24.11 lists both states."""
    jobs = {job.name: job for job in parse_jobs((folder / "ending.json").read_text(encoding="utf-8"))}
    assert {name: job.state for name, job in jobs.items()} == {
        "completing": "COMPLETING", "requeued": "COMPLETING", "requeue-held": "PENDING",
    }  # fmt: skip
    assert jobs["requeued"].restarts == jobs["requeue-held"].restarts == 1
    assert (jobs["requeue-held"].priority, jobs["requeue-held"].reason) == (0, "JobHeldUser")


def test_exit_codes_and_times_are_read(jobs):
    assert jobs["failed"].exit_code == 3
    assert jobs["done"].exit_code == 0
    assert jobs["cancelled-running"].signal in (9, 15)
    assert jobs["failed"].signal == jobs["done"].signal == 0
    assert 0 < jobs["done"].submit_time <= jobs["done"].start_time <= jobs["done"].end_time
    assert jobs["leased"].eligible_time == pytest.approx(jobs["leased"].submit_time + 600, abs=2)
    assert jobs["cancelled-waiting"].nodes == ""
    assert jobs["resources"].time_limit == 0  # none, in a partition without one
    assert jobs["total"].end_time - jobs["total"].start_time == 365 * 86400
    assert jobs["total"].time_limit in (0, 365 * 86400)  # as Slurm's main scheduler or its backfill started it


@pytest.mark.parametrize(
    ("name", "gpus", "per_node", "unit", "candidates"),
    [
        ("done", 1, None, 1, 4),
        ("total", 2, None, 1, 3),
        ("gres", 1, 1, 1, 3),
        ("per-node", 1, 1, 1, 4),
        ("t4", 1, None, 1, 1),
        ("per-task-two", 2, None, 2, 1),
        ("resources", 20, None, 1, 4),
        ("bounds", 16, None, 1, 4),
        ("tasks-per-node", 16, 8, 1, 4),
        ("even", 16, 8, 1, 4),
        ("leased", 2, None, 1, 4),
        ("nodelist", 8, None, 1, 1),
        ("exclude", 8, None, 1, 3),
        ("exclusive", 8, 8, 1, 3),
    ],
)
def test_recorded_requests_are_read(client, jobs, name, gpus, per_node, unit, candidates):
    ask = read_request(jobs[name], client.nodes(), ["gpu"])
    assert (ask.gpus, ask.request.per_node, ask.request.unit) == (gpus, per_node, unit)
    assert len(ask.request.candidates or ()) == candidates


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("contiguous", "contiguous"),
        ("per-socket", "socket"),
        ("no-gpu", "nogpu"),
        ("block-n1", "partition"),
    ],
)
def test_left_to_slurm(client, jobs, name, why):
    with pytest.raises(LeftToSlurm) as verdict:
        read_request(jobs[name], client.nodes(), ["gpu"])
    assert verdict.value.why == why


def test_heterogeneous_jobs_are_recognized(client):
    het = [job for job in client.jobs() if job.het]
    assert len(het) == 2


def test_node_bounds_and_memory_are_read(jobs, client):
    assert (jobs["bounds"].min_nodes, jobs["bounds"].max_nodes) == (2, 3)
    assert jobs["total"].max_nodes == 0
    assert read_request(jobs["gres"], client.nodes(), ["gpu"]).request.memory_per_node == 1000
    assert read_request(jobs["t4"], client.nodes(), ["gpu"]).request.memory_per_gpu == 200


def test_tags_written_by_the_hook_are_read(jobs):
    assert parse_tag(jobs["total"].admin_comment).profile == "vgg19-dp2"
    assert parse_tag(jobs["begin"].admin_comment).begin == pytest.approx(jobs["begin"].eligible_time, abs=1)
    assert parse_tag(jobs["held"].admin_comment).left == "held"
    assert parse_tag(jobs["block-n1"].admin_comment) is None


def test_odd_job_names_are_read_and_forge_nothing(jobs, client):
    odd = [job for name, job in jobs.items() if name.startswith("odd-")]
    assert any("\n" in job.name for job in odd)
    assert any("作业" in job.name for job in odd)
    running = {str(j.number) for j in client.jobs() if j.state in RUNNING_STATES}
    assert set(client.allocations([str(j.number) for j in client.jobs()])) <= running


def test_errors_of_recorded_updates_are_parsed(folder):
    errors = parse_update_errors((folder / "update.txt").read_text(encoding="utf-8"))
    good = [not error for error in errors]
    assert good == [True, False, True, True, False, False, False, False, False, True]
    assert "no longer pending" in errors[1]
    assert errors[8].startswith("Update of this parameter is not supported")


def test_the_recorded_client_remembers_writes(client):
    client.errors["9"] = "refused"
    updates = [Update("8", {"StartTime": "now"}), Update("9", {"StartTime": "now"})]
    assert client.update(updates) == ["", "refused"]
    assert client.written == updates
