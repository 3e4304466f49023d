"""A lab's accounting: its own MariaDB on a loopback port, slurmdbd, and the associations of the test users."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Mapping

from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab import conf, machine, processes
from slurm_asrpt.lab.processes import Daemon
from slurm_asrpt.lab.spec import LabPaths, LabSpec

DATABASE_USER = "mysql"
ACCOUNT = "lab"


def start_database(spec: LabSpec, paths: LabPaths, env: Mapping[str, str]) -> Daemon:
    """Start a new MariaDB in the lab, with a database user for this lab's slurmdbd only. Raises MachineError."""
    _create_database(paths)
    password = secrets.token_hex(16)
    _write_private(
        paths, "slurmdbd.conf", conf.slurmdbd_conf(spec, paths, password), pwd.getpwnam(spec.slurm_user).pw_uid
    )
    user = "slurm@'127.0.0.1'"
    # MariaDB reads one statement per line
    grants = f"CREATE USER {user} IDENTIFIED BY '{password}';\nGRANT ALL ON slurm_acct_db.* TO {user};\n"
    _write_private(paths, "grants.sql", grants, uid=pwd.getpwnam(DATABASE_USER).pw_uid)
    return start_mariadbd(spec, paths, env)


def start_mariadbd(spec: LabSpec, paths: LabPaths, env: Mapping[str, str]) -> Daemon:
    """Start MariaDB on the database that the lab has."""
    return processes.start("mariadbd", _mariadbd(spec, paths), env, paths.log / "mariadbd.log", paths.pids)


def _create_database(paths: LabPaths) -> None:
    shutil.chown(paths.database, DATABASE_USER)
    paths.database.chmod(0o700)
    command = [machine.program("mariadb-install-db"), "--no-defaults", f"--datadir={paths.database}"]
    command += [f"--user={DATABASE_USER}", "--skip-test-db", "--skip-name-resolve", "--innodb-log-file-size=8M"]
    command += [_own_tmpdir(paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (paths.log / "mariadb-install-db.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        raise MachineError(f"mariadb-install-db failed: {(done.stderr or done.stdout)[-300:]}")


def _own_tmpdir(paths: LabPaths) -> str:
    """On start, MariaDB deletes all temporary tables in its tmpdir: other labs need their own."""
    return f"--tmpdir={paths.database}"


def _write_private(paths: LabPaths, name: str, text: str, uid: int) -> None:
    file = paths.etc / name
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as output:
        os.fchown(descriptor, uid, -1)
        output.write(text)


def _mariadbd(spec: LabSpec, paths: LabPaths) -> list[str]:
    options = [
        f"--datadir={paths.database}",
        f"--user={DATABASE_USER}",
        _own_tmpdir(paths),
        "--bind-address=127.0.0.1",
        f"--port={spec.ports['mariadbd']}",
        f"--socket={paths.database}/s",
        f"--pid-file={paths.database}/pid",
        f"--init-file={paths.etc}/grants.sql",
        "--skip-name-resolve",
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=8M",
        "--innodb-lock-wait-timeout=900",  # slurmdbd requires it
        "--innodb-flush-log-at-trx-commit=0",  # disposable: no fsync per transaction
        "--skip-log-bin",
    ]
    return [machine.program("mariadbd"), "--no-defaults", *options]


def start_slurmdbd(paths: LabPaths, env: Mapping[str, str]) -> Daemon:
    """Start slurmdbd, which finds slurmdbd.conf beside the slurm.conf in SLURM_CONF."""
    return processes.start("slurmdbd", [machine.program("slurmdbd"), "-D"], env, paths.log / "slurmdbd.out", paths.pids)


def association_commands(spec: LabSpec) -> list[list[str]]:
    """sacctmgr commands that add the cluster, one account, and the test users and root to it."""
    cluster = f"lab{spec.base_port}"
    users = ",".join(["root", *spec.user_names])
    return [
        ["sacctmgr", "-i", "add", "cluster", cluster],
        ["sacctmgr", "-i", "add", "account", ACCOUNT, f"cluster={cluster}", "Description=lab", "Organization=lab"],
        ["sacctmgr", "-i", "add", "user", users, f"account={ACCOUNT}", f"cluster={cluster}"],
    ]
