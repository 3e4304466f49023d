"""Arrivals of the benchmarks that swing with the hour."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.swing import swinging


@given(st.integers(0, 300), st.floats(1.0, 1e6), st.floats(0.1, 20.0), st.floats(0.0, 1.0), st.integers(0, 5))
def test_all_come_in_their_order_and_in_time(jobs: int, span_s: float, days: float, depth: float, seed: int) -> None:
    came = swinging(jobs, span_s, span_s / days, depth, seed)
    assert len(came) == jobs
    assert np.all(np.diff(came) >= 0)
    assert np.all((came >= 0) & (came <= span_s))


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_the_first_half_of_each_day_is_the_rush(depth: float) -> None:
    """By the integral of the rate: half of the jobs, and the depth over pi more."""
    came = swinging(20_000, 10 * 288.0, 288.0, depth, 0)
    assert np.mean(came % 288.0 < 144.0) == pytest.approx(0.5 + depth / math.pi, abs=0.02)
    assert np.mean(came < 5 * 288.0) == pytest.approx(0.5, abs=0.02)
