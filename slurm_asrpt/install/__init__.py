"""asrpt-admin install: check, install and remove slurm-asrpt on a controller.

It writes files and directories. It only reads slurm.conf, through scontrol, and shows the lines that belong there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_asrpt.config.location import RUN
from slurm_asrpt.config.settings import load_settings
from slurm_asrpt.hook import hook_conf, table
from slurm_asrpt.install import job_submit
from slurm_asrpt.install.parts import File, FirstFile, Folder, Include, Part
from slurm_asrpt.install.site import UNITS, Site
from slurm_asrpt.install.slurm_conf import SCRIPTS, Line, State, scripts_of, wanted_lines, words
from slurm_asrpt.spool import hosts_dir, progress_dir

MODULE, INCLUDE = "submit hook", "its include"


@dataclass(frozen=True)
class Step:
    """A part of the installation. changed: by this call. note: the backup, or why the part stays."""

    what: str
    where: str
    state: State
    changed: bool = False
    note: str = ""


def check(site: Site) -> list[Step]:
    """The state of each part. Raises OSError, InputError."""
    return [Step(part.what, str(part.path), part.state()) for part in parts(site)]


def apply(site: Site) -> list[Step]:
    """Install what is missing or differs. Raises OSError, AsrptError; earlier steps stay done."""
    steps = []
    for part in parts(site):
        steps.append(_put(part))
        new_module = any(step.changed for step in steps if step.what == MODULE)
        if isinstance(part, Include) and new_module and not steps[-1].changed:
            part.touch()
    return steps


def _put(part: Part) -> Step:
    state = part.state()
    if state is State.PRESENT:
        return Step(part.what, str(part.path), state)
    kept = part.put()
    return Step(part.what, str(part.path), part.state(), True, f"previous file: {kept}" if kept else "")


def remove(site: Site) -> list[Step]:
    """Remove all parts that may go, the block in job_submit.lua first. Raises OSError, AsrptError."""
    return [_take(part) for part in reversed(parts(site))]


def _take(part: Part) -> Step:
    step = Step(part.what, str(part.path), State.MISSING)
    if not part.path.exists():
        return step
    why = part.take()
    return replace(step, state=State.KEPT, note=why) if why else replace(step, changed=True)


def lines(site: Site) -> list[Line]:
    """The lines that slurm.conf needs; none if Slurm was not asked."""
    return wanted_lines(site.config, site.settings.paths.scripts) if site.config else []


def parts(site: Site) -> list[Part]:
    """All parts in the order of installation: no part refers to a later one."""
    return [*_folders(site), *_hook(site), _include(site), _settings(site), *_units(site)]


def _folders(site: Site) -> Iterator[Folder]:
    paths = site.settings.paths
    for what, path, mode in (
        ("state directory", paths.state, 0o700),
        ("hook directory", paths.hook, 0o755),
        ("spool directory", paths.spool, 0o755),
        ("spool directory", hosts_dir(paths.spool), 0o755),
        ("spool directory", progress_dir(paths.spool), 0o755),
        *([("run directory", paths.run, 0o755)] if paths.run != RUN else []),  # else systemd makes it
    ):
        yield Folder(what, site.at(path), mode, site.owner)
    yield Folder("scripts directory", site.at(paths.scripts), 0o755, site.roots)


def _hook(site: Site) -> Iterator[Part]:
    paths, owner = site.settings.paths, site.owner
    hook, scripts = site.at(paths.hook), site.at(paths.scripts)
    yield File(MODULE, scripts / job_submit.MODULE, site.module())
    for key, name in SCRIPTS.items():
        named = (key,) if str(paths.scripts / name) in scripts_of(site.config, key) else ()
        yield File(key, scripts / name, site.script(name), 0o755, named)
    yield FirstFile("hook's settings", hook / hook_conf.FILE_NAME, lambda: _hook_conf(site), owner, taken=True)
    empty = table.render_table({})
    yield FirstFile("hook's table", hook / table.FILE_NAME, lambda: empty, owner, taken=True)
    yield FirstFile("wake-up file", hook / hook_conf.WAKEUP, bytes, owner, taken=True)


def _hook_conf(site: Site) -> bytes:
    """The hook.conf of a stopped asrptd: jobs are tagged, not leased."""
    settings = site.settings
    return hook_conf.render_hook_conf(settings.slurm.partitions, 0, time.time(), settings.group)


def _include(site: Site) -> Include:
    plugin = job_submit.plugin(site.config)
    needed = not site.config or "lua" in words(site.config, "JobSubmitPlugins")
    return Include(INCLUDE, site.at(site.lua), site.block(), plugin, needed)


def _settings(site: Site) -> FirstFile:
    check: Callable[[Path], object] = load_settings
    return FirstFile("settings", site.at(site.settings_path), site.new_settings, None, taken=False, check=check)


def _units(site: Site) -> Iterator[File]:
    for name in UNITS:
        yield File("systemd unit", site.at(site.units) / name, site.unit(name))
