"""Another release of Slurm on this machine: creates a directory with another Debian release, and runs commands in it.

The directory becomes the root of a mount namespace of the command and its children. The mounts end with the last
process, so deleting the directory cannot delete anything that was mounted there. Processes and ports are shared with
the machine. ``make`` skips the steps that are done, so an interrupted run can be repeated.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from slurm_asrpt.errors import EXIT_FAILURE, InputError, MachineError, one_line
from slurm_asrpt.lab import machine

TREE = Path(__file__).resolve().parents[2]
"""The source tree. It is mounted in the directory under the same path, and installed there as editable."""
VENV = Path("opt/asrpt")
_PATH = f"/{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KERNEL = ("dev", "proc", "sys")
_FILES = ("etc/hosts", "etc/resolv.conf")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_CERTIFICATES_INSIDE = Path("opt/certificates.crt")  # not at its usual path, where a package replaces it
_CERTIFICATE_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_INSIDE = "ASRPT_LAB_ROOT"

MIRROR_VARIABLE = "ASRPT_DEBIAN_MIRROR"
PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "slurm-wlm-plugins", "munge"),
    *("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server"),
    *("python3-venv", "lua5.1", "lua5.3", "lua5.4", "faketime"),
)

Say = Callable[[str], None]


def make(suite: str, root: Path, say: Say) -> None:
    """Install Debian release ``suite`` and slurm-asrpt in ``root``. Raises InputError and MachineError."""
    machine.check_root()
    if not (TREE / "pyproject.toml").exists():
        raise InputError("asrpt-lab debian needs a source tree of slurm-asrpt; this one is installed")
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
    """This machine's Debian mirror. Raises MachineError."""
    named = os.environ.get(MIRROR_VARIABLE, "")
    if named:
        return named
    command = [machine.program("apt-get"), "indextargets", "--format", "$(REPO_URI)"]
    found = run([*command, "Created-By: Packages", "Origin: Debian", "Label: Debian"], "apt-get indextargets").split()
    if not found:
        raise MachineError(f"apt has no Debian mirror on this machine; set {MIRROR_VARIABLE} to one")
    return found[0]


def bootstrap(suite: str, root: Path) -> None:
    """debootstrap into a directory beside ``root``, and rename it when it is complete."""
    half = root.with_name(f"{root.name}.new")
    cache = root.resolve().parent / "cache"  # so that a retry downloads nothing again
    shutil.rmtree(half, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    options = ["--variant=minbase", f"--cache-dir={cache}"]
    run([machine.program("debootstrap"), *options, suite, str(half), mirror()], "debootstrap")
    # a mirror may lag behind by more than the validity of the release file
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
    """Run a command; its standard output. Raises MachineError with the last lines of its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(os.environ))
    if done.returncode:
        said = " | ".join((done.stderr or done.stdout).splitlines()[-3:])
        raise MachineError(f"{what} failed (exit code {done.returncode}): {said}")
    return done.stdout


def inside() -> str:
    """The root directory of this process, as the user named it; "" on the machine itself."""
    return os.environ.get(_INSIDE, "")


def enter(root: Path, command: Sequence[str]) -> NoReturn:
    """Replace this process by ``command`` with ``root`` as its root directory. Raises InputError and MachineError."""
    if not (root / VENV / "bin").is_dir():
        raise InputError(f"{root}: no Debian with slurm-asrpt there; create one with asrpt-lab debian trixie {root}")
    words = command_in(root, command)
    os.execvpe(words[0], words, environment(os.environ) | {_INSIDE: str(root)})  # noqa: S606


def command_in(root: Path, command: Sequence[str]) -> list[str]:
    """The command line, to be run with ``environment``, that runs ``command`` in ``root``. Raises MachineError."""
    machine.check_root()
    unshare = [machine.program("unshare"), "--mount", "--propagation=private", "--"]
    return [*unshare, sys.executable, "-P", "-m", "slurm_asrpt.lab.other_release", str(Path(root).resolve()), *command]


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, without variables that refer to files outside of the root directory."""
    kept = {k: v for k, v in own.items() if not k.startswith(("SLURM", "ASRPT_CONFIG", "VIRTUAL_ENV", "TMPDIR"))}
    if _CERTIFICATES.exists():
        kept |= dict.fromkeys(_CERTIFICATE_VARIABLES, f"/{_CERTIFICATES_INSIDE}")
    return kept | {"PATH": _PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}


def _mounts(root: Path) -> list[tuple[str, Path, bool]]:
    """(source, target, whether submounts are included)."""
    files = {_CERTIFICATES: _CERTIFICATES_INSIDE} | {Path("/", name): Path(name) for name in _FILES}
    named = [(str(source), root / target, False) for source, target in files.items() if source.exists()]
    kernel = [(f"/{name}", root / name, True) for name in _KERNEL]
    return [(str(root), root, False), *kernel, *named, (str(TREE), root / str(TREE)[1:], False)]


def _mount(source: str, target: Path, below: bool) -> None:
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    subprocess.run([machine.program("mount"), "--rbind" if below else "--bind", source, target], check=True)


def _make_root(root: Path) -> None:
    """Make ``root`` the root directory. Unlike with chroot, paths in /proc then start at ``root``."""
    os.chdir(root)
    subprocess.run([machine.program("pivot_root"), ".", "."], check=True)  # stacks the old root on the new one
    subprocess.run([machine.program("umount"), "--lazy", "."], check=True)
    os.chdir("/")


def main(arguments: Sequence[str]) -> int:
    """``python -m slurm_asrpt.lab.other_release ROOT COMMAND...``, in a mount namespace of its own (``command_in``)."""
    root, *command = Path(arguments[0]), *arguments[1:]
    here = Path.cwd()
    try:
        for mount in _mounts(root):
            _mount(*mount)
        _make_root(root)
        if here.is_relative_to(TREE):
            os.chdir(here)
        os.execvp(command[0], command)  # noqa: S606
    except (OSError, subprocess.CalledProcessError, MachineError) as error:
        print(f"asrpt-lab: {root}: {one_line(error)}", file=sys.stderr)
    return EXIT_FAILURE


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
