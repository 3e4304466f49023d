"""A small demo on real Slurms whose clocks go fast: its figures, and Ctrl-C while it runs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import BASE_PORT, can_run_slurm

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(can_run_slurm()), reason=can_run_slurm() or "can run"),
]
PORTS = BASE_PORT + 60  # at the same time as the tests' own cluster
SMALL = ["--hours", "1", "--servers", "2", "--longest", "1", "--speed", "90", "--base-port", str(PORTS)]


def start(folder, *arguments):
    """A demo whose labs are in this folder."""
    command = [sys.executable, "-m", "slurm_asrpt.lab.demo", *SMALL, *arguments]
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.fixture
def folder():
    """Where the labs are: test users must be able to enter it, and paths of sockets are short."""
    made = Path(f"/tmp/asrpt-demo-{os.getpid()}")
    made.mkdir(mode=0o755)
    yield made
    made.rmdir()


def left_in(folder):
    """What remains of the labs: files, and processes with a path of theirs."""
    mark = f"{folder}/".encode()
    found = list(folder.iterdir())
    for process in Path("/proc").glob("[0-9]*"):
        try:
            texts = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if mark in texts and int(process.name) != os.getpid():
            found.append(texts.split(b"\0")[0])
    return found


def test_a_small_demo(tmp_path, folder):
    output = tmp_path / "new" / "demo.json"
    demo = start(folder, "--output", str(output))
    out, err = demo.communicate(timeout=400)
    assert demo.returncode == 0, err
    found = json.loads(output.read_text())
    plain, ours = (found["sides"][name] for name in ("plain Slurm", "asrpt-gated"))
    assert plain["completed"] == ours["completed"] == found["jobs"] > 5
    mean = [side["completion_s"]["mean"] for side in (plain, ours)]
    assert found["ratio"] == {"asrpt-gated": mean[1] / mean[0]}
    assert found["made"]["slurm"]["SchedulerType"] == "sched/backfill"
    assert "bf_continue" in found["made"]["slurm"]["SchedulerParameters"]
    assert found["made"]["speed"] == 90
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    for words in ("Jobs waiting", "GPUs in use", "mean completion, min", "asrpt-gated: mean completion is"):
        assert words in out
    assert "Clocks at x90" in err
    assert max(len(line) for line in out.splitlines() if "|" in line) <= 80
    assert left_in(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_clusters(tmp_path, folder, number):
    demo = start(folder, "--output", str(tmp_path / "demo.json"))
    deadline = time.monotonic() + 90
    while not list(folder.glob("*/log/asrptd-enforce-asrpt-gated.log")):
        assert demo.poll() is None, demo.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(3)  # jobs have been submitted
    assert left_in(folder)
    demo.send_signal(number)
    time.sleep(0.2)
    demo.send_signal(number)  # an impatient user
    _, err = demo.communicate(timeout=90)
    assert demo.returncode == 130
    assert "demo: interrupted; all clusters have been stopped" in err
    assert "Traceback" not in err
    assert left_in(folder) == []
    assert list(tmp_path.iterdir()) == []
