"""Pools of real processes on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slurm_asrpt.pool.folder import CHECKPOINT, PoolFolder
from slurm_asrpt.pool.snapshot import Snapshot, read_checkpoint
from slurm_asrpt.pool.status import PoolStatus, parse_status
from slurm_asrpt.progress import FOLDER_VARIABLE
from tests.benches import pool_models

COMMAND = Path(sys.executable).parent / "asrpt-pool"
PATIENCE_S = 120.0


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Poll until the condition holds, and fail after a long time."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def outside_of_jobs() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "ASRPT"))}


class Pool:
    """A sweep file in a directory with ``pool_models``, and its pool."""

    def __init__(self, path: Path, sweep: str) -> None:
        path.mkdir(exist_ok=True)
        shutil.copy(pool_models.__file__, path / "pool_models.py")
        self.sweep = path / "sweep.toml"
        self.sweep.write_text(sweep)
        self.folder = PoolFolder(path / "sweep.pool")
        self.process: subprocess.Popen[str] | None = None

    def start(self, slots: int = 2, progress: Path | None = None) -> None:
        """Run it in the background. progress: directory for reports."""
        environment = outside_of_jobs() | ({FOLDER_VARIABLE: str(progress)} if progress else {})
        command = [str(COMMAND), "run", str(self.sweep), "--slots", str(slots)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)

    def end(self, number: int | None = None) -> tuple[int, str, str]:
        """Wait for its end, after a signal. Returns exit code and output."""
        process, self.process = self.process, None
        assert process is not None
        if number is not None:
            process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def go(self) -> None:
        """Let tasks that hold go on."""
        self.sweep.with_name("go").touch()

    def run(self, slots: int = 2) -> tuple[int, str, str]:
        self.start(slots)
        return self.end()

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another command of asrpt-pool."""
        return subprocess.run(
            [str(COMMAND), *words], capture_output=True, text=True, env=outside_of_jobs(), check=False
        )

    def status(self) -> PoolStatus:
        return parse_status(self.folder.read_status())

    def tasks_done(self) -> int:
        """0 before there is a status."""
        return self.status().tasks_done if (self.folder.path / "status.json").exists() else 0

    def results(self) -> dict[str, Snapshot]:
        """The snapshots of the checkpoints."""
        found = {path.name: read_checkpoint(path / CHECKPOINT) for path in self.folder.trainings.iterdir()}
        return {name: checkpoint.snapshot for name, checkpoint in found.items() if checkpoint}

    def keepers(self) -> list[int]:
        return children(self.process.pid) if self.process else []

    def executors(self) -> list[int]:
        return [child for keeper in self.keepers() for child in children(keeper)]


def same(one: dict[str, Snapshot], two: dict[str, Snapshot]) -> bool:
    """Whether all results are equal to the bit."""
    return one.keys() == two.keys() and all(
        one[name].losses == two[name].losses and one[name].state.same(two[name].state) for name in one
    )


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def kill(pid: int) -> bool:
    """Whether there was a process to kill."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False
