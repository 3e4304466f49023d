"""The test users asrpt1, asrpt2 ... and the list of labs that are up on this machine.

Users that a lab makes carry a mark in their comment field. The last lab that goes down removes every user with that
mark; a user whom somebody else made is never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import pwd
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab import machine

MARK = "asrpt-lab test user"
REGISTRY = Path("/run/asrpt-labs")


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    REGISTRY.mkdir(mode=0o755, exist_ok=True)
    with (REGISTRY / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _entry(directory: Path) -> Path:
    return REGISTRY / hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def register(directory: Path, names: Iterable[str]) -> None:
    """Note that the lab in ``directory`` is up, and make the users that are missing. Raises MachineError."""
    with _locked():
        _entry(directory).write_text(f"{directory}\n", encoding="utf-8")
        for name in names:
            _create(name)


def _create(name: str) -> None:
    with contextlib.suppress(KeyError):
        pwd.getpwnam(name)
        return
    options = ["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", "--comment", MARK]
    _user_command("useradd", *options, name)


def unregister(directory: Path) -> None:
    """Note that the lab is down; the last one removes the users that labs made."""
    with _locked():
        _entry(directory).unlink(missing_ok=True)
        if any(_in_use(file) for file in REGISTRY.iterdir() if file.name != ".lock"):
            return
        for user in pwd.getpwall():
            if user.pw_gecos == MARK and user.pw_name.startswith("asrpt"):
                # --force: a zombie of the user, which process 1 has not reaped yet, would keep the user alive
                with contextlib.suppress(MachineError):  # whatever keeps the user: the next lab's turn
                    _user_command("userdel", "--force", user.pw_name)


def _in_use(entry: Path) -> bool:
    """Whether the directory of a registered lab is still there; one that was deleted by hand does not count."""
    with contextlib.suppress(OSError):
        return Path(entry.read_text(encoding="utf-8").rstrip("\n")).is_dir()
    return False


def _user_command(*command: str) -> None:
    path = machine.program(command[0])
    done = subprocess.run([path, *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"{' '.join(command)} failed: {done.stderr}")
