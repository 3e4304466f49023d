"""Confidence intervals of the shares of starts inside their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.start_coverage import start_coverage

VERDICT = st.sampled_from([(False, False), (True, False), (False, True)])
TOLD = st.lists(st.builds(lambda made, end: (float(made), *end), st.integers(0, 9), VERDICT), max_size=60)


@given(TOLD)
def test_confidence_intervals_contain_the_shares(verdicts: list[tuple[float, bool, bool]]) -> None:
    found = start_coverage(verdicts)
    assert found["jobs"] == len(verdicts)
    assert found["batches"] == len({made for made, _, _ in verdicts})
    assert found["inside"] + found["early"] + found["late"] == pytest.approx(1.0 if verdicts else 0.0, abs=2e-4)
    for low, high in (found["inside_95"], found["together_95"]):
        assert 0 <= low <= found["inside"] + 1e-4
        assert found["inside"] - 1e-4 <= high <= 1


def test_estimates_of_one_forecast_are_one_trial_if_they_fail_together() -> None:
    """Twenty forecasts of ten jobs, two of which miss all: worth no more than twenty single jobs."""
    verdicts = [(float(made), False, made < 2) for made in range(20) for _ in range(10)]
    single = start_coverage([(float(number), False, number < 2) for number in range(20)])
    assert start_coverage(verdicts)["together_95"] == pytest.approx(single["together_95"], abs=0.01)
    assert np.diff(start_coverage(verdicts)["inside_95"]) < np.diff(start_coverage(verdicts)["together_95"]) / 2


def test_single_estimates_are_separate_trials() -> None:
    found = start_coverage([(float(number), number % 10 == 0, False) for number in range(1000)])
    assert found["together_95"] == pytest.approx(found["inside_95"], abs=1e-3)


def test_one_correct_forecast_is_one_successful_trial() -> None:
    assert (
        start_coverage([(1.0, False, False)] * 50)["together_95"] == start_coverage([(1.0, False, False)])["inside_95"]
    )
