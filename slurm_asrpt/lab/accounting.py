"""A lab's accounting: a MariaDB of its own on a loopback port, slurmdbd, the cluster and the test users in it."""

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
    """A fresh MariaDB under the lab, with a user whom only this lab's slurmdbd can be. Raises MachineError."""
    _create_database(paths)
    password = secrets.token_hex(16)
    _write_private(
        paths, "slurmdbd.conf", conf.slurmdbd_conf(spec, paths, password), pwd.getpwnam(spec.slurm_user).pw_uid
    )
    user = "slurm@'127.0.0.1'"
    # MariaDB reads one statement a line
    grants = f"CREATE USER {user} IDENTIFIED BY '{password}';\nGRANT ALL ON slurm_acct_db.* TO {user};\n"
    _write_private(paths, "grants.sql", grants, uid=pwd.getpwnam(DATABASE_USER).pw_uid)
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
    """A MariaDB that starts deletes the temporary tables in its folder, those of another lab too."""
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
        "--innodb-lock-wait-timeout=900",  # slurmdbd asks for it
        "--innodb-flush-log-at-trx-commit=0",  # thrown away anyway: no fsync per transaction
        "--skip-log-bin",
    ]
    return [machine.program("mariadbd"), "--no-defaults", *options]


def start_slurmdbd(paths: LabPaths, env: Mapping[str, str]) -> Daemon:
    """slurmdbd of this lab; it finds slurmdbd.conf beside the slurm.conf that SLURM_CONF names."""
    return processes.start("slurmdbd", [machine.program("slurmdbd"), "-D"], env, paths.log / "slurmdbd.out", paths.pids)


def association_commands(spec: LabSpec) -> list[list[str]]:
    """What sacctmgr is told: the cluster, one account, the test users and root in it."""
    cluster = f"lab{spec.base_port}"
    users = ",".join(["root", *spec.user_names])
    return [
        ["sacctmgr", "-i", "add", "cluster", cluster],
        ["sacctmgr", "-i", "add", "account", ACCOUNT, f"cluster={cluster}", "Description=lab", "Organization=lab"],
        ["sacctmgr", "-i", "add", "user", users, f"account={ACCOUNT}", f"cluster={cluster}"],
    ]
