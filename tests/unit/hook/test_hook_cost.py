"""slurmctld waits for the hook, so its cost is bounded for any script, name and comment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.hook.attachments import MAX_ATTACHMENTS, Attachments
from slurm_asrpt.hook.hook_conf import render_hook_conf, write_hook_conf
from tests.benches.lua_hook import INTERPRETERS, LuaHook

LONG = 1 << 20
WORDS = [b"a", b"a ", b"--x=", b"2026-11-2", b"9", b"\xff", b"="]
SIGNS = [b"\n", b"'", b'"', b"\\\n", b"; ", b"$(", b"`", b"#", b"<<E\n", b"|&"]
each_piece = pytest.mark.parametrize("piece", [*WORDS, *SIGNS])


@pytest.fixture(scope="module", params=INTERPRETERS)
def lua(request: pytest.FixtureRequest) -> Iterator[LuaHook]:
    hook = LuaHook(request.param)
    hook.describe(7, b"x", b"x", [], b"", GroupSettings())  # the rules are read once
    yield hook
    hook.close()


@pytest.mark.parametrize("managed", ["gpu", ""])
def test_garbage_does_not_accumulate(lua: LuaHook, tmp_path: Path, managed: str) -> None:
    """400 scripts produce 100 MB of garbage. Without managed partitions, the hook does not read the script."""
    write_hook_conf(tmp_path, [managed] if managed else [], 600, 2e9, GroupSettings())
    assert int(lua.ask("garbage", str(tmp_path), 256, 400)) < 16_000


def steps(lua: LuaHook, script: bytes, name: bytes = b"x", argument: bytes = b"") -> int:
    """The number of Lua instructions for one description."""
    return int(lua.ask("steps", 7, name, script, b"", argument))


@each_piece
def test_a_longer_script_does_not_cost_more(lua: LuaHook, piece: bytes) -> None:
    half, whole = (steps(lua, piece * (size // len(piece))) for size in (LONG // 2, LONG))
    assert whole <= 1.1 * half + 1000
    assert whole < 2_000_000


@each_piece
def test_a_longer_argument_does_not_cost_more(lua: LuaHook, piece: bytes) -> None:
    half, whole = (steps(lua, b"x", argument=piece * (size // len(piece))) for size in (LONG // 2, LONG))
    assert whole <= 1.1 * half + 1000
    assert whole < 2_000_000


def test_attached_profiles_cost_little_for_any_job_names(lua: LuaHook) -> None:
    """The maximum number of patterns, each with the worst name, costs about as much as a script of 1 KB."""
    names = {f"{'a*' * 10}{'a' * 100}{i:03}": "p" for i in range(MAX_ATTACHMENTS)}
    lua.ask("rules", render_hook_conf([], 0, 0, GroupSettings(), Attachments(names=names)))
    lua.forget_rules()
    assert int(lua.ask("attached-steps", "0" * 16, b"a" * 1024)) < 100_000
    assert lua.ask("attached", "0" * 16, b"a" * 1024 + b"007") == b"p"
