"""Can this machine carry the lab? Each failure is one line that names the remedy."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterable
from pathlib import Path

from slurm_asrpt.errors import InputError, MachineError
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
}
BASIC_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db")
_PLUGIN_PACKAGES = {False: "slurm-wlm-basic-plugins", True: "slurm-wlm-mysql-plugin"}


def program(name: str) -> str:
    """The path of a program. Raises MachineError with the apt-get line to type."""
    found = shutil.which(name, path=SEARCH_PATH)
    if found is None:
        raise MachineError(f"{name} is not installed; type: apt-get install {_PACKAGES.get(name, name)}")
    return found


def check(spec: LabSpec) -> None:
    """Raises MachineError or InputError for the first thing that would keep the lab from coming up."""
    check_root()
    check_programs(spec.accounting)
    check_reachable(spec.directory)
    check_ports(spec.ports)


def check_root() -> None:
    """Raises MachineError unless root."""
    if os.geteuid() != 0:
        raise MachineError("not root: a lab makes device files and test users, and runs jobs as them; use sudo")


def check_programs(accounting: bool) -> None:
    """Raises MachineError with one apt-get line for all that is missing."""
    needed = BASIC_PROGRAMS + (ACCOUNTING_PROGRAMS if accounting else ())
    missing = [name for name in needed if shutil.which(name, path=SEARCH_PATH) is None]
    packages = {_PACKAGES[name] for name in missing}
    for database, package in _PLUGIN_PACKAGES.items():
        if (accounting or not database) and not _plugin("mysql" if database else "slurmdbd"):
            packages.add(package)
    if packages:
        what = ", ".join(missing) or "Slurm's plugins"
        raise MachineError(f"not installed: {what}; type: apt-get install {' '.join(sorted(packages))}")


def _plugin(kind: str) -> bool:
    patterns = (f"*/slurm*/accounting_storage_{kind}.so", f"slurm*/accounting_storage_{kind}.so")
    roots = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib"))
    return any(any(root.glob(pattern)) for root in roots if root.exists() for pattern in patterns)


def check_reachable(directory: Path) -> None:
    """Raises InputError if test users could not enter the directory because of a folder above it."""
    for parent in directory.parents:
        if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
            raise InputError(
                f"{directory}: test users cannot enter {parent} (mode {stat.S_IMODE(parent.stat().st_mode):04o});"
                " name another directory with --dir, e.g. one below /tmp"
            )


def check_ports(ports: dict[str, int]) -> None:
    """Raises MachineError naming the ports that are taken, and for which daemon."""
    taken = [f"{port} ({name})" for name, port in ports.items() if not _free(port)]
    if taken:
        raise MachineError(f"port taken: {_some(taken)}; name another with --base-port")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free for a daemon
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _some(items: Iterable[str], limit: int = 3) -> str:
    listed = list(items)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
