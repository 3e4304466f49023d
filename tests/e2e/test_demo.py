"""A tiny demo on a real Slurm: its figures, and Ctrl-C while it runs."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import BASE_PORT, can_run_slurm

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(can_run_slurm()), reason=can_run_slurm() or "can run"),
]
PORTS = BASE_PORT + 60  # at the same time as the tests' own cluster
TINY = ["--jobs", "6", "--span", "3", "--load", "0.2", "--base-port", str(PORTS)]


def start(*arguments):
    command = [sys.executable, "-m", "slurm_asrpt.lab.demo", *TINY, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def left_of(demo):
    """The demo's remaining directory and processes."""
    folder = Path(tempfile.gettempdir()) / f"asrpt-demo-{demo.pid}"
    mark = f"{folder}/".encode()
    found = [folder] if folder.exists() else []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            texts = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if mark in texts and int(process.name) != os.getpid():
            found.append(texts.split(b"\0")[0])
    return found


def test_a_tiny_demo(tmp_path):
    output = tmp_path / "new" / "demo.json"
    demo = start("--output", str(output), "--default-policy", "wcs-workload")
    out, err = demo.communicate(timeout=180)
    assert demo.returncode == 0, err
    figures = json.loads(output.read_text())
    wanted = {"jobs", "completed_backfill", "completed_asrpt", "avg_jct_backfill_s", "avg_jct_asrpt_s", "ratio"}
    assert wanted <= figures.keys()
    assert (figures["jobs"], figures["completed_backfill"], figures["completed_asrpt"]) == (6, 6, 6)
    assert figures["completed_default"] == 6
    assert figures["ratio_default"] == figures["avg_jct_default_s"] / figures["avg_jct_backfill_s"] > 0
    assert figures["policy_default"] == "wcs-workload"
    assert figures["ratio"] == figures["avg_jct_asrpt_s"] / figures["avg_jct_backfill_s"] > 0
    assert figures["made"]["slurm"]["SchedulerType"] == "sched/backfill"
    assert figures["made"]["shape"]["jobs"] == 6
    assert "ratio" in out
    assert err.startswith("6 jobs on a real Slurm")
    assert left_of(demo) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_cluster(tmp_path, number):
    demo = start("--output", str(tmp_path / "demo.json"))
    folder = Path(tempfile.gettempdir()) / f"asrpt-demo-{demo.pid}"
    deadline = time.monotonic() + 60
    while not (folder / "log" / "asrptd-shadow.log").exists():
        assert demo.poll() is None, demo.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(3)  # jobs have been submitted
    assert left_of(demo)
    demo.send_signal(number)
    time.sleep(0.2)
    demo.send_signal(number)  # an impatient user
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "demo: interrupted; the cluster has been stopped" in err
    assert "Traceback" not in err
    assert left_of(demo) == []
    assert list(tmp_path.iterdir()) == []
