"""Making a folder for ``asrpt-lab --root``: a small Debian of another release with its Slurm and slurm-asrpt in it.

What is there already is not made again, so a run that was cut short goes on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_asrpt.errors import InputError, MachineError
from slurm_asrpt.lab import machine
from slurm_asrpt.lab.root import TREE, VENV, command_in, environment

MIRROR_VARIABLE = "ASRPT_DEBIAN_MIRROR"
PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "slurm-wlm-plugins", "munge"),
    *("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server"),
    *("python3-venv", "lua5.1", "lua5.3", "lua5.4"),
)

Say = Callable[[str], None]


def make(suite: str, root: Path, say: Say) -> None:
    """Debian's release ``suite`` in ``root``, ready for ``asrpt-lab --root``. Raises InputError and MachineError."""
    machine.check_root()
    if not (TREE / "pyproject.toml").exists():
        raise InputError("a Debian with slurm-asrpt in it is made from a source tree, and this is none")
    if not root.exists():
        say(f"debootstrap {suite}")
        bootstrap(suite, root)
    say("installing packages")
    run(command_in(root, [str(TREE / ".ci" / "packages"), *PACKAGES]), "installing packages")
    stamp = root / VENV / "stamp"
    if not stamp.exists() or stamp.read_text(encoding="ascii") != _wanted():
        say("installing slurm-asrpt")
        _install(root)
        stamp.write_text(_wanted(), encoding="ascii")


def mirror() -> str:
    """Where this machine gets its Debian packages from. Raises MachineError."""
    named = os.environ.get(MIRROR_VARIABLE, "")
    if named:
        return named
    command = [machine.program("apt-get"), "indextargets", "--format", "$(REPO_URI)"]
    found = run([*command, "Created-By: Packages", "Origin: Debian", "Label: Debian"], "apt-get indextargets").split()
    if not found:
        raise MachineError(f"apt knows no Debian mirror here; name one in the variable {MIRROR_VARIABLE}")
    return found[0]


def bootstrap(suite: str, root: Path) -> None:
    """Into a folder beside ``root``, which gets its name once it is whole."""
    half = root.with_name(f"{root.name}.new")
    cache = root.resolve().parent / "cache"  # so that a second try downloads nothing again
    shutil.rmtree(half, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    options = ["--variant=minbase", f"--cache-dir={cache}"]
    run([machine.program("debootstrap"), *options, suite, str(half), mirror()], "debootstrap")
    # a mirror may lag behind by more than unstable's release file is valid
    (half / "etc/apt/apt.conf.d/50mirror").write_text('Acquire::Check-Valid-Until "false";\n', encoding="ascii")
    half.rename(root)


def _wanted() -> str:
    project = (TREE / "pyproject.toml").read_bytes()
    return hashlib.sha256(project + str(TREE).encode()).hexdigest()


def _install(root: Path) -> None:
    python = f"/{VENV}/bin/python"
    run(command_in(root, ["/usr/bin/python3", "-m", "venv", f"/{VENV}"]), "python3 -m venv")
    run(command_in(root, [python, "-m", "pip", "install", "--quiet", "--editable", f"{TREE}[dev]"]), "pip")


def run(command: Sequence[str], what: str) -> str:
    """Standard output. Raises MachineError with the last lines of what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(os.environ))
    if done.returncode:
        said = " | ".join((done.stderr or done.stdout).splitlines()[-3:])
        raise MachineError(f"{what} failed (exit code {done.returncode}): {said}")
    return done.stdout
