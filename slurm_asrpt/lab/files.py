"""Writing a lab's files: configuration, device files, home folders, the training stand-in."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from pathlib import Path

from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab import conf, hooks, machine
from slurm_asrpt.lab.client import identity
from slurm_asrpt.lab.paths import LabPaths
from slurm_asrpt.lab.spec import LabSpec


def write(spec: LabSpec, paths: LabPaths) -> None:
    """Write every file that the daemons need. Raises InputError and MachineError."""
    paths.state_file.write_text(spec.to_json(), encoding="utf-8")
    for folder in paths.of_slurm_user:
        os.chown(folder, *identity(spec.slurm_user))
    for name in ("root", spec.slurm_user, *spec.user_names):
        _make_home(paths.home / name, identity(name))
    _make_gpus(paths.gpus, max(node.gpus for node in spec.node_list))
    hooks.install_programs(paths)
    scripts = hooks.install(spec, paths)
    host = socket.gethostname().partition(".")[0]
    files = {
        "slurm.conf": conf.slurm_conf(spec, paths, host, scripts, lua=spec.hook),
        "gres.conf": conf.gres_conf(spec, paths),
        "asrpt.toml": conf.toml(conf.lab_settings(spec, paths)),
    }
    if _slurm_release() >= (23, 11):
        files["cgroup.conf"] = "CgroupPlugin=disabled\n"  # known since then; before, proctrack/pgid needs no file
    for name, text in files.items():
        (paths.etc / name).write_text(text, encoding="utf-8")
        (paths.etc / name).chmod(0o644)  # clients of every user read them, whatever root's umask


def _make_home(folder: Path, owner: tuple[int, int]) -> None:
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    os.chown(folder, *owner)


def _make_gpus(folder: Path, count: int) -> None:
    """Device files that stand for GPUs: each is another /dev/null. Raises MachineError."""
    try:
        for index in range(count):
            os.mknod(folder / f"gpu{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except OSError as error:
        raise MachineError(f"{folder}: cannot make device files ({error.strerror}); a lab needs mknod") from error


def _slurm_release() -> tuple[int, ...]:
    """(22, 5) for 22.05.8. Raises MachineError."""
    output = subprocess.run([machine.program("slurmctld"), "-V"], capture_output=True, text=True, check=False).stdout
    words = output.split()
    try:
        return tuple(int(part) for part in words[-1].split(".")[:2])
    except (IndexError, ValueError):
        raise MachineError(f"slurmctld -V says {output!r}; Slurm 22.05 or newer is needed") from None
