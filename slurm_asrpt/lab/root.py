"""Running commands in a folder that holds another Debian, and so another release of Slurm, beside the machine's own.

The folder is made the root of a mount namespace which only the command and its children see: its mounts end with its
last process, so deleting the folder can never delete what was mounted there. Processes and ports are the machine's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from slurm_asrpt.errors import EXIT_FAILURE, InputError, MachineError, one_line
from slurm_asrpt.lab import machine

TREE = Path(__file__).resolve().parents[2]
"""The source tree: seen in the folder under its own path, and installed there as it stands."""
VENV = Path("opt/asrpt")
_PATH = f"/{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KERNEL = ("dev", "proc", "sys")
_FILES = ("etc/hosts", "etc/resolv.conf")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_CERTIFICATES_INSIDE = Path("opt/certificates.crt")  # not in its own place, where a package replaces it
_CERTIFICATE_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_INSIDE = "ASRPT_LAB_ROOT"


def inside() -> str:
    """The folder that this process has as its root, as the user named it; "" outside."""
    return os.environ.get(_INSIDE, "")


def enter(root: Path, command: Sequence[str]) -> NoReturn:
    """Become ``command`` with ``root`` as its root folder. Raises InputError and MachineError."""
    if not (root / VENV / "bin").is_dir():
        raise InputError(f"{root}: no Debian with slurm-asrpt there; type: asrpt-lab debian trixie {root}")
    words = command_in(root, command)
    os.execvpe(words[0], words, environment(os.environ) | {_INSIDE: str(root)})  # noqa: S606  (there is no shell to be had)


def command_in(root: Path, command: Sequence[str]) -> list[str]:
    """What to start, with ``environment``, so that ``command`` runs in ``root``. Raises MachineError."""
    machine.check_root()
    unshare = [machine.program("unshare"), "--mount", "--propagation=private", "--"]
    return [*unshare, sys.executable, "-P", "-m", "slurm_asrpt.lab.root", str(Path(root).resolve()), *command]


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what names things that are not in there."""
    kept = {k: v for k, v in own.items() if not k.startswith(("SLURM", "ASRPT_CONFIG", "VIRTUAL_ENV", "TMPDIR"))}
    if _CERTIFICATES.exists():
        kept |= dict.fromkeys(_CERTIFICATE_VARIABLES, f"/{_CERTIFICATES_INSIDE}")
    return kept | {"PATH": _PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}


def _mounts(root: Path) -> list[tuple[str, Path, bool]]:
    """(source, target, with what is mounted below it)."""
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
    """Put ``root`` in the place of the machine's root folder: unlike chroot, paths in /proc then begin at ``root``."""
    os.chdir(root)
    subprocess.run([machine.program("pivot_root"), ".", "."], check=True)  # the old root lies over the new one now
    subprocess.run([machine.program("umount"), "--lazy", "."], check=True)
    os.chdir("/")


def main(arguments: Sequence[str]) -> int:
    """``python -m slurm_asrpt.lab.root ROOT COMMAND...``, in a mount namespace of its own (see ``command_in``)."""
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
