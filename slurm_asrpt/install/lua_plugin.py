"""Slurm's Lua plugin, and whether a script would load in the very Lua that slurmctld links."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

PLUGIN = "job_submit_lua.so"


def plugin(config: Mapping[str, str]) -> Path | None:
    """The plugin's file, by ``scontrol show config``; None where this machine has none."""
    folders = filter(None, config.get("PluginDir", "").split(":"))
    return next((path for folder in folders if (path := Path(folder) / PLUGIN).is_file()), None)


def trouble_with(script: bytes, plugin: Path) -> str | None:
    """Why Lua cannot load a script, "" if it can; None where the plugin's Lua cannot be asked. Nothing is run."""
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
    """The libraries that the plugin names: the one it links, and those that it looks for itself."""
    names = re.findall(rb"liblua[-.0-9]*\.so[.0-9]*", plugin.read_bytes())
    for name in dict.fromkeys(names):
        try:
            lua = ctypes.CDLL(name.decode())
        except OSError:
            continue
        lua.luaL_newstate.restype = ctypes.c_void_p
        lua.lua_tolstring.restype = ctypes.c_char_p
        yield lua
