"""The submit hook: that slurmctld has it, that it is ours, and that it works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.doctor.findings import Finding, failure, ok, warning
from slurm_asrpt.doctor.look import Look
from slurm_asrpt.errors import InputError
from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.install import lua_plugin, luablock
from slurm_asrpt.install.site import placed
from slurm_asrpt.install.slurmlines import SCRIPTS, scripts_of, words
from slurm_asrpt.shipped import HOOKS, shipped
from slurm_asrpt.slurm.parse import parse_time
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.text import counted

INSTALL = "asrpt-admin install --apply"
RECENT_S = 3600.0
"""Jobs submitted since then tell whether the hook works."""


def plugin(settings: Settings, now: float, look: Look) -> Iterator[Finding]:
    """slurmctld loads Lua, and no other plugin changes a job after it."""
    plugins = words(look.config, "JobSubmitPlugins")
    if "lua" not in plugins:
        wanted = f"JobSubmitPlugins={','.join([*plugins, 'lua'])}, restart slurmctld"
        first = "" if _script(look).exists() else f"{INSTALL} (slurmctld does not start without job_submit.lua), then "
        yield failure("lua", "slurm.conf loads no Lua", first + wanted)
        return
    later = plugins[plugins.index("lua") + 1 :]
    if lua_plugin.plugin(look.config) is None:
        text = f"no {lua_plugin.PLUGIN} in PluginDir of this machine"
        yield warning("lua", text, "run this on the controller; there, install Slurm's Lua plugin")
    elif later:
        remedy = f"JobSubmitPlugins={','.join([p for p in plugins if p != 'lua'] + ['lua'])}"
        yield warning("lua", f"{', '.join(later)} may change a job after it was tagged", remedy)
    else:
        yield ok("lua", "the plugin is there and comes last")


def include(settings: Settings, now: float, look: Look) -> Iterator[Finding]:
    """job_submit.lua loads, calls our module, that of this release, and has been touched since it changed."""
    script = _script(look)
    try:
        yield _include(settings, look, script, script.read_bytes())
    except OSError as error:
        yield warning("include", f"{script}: {error.strerror}", f"run this on the controller; there, {INSTALL}")
    except InputError as error:
        yield failure("include", f"{script}: {error}", INSTALL)


def _include(settings: Settings, look: Look, script: Path, lua_text: bytes) -> Finding:
    """Raises InputError for lines of ours that are damaged."""
    found = luablock.block_in(lua_text) or luablock.included_by_hand(lua_text)
    if trouble := _trouble(lua_text, look):
        text = f"Lua cannot load it ({trouble}): slurmctld keeps the one before, and does not start again"
        return failure("include", text, f"mend {script}")
    if not found:
        return failure("include", f"{script} does not call our module", INSTALL)
    if luablock.redefined(lua_text):
        text = f"{script} defines slurm_job_submit once more after our lines: does that call the one before?"
        return warning("include", text, f"if not, take our lines out, then {INSTALL} puts them at its end")
    return _module(settings, script, lua_text)


def _script(look: Look) -> Path:
    return Path(look.config.get("SLURM_CONF", "")).parent / "job_submit.lua"


def _trouble(text: bytes, look: Look) -> str:
    """Why slurmctld's Lua cannot load it, as far as that can be told here."""
    plugin = lua_plugin.plugin(look.config)
    return lua_plugin.trouble_with(text, plugin) or "" if plugin else ""


def _module(settings: Settings, script: Path, lua_text: bytes) -> Finding:
    placed_by_us = settings.paths.scripts / luablock.MODULE
    module = luablock.named_by_hand(lua_text) or placed_by_us
    remedy = INSTALL if module == placed_by_us else f"{INSTALL}; cp {placed_by_us} {module}; touch {script}"
    if not module.is_file():
        if bytes(module.parent) in lua_text:
            lost = f"{script} calls {module}, which is not there: slurmctld loads it no more"
            return failure("include", lost, remedy)
        return ok("include", f"{script} loads our module from a folder of its own")
    if module.read_bytes() != shipped(HOOKS, luablock.MODULE):
        return warning("include", f"{module} is not that of this release", remedy)
    if module.stat().st_mtime > script.stat().st_mtime + 1:
        text = f"{module} is newer than {script}, so slurmctld may still have the one before"
        return warning("include", text, f"touch {script}")
    return ok("include", f"{script} calls our module")


def scripts(settings: Settings, now: float, look: Look) -> Iterator[Finding]:
    """The prologs of ours that slurm.conf names are there, can be run, and are those of this release, for these paths.

    On this machine: what the nodes have is theirs to tell.
    """
    named = [(Path(path), name) for key, name in SCRIPTS.items() for path in scripts_of(look.config, key)]
    ours = [(path, name) for path, name in named if path.name == name]
    bad = [finding for path, name in ours for finding in _prolog(settings, path, name)]
    yield from bad
    if ours and not bad:
        yield ok("scripts", f"{len(ours)} that slurm.conf names are those of this release")


def _prolog(settings: Settings, path: Path, name: str) -> Iterator[Finding]:
    again = f"{INSTALL}, then copy it to the nodes"
    try:
        found, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        text = f"slurm.conf names {path} ({error.strerror} here): Slurm drains nodes that have none"
        yield warning("scripts", text, f"run this where the nodes' scripts are; {again}")
        return
    if not mode & 0o001:
        yield failure("scripts", f"{path} cannot be run", f"chmod 755 {path}")
    if found != placed(name, settings.paths):
        yield warning("scripts", f"{path} is not that of this release, or for another spool folder", again)


def tags(settings: Settings, now: float, look: Look) -> Iterator[Finding]:
    """That jobs are tagged is the only proof that the hook runs; slurmctld loads it when it starts."""
    managed, since = set(settings.slurm.partitions), max(now - RECENT_S, parse_time(look.config.get("BOOT_TIME", "")))
    recent = [job for job in look.jobs if job.submit_time >= since and _for_us(job, managed)]
    untagged = [job for job in recent if parse_tag(job.admin_comment) is None]
    if not recent:
        yield ok("tags", "no GPU job of the last hour, or since slurmctld started, to tell by")
    elif len(untagged) == len(recent):
        text = (
            f"none of {counted(len(recent), 'GPU job')} of the last hour bears a tag: slurmctld does not run the hook"
        )
        yield failure("tags", text, "grep asrpt in slurmctld's log; asrpt-admin install --check")
    elif untagged:
        last = max(untagged, key=lambda job: job.submit_time)
        since = sum(job.submit_time > last.submit_time for job in recent)
        some = f"{len(untagged)} of {counted(len(recent), 'GPU job')} of the last hour"
        text = f"{some} without a tag, {last.job_id} the last of them"
        remedy = "grep asrpt in slurmctld's log; another tool may write AdminComment"
        mended = f"none if that is mended: {counted(since, 'job')} submitted since then with one; else "
        yield warning("tags", text, mended + remedy if since else remedy)
    else:
        yield ok("tags", f"a tag on each of {counted(len(recent), 'GPU job')} of the last hour")


def _for_us(job: JobRecord, managed: set[str]) -> bool:
    asked = (job.tres_per_job, job.tres_per_node, job.tres_per_task, job.tres_per_socket)
    return set(job.partition.split(",")) <= managed and any("gpu" in text for text in asked)
