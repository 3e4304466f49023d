"""The hook's table from the Python side; its twin in Lua is compared in tests/property/test_group_twins.py."""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_asrpt import files
from slurm_asrpt.predict import table
from slurm_asrpt.predict.keys import keys_of, owned
from slurm_asrpt.predict.table import Answer, Entry, answer

ONE = Entry.plain(1)


def find(path: Path, key: str) -> tuple[Answer, str]:
    return table.lookup(path, [("group", key)], {})


def test_records(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    table.write_table(path, {"f" * 16: Entry(1e20, 2, 3, "e"), "0" * 15 + "1": Entry(7.0004, 0, 7.5)})
    lines = path.read_text().splitlines(keepends=True)
    assert {len(line) for line in lines} == {table.RECORD}
    header, *rest = lines
    assert re.fullmatch(rf"asrpt-table 3 5 {len(rest)} [0-9]{{6}} [0-9]{{6}} *\n", header)
    assert sorted(line for line in rest if line.strip()) == [
        "0000000000000001 000000000007000 000000000000000 000000000007500 -\n",
        "ffffffffffffffff 999999999999999 000000000002000 000000000003000 e\n",
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_no_group_id(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no key"):
        table.write_table(tmp_path / "table.txt", {"ABC": ONE})
    with pytest.raises(ValueError, match="no unit"):
        table.write_table(tmp_path / "table.txt", {"0" * 16: replace(ONE, unit="x")})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.txt"
    table.write_table(path, {"0" * 16: ONE})

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        table.write_table(path, {"0" * 16: Entry.plain(2)})
    assert table.read_table(path) == {"0" * 16: ONE}
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_and_its_absence_take_few_reads(tmp_path: Path) -> None:
    """Keys that would all crowd in one place if that followed from the key alone."""
    path = tmp_path / "table.txt"
    keys = [f"{i * 4294967291:016x}" for i in range(20_000)]
    table.write_table(path, dict.fromkeys(keys[::2], ONE))
    lines = path.read_text().splitlines()[1:]
    runs = "".join("x" if line.strip() else " " for line in lines).split()
    assert max(map(len, runs)) < 100
    assert len(lines) > len(keys)
    assert [find(path, key)[0].iterations for key in keys] == [1, 0] * (len(keys) // 2)


@pytest.mark.parametrize("spread", [1, 1 << 20, 1 << 44])
def test_uneven_ids_are_found_too(tmp_path: Path, spread: int) -> None:
    path = tmp_path / "table.txt"
    predictions = {f"{i * spread:016x}": Entry.plain(i) for i in range(1, 2000)} | {"f" * 16: ONE}
    table.write_table(path, predictions)
    assert all(find(path, key)[0].iterations == entry.iterations for key, entry in predictions.items())
    assert find(path, "e" * 16) == (Answer(), "")


def test_the_first_entry_that_can_answer_does() -> None:
    known = {"a": Entry(2.5, 1, 4, "e"), "b": Entry(30, 20, 40, "s"), "c": Entry(9, 0, 1e13)}
    chain = [("exact", "x"), ("group", "a"), ("program", "b"), ("user", "c")]
    assert answer(chain, {"epochs": 90}, known.get) == Answer(225, 90, 360, "group")
    assert answer(chain, {"epochs": -1, "steps": 2}, known.get) == Answer(60, 40, 80, "program")
    assert answer(chain, {}, known.get) == Answer(9, 1, 10**12, "user")
    assert answer(chain[:3], {}, known.get) == answer([], {}, known.get) == Answer()


def test_keys_go_from_narrow_to_wide() -> None:
    keys = dict(keys_of("a" * 16, "b" * 16, 7, 4, {"lr": 0.1, "epochs": 90.0}))
    assert list(keys) == ["exact", "group", "program", "user", "cluster"]
    assert (keys["group"], keys["program"]) == (owned(7, "a" * 16), owned(7, "b" * 16))
    assert len(set(keys.values())) == 5
    again = dict(keys_of("a" * 16, "b" * 16, 7, 4, {"epochs": 90, "lr": 0.1}))
    assert again == keys
    assert "program" not in dict(keys_of("a" * 16, "", 7, 4, {}))
    for other in (keys_of("a" * 16, "", 7, 5, {}), keys_of("a" * 16, "", 7, 4, {"epochs": 91, "lr": 0.1})):
        assert dict(other)["exact"] != keys["exact"]
