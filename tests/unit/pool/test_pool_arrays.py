"""Arrays of a packed state that follow each other are one array of bytes."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_asrpt.pool.arrays import Packed, joined

STATE = {
    "w": np.arange(33, dtype=np.float32).reshape(3, 11),
    "none": np.zeros((0, 4), np.float32),
    "steps": np.array(7),
    "flags": np.array([True, False]),
    "last": np.arange(5.0),
}


@pytest.mark.parametrize(("first", "end"), [(0, 5), (0, 1), (1, 4), (2, 4), (4, 5)])
def test_neighbors_are_joined(first: int, end: int) -> None:
    """An array without bytes is nothing."""
    packed = Packed.of(STATE)
    arrays = list(packed.arrays().values())
    begin = sum(-(-each.nbytes // 64) * 64 for each in arrays[:first])
    found = joined(arrays[first:end])
    assert found is not None
    assert found.tobytes() == packed.block[begin : begin + found.size].tobytes()
    assert found.tobytes().endswith(arrays[end - 1].tobytes())
    assert begin + found.size + 64 > sum(-(-each.nbytes // 64) * 64 for each in arrays[:end]) >= begin + found.size


def test_others_are_not() -> None:
    arrays = list(Packed.of(STATE).arrays().values())
    again = list(Packed.of(STATE).arrays().values())
    assert joined([arrays[0], arrays[3]]) is None
    assert joined([arrays[0], again[2]]) is None
    assert joined([arrays[2], arrays[0]]) is None
    assert joined([arrays[0][:, ::2]]) is None
    assert joined([np.ones(3), np.ones(2)]) is None
    assert joined([arrays[1]]) is None
