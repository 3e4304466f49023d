"""The block of slurm-asrpt in a site's job_submit.lua: insert, find and remove it, and check that the file still loads.

A file may end in ``return slurm.SUCCESS``, as Slurm's own example does. In Lua nothing may follow that line, so the
block goes before it. The Lua library that slurmctld links checks that the result loads.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_asrpt.errors import InputError
from slurm_asrpt.hook.lua import FILE_NAME

PLUGIN = "job_submit_lua.so"
MODULE = FILE_NAME
_BEGIN, _END = b"-- >>> slurm-asrpt", b"-- <<< slurm-asrpt"
_BLOCK = re.compile(rb"^-- >>> slurm-asrpt.*?^-- <<< slurm-asrpt[^\n]*\n?", re.MULTILINE | re.DOTALL)
_LAST_RETURN = re.compile(
    rb"^[ \t]*return\b(?![^\n]*\bend\b)[^\n]*(?:\n[ \t]*(?:--(?!\[=*\[)[^\n]*)?)*\Z", re.MULTILINE
)
_NAMED = re.compile(rb"""["'](/[^"']*/job_submit_asrpt\.lua)["']""")
_SUBMIT = re.compile(rb"^[ \t]*(function[ \t]+)?slurm_job_submit\b[ \t]*[(=]", re.MULTILINE)
STUB = b"""\
-- slurm-asrpt has gone. slurmctld does not start without this file while slurm.conf says JobSubmitPlugins=lua.
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
"""


def block_in(text: bytes) -> bytes:
    """The block in a file, empty if there is none. Raises InputError if one of its ends is missing."""
    found = _BLOCK.findall(text)
    if len(found) > 1 or text.count(_BEGIN) != len(found) or text.count(_END) != len(found):
        raise InputError("the lines between '>>> slurm-asrpt' and '<<< slurm-asrpt' are damaged; remove them by hand")
    return found[0] if found else b""


def without_block(text: bytes) -> bytes:
    """The site's own lines. Raises InputError."""
    return text.replace(block_in(text), b"")


def with_block(text: bytes, block: bytes) -> bytes:
    """The site's own lines, then the block, but before a last ``return``. Raises InputError."""
    site = without_block(text)
    last = _LAST_RETURN.search(site)
    head, tail = (site[: last.start()], site[last.start() :]) if last else (site, b"")
    line_break = b"\n" if head and not head.endswith(b"\n") else b""
    return head + line_break + block + tail


def redefined(text: bytes) -> bool:
    """Whether the site's lines after the block replace our function. Raises InputError."""
    block = block_in(text)
    return bool(block) and bool(_SUBMIT.search(text.partition(block)[2]))


def included_by_hand(text: bytes) -> bool:
    """Whether the site's own lines load our module."""
    return MODULE.encode() in _by_hand(text)


def named_by_hand(text: bytes) -> Path | None:
    """The path from which the site's own lines load our module, if it is one string."""
    named = _NAMED.search(_by_hand(text))
    return Path(os.fsdecode(named[1])) if named else None


def _by_hand(text: bytes) -> bytes:
    """The site's own lines, without comments."""
    return b"\n".join(line.partition(b"--")[0] for line in without_block(text).splitlines())


def plugin(config: Mapping[str, str]) -> Path | None:
    """The file of Slurm's Lua plugin, by ``scontrol show config``; None if this machine has none."""
    folders = filter(None, config.get("PluginDir", "").split(":"))
    return next((path for folder in folders if (path := Path(folder) / PLUGIN).is_file()), None)


def trouble_with(script: bytes, plugin: Path) -> str | None:
    """Why the plugin's Lua cannot load a script, "" if it can; None if that Lua is not found. The script is not run."""
    for lua in _libraries(plugin):
        state = lua.luaL_newstate()
        if not state:
            continue
        try:
            return _trouble(lua, state, script)
        finally:
            lua.lua_close(ctypes.c_void_p(state))
    return None


def _trouble(lua: ctypes.CDLL, state: int, script: bytes) -> str:
    arguments = [ctypes.c_void_p(state), script, ctypes.c_size_t(len(script)), b"job_submit.lua"]
    if hasattr(lua, "luaL_loadbufferx"):  # from 5.2 on
        failed = lua.luaL_loadbufferx(*arguments, b"t")
    else:
        failed = lua.luaL_loadbuffer(*arguments)
    if not failed:
        return ""
    text = lua.lua_tolstring(ctypes.c_void_p(state), ctypes.c_int(-1), None) or b"no reason given"
    return str(text.decode(errors="replace"))


def _libraries(plugin: Path) -> Iterator[ctypes.CDLL]:
    """The Lua libraries that the plugin names: the one it links, and those that it opens itself."""
    names = re.findall(rb"liblua[-.0-9]*\.so[.0-9]*", plugin.read_bytes())
    for name in dict.fromkeys(names):
        try:
            lua = ctypes.CDLL(name.decode())
        except OSError:
            continue
        lua.luaL_newstate.restype = ctypes.c_void_p
        lua.lua_tolstring.restype = ctypes.c_char_p
        yield lua
