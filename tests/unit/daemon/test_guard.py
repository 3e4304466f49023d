"""The guard runs its command if the process that made it ends, however it ends, and not if that dismissed it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from slurm_asrpt.daemon.guard import Guard

PROGRAM = """
import sys, time
from slurm_asrpt.daemon.guard import Guard
guard = Guard(["touch", sys.argv[1]], patience_s=0.2)
if sys.argv[2:] == ["stops"]:
    guard.dismiss()
elif sys.argv[2:] == ["fails"]:
    raise SystemExit(1)
else:
    print("up", flush=True)
    time.sleep(60)
"""


def made(path, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return path.exists()


@pytest.mark.parametrize(("ends", "acts"), [("stops", False), ("fails", True)])
def test_only_a_stop_in_order_dismisses_it(tmp_path, ends, acts):
    path = tmp_path / "released"
    subprocess.run([sys.executable, "-c", PROGRAM, path, ends], check=False)
    assert made(path, 10.0 if acts else 1.0) is acts


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_outlives_the_process_and_its_group(tmp_path, number):
    path = tmp_path / "released"
    command = [sys.executable, "-c", PROGRAM, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as one:
        assert one.stdout.readline() == b"up\n"
        os.killpg(one.pid, number)
    assert made(path)


def test_one_that_was_killed_can_be_dismissed():
    guard = Guard(["true"])
    guard._process.kill()
    guard._process.wait()
    guard.dismiss()
