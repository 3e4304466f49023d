"""Jobs on a Slurm with topology/tree, and with topology/block where this release has it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.parse import release
from slurm_asrpt.status.reason_texts import by_slurm_text

from .conftest import COMMANDS, QUICK, SOON_S, Cluster, own_cluster, wait_for
from .test_placement import write_tail_heavy

pytestmark = pytest.mark.e2e

TREE = """\
SwitchName=leaf1 Nodes=n1,n4
SwitchName=leaf2 Nodes=n[2-3]
SwitchName=spine1 Switches=leaf[1-2]
"""
SWITCHES = {
    "n1": ("leaf1", "spine1"),
    "n2": ("leaf2", "spine1"),
    "n3": ("leaf2", "spine1"),
    "n4": ("leaf1", "spine1"),
}
LEAVES = ({"n1", "n4"}, {"n2", "n3"})
SHORT, LONG = "sleep 1", "sleep 600"
TWO_NODES = ("-N2", "-n2", "--gpus-per-task=1")


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    """Four nodes under two switches, which are not neighbors in the node table."""
    settings = {**QUICK, "policy": {"name": "asrpt", "tau": 0.0}}
    with own_cluster(980, "4x4", settings, topology="tree:2x2") as cluster:
        (cluster.lab.paths.etc / "topology.conf").write_text(TREE)
        cluster.lab.restart_slurmctld()
        write_tail_heavy(cluster.lab.paths.etc / "profiles")
        cluster.start_daemon()
        yield cluster


def test_the_topology_is_read_and_doctor_shows_it(lab: Cluster) -> None:
    assert lab.client.topology(["gpu"]).switches == SWITCHES
    said = lab.lab.run([COMMANDS / "asrpt-admin", "doctor"], check=False, timeout_s=120).stdout
    assert "topology/tree: 2 switches of level 1, 2 levels in all, above 4 nodes" in " ".join(said.split())


def test_a_job_that_asks_for_one_switch_gets_it_as_from_plain_slurm(lab: Cluster) -> None:
    blocker = lab.block("n2", 4)
    plain = lab.submit("-p", "other", "--switches=1", *TWO_NODES, script=SHORT, user=None)
    assert lab.wait(plain, "COMPLETED").nodes == "n[1,4]"
    managed = lab.submit("--switches=1", *TWO_NODES, script=SHORT)
    assert lab.wait(managed, "COMPLETED").nodes == "n[1,4]"
    assert lab.audit(managed, "start"), "asrptd decided the start time"
    lab.cancel(blocker)


def test_a_job_waits_for_one_switch_in_the_queue_for_the_time_that_it_names(lab: Cluster) -> None:
    blockers = [lab.block(node, 4) for node in ("n2", "n4")]
    job_id = lab.submit("--switches=1@00:00:04", *TWO_NODES, script=SHORT)
    wait_for(lambda: lab.audit(job_id, "start"), "its turn has come", 10)
    assert lab.text_of(job_id)
    done = lab.wait(job_id, "COMPLETED", timeout=SOON_S)
    assert done.nodes == "n[1,3]"
    assert done.start_time - done.submit_time >= 4
    lab.cancel(*blockers)


def test_contiguous_jobs_start_at_their_turn(lab: Cluster) -> None:
    blocker = lab.block("n1", 4)
    plain = lab.submit("-p", "other", "--contiguous", *TWO_NODES, script=SHORT, user=None)
    expected = lab.wait(plain, "COMPLETED").nodes
    job_id = lab.submit("--contiguous", *TWO_NODES, script=SHORT)
    assert lab.wait(job_id, "COMPLETED").nodes == expected
    assert lab.audit(job_id, "start")
    lab.cancel(blocker)


@pytest.mark.parametrize("used", [{"n1": 3, "n3": 3, "n4": 4}, {"n2": 3, "n3": 4, "n4": 3}])
def test_a_pinned_job_gets_the_planned_split_and_ranks(lab: Cluster, used: dict[str, int]) -> None:
    """Slurm splits the GPUs in the order of the node table, not of the switches."""
    blockers = [lab.block(node, gpus) for node, gpus in used.items()]
    script = "srun -l sh -c 'echo $SLURMD_NODENAME' > ranks.out\ncp $SLURM_HOSTFILE hosts.out\nsleep 2"
    options = ["-n6", "-c1", "--gpus-per-task=1", "--comment=asrpt:profile=tail-heavy"]
    job_id = lab.submit(*options, script=script)
    job = lab.wait(job_id, "RUNNING")
    free = {f"n{i}": 4 - used.get(f"n{i}", 0) for i in range(1, 5)}
    assert job.gpus_by_node == {node: gpus for node, gpus in free.items() if gpus}
    wait_for(lambda: lab.audit(job_id, "running"), "asrptd has read the allocation", 10)
    (entry,) = lab.audit(job_id, "running")
    assert entry["as_planned"]
    lab.wait(job_id, "COMPLETED")
    hosts = lab.output("hosts.out").split()
    ranks = dict(line.split(": ") for line in lab.output("ranks.out").splitlines())
    assert [ranks[str(i)] for i in range(6)] == hosts
    lab.cancel(*blockers)


def test_the_split_of_many_free_gpus_over_two_switches_is_as_planned(lab: Cluster) -> None:
    """5 of 3 + 1 + 2 + 2 free GPUs: the remainder falls on the last node of the table."""
    blockers = [lab.block(node, gpus) for node, gpus in {"n1": 1, "n2": 3, "n3": 2, "n4": 2}.items()]
    jobs = [lab.submit("--gpus=5", "-N3", script=LONG), lab.submit("-n3", "--gpus-per-task=1", script=LONG)]
    lab.wait_all(jobs, "RUNNING")
    for job_id in jobs:
        wait_for(lambda job_id=job_id: lab.audit(job_id, "running"), "asrptd has read the allocation", 10)  # type: ignore[misc]
        assert lab.audit(job_id, "running")[0]["as_planned"]
    lab.cancel(*blockers)


def test_training_is_slower_on_nodes_under_different_switches(lab: Cluster) -> None:
    script = f"{lab.lab.train} --profile vgg19-dp4 --iterations 1 --speedup 1000 --json > alpha-$SLURM_JOB_NODELIST.out"
    for nodes in ("n1,n4", "n2,n4"):
        options = ("-p", "other", "-w", nodes, "-N2", "--ntasks-per-node=2", "--gpus-per-task=1")
        lab.wait(lab.submit(*options, script=script), "COMPLETED")
    near, far = (json.loads(lab.output(f"alpha-n[{pair}].out"))["alpha"] for pair in ("1,4", "2,4"))
    assert far > 1.5 * near


@pytest.fixture(scope="module")
def blocks(one_lab: Cluster) -> Iterator[Cluster]:
    """Two blocks of two nodes."""
    if release(one_lab.client.config().version) < (24, 5):
        pytest.skip("topology/block needs Slurm 24.05")
    settings = {"daemon": {**QUICK["daemon"], "release_ahead": 0}, "policy": {"name": "asrpt-gated"}}
    with own_cluster(1000, "4x4", settings, topology="block:2") as cluster:
        (cluster.lab.paths.etc / "topology.conf").write_text(
            "BlockName=b1 Nodes=n1,n4\nBlockName=b2 Nodes=n[2-3]\nBlockSizes=2,4\n"
        )
        cluster.lab.restart_slurmctld()
        cluster.start_daemon()
        yield cluster


def test_jobs_are_pinned_within_a_block_and_slurm_chooses_the_nodes_of_larger_ones(blocks: Cluster) -> None:
    used = [blocks.block(node, 1) for node in ("n1", "n2", "n3", "n4")]
    small = [blocks.submit("-n5", "--gpus-per-task=1", script="sleep 3") for _ in range(2)]
    done = blocks.wait_all(small, "COMPLETED")
    for job_id in small:
        assert set(expand(done[job_id].nodes)) in LEAVES
        assert blocks.audit(job_id, "running")[0]["as_planned"]
    large = blocks.submit("-N4", "-n8", "--gpus-per-task=1", script=SHORT)
    segments = blocks.submit("-N4", "--segment=2", "--gpus-per-node=1", script=SHORT)
    done = blocks.wait_all([large, segments], "COMPLETED")
    assert {done[job_id].nodes for job_id in (large, segments)} == {"n[1-4]"}
    for job_id in (large, segments):
        assert blocks.audit(job_id, "start"), blocks.audit(job_id, "left")
    waits = blocks.submit("-N4", "--segment=2", "--gpus-per-node=4", script=SHORT)
    wait_for(lambda: blocks.text_of(waits), "asrptd knows it", 10)
    assert blocks.text_of(waits).endswith(by_slurm_text("segment"))
    blocks.cancel(*used)
    assert blocks.wait(waits, "COMPLETED").nodes == "n[1-4]"
