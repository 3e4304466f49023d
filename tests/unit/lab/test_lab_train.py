"""asrpt-lab train: its allocation, its runtime, its progress reports and checkpoints."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.errors import InputError
from slurm_asrpt.lab import allocation, train
from slurm_asrpt.lab.allocation import Allocation, expand, gpus_in, parse_job, parse_nodes
from slurm_asrpt.profile.schema import LIBRARY, load_profile
from slurm_asrpt.progress import Reporter

# Answers of Slurm 22.05.8 to "scontrol -d -o show job" and "scontrol -o show node", shortened in the middle
JOB = (
    "JobId=7 JobName=wrap UserId=asrpt1(999) ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1-3] BatchHost=n1 "
    "NumNodes=3 NumCPUs=6 JOB_GRES=gpu:6 Nodes=n1 CPU_IDs=0-3 Mem=256 GRES=gpu:4(IDX:0-3) "
    "Nodes=n[2-3] CPU_IDs=0 Mem=64 GRES=gpu:1(IDX:0) MinCPUsNode=1 Command=(null)\n"
)
NODES = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=64  Gres=gpu:4 NodeAddr=127.0.0.1 Partitions=gpu,other\n"
    "NodeName=n2 Arch=x86_64 CoresPerSocket=64  Gres=gpu:h100:8(S:0) NodeAddr=127.0.0.1\n"
    "NodeName=n3 Arch=x86_64 CoresPerSocket=64  Gres=(null) NodeAddr=127.0.0.1\n"
)
UNEVEN = Allocation(("n1", "n2", "n3"), (4, 1, 1), (4, 8, 8))


@pytest.fixture(autouse=True)
def signal_handlers():
    """The tests run the command in this process; a later SIGTERM is not for it."""
    before = {number: signal.getsignal(number) for number in {*train.SIGNALS, signal.SIGTERM}}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_gpus_per_node_of_a_job_are_parsed():
    assert parse_job(JOB) == {"n1": 4, "n2": 1, "n3": 1}
    assert parse_job("JobId=8 NumNodes=1 Nodes=n1 CPU_IDs=0 Mem=64 GRES= MinCPUsNode=1\n") == {}


def test_the_gpus_of_nodes_are_parsed():
    assert parse_nodes(NODES) == {"n1": 4, "n2": 8, "n3": 0}


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [("gpu:4(IDX:0-3)", 4), ("gpu:h100:2(IDX:0,3),gpu:t4:1(IDX:2)", 3), ("(null)", 0), ("", 0), ("nic:2", 0)],
)
def test_gpus_in_a_gres_string_are_counted(gres, gpus):
    assert gpus_in(gres) == gpus


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],m2", ["n1", "n2", "n3", "n7", "m2"]),
        ("gpu-[08-10]", ["gpu-08", "gpu-09", "gpu-10"]),
        ("r[1-2]n[1,3]x", ["r1n1x", "r1n3x", "r2n1x", "r2n3x"]),
    ],
)
def test_host_lists_are_expanded(text, names):
    assert expand(text) == names


def test_without_a_host_file_ranks_follow_slurms_block_order():
    assert allocation.read_ranks(UNEVEN, {}) == (0, 0, 0, 0, 1, 2)
    assert allocation.read_ranks(UNEVEN, {"SLURM_HOSTFILE": "/nowhere"}) == (0, 0, 0, 0, 1, 2)


def test_a_host_file_gives_the_ranks(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("n2\nn1\nn1\nn3\nn1\nn1\n")
    assert allocation.read_ranks(UNEVEN, {"SLURM_HOSTFILE": str(hosts)}) == (1, 0, 0, 2, 0, 0)


@pytest.mark.parametrize("text", ["n1\n", "n9\n" * 6, "n1\n" * 6])
def test_a_host_file_that_does_not_fit_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="hosts"):
        UNEVEN.hostfile_ranks(text, "hosts")


def test_alpha_equals_the_projects_iteration_time():
    options = train.parse_options(["--profile", "vgg19-dp4", "--inter", "1e9", "--intra", "2e11"])
    spread = Allocation(("n1", "n2"), (3, 1), (4, 8))
    expected = iteration_time(load_profile("vgg19-dp4", []), (0, 0, 0, 1), (4, 8), Fabric(1e9, 2e11))
    assert train.alpha_here("vgg19-dp4", spread, (0, 0, 0, 1), options) == expected


DIVIDED = """\
JobId=7 ...
     Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=gpu:3(IDX:0,2-3)
     Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:3)
"""


def test_training_is_slower_in_several_nvlink_domains(tmp_path, monkeypatch):
    nodes = "NodeName=n1 Gres=gpu:4\nNodeName=n2 Gres=gpu:4\n"
    monkeypatch.setattr(allocation, "_scontrol", lambda *words: DIVIDED if "job" in words else nodes)
    settings = tmp_path / "asrpt.toml"
    settings.write_text("[fabric]\nnvlink_domain = 2\nacross_bytes_per_s = 1e8\n")
    monkeypatch.setenv("ASRPT_CONFIG", str(settings))
    options = train.parse_options(["--profile", "vgg19-dp4"])
    allocated = allocation.read_allocation({"SLURM_JOB_ID": "7"})
    assert allocated == Allocation(("n1", "n2"), (3, 1), (4, 4), (0b1101, 0b1000))
    ranks, profile = (0, 0, 0, 1), load_profile("vgg19-dp4", [])
    fabric = Fabric(1.25e9, 300e9, domain=2, across=1e8)
    slow = iteration_time(profile, ranks, (4, 4), fabric, layouts=((1, 2), (1,)))
    assert train.alpha_here("vgg19-dp4", allocated, ranks, options) == slow
    assert slow > iteration_time(profile, ranks, (4, 4), fabric)


def test_gpus_that_are_not_shown_count_as_in_one_domain():
    assert allocation.parse_indexes(DIVIDED.replace("(IDX:3)", ""), {"n1": 3, "n2": 1}) == ()


TOPOLOGY = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n3
SwitchName=spine1 Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=leaf[1-2]
"""


def test_training_is_slower_beyond_a_switch(tmp_path, monkeypatch):
    monkeypatch.setattr(allocation, "_scontrol", lambda *words: TOPOLOGY if words == ("show", "topology") else "")
    settings = tmp_path / "asrpt.toml"
    settings.write_text("[fabric]\nbeyond_bytes_per_s = [2.5e8]\n")
    monkeypatch.setenv("ASRPT_CONFIG", str(settings))
    options = train.parse_options(["--profile", "vgg19-dp4"])
    ranks, profile = (0, 0, 1, 1), load_profile("vgg19-dp4", [])
    near, far = (Allocation(nodes, (2, 2), (4, 4)) for nodes in (("n1", "n2"), ("n1", "n3")))
    assert allocation.read_blocks(near, options.beyond) == ()
    assert allocation.read_blocks(far, options.beyond) == ((0, 1),)
    fabric = Fabric(1.25e9, 300e9, (2.5e8,))
    slow = iteration_time(profile, ranks, (4, 4), fabric, blocks=((0, 1),))
    assert train.alpha_here("vgg19-dp4", far, ranks, options) == slow
    assert train.alpha_here("vgg19-dp4", near, ranks, options) == iteration_time(profile, ranks, (4, 4), fabric) < slow


def test_the_topology_is_read_only_if_it_matters():
    assert allocation.read_blocks(UNEVEN, ()) == ()
    assert allocation.read_blocks(Allocation(("n1",), (4,), (4,)), (1e9,)) == ()


def test_a_profile_of_another_size_is_refused():
    with pytest.raises(InputError, match="has 4 replicas, but this job has 6 GPUs"):
        train.alpha_here("vgg19-dp4", UNEVEN, UNEVEN.block_ranks(), train.parse_options([]))


def test_the_fabric_is_read_from_the_labs_settings(tmp_path, monkeypatch):
    settings = tmp_path / "asrpt.toml"
    settings.write_text('[fabric]\ninter_bytes_per_s = 5e8\n[paths]\nprofiles = ["/p"]\n')
    monkeypatch.setenv("ASRPT_CONFIG", str(settings))
    options = train.parse_options([])
    assert (options.inter, options.intra, str(options.folders[0])) == (5e8, train.DEFAULT_INTRA, "/p")


def test_progress_is_written_at_the_end(tmp_path):
    assert train.train(20, 0.005, Reporter({"ASRPT_PROGRESS_DIR": str(tmp_path)})) >= 0.1
    assert (tmp_path / "iterations").read_text() == "20 20 - 0\n"
    assert os.listdir(tmp_path) == ["iterations"]


def test_a_loss_is_reported_that_has_converged_after_so_many_iterations(tmp_path):
    train.train(20, 0.005, Reporter({"ASRPT_PROGRESS_DIR": str(tmp_path)}), converges=40)
    assert (tmp_path / "iterations").read_text() == f"20 20 {train.loss_at(20, 40):.6g} 0\n"
    assert (tmp_path / "losses").read_text().startswith("0 1.5\n")
    assert [train.loss_at(done, 40) for done in (0, 40)] == [1.5, 0.51]
    assert train.loss_at(3, 0) is None


def test_other_ranks_and_missing_directories_write_no_progress(tmp_path):
    train.train(0, 1.0, Reporter({"ASRPT_PROGRESS_DIR": str(tmp_path), "SLURM_PROCID": "1"}))
    train.train(0, 1.0, Reporter({"ASRPT_PROGRESS_DIR": "/nowhere"}))
    assert os.listdir(tmp_path) == []


def test_sigterm_writes_the_progress_reached_and_exits_143(tmp_path):
    environment = {"ASRPT_PROGRESS_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "slurm_asrpt.lab.train", "--iterations", "100000", "--speedup", "1000"]
    process = subprocess.Popen(command, env=environment)
    while not (tmp_path / "iterations").exists():
        time.sleep(0.01)
    time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 143
    done, total = map(int, (tmp_path / "iterations").read_text().split()[:2])
    assert 0 < done < total == 100000


def test_json_output_has_placement_and_time(monkeypatch, capsys):
    monkeypatch.setattr(train, "read_allocation", lambda environment: UNEVEN)
    assert train.main(["--iterations", "1", "--speedup", "1000", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["nodes"], result["counts"], result["alpha"]) == (["n1", "n2", "n3"], [4, 1, 1], 1.0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--iterations", "-1"],
        ["--iterations", "x"],
        ["--speedup", "0"],
        ["--speedup", "nan"],
        ["--inter", "inf"],
        ["--nonsense"],
        ["--profile", "vgg19-dp4"],
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments, monkeypatch, capsys):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert train.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("asrpt-train: ")
    assert error.count("\n") == 1


def test_train_needs_only_the_standard_library():
    code = "import sys, slurm_asrpt.lab.train, slurm_asrpt.profile.schema; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    tops = {name.partition(".")[0] for name in modules.stdout.split()} - {"slurm_asrpt", "__main__", "sitecustomize"}
    assert tops <= sys.stdlib_module_names


ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(train.__file__))))


def test_tensor_slices_on_several_servers_are_a_clear_error(tmp_path):
    text = (LIBRARY / "vgg19-dp4.toml").read_text(encoding="utf-8").replace("replicas = 4", "replicas = 2")
    path = tmp_path / "pairs.toml"
    path.write_text(text.replace("allreduce =", "tensor = 2\nallreduce =", 1), encoding="utf-8")
    options = train.parse_options([])
    uneven = Allocation(("n1", "n2"), (3, 1), (4, 4))
    with pytest.raises(InputError, match=r"tensor slices of a replica of .* several servers; leave the placement"):
        train.alpha_here(str(path), uneven, (0, 0, 0, 1), options)
    assert train.alpha_here(str(path), uneven, (0, 0, 1, 1), options) > 0


def run_with_checkpoint(tmp_path, *options):
    command = [sys.executable, "-m", "slurm_asrpt.lab.train", "--checkpoint", str(tmp_path / "at"), *options]
    environment = {"ASRPT_PROGRESS_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def wait_for_file(path):
    while not path.exists():
        time.sleep(0.01)


def iteration_ranges(process):
    """The iterations that a run prints as done, as (first, last)."""
    lines = process.communicate(timeout=30)[0].splitlines()
    return [(int(line.split()[2]), int(line.split()[4])) for line in lines]


def test_a_requeued_job_resumes_from_its_checkpoint(tmp_path):
    """The job ends while it waits, as with a requeue; the next run does only the remaining iterations."""
    first = run_with_checkpoint(tmp_path, "--iterations", "100000", "--speedup", "1000")
    wait_for_file(tmp_path / "iterations")
    first.send_signal(signal.SIGUSR1)
    wait_for_file(tmp_path / "checkpoint")
    first.send_signal(signal.SIGTERM)
    ((begin, saved),) = iteration_ranges(first)
    assert (first.returncode, begin) == (143, 0)
    assert saved == int((tmp_path / "at").read_text()) == int((tmp_path / "checkpoint").read_text())
    second = run_with_checkpoint(tmp_path, "--iterations", "100000", "--speedup", "1e9")
    assert iteration_ranges(second) == [(saved, 100000)]
    assert (tmp_path / "iterations").read_text() == "100000 100000 - 0\n"


def test_a_job_that_is_not_requeued_continues_after_its_checkpoint(tmp_path):
    process = run_with_checkpoint(tmp_path, "--iterations", "4000", "--speedup", "1000", "--wait", "0.1")
    wait_for_file(tmp_path / "iterations")
    process.send_signal(signal.SIGUSR2)
    (first, second), (third, last) = iteration_ranges(process)
    assert (process.returncode, first, last) == (0, 0, 4000)
    assert 0 <= second == third < 4000


def test_an_invalid_checkpoint_file_is_a_clear_error(tmp_path, capsys):
    (tmp_path / "at").write_text("weights")
    assert train.main(["--checkpoint", str(tmp_path / "at"), "--iterations", "1"]) == 2
    assert "not a checkpoint of asrpt-lab train" in capsys.readouterr().err
