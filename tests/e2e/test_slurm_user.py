"""asrptd as the SlurmUser of a site, not as root, with the umask of its unit, and what other users may do."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_asrpt.history.store import FILE_NAME, Source
from slurm_asrpt.hook.tag import parse_tag

from .conftest import COMMANDS, QUICK, Cluster, own_cluster, wait_for

SLURM_USER = "slurm"


def is_user(user: str) -> bool:
    return user in {entry.pw_name for entry in pwd.getpwall()}


pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not is_user(SLURM_USER), reason="no user slurm on this machine"),
    pytest.mark.skipif(not COMMANDS.stat().st_mode & 0o005, reason="other users cannot run the commands"),
]
OPTIONS = ("-n4", "-N1", "--gpus-per-task=1", "--comment=asrpt:profile=vgg19-dp4")
REPORTS = """umask 077
{report} 30 --total 60
until [ -e go-on ]; do sleep 0.1; done
{report} 60
"""
HOSTILE = {
    "link": 'ln -s {secret} "$file"',
    "hard link": 'ln {secret} "$file" || echo refused',
    "fifo": 'mkfifo "$file"',
    "huge": 'truncate -s 1T "$file"',
    "nested": 'mkdir -p "$file/$(printf "a/%.0s" $(seq 500))"',
    "shut": 'echo 5 > "$file"; chmod 0 "$ASRPT_PROGRESS_DIR"',
    "given away": 'echo 5 > "$file"; chgrp "$(id -g)" "$ASRPT_PROGRESS_DIR"; chmod 0700 "$ASRPT_PROGRESS_DIR"',
}


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    settings = {"daemon": {**QUICK["daemon"], "progress_s": 0.5}}
    with own_cluster(70, "2x4", settings, users=2, slurm_user=SLURM_USER) as cluster:
        cluster.start_daemon()
        yield cluster


def test_a_job_is_placed_recorded_and_cleaned_up(site: Cluster) -> None:
    assert site.daemon is not None
    assert Path(f"/proc/{site.daemon.pid}").stat().st_uid == pwd.getpwnam(SLURM_USER).pw_uid
    job_id = site.submit(*OPTIONS, script=REPORTS.format(report=site.lab.paths.bin / "asrpt-report"))
    wait_for(lambda: site.status().get(job_id, {}).get("iterations_done") == 30, "its progress is seen", 30)
    assert site.audit(job_id, "running")[0]["as_planned"]
    (site.lab.home("asrpt1") / "go-on").touch()
    run = site.recorded(job_id)
    assert (run.state, run.iterations, run.iterations_source) == ("COMPLETED", 60, Source.REPORTED)
    wait_for(lambda: not (site.paths / "spool" / "progress" / job_id).exists(), "its directory is removed", 10)
    site.admin("retrain", user=SLURM_USER)
    again = site.submit(*OPTIONS, "--hold", script=REPORTS.format(report=site.lab.paths.bin / "asrpt-report"))
    tag = parse_tag(site.job(again).admin_comment)
    assert tag is not None
    assert tag.iterations == 60
    site.cancel(again)


def test_only_its_owner_sees_an_ended_job(site: Cluster) -> None:
    job_id = site.submit("--gpus=1", script="exit 3")
    site.recorded(job_id)

    def told(user: str) -> str:
        return site.lab.run([COMMANDS / "asrpt-status", "--explain", job_id], user=user, check=False).stdout

    wait_for(lambda: "FAILED, exit code 3" in told("asrpt1"), "its owner is told", 20)
    assert "asrpt1" in told("asrpt1")
    assert told("asrpt2") == ""


def test_an_unprivileged_daemon_keeps_running_whatever_files_jobs_leave(site: Cluster) -> None:
    secret = site.lab.home("asrpt2") / "secret"
    secret.write_text("42 43\n")
    secret.chmod(0o644)
    os.chown(secret, *[pwd.getpwnam("asrpt2").pw_uid] * 2)
    head = 'file=$ASRPT_PROGRESS_DIR/iterations\nrm -f "$file"\n'
    jobs = {name: site.submit(*OPTIONS, script=head + what.format(secret=secret)) for name, what in HOSTILE.items()}
    runs = {name: site.recorded(job_id) for name, job_id in jobs.items()}
    assert not {name for name, run in runs.items() if run.iterations == 42}
    assert secret.read_text() == "42 43\n"
    folders = {name: site.paths / "spool" / "progress" / job_id for name, job_id in jobs.items()}
    wait_for(
        lambda: {name for name, path in folders.items() if path.exists()} <= {"nested"}, "directories are removed", 15
    )
    assert "Traceback" not in site.log.read_text()


def test_other_users_cannot_change_jobs_predictions_or_state(site: Cluster) -> None:
    blockers = [site.block(node.name, node.gpus) for node in site.lab.spec.node_list]
    mine = site.submit("--gpus=1", script="sleep 600")
    wait_for(lambda: site.state_of(mine) == "waiting", "it waits", 20)
    before = site.job(mine)

    def may(user: str, *command: str | Path) -> bool:
        return site.lab.run(command, user=user, check=False).returncode == 0

    tag = f"AdminComment={before.admin_comment.replace('n=0', 'n=1')}"
    assert not may("asrpt1", "scontrol", "update", f"JobId={mine}", tag)
    assert not may("asrpt1", "scontrol", "update", f"JobId={mine}", "Priority=4294000000")
    for change in (tag, "StartTime=now+1day", "Comment=asrpt:profile=x", "Priority=0", "ReqNodeList=n1"):
        assert not may("asrpt2", "scontrol", "update", f"JobId={mine}", change), change
    for path in ("state", f"state/{FILE_NAME}", "state/audit.jsonl", "state/state.json"):
        assert not may("asrpt2", "cat", site.paths / path), path
    for path in ("run/status.json", "hook/hook.conf", "hook/table.txt", "spool/hosts/1", "spool/progress/1", "run/x"):
        assert not may("asrpt2", "sh", "-c", 'echo x > "$0"', site.paths / path), path
    assert may("asrpt2", COMMANDS / "asrpt-status")
    assert not may("asrpt2", COMMANDS / "asrpt-admin", "retrain")
    assert not may("asrpt2", COMMANDS / "asrpt-admin", "history", "stats")
    assert site.job(mine).admin_comment == before.admin_comment
    site.cancel(mine, *blockers)
