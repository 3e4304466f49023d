"""Copying the project's own scripts (submit hook, prologs, epilog) and what its jobs run into a lab."""

from __future__ import annotations

import shutil
from pathlib import Path

from slurm_asrpt import shipped
from slurm_asrpt.errors import InputError
from slurm_asrpt.install import job_submit
from slurm_asrpt.install.slurm_conf import SCRIPTS
from slurm_asrpt.lab import conf
from slurm_asrpt.lab.paths import LabPaths
from slurm_asrpt.lab.spec import LabSpec

DEFAULT_SPOOL = "/var/spool/asrpt"

_PROGRAM = """\
#!/usr/bin/python3 -sEP
import os, sys
sys.path.insert(0, {library!r})
os.environ.setdefault("ASRPT_CONFIG", {settings!r})
from {module} import main
sys.exit(main())
"""
PROGRAMS = {"asrpt-train": "slurm_asrpt.lab.train", "asrpt-report": "slurm_asrpt_cli.report"}


def hooks_folder(spec: LabSpec) -> Path:
    """The folder of the hook's files: named, else the checkout's, else the installed one. Raises InputError."""
    candidates = [spec.hooks_dir] if spec.hooks_dir else shipped.folders(shipped.HOOKS)
    for folder in candidates:
        if (folder / job_submit.MODULE).is_file():
            return folder
    raise InputError(
        f"{candidates[0] / job_submit.MODULE}: not found; name its folder with --hooks-dir, or give --no-hook"
    )


def install(spec: LabSpec, paths: LabPaths) -> dict[str, Path]:
    """Copy the hook's files into the lab; the slurm.conf keys and paths of the scripts. Raises InputError."""
    if not spec.hook:
        return {}
    folder = hooks_folder(spec)
    shutil.copyfile(folder / job_submit.MODULE, paths.etc / job_submit.MODULE)
    (paths.etc / "job_submit.lua").write_text(conf.lua_conf(paths), encoding="utf-8")
    return {key: _copy_script(folder / name, paths) for key, name in SCRIPTS.items() if (folder / name).is_file()}


def _copy_script(source: Path, paths: LabPaths) -> Path:
    """A prolog or epilog with the lab's spool folder in place of the default one."""
    target = paths.etc / source.name
    target.write_text(source.read_text(encoding="utf-8").replace(DEFAULT_SPOOL, str(paths.spool)), encoding="utf-8")
    target.chmod(0o755)
    return target


def install_programs(paths: LabPaths) -> None:
    """A copy of the package and the programs that jobs run: test users may not be able to read the checkout."""
    target = paths.library / "slurm_asrpt"
    shutil.copytree(shipped.PACKAGE, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    commands = paths.library / "slurm_asrpt_cli"
    commands.mkdir(exist_ok=True)
    shutil.copyfile(_commands_folder() / "report.py", commands / "report.py")
    for path in [target, *target.rglob("*"), commands, *commands.iterdir()]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    for name, module in PROGRAMS.items():
        script = paths.bin / name
        text = _PROGRAM.format(library=str(paths.library), settings=str(paths.settings), module=module)
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)


def _commands_folder() -> Path:
    """Where the commands' modules are: ``cli`` in a checkout."""
    checkout = shipped.PACKAGE.parent / "cli"
    return checkout if checkout.is_dir() else shipped.PACKAGE.parent / "slurm_asrpt_cli"
