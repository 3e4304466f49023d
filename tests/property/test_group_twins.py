"""Lua and Python compute the same group, read the same table and understand the same hints, byte for byte."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lua_hook import INTERPRETERS, LuaHook

from slurm_asrpt.config import GroupSettings
from slurm_asrpt.predict import table
from slurm_asrpt.predict.group import CLIP_BYTES, group_id, parse_comment
from slurm_asrpt.predict.table import Answer, Entry

pytestmark = pytest.mark.skipif(not INTERPRETERS, reason="no lua5.1, lua5.3 or lua5.4 on PATH")

MANY = settings(max_examples=2500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SOME = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

PIECES = [
    b"\n",
    b"\r\n",
    b"#",
    b" ",
    b"\t",
    b"\x0b",
    b"\x0c",
    b"\0",
    b"\xff",
    b"\xc2\xa0",
    b"\x1c",
    b"\x85",
    b"train.py",
]
PIECES += [b"#SBATCH -J x", b"--output", b"%d", b"%", b"[", b"#!/bin/sh\n", b"# comment\n", b"1795", b"x" * 13]
scripts = st.one_of(
    st.binary(max_size=400),
    st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join),
    st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=30)), max_size=20).map(b"".join),
)
rules_of = st.builds(
    GroupSettings,
    strip_comments=st.booleans(),
    fold_digits=st.booleans(),
    arguments=st.booleans(),
    ignore_lines=st.lists(st.sampled_from(["--output", "%d", "[", "x", "é"]), max_size=2),
)
HINTS = [b"asrpt:", b"profile=", b"dataset=", b"off", b",", b";", b" ", b"a", b"gpt-2", b"=", b"\0", b"\n", b"-"]
groups = st.binary(min_size=8, max_size=8).map(bytes.hex)
figures = st.one_of(st.floats(0, 1e13), st.integers(0, 10**6).map(lambda i: i / 1000))
entries = st.builds(Entry, figures, figures, figures, st.sampled_from("-es"))
tables = st.dictionaries(groups, entries, max_size=30)
features = st.dictionaries(st.sampled_from(["epochs", "steps"]), st.floats(-1e3, 1e14).map(float))


@pytest.fixture(scope="module")
def luas() -> Iterator[list[LuaHook]]:
    hooks = [LuaHook(name) for name in INTERPRETERS]
    yield hooks
    for hook in hooks:
        hook.close()


@MANY
@given(
    uid=st.integers(0, 2**32 - 1),
    name=st.binary(max_size=30),
    script=scripts,
    args=st.lists(st.binary(max_size=20), max_size=4),
    dataset=st.binary(max_size=10),
    rules=rules_of,
)
def test_same_group(
    luas: list[LuaHook], uid: int, name: bytes, script: bytes, args: list[bytes], dataset: bytes, rules: GroupSettings
) -> None:
    expected = group_id(uid, name, script, args, dataset, rules)
    assert [lua.group_id(uid, name, script, args, dataset, rules) for lua in luas] == [expected] * len(luas)


@settings(max_examples=40, deadline=None)
@given(
    piece=st.binary(min_size=1, max_size=50),
    size=st.one_of(st.integers(CLIP_BYTES - 3, CLIP_BYTES + 3), st.integers(0, 1 << 20)),
)
def test_same_group_for_long_scripts(luas: list[LuaHook], piece: bytes, size: int) -> None:
    script = (piece * (size // len(piece) + 1))[:size]
    expected = group_id(7, b"n", script, [script[:99], script], b"", GroupSettings())
    for lua in luas:
        assert lua.group_id(7, b"n", script, [script[:99], script], b"", GroupSettings()) == expected


@pytest.mark.parametrize(
    "script", [b"", b"\n", b"#!/bin/sh", b"\0", b"x", b" \t\r", b"\xff" * (1 << 20), b"\n" * 99999]
)
def test_same_group_at_the_edges(luas: list[LuaHook], script: bytes) -> None:
    expected = group_id(0, b"", script, [], b"", GroupSettings())
    assert {lua.group_id(0, b"", script, [], b"", GroupSettings()) for lua in luas} == {expected}


def found_by_all(luas: list[LuaHook], path: Path, keys: list[str], wanted: dict[str, float]) -> tuple[Answer, str]:
    """What the tools find, after checking that each Lua finds the same."""
    found = table.lookup(path, [(str(i), key) for i, key in enumerate(keys, 1)], wanted)
    assert [lua.lookup(path, keys, wanted) for lua in luas] == [found] * len(luas)
    return found


@SOME
@given(predictions=tables, others=st.lists(groups, max_size=5), wanted=features, data=st.data())
def test_same_answer_from_a_table(
    luas: list[LuaHook],
    tmp_path: Path,
    predictions: dict[str, Entry],
    others: list[str],
    wanted: dict[str, float],
    data: st.DataObject,
) -> None:
    path = tmp_path / "table.txt"
    table.write_table(path, predictions)
    stored = table.read_table(path)
    assert stored.keys() == predictions.keys()
    for key in [*predictions, *others]:
        chain = [*data.draw(st.lists(st.sampled_from([*predictions, *others]), max_size=4)), key]
        found = found_by_all(luas, path, chain, wanted)
        levels = [(str(i), key) for i, key in enumerate(chain, 1)]
        assert found == (table.answer(levels, wanted, stored.get), "")


@SOME
@given(
    predictions=tables.filter(bool),
    at=st.integers(0, 1000),
    junk=st.binary(min_size=1, max_size=80),
    cut=st.booleans(),
)
def test_same_answer_from_a_damaged_table(
    luas: list[LuaHook], tmp_path: Path, predictions: dict[str, Entry], at: int, junk: bytes, cut: bool
) -> None:
    path = tmp_path / "table.txt"
    whole = table.render_table(predictions)
    at %= len(whole)
    path.write_bytes(whole[:at] + junk + (b"" if cut else whole[at + len(junk) :]))
    for group in predictions:
        found, trouble = found_by_all(luas, path, [group], {})
        assert found == Answer() or not trouble


@SOME
@given(comment=st.one_of(st.binary(max_size=60), st.lists(st.sampled_from(HINTS), max_size=12).map(b"".join)))
def test_same_hints(luas: list[LuaHook], comment: bytes) -> None:
    hints = parse_comment(comment)
    expected = f"{hints.profile} {hints.dataset} {str(hints.off).lower()} {len(hints.complaints)}".encode()
    assert {lua.ask("comment", comment) for lua in luas} == {expected}


@SOME
@given(a=scripts.filter(bool), b=scripts, name=st.binary(max_size=5))
def test_fields_do_not_run_into_each_other(a: bytes, b: bytes, name: bytes) -> None:
    rules = GroupSettings(strip_comments=False, fold_digits=False)
    ids = {group_id(1, name, b"x", [a, b], b"", rules), group_id(1, name, b"x", [a + b], b"", rules)}
    ids |= {group_id(1, name + a, b"x", [b], b"", rules), group_id(1, name, b"x", [b], a, rules)}
    assert len(ids) == 4
