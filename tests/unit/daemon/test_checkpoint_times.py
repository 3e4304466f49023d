"""How long jobs have for a checkpoint, learned for each group."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.daemon.checkpoint_times import MOST, CheckpointTimes


@pytest.mark.parametrize(
    ("seconds", "reports", "expected"),
    [([], False, 60.0), ([], True, 180.0), ([5.0], False, 180.0), ([200.0], True, 300.0), ([200.0, 1.0], False, 270.0)],
)
def test_a_group_has_what_it_has_needed_and_more(seconds: list[float], reports: bool, expected: float) -> None:
    times = CheckpointTimes(60.0)
    for each in seconds:
        times.observed("a", each)
    assert times.grace_s("a", reports) == pytest.approx(expected)
    assert times.grace_s("b", reports=False) == 60.0


@given(st.dictionaries(st.text(), st.floats(0, 1e6) | st.none() | st.text()) | st.none() | st.integers())
def test_what_is_damaged_is_left_out(saved: object) -> None:
    times = CheckpointTimes(60.0)
    times.load(json.loads(json.dumps(saved)))
    assert all(math.isfinite(times.grace_s(group, reports=False)) for group in times.dump())
    again = CheckpointTimes(60.0)
    again.load(times.dump())
    assert again.dump() == times.dump()


def test_the_groups_seen_last_are_remembered() -> None:
    times = CheckpointTimes(60.0)
    times.observed("first", 1.0)
    for number in range(MOST - 1):
        times.observed(str(number), 1.0)
    times.observed("first", 1.0)
    times.observed("one more", 1.0)
    assert len(times.dump()) == MOST
    assert "first" in times.dump()
    assert "0" not in times.dump()
