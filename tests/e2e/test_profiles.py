"""Profiles on a real Slurm: attached by an admin, cut to a job's parallelism, measured in a job, and calibrated."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import pytest

from slurm_asrpt.history.store import Source
from slurm_asrpt.hook.tag import Tag, parse_tag
from slurm_asrpt.profile.sizes import Sizes

from .conftest import COMMANDS, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

TRUE_INTER = 5e9
"""The lab's real bandwidth; asrpt.toml has 1.25e9."""
SLOW = """version = 1
name = "{name}"
model = "a model that talks"
batch = 8
allreduce = "ring"
device = "none"

[provenance]
kind = "analytic"
origin = "a test"
formula = "none"

[[stage]]
replicas = {gpus}
forward_s = 0.005
backward_s = 0.005
bytes_in = 0
bytes_out = 0
param_bytes = {size}
"""


TALKING = [("talks", 4, 2e7), ("less", 4, 1e7)]
"""Name, GPUs and bytes of parameters."""
LONG_S = 8.0
"""Startup also counts as training time, about half a second."""


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    settings: dict[str, Any] = {
        "daemon": {"mode": "shadow", "interval_s": 0.5, "lease_s": 8, "unpin_after_s": 5.0},
    }
    with own_cluster(300, "4x4", settings, users=2) as cluster:
        cluster.start_daemon()
        yield cluster


def profile(cluster: Cluster, *words: str, user: str | None = None, check: bool = True) -> Any:
    return cluster.lab.run([COMMANDS / "asrpt-profile", *words], user=user, check=check)


def tag_of(cluster: Cluster, job_id: str) -> Tag:
    found = parse_tag(cluster.job(job_id).admin_comment)
    assert found is not None
    return found


def test_an_admin_attaches_a_model_and_each_job_gets_its_profile(lab: Cluster) -> None:
    profile(lab, "attach", "llama-3-8b", "--job-name", "llama-*")
    conf = lab.paths / "hook" / "hook.conf"
    wait_for(lambda: b"\nattach_name=llama-3-8b llama-*\n" in conf.read_bytes(), "hook.conf has the attachment", 20)
    script = "torchrun() { sleep 3; }\ntorchrun --nproc_per_node 4 train.py --tensor-model-parallel-size 2"
    clear = lab.submit("--gpus=4", "-N1", "-J", "llama-1", script=script)
    unclear = lab.submit("--gpus=4", "-N1", "-J", "llama-2", script="sleep 3")
    own = lab.submit("--gpus=4", "-N1", "-J", "llama-3", "--comment=asrpt:profile=vgg19-dp4", script="sleep 3")
    other = lab.submit("--gpus=1", "-J", "bert", script="sleep 1")
    tags = {job: tag_of(lab, job) for job in (clear, unclear, own, other)}
    assert (tags[clear].profile, tags[clear].sizes) == ("llama-3-8b", Sizes(procs=4, tp=2))
    assert [tags[job].profile for job in (unclear, own, other)] == ["llama-3-8b", "vgg19-dp4", ""]
    lab.wait_all([clear, unclear, own, other], "COMPLETED", timeout=60)
    assert lab.recorded(clear).profile == "llama-3-8b-tp2dp2"
    assert lab.recorded(own).profile == "vgg19-dp4"
    assert lab.recorded(clear).alpha > 0
    wait_for(
        lambda: "profile llama-3-8b cannot be cut into stages: the script" in lab.log.read_text(),
        "asrptd has shown a reason",
        20,
    )
    profile(lab, "attach", "--remove", "--job-name", "llama-*")
    wait_for(lambda: b"attach_name" not in conf.read_bytes(), "hook.conf has the attachment", 20)


def test_a_user_cannot_attach_for_others(lab: Cluster) -> None:
    answer = profile(lab, "attach", "vgg19-dp4", "--job-name", "*", user="asrpt1", check=False)
    assert answer.returncode == 2
    assert "run asrpt-profile attach as root" in answer.stderr
    assert "no profiles are attached" in profile(lab, "attach").stdout


def trained(cluster: Cluster, name: str, gpus: int, size: float, nodes: int) -> str:
    """A job on this many nodes that trains at the true bandwidth."""
    links = 300e9 if nodes == 1 else gpus // nodes / 4 * TRUE_INTER  # 4 GPUs a node
    alpha = 0.01 + 2 * (gpus - 1) / gpus * size / links
    train = f"exec {cluster.lab.train} --inter {TRUE_INTER} --iterations {round(LONG_S / alpha)} --profile {name}"
    options = (f"-N{nodes}", f"-n{gpus}", "--gpus-per-task=1", f"--ntasks-per-node={gpus // nodes}")
    return cluster.submit(f"--comment=asrpt:profile={name}", *options, script=train)


def test_calibrate_finds_the_true_bandwidth(lab: Cluster) -> None:
    """``asrpt-lab train`` runs at the speed of --inter; asrptd believes asrpt.toml."""
    folder = lab.lab.paths.etc / "profiles"
    folder.mkdir()
    for name, gpus, size in TALKING:
        (folder / f"{name}.toml").write_text(SLOW.format(name=name, gpus=gpus, size=size))
    jobs = [trained(lab, *which, nodes) for which in TALKING for nodes in (1, 2, which[1]) for _ in range(2)]
    lab.wait_all(jobs, "COMPLETED", timeout=120)
    runs = [lab.recorded(job) for job in jobs]
    assert {run.iterations_source for run in runs} == {Source.REPORTED}
    found = json.loads(lab.admin("calibrate", "--at-least", "2", "--json"))
    assert found["runs"] >= 10
    assert TRUE_INTER / 2 < found["fitted"]["inter"] < 1.5 * TRUE_INTER, "a busy machine slows jobs down"
    assert found["error_after"]["median"] < found["error_before"]["median"]


def test_a_model_is_measured_inside_a_job(lab: Cluster) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs the extra profile: make test-profile")
    home = lab.lab.home("asrpt1")
    (home / "mine.py").write_text(
        "import torch\n\ndef model(batch=4):\n"
        "    layers = [torch.nn.Linear(64, 64) for _ in range(3)]\n"
        "    return torch.nn.Sequential(*layers), torch.randn(batch, 64), lambda out: out.sum()\n"
    )
    command = f"{COMMANDS / 'asrpt-profile'} run mine:model --batch 8 --repeats 3 -o mine.toml"
    job_id = lab.submit("--gpus=1", script=f"export HOME={home} OMP_NUM_THREADS=1\ncd {home}\nexec {command}")
    lab.wait(job_id, "COMPLETED", "FAILED", timeout=120)
    text = lab.output(f"slurm-{job_id}.out")
    assert lab.job(job_id).state == "COMPLETED", text
    assert "BLOCK" in text
    assert "\r" not in text  # no progress bar without a terminal
    shown = json.loads(profile(lab, "show", str(home / "mine.toml"), "--json").stdout)
    assert (shown["batch"], shown["provenance"]["kind"]) == (8, "measured")
    assert shown["iteration_s"] > 0
