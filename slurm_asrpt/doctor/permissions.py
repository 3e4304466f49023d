"""Checks of permissions: who can change the files that asrptd and the hook trust."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from slurm_asrpt.config.location import DEFAULT_PATH, ENVIRONMENT_VARIABLE
from slurm_asrpt.config.settings import Settings
from slurm_asrpt.doctor.checks import Finding, Snapshot, failure, ok, warning
from slurm_asrpt.history.store import FILE_NAME as HISTORY
from slurm_asrpt.hook import hook_conf, table
from slurm_asrpt.install import job_submit
from slurm_asrpt.install.slurm_conf import SCRIPTS
from slurm_asrpt.predict.retrain import models_folder
from slurm_asrpt.spool import hosts_dir, progress_dir


def owners(settings: Settings, now: float, snapshot: Snapshot) -> Iterator[Finding]:
    """Only root and SlurmUser can write trusted files, and only root those that root runs."""
    name = snapshot.config.get("SlurmUser", "SlurmUser").partition("(")[0]
    bad = [
        *_untrusted(
            _paths(settings, snapshot.config),
            {0} | _slurm_user(snapshot.config),
            "who is neither root nor SlurmUser",
            name,
        ),
        *_untrusted(_scripts(settings), {0}, "but root runs it on the nodes", "root"),
    ]
    yield from bad
    state = settings.paths.state
    if state.is_dir() and state.stat().st_mode & 0o077:
        yield warning("permissions", f"{state}: other users can read it", f"chmod 700 {state}")
    elif not bad:
        yield ok("permissions", "only root and SlurmUser can write trusted files")


def _untrusted(paths: Iterable[Path], trusted: set[int], why: str, owner: str) -> Iterator[Finding]:
    """Findings for paths that users other than ``trusted`` can write. owner: the right owner."""
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            continue  # missing or hidden: other checks report it
        if found.st_uid not in trusted:
            yield failure("permissions", f"{path} is owned by user {found.st_uid}, {why}", f"chown {owner} {path}")
        elif found.st_mode & 0o022:
            text = f"{path}: others can write it (mode {found.st_mode & 0o777:o})"
            yield failure("permissions", text, f"chmod go-w {path}")


def _slurm_user(config: Mapping[str, str]) -> set[int]:
    """The uid in ``slurm(64030)``."""
    name, _, rest = config.get("SlurmUser", "").partition("(")
    if rest.rstrip(")").isdigit():
        return {int(rest.rstrip(")"))}
    try:
        return {pwd.getpwnam(name).pw_uid}
    except KeyError:
        return set()


def _paths(settings: Settings, config: Mapping[str, str]) -> list[Path]:
    paths = settings.paths
    files = [paths.hook / name for name in (hook_conf.FILE_NAME, table.FILE_NAME)]
    script = Path(config.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent / "job_submit.lua"
    settings_file = Path(os.environ.get(ENVIRONMENT_VARIABLE, DEFAULT_PATH))
    folders = [paths.state, paths.run, paths.hook, paths.spool, hosts_dir(paths.spool), progress_dir(paths.spool)]
    learned = [paths.state / HISTORY, models_folder(settings)]
    return [*folders, *learned, *files, script, settings_file.parent, settings_file, paths.attachments, *paths.profiles]


def _scripts(settings: Settings) -> list[Path]:
    folder = settings.paths.scripts
    return [folder, *(folder / name for name in (job_submit.MODULE, *SCRIPTS.values()))]
