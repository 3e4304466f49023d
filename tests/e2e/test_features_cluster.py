"""GPU types, overlapping partitions, licenses, and nodes that are added and removed (docs/slurm-features.md)."""

import re
from collections.abc import Iterator

import pytest

from slurm_asrpt.lab.spec import DEFAULT_SCHEDULER_PARAMETERS
from slurm_asrpt.status.reason_texts import LEFT_WORDS

from .conftest import QUICK, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

SHORT = "sleep 1"
EXTRA = "PartitionName=half Nodes=n[1-2]\nLicenses=matlab:1\nGresTypes=gpu,shard\nRebootProgram=/bin/true"
MIG = "1g.10gb"


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    """n1 and n2 with four H100, n3 with four T4; partition half has the H100 only."""
    options = {
        "nodes": "2x4:h100,1x4:t4",
        "slurm_conf_extra": EXTRA,
        "scheduler_parameters": f"{DEFAULT_SCHEDULER_PARAMETERS},permit_job_expansion",
        "settings": {**QUICK, "slurm": {"partitions": ["gpu", "half"]}},
    }
    with own_cluster(40, **options) as cluster:
        cluster.start_daemon()
        yield cluster


def waits(cluster: Cluster, job_id: str, text: str, timeout: float = 15) -> None:
    """Wait until asrpt-status shows this reason for a job."""
    wait_for(lambda: cluster.text_of(job_id).startswith(text), f"job {job_id}: {text}", timeout)
    assert cluster.job(job_id).state == "PENDING"


def test_gpu_types_and_overlapping_partitions(lab: Cluster):
    blockers = [lab.block("n1", 4), lab.block("n2", 2)]
    fast = lab.submit("--gpus=h100:4", script=SHORT)
    half = lab.submit("-p", "half", "-N1", "--gpus=3", script=SHORT)
    slow = [lab.submit(*asks, script=SHORT) for asks in (["--gres=gpu:t4:1"], ["-n1", "--gpus-per-task=t4:1"])]
    either = lab.submit("-p", "half,gpu", "-N1", "--gpus=3", script=SHORT)
    done = lab.wait_all([*slow, either], "COMPLETED")
    assert {job.nodes for job in done.values()} == {"n3"}
    for job_id in (fast, half):
        wait_for(lambda j=job_id: lab.state_of(j) == "waiting", "it waits for its node type", 10)
    lab.cancel(*blockers)
    done = lab.wait_all([fast, half], "COMPLETED")
    assert {job.nodes for job in done.values()} <= {"n1", "n2", "n[1-2]"}


def test_a_missing_license_reserves_no_gpus_and_an_expanding_job_is_left_to_slurm(lab: Cluster):
    first, second = (lab.submit("--gpus=1", "-L", "matlab:1", script="sleep 600") for _ in range(2))
    lab.wait(first, "RUNNING")
    waits(lab, second, "would exceed limit license matlab")
    full = lab.submit("--gpus=11", script=SHORT)
    lab.wait(full, "COMPLETED")
    lab.cancel(first)
    lab.wait(second, "RUNNING")
    here = lab.job(second).nodes
    for node in lab.lab.spec.node_list:
        lab.block(node.name, node.gpus - (node.name == here))
    gives = lab.submit("--gpus=1", f"--dependency=expand:{second}", script=SHORT)
    waits(lab, gives, f"left to Slurm: {LEFT_WORDS['expand']}")


def files(lab: Cluster) -> tuple[str, str]:
    slurm_conf, gres_conf = ((lab.lab.paths.etc / name).read_text("utf-8") for name in ("slurm.conf", "gres.conf"))
    return slurm_conf, gres_conf


def with_two_more(lab: Cluster) -> tuple[str, str]:
    """The files with two more nodes: n4, like n1, and n5, with MIG instances and shards but no whole GPU."""
    slurm_conf, gres_conf = files(lab)
    n1 = next(line for line in slurm_conf.splitlines() if line.startswith("NodeName=n1 "))
    port, gpus = lab.lab.spec.node_list[0].port, lab.lab.paths.gpus
    n4 = n1.replace("NodeName=n1 ", "NodeName=n4 ").replace(f"Port={port} ", f"Port={port + 3} ")
    n5 = n1.replace("NodeName=n1 ", "NodeName=n5 ").replace(f"Port={port} ", f"Port={port + 4} ")
    n5 = n5.replace("Gres=gpu:h100:4", f"Gres=gpu:{MIG}:2,shard:4")
    slurm_conf = slurm_conf.replace("n[1-3]", "n[1-5]").replace(
        "PartitionName=gpu", f"{n4}\n{n5}\nPartitionName=gpu", 1
    )
    more = [
        f"NodeName=n4 Name=gpu Type=h100 File={gpus}/gpu[0-3]",
        f"NodeName=n5 Name=gpu Type={MIG} File={gpus}/gpu[0-1]",
        "NodeName=n5 Name=shard Count=4\n",
    ]
    return slurm_conf, gres_conf + "\n".join(more)


def configure(lab: Cluster, slurm_conf: str, gres_conf: str) -> None:
    """Change the files while slurmctld is stopped, as Slurm requires when nodes are added or removed."""
    lab.lab.stop_slurmctld()
    for name, text in (("slurm.conf", slurm_conf), ("gres.conf", gres_conf)):
        (lab.lab.paths.etc / name).write_text(text, encoding="utf-8")
    lab.lab.start_slurmctld()


def test_jobs_start_on_a_node_that_will_be_rebooted_once_it_is_idle(lab: Cluster):
    running = lab.submit("--gpus=1", "-w", "n3", script="sleep 600")
    lab.wait(running, "RUNNING")
    lab.scontrol("reboot", "n3")
    wait_for(lambda: "REBOOT_REQUESTED" in lab.scontrol("show", "node", "n3"), "the reboot is asked for", 10)
    lab.wait(lab.submit("--gpus=1", "-w", "n3", script=SHORT), "COMPLETED")
    lab.scontrol("cancel_reboot", "n3")
    lab.cancel(running)


def test_nodes_can_be_added_and_removed_and_shared_gpus_are_left_to_slurm(lab: Cluster):
    before = files(lab)
    configure(lab, *with_two_more(lab))
    for name in ("n4", "n5"):
        lab.lab.start_node(name)
    lab.lab.wait_for_nodes()
    blocker = lab.block("n1", 1)
    full = lab.submit("--gpus=h100:12", script="sleep 2")
    waits(lab, full, "needs 12 GPUs, 11 free")
    parts = [lab.submit(ask, script="sleep 5") for ask in ("--gres=shard:1", f"--gpus={MIG}:1")]
    wait_for(lambda: lab.audit(parts[1], "left"), "asrptd has seen the second job", 10)
    done = lab.wait_all(parts, "COMPLETED")
    assert {job.nodes for job in done.values()} == {"n5"}
    assert lab.audit(parts[1], "left")[0]["why"] == "mixed"  # the hook left the first one to Slurm
    lab.cancel(blocker)
    assert lab.wait(full, "COMPLETED").nodes == "n[1-2,4]"

    blockers = [lab.block("n1", 1), lab.block("n2", 1)]
    too_big, fits = lab.submit("--gpus=h100:12", script=SHORT), lab.submit("--gpus=h100:8", script=SHORT)
    for job_id in (too_big, fits):
        wait_for(lambda j=job_id: lab.state_of(j) == "waiting", "both wait", 15)
    for name in ("n4", "n5"):
        lab.lab.stop_node(name)
    configure(lab, *before)
    lab.lab.wait_for_nodes()
    lab.cancel(*blockers)
    lab.wait(fits, "COMPLETED", timeout=60)
    waits(lab, too_big, "needs 12 GPUs; the nodes that it may use have ")


def test_jobs_with_other_generic_resources_of_their_nodes_start_in_their_turn_where_these_are_free():
    """Only n2 has NVMe disks, two of them: at most two such jobs run at once, and those behind them do not wait."""
    with own_cluster(580, "2x4", {**QUICK, "policy": {"name": "asrpt-gated"}}) as own:
        lab = own.lab
        text = re.sub("(?m)^GresTypes=.*$", "GresTypes=gpu,nvme,scratch", lab.slurm_conf.read_text())
        text = re.sub("(?m)^(NodeName=n2 .*Gres=gpu:4)", r"\1,nvme:2", text)
        lab.slurm_conf.write_text(re.sub("(?m)^(NodeName=.*Gres=gpu:4[^ ]*)", r"\1,scratch:800G", text))
        with (lab.paths.etc / "gres.conf").open("a") as file:
            file.write("NodeName=n2 Name=nvme Count=2\nNodeName=n[1-2] Name=scratch Count=800G Flags=CountOnly\n")
        lab.restart()
        own.start_daemon()
        disks = [own.submit("--gres=gpu:1,nvme:1", "-n1", script="sleep 8") for _ in range(3)]
        wide = own.submit("--gpus=4", "-N2", "--gres=scratch:500G", script="sleep 3")
        own.wait_all(disks[:2], "RUNNING")
        scratch = own.submit("--gpus=1", "--gres=scratch:400G", script=SHORT)
        plain = own.submit("--gpus=1", script=SHORT)
        wait_for(lambda: own.state_of(disks[2]) == "waiting", "the third is in the queue", 10)
        done = own.wait_all([*disks, wide, scratch, plain], "COMPLETED")
        assert {done[job_id].nodes for job_id in disks} == {"n2"}
        assert done[plain].end_time < min(done[job_id].end_time for job_id in disks)
        assert not [each for job_id in done for each in own.audit(job_id, "not-started")]
