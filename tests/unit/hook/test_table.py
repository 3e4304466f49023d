"""The prediction table in Python; tests/property/test_hook_on_each_lua.py reads it with each Lua."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt.core.units import Unit
from slurm_asrpt.hook import table
from slurm_asrpt.hook.group import keys_of, owned
from slurm_asrpt.hook.table import Answer, Entry, answer, render_table

ONE = Entry.plain(1)


def find(path: Path, key: str) -> tuple[Answer, str]:
    return table.lookup(path, [("group", key)], {})


def test_records() -> None:
    entries = {"f" * 16: Entry(1e20, 2, 3, "e", 4), "0" * 15 + "1": Entry(7.0004, 0, 7.5)}
    lines = render_table(entries).decode().splitlines(keepends=True)
    assert {len(line) for line in lines} == {table.RECORD}
    header, *rest = lines
    assert re.fullmatch(rf"asrpt-table 5 5 {len(rest)} [0-9]{{6}} [0-9]{{6}} *\n", header)
    assert sorted(line for line in rest if line.strip()) == [
        "0000000000000001 000000000007000 000000000000000 000000000007500 000000000000000 -\n",
        "ffffffffffffffff 999999999999999 000000000002000 000000000003000 000000000004000 e\n",
    ]


@pytest.mark.parametrize("key", ["ABC", "A" * 16, "0" * 15 + "\n", "0" * 15 + "é"])
def test_an_invalid_key_is_rejected(key: str) -> None:
    with pytest.raises(ValueError, match="16 hex digits"):
        render_table({"0" * 16: ONE, key: ONE})


@pytest.mark.parametrize("unit", ["x", "", "ee"])
def test_an_invalid_unit_is_rejected(unit: str) -> None:
    with pytest.raises(ValueError, match="-, e or s"):
        render_table({"0" * 16: replace(ONE, unit=unit)})


def test_an_invalid_number_is_rejected() -> None:
    with pytest.raises(ValueError, match="not a number"):
        render_table({"0" * 16: Entry.plain(math.nan)})


def test_the_table_does_not_depend_on_the_order_of_entries() -> None:
    entries = {f"{7 * i:016x}": Entry.plain(i) for i in range(99)}
    assert render_table(entries) == render_table(dict(reversed(entries.items())))


def test_a_lookup_takes_few_reads(tmp_path: Path) -> None:
    """Keys that would all collide if a key's place depended only on the key."""
    path = tmp_path / "table.txt"
    keys = [f"{i * 4294967291:016x}" for i in range(20_000)]
    path.write_bytes(render_table(dict.fromkeys(keys[::2], ONE)))
    lines = path.read_text().splitlines()[1:]
    runs = "".join("x" if line.strip() else " " for line in lines).split()
    assert max(map(len, runs)) < 100
    assert len(lines) > len(keys)
    assert [find(path, key)[0].iterations for key in keys] == [1, 0] * (len(keys) // 2)


@pytest.mark.parametrize("spread", [1, 1 << 20, 1 << 44])
def test_unevenly_distributed_ids_are_found(tmp_path: Path, spread: int) -> None:
    path = tmp_path / "table.txt"
    predictions = {f"{i * spread:016x}": Entry.plain(i) for i in range(1, 2000)} | {"f" * 16: ONE}
    path.write_bytes(render_table(predictions))
    assert all(find(path, key)[0].iterations == entry.iterations for key, entry in predictions.items())
    assert find(path, "e" * 16) == (Answer(), "")


def test_the_first_usable_entry_gives_the_prediction() -> None:
    known = {"a": Entry(2.5, 1, 4, "e", 3.0), "b": Entry(30, 20, 40, "s"), "c": Entry(9, 0, 1e13)}
    chain = [("exact", "x"), ("group", "a"), ("program", "b"), ("user", "c")]
    assert answer(chain, {"epochs": 90}, known.get) == Answer(225, 90, 360, "group", 270, Unit.SECONDS)
    assert answer(chain, {"epochs": -1, "steps": 2}, known.get) == Answer(60, 40, 80, "program", unit=Unit.SECONDS)
    assert answer(chain, {}, known.get) == Answer(9, 1, 10**12, "user", unit=Unit.SECONDS)
    assert answer(chain, {}, known.get, [("group", "c")]) == Answer(9, 1, 10**12, "group")
    assert answer(chain[:3], {}, known.get) == answer([], {}, known.get) == Answer()


def test_keys_are_ordered_from_narrow_to_wide() -> None:
    keys = dict(keys_of("a" * 16, "b" * 16, 7, 4, {"lr": 0.1, "epochs": 90.0}))
    assert list(keys) == ["exact", "group", "program", "user", "cluster"]
    assert (keys["group"], keys["program"]) == (owned(7, "a" * 16), owned(7, "b" * 16))
    assert len(set(keys.values())) == 5
    again = dict(keys_of("a" * 16, "b" * 16, 7, 4, {"epochs": 90, "lr": 0.1}))
    assert again == keys
    assert "program" not in dict(keys_of("a" * 16, "", 7, 4, {}))
    for other in (keys_of("a" * 16, "", 7, 5, {}), keys_of("a" * 16, "", 7, 4, {"epochs": 91, "lr": 0.1})):
        assert dict(other)["exact"] != keys["exact"]
