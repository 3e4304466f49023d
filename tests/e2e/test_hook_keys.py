"""The hook in a real slurmctld looks up the same keys as the tools."""

from __future__ import annotations

import pwd
import time

import pytest

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.hook.group import describe, keys_of
from slurm_asrpt.hook.hook_conf import write_hook_conf
from slurm_asrpt.hook.job_script import gpus_asked
from slurm_asrpt.hook.table import FILE_NAME, Entry, render_table
from slurm_asrpt.hook.tag import Tag, parse_tag

from .conftest import Cluster

pytestmark = pytest.mark.e2e
COMMAND = "srun torchrun train.py --model a --seed 7 --epochs 5 --lr=1e-4 > log"


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        (["--gpus=3"], 3),
        (["-N2", "--gpus-per-node=2"], 4),
        (["--nodes=3", "--gres=gpu:1"], 3),
        (["-n3", "--gpus-per-task=1"], 3),
        (["-N2", "--ntasks-per-node=2", "--gpus-per-task=1"], 4),
        (["--gpus=4", "--gpus-per-task=1"], 4),
        (["--gpus=4", "--gpus-per-node=2"], 4),
        (["-n4", "--gpus-per-task=1", "--gpus-per-node=2"], 4),
    ],
)
def test_the_exact_key_finds_its_prediction(cluster: Cluster, options: list[str], gpus: int) -> None:
    hook = cluster.paths / "hook"
    write_hook_conf(hook, ["gpu"], 600, time.time() + 600, GroupSettings())
    uid = pwd.getpwnam("asrpt1").pw_uid
    job = describe(uid, b"bert-1", f"#!/bin/sh\n{COMMAND}\n".encode(), [], b"", GroupSettings())
    keys = dict(keys_of(job.group, job.program, uid, gpus, job.features))
    (hook / FILE_NAME).write_bytes(render_table({keys["exact"]: Entry(1000, 900, 1100), keys["user"]: Entry.plain(1)}))
    job_id = cluster.submit("--hold", "-J", "bert-2", *options, script=COMMAND)
    tag = parse_tag(cluster.job(job_id).admin_comment)
    expected = Tag(job.group, 1000, "", 0, "", 900, 1100, job.program, "exact", {"epochs": 5, "lr": 1e-4})
    assert tag == expected
    assert gpus_asked(f"#!/bin/sh\n#SBATCH {' '.join(options)}\n".encode()) == gpus
