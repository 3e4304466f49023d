"""The submit hook's Lua, run from Python: the grouping rules exist once, in ``job_submit_asrpt.lua``.

slurmctld and the tools run the same file, so a group id, a key or a hint cannot differ between them.
docs/decisions/0024 explains the choice of Lua 5.4 and the sandbox. The first call loads Lua.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Never

from slurm_asrpt.shipped import HOOKS, shipped_code

FILE_NAME = "job_submit_asrpt.lua"

_SANDBOX = rb"""
local allowed = { string = string, table = table, math = math, io = {} }
for name in ("assert error ipairs next pairs pcall select setmetatable tonumber tostring type"):gmatch("%a+") do
  allowed[name] = _G[name]
end
local open = io.open
function allowed.io.open(path) return open(path, "rb") end -- the table that lookup is given
return function(source, name) return assert(load(source, "=" .. name, "t", allowed))() end
"""


def call(function: str, *arguments: object) -> Any:
    """Call a function of the hook's module. Text goes in and comes out as bytes.

    Lists and dicts become Lua tables, also inside each other. A Lua table comes out as it is.
    Raises ValueError where the function raises an error.
    """
    functions, to_table, error = _hook()
    try:
        return functions[function.encode()](*(to_table(a) if isinstance(a, list | dict) else a for a in arguments))
    except error as trouble:
        raise ValueError(str(trouble)) from None


@cache
def _hook() -> tuple[Mapping[bytes, Callable[..., Any]], Callable[[Iterable[Any]], Any], type[Exception]]:
    """The module's functions, what makes a table, and what they raise. Once in a process."""
    from lupa.lua54 import LuaError, LuaRuntime

    runtime = LuaRuntime(
        encoding=None, register_eval=False, register_builtins=False, unpack_returned_tuples=False,
        attribute_filter=_refuse,
    )  # fmt: skip
    module = runtime.execute(_SANDBOX)(shipped_code(HOOKS, FILE_NAME), FILE_NAME.encode())
    return dict(module.items()), lambda items: runtime.table_from(items, recursive=True), LuaError


def _refuse(target: object, name: object, setting: bool) -> Never:
    """Lua may call the functions that it is given, and see no more of Python."""
    raise AttributeError(f"{name!r} is not for Lua")
