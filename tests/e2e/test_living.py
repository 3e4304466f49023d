"""Install, disable, remove and reinstall asrpt on a busy cluster without disturbing any job."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from slurm_asrpt import switch
from slurm_asrpt.daemon.state import SCHEMA
from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.install import job_submit
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.status.document import read_status

from .conftest import COMMANDS, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

LEASE_S = 300
"""Longer than any test: a job without a lease was released, and its lease did not expire."""
SITE = """\
function slurm_job_submit(job_desc, part_list, uid)
  if job_desc.name == "forbidden" then return slurm.ERROR end
  return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
RAN = "echo $SLURM_JOB_ID >> ran.out"


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    """A Slurm cluster of 2 x 4 GPUs with its own job_submit.lua, without asrpt, where all waiting jobs have leases."""
    settings = {"daemon": {"interval_s": 0.5, "lease_s": LEASE_S, "unpin_after_s": 120.0, "release_ahead": 0}}
    with own_cluster(60, "2x4", settings, hook=False) as cluster:
        (cluster.lab.paths.etc / "job_submit.lua").write_text(SITE)
        yield cluster


def install(site: Cluster, *words: str) -> tuple[int, dict[str, Any]]:
    """Run asrpt-admin install; return its exit status and output."""
    done = admin(site, "install", "--units", str(site.lab.directory / "etc" / "units"), "--json", *words)
    return done.returncode, json.loads(done.stdout) if done.stdout else {"error": done.stderr}


def admin(site: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    done = site.lab.run([COMMANDS / "asrpt-admin", *words], check=False, timeout_s=120)
    assert "Traceback" not in done.stderr
    return done


def write_slurm_conf(site: Cluster, lines: list[str]) -> None:
    """As an admin would: add the lines to slurm.conf, or remove all of ours, and reconfigure Slurm."""
    path = site.lab.slurm_conf
    keys = ("JobSubmitPlugins=", "Prolog=", "Epilog=", "TaskProlog=")
    kept = [line for line in path.read_text().splitlines() if not line.startswith(keys)]
    path.write_text("\n".join([*kept, *lines]) + "\n")
    site.lab.restart_slurmctld()
    site.scontrol("reconfigure")
    site.lab.wait_for_nodes()


def installed(site: Cluster) -> None:
    """Install everything, whatever was installed before."""
    code, found = install(site, "--apply")
    assert code == 0, found
    missing = [line["text"] for line in found["slurm_conf"] if line["state"] != "present"]
    if missing:
        write_slurm_conf(site, missing)


def work(site: Cluster) -> tuple[str, list[str]]:
    """A job on all of one node, blockers on the other, and pending jobs; the running and the pending jobs."""
    running = site.submit("--gpus=4", "-N1", script="sleep 600; " + RAN)
    site.wait(running, "RUNNING")
    free = next(n.name for n in site.lab.spec.node_list if n.name != site.job(running).nodes)
    site.block(free, 4)
    return running, [site.submit("--gpus=2", "-N1", script=RAN) for _ in range(3)]


def untouched(before: JobRecord, after: JobRecord) -> bool:
    """The running job continues on the same nodes."""
    keys = ("state", "start_time", "nodes", "gpus_by_node", "restarts", "min_nodes", "max_nodes")
    return all(getattr(before, key) == getattr(after, key) for key in keys)


def leased(site: Cluster, jobs: list[str]) -> list[bool]:
    records = site.jobs()
    return [records[job].eligible_time > time.time() + LEASE_S / 4 for job in jobs]


def all_leased(site: Cluster, jobs: list[str]) -> None:
    wait_for(lambda: all(leased(site, jobs)), "all pending jobs are leased", 20)


def none_leased(site: Cluster, jobs: list[str]) -> bool:
    records = site.jobs()
    return all(records[job].eligible_time <= time.time() and not records[job].required_nodes for job in jobs)


def disabled_by(site: Cluster) -> tuple[str, list[str]]:
    done = admin(site, "disable", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not found["refused"], found
    return found["by"], sorted(found["jobs"], key=int)


def release(site: Cluster, blockers_of: str) -> None:
    """Cancel the jobs that block the other node."""
    for job in site.jobs().values():
        if job.partition == "other" and job.state == "RUNNING" and job.job_id != blockers_of:
            site.cancel(job.job_id)


def ran_once(site: Cluster, jobs: list[str]) -> bool:
    return sorted(site.output("ran.out").split(), key=int) == sorted(jobs, key=int)


def clean(site: Cluster) -> None:
    site.stop_daemon()
    switch.turn_on(site.paths / "state")
    for user in ("root", "asrpt1"):
        site.lab.run(["scancel", f"--user={user}"], check=False)
    wait_for(lambda: not site.lab.run(["squeue", "-h"]).stdout.strip(), "no job is left", 30)
    (site.lab.home("asrpt1") / "ran.out").unlink(missing_ok=True)


def test_install_and_remove_while_jobs_run_and_wait(site: Cluster):
    etc = site.lab.paths.etc
    running, waiting = work(site)
    before = site.job(running)
    assert parse_tag(before.admin_comment) is None
    listing = sorted(path.name for path in etc.iterdir())

    code, found = install(site, "--check")
    assert code == 1
    assert {step["state"] for step in found["steps"] if step["what"] == "systemd unit"} == {"missing"}
    wanted = {line["text"].partition("=")[0]: line["state"] for line in found["slurm_conf"]}
    assert wanted["JobSubmitPlugins"] == wanted["Prolog"] == "missing"
    assert (wanted["GresTypes"], wanted["SelectType"]) == ("present", "present")
    assert sorted(path.name for path in etc.iterdir()) == listing

    conf = site.lab.slurm_conf.read_text()
    installed(site)
    assert site.lab.slurm_conf.read_text() != conf  # by the admin, root
    assert install(site, "--check")[0] == 0
    assert not [step for step in install(site, "--apply")[1]["steps"] if step["changed"]]
    assert untouched(before, site.job(running))
    refused = site.lab.run(["sbatch", "-J", "forbidden", "--gpus=1"], check=False, input="#!/bin/sh\n")
    assert refused.returncode != 0
    tagged = site.submit("--gpus=2", "-N1", script=RAN)
    assert parse_tag(site.job(tagged).admin_comment) is not None

    site.start_daemon()
    later = site.submit("--gpus=2", "-N1", script=RAN)
    all_leased(site, [tagged, later])
    findings = json.loads(admin(site, "doctor", "--json").stdout)
    assert [f for f in findings if f["state"] == "failure"] == []

    still = install(site, "--remove")
    assert still[0] == 1
    assert "systemctl disable --now asrptd" in still[1]["error"]
    assert none_leased(site, [tagged, later])
    assert site.stop_daemon() == 0
    code, found = install(site, "--remove")
    kept = {step["what"]: step["note"] for step in found["steps"] if step["state"] == "kept"}
    assert code == 0
    assert {"Prolog", "Epilog", "TaskProlog"} <= kept.keys()
    assert (etc / "job_submit.lua").read_text() == SITE
    write_slurm_conf(site, [])
    install(site, "--remove")
    assert not (site.paths / "scripts" / "asrpt-prolog").exists()
    assert not (site.paths / "scripts" / job_submit.MODULE).exists()
    assert (site.paths / "state" / "history.sqlite").exists()
    assert untouched(before, site.job(running))

    release(site, running)
    site.wait_all([*waiting, tagged, later], "COMPLETED")
    assert ran_once(site, [*waiting, tagged, later])
    assert untouched(before, site.job(running))
    bare = site.submit("--gpus=1", script="true")
    assert site.wait(bare, "COMPLETED").admin_comment == ""
    clean(site)


def test_disable_and_enable_with_and_without_asrptd(site: Cluster):
    installed(site)
    site.start_daemon()
    running, waiting = work(site)
    before = site.job(running)
    all_leased(site, waiting)
    held = site.submit("--gpus=1", "--hold")
    begin = int(time.time()) + 3000
    deferred = site.submit("--gpus=1", "--begin=now+3000", script=RAN)

    def deferred_leased() -> bool:
        """It must not start by itself at its begin time, so its lease ends later."""
        return site.job(deferred).eligible_time > begin + LEASE_S / 2

    wait_for(deferred_leased, "the lease covers the owner's begin time", 20)
    assert disabled_by(site) == ("asrptd", [*waiting, held, deferred])
    assert none_leased(site, waiting)
    assert site.job(held).priority == 0
    assert abs(site.job(deferred).eligible_time - begin) <= 3
    assert read_status(site.paths / "run").mode == "disabled"
    free = site.submit("--gpus=2", "-N1", script=RAN)
    assert site.job(free).eligible_time <= time.time()  # the hook no longer leases jobs
    assert untouched(before, site.job(running))

    assert "mode enforce" in admin(site, "enable").stdout
    all_leased(site, [*waiting, held, free])
    wait_for(deferred_leased, "the deferred job is leased, too", 20)
    site.kill_daemon()
    assert disabled_by(site) == ("asrpt-admin", [*waiting, held, deferred, free])
    assert none_leased(site, [*waiting, free])
    assert disabled_by(site) == ("asrpt-admin", [])
    release(site, running)
    site.wait_all([*waiting, free], "COMPLETED")
    assert ran_once(site, [*waiting, free])
    assert untouched(before, site.job(running))
    clean(site)


def test_a_pinned_job_that_cannot_start_loses_its_pin(site: Cluster):
    installed(site)
    site.start_daemon()
    site.scontrol("update", "PartitionName=gpu", "MaxTime=1")
    job = site.submit("--gpus=2", "-N1-2", "-t5", script=RAN)
    priority = site.job(job).priority
    wait_for(lambda: site.job(job).required_nodes, "the job is pinned", 20)
    assert site.job(job).priority != priority
    site.kill_daemon()
    assert disabled_by(site)[1] == [job]
    after = site.job(job)
    assert (after.required_nodes, after.priority, after.min_nodes, after.max_nodes) == ("", priority, 1, 2)
    site.scontrol("update", "PartitionName=gpu", "MaxTime=INFINITE")
    site.wait(job, "COMPLETED")
    assert ran_once(site, [job])
    clean(site)


def test_an_upgrade_keeps_the_state_and_does_not_disturb_running_jobs(site: Cluster):
    installed(site)
    site.start_daemon()
    running, waiting = work(site)
    before = site.job(running)
    all_leased(site, waiting)
    site.kill_daemon()
    module = site.paths / "scripts" / job_submit.MODULE
    released = module.read_bytes()
    module.write_bytes(b"-- of an older release\n" + released)
    path = site.paths / "state" / "state.json"
    state = json.loads(path.read_text())
    assert state["schema"] == SCHEMA
    for job in state["jobs"].values():
        del job["site_factor"]
    path.write_text(json.dumps({**state, "schema": 1}))
    installed(site)
    assert module.read_bytes() == released
    site.start_daemon()
    assert json.loads(path.read_text())["schema"] == SCHEMA
    tagged = site.submit("--gpus=2", "-N1", script=RAN)
    assert parse_tag(site.job(tagged).admin_comment) is not None
    waiting.append(tagged)
    assert not re.search("job-state-lost|policy-state-lost", (site.paths / "state" / "audit.jsonl").read_text())
    all_leased(site, waiting)
    assert site.stop_daemon() == 0

    saved = path.read_text()
    path.write_text(json.dumps({**json.loads(saved), "schema": SCHEMA + 1}))
    refused = site.lab.run([COMMANDS / "asrptd", "--once"], check=False)
    assert (refused.returncode, refused.stderr.splitlines()[-1].count(f"schema {SCHEMA + 1}")) == (2, 1)
    path.write_text(saved)
    assert disabled_by(site) == ("asrpt-admin", waiting)
    assert untouched(before, site.job(running))
    clean(site)


def test_the_shadow_report_covers_real_jobs(site: Cluster):
    installed(site)
    site.start_daemon("--mode", "shadow")
    jobs = [site.submit("--gpus=4", "-N1", script="sleep 1") for _ in range(4)]
    site.wait_all(jobs, "COMPLETED")
    site.all_recorded(jobs)
    html = site.lab.directory / "report.html"
    done = admin(site, "shadow-report", "--since", "1days", "--json", "--html", str(html))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["notes"]["cluster"] == "2 x 4 GPUs"
    assert {user["name"] for user in found["users"]} == {"asrpt1"}
    assert [row["policy"] for row in found["rows"][1:]] == ["asrpt-gated", "slurm-backfill"]
    assert found["notes"]["jobs"] >= len(jobs)
    assert html.read_text().rstrip().endswith("</html>")
    html.unlink()
    clean(site)
