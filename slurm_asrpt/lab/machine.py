"""What a lab needs of this machine: programs, ports, and the test users asrpt1, asrpt2 ...

Test users have a mark in their comment field. The last lab that is shut down removes all users with that mark, and no
others. The labs that are up are registered in ``REGISTRY``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from slurm_asrpt.errors import EXIT_BAD_INPUT, InputError, MachineError
from slurm_asrpt.lab.spec import LabSpec

SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
_PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "munged": "munge",
    "sbatch": "slurm-client",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "faketime": "faketime",
}
BASIC_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
CLOCK_PROGRAMS = ("faketime",)
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db")
_PLUGIN_PACKAGES = {False: "slurm-wlm-basic-plugins", True: "slurm-wlm-mysql-plugin"}

MOST_NAMED = 3
"""Ports that an error names."""
MARK = "asrpt-lab test user"
REGISTRY = Path("/run/asrpt-labs")


def program(name: str) -> str:
    """The path of a program. Raises MachineError with the apt-get command that installs it."""
    found = shutil.which(name, path=SEARCH_PATH)
    if found is None:
        raise MachineError(f"{name} is not installed; run: apt-get install {_PACKAGES.get(name, name)}")
    return found


def check(spec: LabSpec) -> None:
    """Raises MachineError or InputError for the first problem that would prevent the lab from starting."""
    check_root()
    check_programs(spec)
    check_reachable(spec.directory)
    check_ports(spec.ports)


def check_root() -> None:
    """Raises MachineError unless root."""
    if os.geteuid() != 0:
        raise MachineError(
            "not root: a lab creates device files and test users, and runs jobs as these users; use sudo"
        )


def check_programs(spec: LabSpec) -> None:
    """Raises MachineError with one apt-get command for all missing packages."""
    accounting = spec.accounting
    needed = BASIC_PROGRAMS + (ACCOUNTING_PROGRAMS if accounting else ()) + (CLOCK_PROGRAMS if spec.accelerated else ())
    missing = [name for name in needed if shutil.which(name, path=SEARCH_PATH) is None]
    packages = {_PACKAGES[name] for name in missing}
    for database, package in _PLUGIN_PACKAGES.items():
        if (accounting or not database) and not _plugin("mysql" if database else "slurmdbd"):
            packages.add(package)
    if packages:
        what = ", ".join(missing) or "Slurm's plugins"
        raise MachineError(f"not installed: {what}; run: apt-get install {' '.join(sorted(packages))}")


def _plugin(kind: str) -> bool:
    patterns = (f"*/slurm*/accounting_storage_{kind}.so", f"slurm*/accounting_storage_{kind}.so")
    roots = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib"))
    return any(any(root.glob(pattern)) for root in roots if root.exists() for pattern in patterns)


def check_reachable(directory: Path) -> None:
    """Raises InputError if test users cannot enter a parent of the directory."""
    for parent in directory.parents:
        if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
            raise InputError(
                f"{directory}: test users cannot enter {parent} (mode {stat.S_IMODE(parent.stat().st_mode):04o});"
                " choose another directory with --dir, e.g. in /tmp"
            )


class PortError(MachineError):
    """A port is in use: another one must be given, so this counts as bad input."""

    exit_code = EXIT_BAD_INPUT


def check_ports(ports: dict[str, int]) -> None:
    """Raises PortError that names the ports in use and their daemons."""
    taken = [f"{port} ({name})" for name, port in ports.items() if not _free(port)]
    if taken:
        raise PortError(f"port in use: {_some(taken)}; choose others with --base-port")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # daemons can bind a port in TIME_WAIT
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _some(items: Sequence[str]) -> str:
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return ", ".join(items[:MOST_NAMED]) + more


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    REGISTRY.mkdir(mode=0o755, exist_ok=True)
    with (REGISTRY / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _entry(directory: Path) -> Path:
    return REGISTRY / hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def register(directory: Path, names: Iterable[str]) -> None:
    """Register the lab in ``directory`` as up, and create missing users. Raises MachineError."""
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
    """Register the lab as down. The last lab removes the test users."""
    with _locked():
        _entry(directory).unlink(missing_ok=True)
        if any(_in_use(file) for file in REGISTRY.iterdir() if file.name != ".lock"):
            return
        for user in pwd.getpwall():
            if user.pw_gecos == MARK and user.pw_name.startswith("asrpt"):
                # --force: userdel would refuse while a zombie of the user exists
                with contextlib.suppress(MachineError):  # left for the next lab
                    _user_command("userdel", "--force", user.pw_name)


def _in_use(entry: Path) -> bool:
    """Whether the directory of a registered lab exists; it may have been deleted by hand."""
    with contextlib.suppress(OSError):
        return Path(entry.read_text(encoding="utf-8").rstrip("\n")).is_dir()
    return False


def identity(user: str) -> tuple[int, int]:
    """uid and gid of a user. Raises InputError."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise InputError(f"no user {user} on this machine; asrpt-lab up --users N creates asrpt1 .. asrptN") from None
    return entry.pw_uid, entry.pw_gid


def _user_command(*command: str) -> None:
    path = program(command[0])
    done = subprocess.run([path, *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"{' '.join(command)} failed: {done.stderr}")
