"""The hook gives the results of former releases, because histories and tables contain their group ids and keys.

tests/recorded/hook/results.json was recorded when Python still had its own implementation, with that
implementation and with the hook of that time. Never record it again: any difference makes every job unseen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.hook.group import describe, dissect, keys_of, parse_comment
from slurm_asrpt.hook.tag import parse_tag, render_features
from tests.benches.lua_hook import INTERPRETERS, ROOT, LuaHook

RECORDED = json.loads((ROOT / "tests" / "recorded" / "hook" / "results.json").read_text(encoding="ascii"))
CASES = RECORDED["cases"]


@pytest.fixture(scope="module", params=INTERPRETERS)
def lua(request: pytest.FixtureRequest) -> Iterator[LuaHook]:
    hook = LuaHook(request.param)
    yield hook
    hook.close()


def raw(text: str) -> bytes:
    """JSON has no bytes: each recorded character represents one."""
    return text.encode("latin-1")


def as_text(text: str) -> str:
    """Text as the tools show it, decoded from bytes of a script."""
    return raw(text).decode("utf-8", "surrogateescape")


def script_of(case: dict[str, Any]) -> bytes:
    return b"".join(raw(piece) * times for piece, times in case["script"])


def submitted(case: dict[str, Any]) -> tuple[int, bytes, bytes, list[bytes], bytes, GroupSettings]:
    """The arguments of describe."""
    words = [raw(word) for word in case["args"]]
    settings = GroupSettings(**case["rules"])
    return case["uid"], raw(case["name"]), script_of(case), words, raw(case["dataset"]), settings


def test_the_record_is_diverse() -> None:
    assert len(CASES) == 345
    assert len({case["group"] for case in CASES}) > 200
    for what in ("program", "features", "lines"):
        assert sum(bool(case.get(what)) for case in CASES) > 140
    assert sum(bool(answer) for _, answer in RECORDED["tags"]) > 100


def test_the_tools_give_the_recorded_groups_keys_and_hints() -> None:
    for case in CASES:
        found, hints = describe(*submitted(case)), parse_comment(raw(case["comment"]))
        assert found.group == case["group"]
        assert found.program == case["program"]
        assert render_features(found.features) == case["features"]
        assert str(found.sizes) == case["sizes"]
        assert dict(keys_of(found.group, found.program, case["uid"], case["gpus"], found.features)) == case["keys"]
        complaints = [text.decode("latin-1") for text in hints.complaints]
        assert [hints.profile, hints.dataset, hints.interrupt, hints.off, complaints] == case["hints"]


def test_the_tools_give_the_recorded_reasons() -> None:
    for case in CASES:
        if "lines" in case:
            uid, name, script, _, dataset, settings = submitted(case)
            found = dissect(uid, name, script, dataset, case["gpus"], settings)
            assert [(line.text, line.counts, list(line.set_aside)) for line in found.lines] == [
                (as_text(text), as_text(counts), [(rule, as_text(words)) for rule, words in set_aside])
                for text, counts, set_aside in case["lines"]
            ]


def test_each_lua_gives_the_recorded_groups_and_keys(lua: LuaHook) -> None:
    for case in CASES:
        found = lua.describe(*submitted(case))
        described = [found.group, found.program, render_features(found.features), str(found.sizes)]
        assert described == [case[what] for what in ("group", "program", "features", "sizes")]
        keys = " ".join(level[0] + key for level, key in case["keys"].items())
        asked = (case["group"], case["program"], case["uid"], case["gpus"], case["features"])
        assert lua.ask("keys", *asked) == keys.encode()


def test_each_lua_writes_the_recorded_tags(lua: LuaHook, tmp_path: Path) -> None:
    """With a hook.conf and a table of that time."""
    (tmp_path / "hook.conf").write_bytes(raw(RECORDED["hook_conf"]))
    (tmp_path / "table.txt").write_bytes(raw(RECORDED["table"]))
    for fields, expected in RECORDED["tags"]:
        job = {name: raw(value) if isinstance(value, str) else value for name, value in fields.items()}
        written = lua.submit(tmp_path, **job)
        assert (written["set"], written["log_error"]) == (expected, [])
        for text in expected:
            tag = parse_tag(text.removeprefix("admin_comment="))
            assert tag
            assert "admin_comment=" + tag.format() == text
