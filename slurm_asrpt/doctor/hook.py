"""Checks of the submit hook: slurmctld loads it, it is of this release, and it tags jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.doctor.checks import Finding, Snapshot, failure, ok, warning
from slurm_asrpt.errors import InputError
from slurm_asrpt.hook.hook_conf import WAKEUP
from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.install import job_submit
from slurm_asrpt.install.site import placed
from slurm_asrpt.install.slurm_conf import SCRIPTS, scripts_of, words
from slurm_asrpt.shipped import HOOKS, shipped
from slurm_asrpt.slurm.parse import parse_time
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.text import counted

INSTALL = "asrpt-admin install --apply"
RECENT_S = 3600.0
"""Jobs submitted within this time show whether the hook works."""
LATE_S = 2.0
"""Slurm's times are whole seconds."""


def plugin(settings: Settings, now: float, snapshot: Snapshot) -> Iterator[Finding]:
    """slurmctld loads the Lua plugin, as the last of its submit plugins."""
    plugins = words(snapshot.config, "JobSubmitPlugins")
    if "lua" not in plugins:
        wanted = f"set JobSubmitPlugins={','.join([*plugins, 'lua'])} and restart slurmctld"
        first = (
            "" if _script(snapshot).exists() else f"{INSTALL} (without job_submit.lua slurmctld does not start), then "
        )
        yield failure("lua", "slurm.conf does not load the Lua plugin", first + wanted)
        return
    later = plugins[plugins.index("lua") + 1 :]
    if job_submit.plugin(snapshot.config) is None:
        text = f"this machine's PluginDir has no {job_submit.PLUGIN}"
        yield warning("lua", text, "if this is the controller, install Slurm's Lua plugin; else run this there")
    elif later:
        remedy = f"set JobSubmitPlugins={','.join([p for p in plugins if p != 'lua'] + ['lua'])}"
        yield warning("lua", f"{', '.join(later)} may change a job after the hook has tagged it", remedy)
    else:
        yield ok("lua", "the Lua plugin is installed and comes last")


def include(settings: Settings, now: float, snapshot: Snapshot) -> Iterator[Finding]:
    """job_submit.lua is valid, calls asrpt's module of this release, and is newer than the module."""
    script = _script(snapshot)
    try:
        yield _include(settings, snapshot, script, script.read_bytes())
    except OSError as error:
        yield warning(
            "include", f"{script}: {error.strerror}", f"if this is the controller, {INSTALL}; else run this there"
        )
    except InputError as error:
        yield failure("include", f"{script}: {error}", INSTALL)


def _include(settings: Settings, snapshot: Snapshot, script: Path, lua_text: bytes) -> Finding:
    """Raises InputError if asrpt's lines are damaged."""
    found = job_submit.block_in(lua_text) or job_submit.included_by_hand(lua_text)
    if trouble := _trouble(lua_text, snapshot):
        text = f"invalid Lua ({trouble}): slurmctld keeps the previous script and will fail to start after a restart"
        return failure("include", text, f"fix {script}")
    if not found:
        return failure("include", f"{script} does not call asrpt's module", INSTALL)
    if job_submit.redefined(lua_text):
        text = f"{script} redefines slurm_job_submit after asrpt's lines; it may not call the previous definition"
        return warning("include", text, f"if it does not, remove asrpt's lines; {INSTALL} appends them again")
    return _module(settings, script, lua_text)


def _script(snapshot: Snapshot) -> Path:
    return Path(snapshot.config.get("SLURM_CONF", "")).parent / "job_submit.lua"


def _trouble(text: bytes, snapshot: Snapshot) -> str:
    """Why slurmctld's Lua cannot load the script, "" if it can or the plugin is not on this machine."""
    plugin = job_submit.plugin(snapshot.config)
    return job_submit.trouble_with(text, plugin) or "" if plugin else ""


def _module(settings: Settings, script: Path, lua_text: bytes) -> Finding:
    placed_by_us = settings.paths.scripts / job_submit.MODULE
    module = job_submit.named_by_hand(lua_text) or placed_by_us
    remedy = INSTALL if module == placed_by_us else f"{INSTALL}; cp {placed_by_us} {module}; touch {script}"
    if not module.is_file():
        if bytes(module.parent) in lua_text:
            lost = f"{script} calls {module}, which does not exist: slurmctld can no longer load the script"
            return failure("include", lost, remedy)
        return ok("include", f"{script} loads asrpt's module from another directory")
    if module.read_bytes() != shipped(HOOKS, job_submit.MODULE):
        return warning("include", f"{module} is not of this release", remedy)
    if module.stat().st_mtime > script.stat().st_mtime + 1:
        text = f"{module} is newer than {script}: slurmctld may still use the previous version"
        return warning("include", text, f"touch {script}")
    return ok("include", f"{script} calls asrpt's module")


def scripts(settings: Settings, now: float, snapshot: Snapshot) -> Iterator[Finding]:
    """asrpt's prologs and epilog in slurm.conf exist, are executable, and are of this release and for these paths.

    On this machine only; the copies on the nodes are not checked.
    """
    named = [(Path(path), name) for key, name in SCRIPTS.items() for path in scripts_of(snapshot.config, key)]
    ours = [(path, name) for path, name in named if path.name == name]
    bad = [finding for path, name in ours for finding in _prolog(settings, path, name)]
    yield from bad
    if ours and not bad:
        yield ok("scripts", f"{len(ours)} in slurm.conf, of this release")


def _prolog(settings: Settings, path: Path, name: str) -> Iterator[Finding]:
    again = f"{INSTALL}, then copy it to the nodes"
    try:
        found, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        text = f"slurm.conf names {path} ({error.strerror} here): Slurm drains nodes without it"
        yield warning("scripts", text, f"run this on a machine with the nodes' scripts, or {again}")
        return
    if not mode & 0o001:
        yield failure("scripts", f"{path} is not executable", f"chmod 755 {path}")
    if found != placed(name, settings.paths):
        yield warning("scripts", f"{path} is not of this release, or for another spool directory", again)


def tags(settings: Settings, now: float, snapshot: Snapshot) -> Iterator[Finding]:
    """Recent jobs have tags: the only proof that slurmctld, which loads the hook when it starts, runs it."""
    managed, since = (
        set(settings.slurm.partitions),
        max(now - RECENT_S, parse_time(snapshot.config.get("BOOT_TIME", ""))),
    )
    recent = [job for job in snapshot.jobs if job.submit_time >= since and _for_us(job, managed)]
    untagged = [job for job in recent if parse_tag(job.admin_comment) is None]
    if not recent:
        yield ok("tags", "no GPU job in the last hour, or since slurmctld started")
    elif len(untagged) == len(recent):
        text = f"none of {counted(len(recent), 'GPU job')} of the last hour has a tag: slurmctld does not run the hook"
        yield failure("tags", text, "look for asrpt in slurmctld's log; asrpt-admin install --check")
    elif untagged:
        last = max(untagged, key=lambda job: job.submit_time)
        since = sum(job.submit_time > last.submit_time for job in recent)
        some = f"{len(untagged)} of {counted(len(recent), 'GPU job')} of the last hour"
        text = f"{some} without a tag, the last one {last.job_id}"
        # a job that has started no longer shows the other partitions that it named
        fixed = f" or if this is fixed ({counted(since, 'later job')} with a tag);" if since else ""
        remedy = "look for asrpt in slurmctld's log; another tool may overwrite AdminComment"
        yield warning("tags", text, f"none if they named unmanaged partitions, too (-p a,b),{fixed} else {remedy}")
    else:
        yield ok("tags", f"{counted(len(recent), 'GPU job')} of the last hour, all with a tag")


def wakes(settings: Settings, now: float, snapshot: Snapshot) -> Iterator[Finding]:
    """The hook touches the file that wakes asrptd, for the last job that it has tagged."""
    path = settings.paths.hook / WAKEUP
    try:
        touched = path.stat().st_mtime
    except OSError as error:
        text = f"{path}: {error.strerror}: submitted jobs wait for asrptd's next cycle"
        yield warning("wake-ups", text, "systemctl restart asrptd, which creates the file")
        return
    tagged = [job for job in snapshot.jobs if parse_tag(job.admin_comment) and not job.restarts]
    last = max(tagged, key=lambda job: job.submit_time, default=None)
    if last is not None and last.submit_time > touched + LATE_S:
        text = f"the hook did not write {path} for job {last.job_id}: submitted jobs wait for asrptd's next cycle"
        yield warning("wake-ups", text, f"chown SlurmUser {path}; if that is its owner, {INSTALL}")
    else:
        yield ok("wake-ups", "submissions wake asrptd")


def _for_us(job: JobRecord, managed: set[str]) -> bool:
    asked = (job.tres_per_job, job.tres_per_node, job.tres_per_task, job.tres_per_socket)
    return set(job.partition.split(",")) <= managed and any("gpu" in text for text in asked)
