"""Arrivals with a daily cycle and in bursts, for benchmarks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.arrivals import BURST_S, SPREAD, bursting, swinging


@given(st.integers(0, 300), st.floats(1.0, 1e6), st.floats(0.1, 20.0), st.floats(0.0, 1.0), st.integers(0, 5))
def test_arrivals_keep_their_order_and_stay_within_the_span(
    jobs: int, span_s: float, days: float, depth: float, seed: int
) -> None:
    came = swinging(jobs, span_s, span_s / days, depth, seed)
    assert len(came) == jobs
    assert np.all(np.diff(came) >= 0)
    assert np.all((came >= 0) & (came <= span_s))


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_the_first_half_of_each_day_has_more_arrivals(depth: float) -> None:
    """By the integral of the rate: one half plus depth / pi of the jobs."""
    came = swinging(20_000, 10 * 288.0, 288.0, depth, 0)
    assert np.mean(came % 288.0 < 144.0) == pytest.approx(0.5 + depth / math.pi, abs=0.02)
    assert np.mean(came < 5 * 288.0) == pytest.approx(0.5, abs=0.02)


def test_bursts_are_as_large_and_as_long_as_they_should_be():
    found = bursting(1000, 30 * 86400.0, 100, 1)
    assert (len(found), found[0] < BURST_S) == (1000, True)
    assert (np.diff(found) >= 0).all()
    bursts = np.split(found, np.flatnonzero(np.diff(found) > BURST_S) + 1)
    assert len(bursts) > 1
    assert all(len(burst) <= 2 * 100 * (1 + SPREAD) for burst in bursts)  # two may overlap
    assert (found == bursting(1000, 30 * 86400.0, 100, 1)).all()
