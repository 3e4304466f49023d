"""The hook's table from the Python side; its twin in Lua is compared in tests/property/test_group_twins.py."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from slurm_asrpt import files
from slurm_asrpt.predict import table


def test_records(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    table.write_table(path, {"f" * 16: 10**20, "0" * 15 + "1": 7})
    lines = path.read_text().splitlines(keepends=True)
    assert {len(line) for line in lines} == {table.RECORD}
    assert lines[0].rstrip() == "asrpt-table 1 2"
    assert lines[1:] == ["0000000000000001 000000000000007\n", "ffffffffffffffff 999999999999999\n"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_no_group_id(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no group id"):
        table.write_table(tmp_path / "table.txt", {"ABC": 1})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.txt"
    table.write_table(path, {"0" * 16: 1})

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        table.write_table(path, {"0" * 16: 2})
    assert table.read_table(path) == {"0" * 16: 1}
    assert list(tmp_path.iterdir()) == [path]


def test_records_out_of_order_are_damage_not_an_unseen_group(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    whole = table.render_table({f"{i << 56:016x}": i for i in range(256)})
    records = [whole[i : i + 33] for i in range(33, len(whole), 33)]
    path.write_bytes(whole[:33] + b"".join(reversed(records)))
    assert table.lookup(path, f"{64 << 56:016x}") == (0, "table.txt is damaged: order")


@pytest.mark.parametrize("spread", [1, 1 << 20, 1 << 44])
def test_uneven_ids_are_found_too(tmp_path: Path, spread: int) -> None:
    path = tmp_path / "table.txt"
    predictions = {f"{i * spread:016x}": i for i in range(2000)} | {"f" * 16: 1}
    table.write_table(path, predictions)
    assert all(table.lookup(path, group) == (count, "") for group, count in predictions.items())
    assert table.lookup(path, "e" * 16) == (0, "")
