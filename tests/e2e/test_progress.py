"""Jobs report their progress: asrpt-status shows it, and the history records it, whatever users do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_asrpt.history.store import Source

from .conftest import Cluster, wait_for

pytestmark = pytest.mark.e2e

OPTIONS = ("-n4", "-N1", "--gpus-per-task=1", "--comment=asrpt:profile=vgg19-dp4")

TRAINING = """\
import os, sys, time
sys.path.insert(0, "{library}")
from slurm_asrpt import progress
with progress.reporting(total=40) as job:
    for number in range(1, 41):
        time.sleep(0.1)
        job.report(number, loss=1 / number)
        if number == 20:
            job.flush()
        while number == 20 and not os.path.exists("go"):
            time.sleep(0.1)
"""


def folder(cluster: Cluster, job_id: str) -> Path:
    return cluster.paths / "spool" / "progress" / job_id


def test_progress_of_a_python_training_is_shown_and_recorded(asrpt: Cluster) -> None:
    script = asrpt.lab.home("asrpt1") / "training.py"
    script.write_text(TRAINING.format(library=asrpt.lab.paths.library))
    job_id = asrpt.submit(*OPTIONS, script=f"exec /usr/bin/python3 {script}")
    wait_for(lambda: asrpt.status().get(job_id, {}).get("iterations_done") == 20, "20 iterations are seen", 60)
    row = asrpt.status()[job_id]
    assert row["iterations_total"] == 40
    assert row["remaining_s"] == pytest.approx(20 * (row["alpha_observed"] or row["alpha"]))
    status = folder(asrpt, job_id).stat()
    assert (status.st_mode & 0o7777, status.st_gid) == (0o770, folder(asrpt, job_id).parent.stat().st_gid)
    (script.parent / "go").touch()
    asrpt.wait(job_id, "COMPLETED")
    run = asrpt.recorded(job_id)
    assert (run.iterations, run.iterations_source) == (40, Source.REPORTED)
    assert not folder(asrpt, job_id).exists()


def test_the_second_run_of_a_training_is_predicted_from_the_iterations_that_the_first_reported(asrpt: Cluster) -> None:
    folder = asrpt.lab.home("asrpt1") / "recurring"
    folder.mkdir(exist_ok=True)
    (folder / "training.py").write_text(TRAINING.format(library=asrpt.lab.paths.library))
    (folder / "go").touch()
    script = f"cd {folder}\nexec /usr/bin/python3 training.py"
    first = asrpt.submit(*OPTIONS, script=script)
    asrpt.wait(first, "COMPLETED")
    assert asrpt.recorded(first).iterations_source is Source.REPORTED
    asrpt.admin("retrain")
    second = asrpt.submit(*OPTIONS, "--hold", script=script)
    wait_for(lambda: second in asrpt.status(), "asrptd shows the job", 30)
    row = asrpt.status()[second]
    assert (row["predicted_iterations"], row["predicted_by"]) == (40, "group")
    assert row["predicted_run_s"] == pytest.approx(40 * row["alpha_min"])
    asrpt.cancel(second)


def test_a_shell_script_reports_progress_that_other_users_cannot_read(asrpt: Cluster) -> None:
    report = asrpt.lab.paths.bin / "asrpt-report"
    wait = "until [ -e go-on ]; do sleep 0.1; done"
    script = f"umask 077\n{report} 30 --total 120\n{wait}\nsrun {report} 90 --start 20\n"
    job_id = asrpt.submit(*OPTIONS, script=script)
    wait_for(lambda: asrpt.status().get(job_id, {}).get("iterations_done") == 30, "30 iterations are seen", 30)
    file = folder(asrpt, job_id) / "iterations"
    mine, others = (asrpt.lab.run(["cat", file], user=user, check=False) for user in ("asrpt1", "asrpt2"))
    assert (mine.stdout, others.stdout) == ("30 120 - 0\n", "")
    (asrpt.lab.home("asrpt1") / "go-on").touch()
    asrpt.wait(job_id, "COMPLETED")
    assert asrpt.recorded(job_id).iterations == 90  # its first report started at 0


def test_progress_of_a_requeued_job_continues(asrpt: Cluster) -> None:
    report = asrpt.lab.paths.bin / "asrpt-report"
    again = f"{report} 45 --start 40\nuntil [ -e go-again ]; do sleep 0.1; done\n{report} 60\nexit 0"
    script = f'if [ "$SLURM_RESTART_COUNT" = 1 ]; then\n{again}\nfi\n{report} 50 --total 60\nsleep 600\n'
    job_id = asrpt.submit(*OPTIONS, "--requeue", script=script)
    wait_for(lambda: asrpt.status().get(job_id, {}).get("iterations_done") == 50, "the first run is seen", 30)
    asrpt.scontrol("requeue", job_id)
    wait_for(lambda: asrpt.audit(job_id, "cut"), "asrptd has seen the requeue", 60)
    asrpt.start_again(job_id)
    wait_for(lambda: asrpt.status().get(job_id, {}).get("iterations_done") == 45, "the second run is seen", 60)
    (asrpt.lab.home("asrpt1") / "go-again").touch()
    asrpt.wait(job_id, "COMPLETED", timeout=60)
    run = asrpt.recorded(job_id)
    assert (run.iterations, run.iterations_source) == (60, Source.REPORTED)


HOSTILE = {
    "link": 'ln -s /etc/passwd "$file"',
    "fifo": 'mkfifo "$file"',
    "huge": 'truncate -s 1T "$file"',
    "folder": 'mkdir -m 0 "$file"',
    "unreadable": 'echo 5 > "$file"; chmod 0 "$file"; chmod 0 "$ASRPT_PROGRESS_DIR"',
    "own folder": 'rmdir "$ASRPT_PROGRESS_DIR"; ln -s /etc "$ASRPT_PROGRESS_DIR"',
    "noise": 'head -c 100000 /dev/urandom > "$file"',
}


def test_asrptd_keeps_running_whatever_files_a_job_creates(asrpt: Cluster) -> None:
    head = 'file=$ASRPT_PROGRESS_DIR/iterations\nrm -f "$file"\n'
    jobs = {name: asrpt.submit(*OPTIONS, script=f"{head}{what}\nsleep 3") for name, what in HOSTILE.items()}
    before = Path("/etc/passwd").stat()
    asrpt.wait_all(list(jobs.values()), "COMPLETED", timeout=120)
    runs = {name: asrpt.recorded(job_id) for name, job_id in jobs.items()}
    reported = {name for name, run in runs.items() if run.iterations_source is Source.REPORTED}
    assert reported <= {"unreadable", "noise"}  # root can read every file; random bytes may begin with a digit
    assert Path("/etc/passwd").stat() == before
    assert Path("/etc").is_dir()
    now = time.time()
    wait_for(lambda: asrpt.status_written() > now, "asrptd continues", 10)
    assert not [job_id for job_id in jobs.values() if folder(asrpt, job_id).exists()]
    assert "Traceback" not in asrpt.log.read_text()
