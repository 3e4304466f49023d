"""If the hook or its files are broken, sbatch succeeds, the job runs, and slurmctld's log has a message."""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.hook.hook_conf import FILE_NAME as HOOK_CONF
from slurm_asrpt.hook.hook_conf import write_hook_conf
from slurm_asrpt.hook.table import FILE_NAME as TABLE
from slurm_asrpt.hook.table import Entry, render_table
from slurm_asrpt.hook.tag import parse_tag

from .conftest import Cluster, wait_for

pytestmark = pytest.mark.e2e

NOISE = bytes(range(256)) * 4
LOADS = itertools.count(1)


def submit_and_read_log(cluster: Cluster) -> tuple[str, str]:
    """The id of a new job, and the lines that its submission added to slurmctld's log."""
    before = len(cluster.controller_log())
    job_id = cluster.submit("--gpus=1", script="true")
    return job_id, cluster.controller_log()[before:]


def prepare(cluster: Cluster) -> tuple[Path, Path]:
    """Write a table and a current hook.conf. No asrptd runs, so nothing repairs what a test breaks."""
    hook = cluster.paths / "hook"
    write_hook_conf(hook, ["gpu"], 2, time.time() + 600, GroupSettings())
    (hook / TABLE).write_bytes(render_table({"0123456789abcdef": Entry.plain(7)}))
    return hook / HOOK_CONF, hook / TABLE


def test_with_a_damaged_table_a_job_loses_only_its_prediction(cluster: Cluster):
    _, table = prepare(cluster)
    whole = table.read_bytes()
    jobs = [submit_and_read_log(cluster)[0]]  # with a good table: what was wrong before would be said once an hour
    for content, said in (
        (None, "cannot read table.txt"),
        (whole[:-5], "damaged: cut short or too long"),
        (NOISE, "damaged: header"),
    ):
        table.unlink(missing_ok=True)
        if content is not None:
            table.write_bytes(content)
        job_id, log = submit_and_read_log(cluster)
        assert "asrpt: " in log
        assert said in log
        tag = parse_tag(cluster.job(job_id).admin_comment)
        assert tag is not None
        assert tag.iterations == 0
        jobs.append(job_id)
    cluster.wait_all(jobs, "COMPLETED")


def test_without_a_valid_hook_conf_the_hook_leaves_jobs_unchanged(cluster: Cluster):
    conf, _ = prepare(cluster)
    whole, jobs = conf.read_bytes(), []
    edited = whole.replace(b"lease_s=2", b"lease_s=9")
    for content in (None, whole[:40], NOISE, edited, b""):
        conf.unlink(missing_ok=True)
        if content is not None:
            conf.write_bytes(content)
        job_id, log = submit_and_read_log(cluster)
        assert "asrpt: " in log
        assert "hook.conf" in log
        assert cluster.job(job_id).admin_comment == ""
        jobs.append(job_id)
    cluster.wait_all(jobs, "COMPLETED")


@contextmanager
def edited(*files: Path) -> Iterator[None]:
    """Restore the files afterwards, and make slurmctld reload them."""
    before = {file: file.read_bytes() for file in files}
    try:
        yield
    finally:
        for file, content in before.items():
            file.write_bytes(content)
        reload_hook(files[0].parent)


def reload_hook(etc: Path) -> None:
    """slurmctld reloads job_submit.lua if its mtime, in whole seconds, is later than at the last load."""
    path = etc / "job_submit.lua"
    later = int(time.time()) + next(LOADS)
    os.utime(path, (later, later))


def test_each_lua_error_is_one_log_line(cluster: Cluster):
    prepare(cluster)
    etc = cluster.lab.slurm_conf.parent
    module, site = etc / "job_submit_asrpt.lua", etc / "job_submit.lua"
    good = module.read_text(encoding="utf-8")
    raising = good.replace(
        "local function submit(state, desc, part_list, uid)\n",
        "local function submit(state, desc, part_list, uid)\n  error('a bug of ours, 100%s')\n",
    )
    assert raising != good
    example = (Path(__file__).parents[2] / "plugin_hooks" / "job_submit.lua").read_text(encoding="utf-8")
    jobs = []
    with edited(module, site):
        module.write_text(raising, encoding="utf-8")
        reload_hook(etc)
        job_id, log = submit_and_read_log(cluster)
        assert "a bug of ours, 100%s; job left as it is" in log
        assert cluster.job(job_id).admin_comment == ""
        jobs.append(job_id)
        # a module that is not valid Lua, loaded by the shipped example file
        module.write_text("this is no Lua", encoding="utf-8")
        site.write_text(example.replace("/etc/slurm/asrpt", str(etc)), encoding="utf-8")
        reload_hook(etc)
        job_id, log = submit_and_read_log(cluster)
        assert "asrpt: not loaded: " in log
        assert cluster.job(job_id).admin_comment == ""
        jobs.append(job_id)
        # without the example's pcall: slurmctld keeps the previous script and logs it
        site.write_text(f'dofile("{module}")\n', encoding="utf-8")
        reload_hook(etc)
        job_id, log = submit_and_read_log(cluster)
        assert "job_submit_asrpt.lua" in log
        jobs.append(job_id)
    job_id, _ = submit_and_read_log(cluster)
    assert parse_tag(cluster.job(job_id).admin_comment) is not None
    cluster.wait_all([*jobs, job_id], "COMPLETED")
    wait_for(cluster.lab.controller_up, "slurmctld is alive", 5)
