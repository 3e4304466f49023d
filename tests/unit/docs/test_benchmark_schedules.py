"""Hashes of schedules: what they distinguish, and the differences between two files."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks.schedules import COLUMNS, GROUPS, cell_name, differences, digest, figures_digest, kept, schedule_digest


def _result(
    folder: Path, start: str = "1.5", node: int = 3, word: str = "gpus", bits: type[np.integer] = np.int32
) -> Path:
    """A result of one job on one server."""
    folder.mkdir()
    with gzip.open(folder / "jobs.csv.gz", "wt", encoding="utf-8", newline="") as file:
        rows = csv.DictWriter(file, [*COLUMNS, "why"])
        rows.writeheader()
        rows.writerow({**dict.fromkeys(COLUMNS, "1"), "start_s": start, "why": word})
    columns = {"first": [0, 1], "node": [node], "gpus": [1]}
    np.savez_compressed(folder / "placements.npz", **{name: np.array(value, bits) for name, value in columns.items()})
    return folder


def test_a_schedule_hash_covers_starts_and_servers_not_representation(tmp_path: Path) -> None:
    same = schedule_digest(_result(tmp_path / "a"))
    assert schedule_digest(_result(tmp_path / "b", word="other word", bits=np.int64)) == same
    assert schedule_digest(_result(tmp_path / "c", start="1.5000000000000002")) != same
    assert schedule_digest(_result(tmp_path / "d", node=4)) != same


def test_texts_are_separated_in_the_hash() -> None:
    assert digest([b"ab", b"c"]) != digest([b"a", b"bc"])
    assert figures_digest({"a": 1, "b": 0.1}) == figures_digest({"b": 0.1, "a": 1})


@pytest.mark.parametrize(
    ("document", "left"),
    [
        ({"policy": "fifo", "figures": {"jobs": 2, "seconds": 0.1}}, {"jobs": 2}),
        ([86.0, 4301.2, 0.09, [242.7, 94.9]], [86.0, 4301.2, [242.7, 94.9]]),
        ([358.0, 140.7, 600.0, 32], [358.0, 140.7, 600.0, 32]),
    ],
)
def test_the_wall_time_of_a_simulation_does_not_count(document: object, left: object) -> None:
    assert kept(document) == left


def test_differences_are_listed_for_groups_that_ran() -> None:
    before = {"delays: fifo load=1": "a", "delays: spjf load=1": "b", "gates: fifo load=1": "c", "papers: fig6": "d"}
    after = {"delays: fifo load=1": "x", "delays: new load=1": "b"}
    assert differences(before, before, ["delays", "gates", "papers: fig6"]) == []
    assert differences(before, after, ["delays", "papers: fig6"]) == [
        "differs: delays: fifo load=1",
        "not there before: delays: new load=1",
        "missing: delays: spjf load=1",
        "missing: papers: fig6",
    ]


def test_cells_have_distinct_names() -> None:
    assert cell_name("delays", {"policy": "fifo", "load": 0.8}, ["policy", "load"]) == "delays: fifo load=0.8"
    assert len({group.name for group in GROUPS}) == len(GROUPS)
