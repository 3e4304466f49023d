"""Calibrated runtimes: what predictions and time limits have been worth."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.policies.gated.estimates import (
    FIRST_GUESS_S,
    INTERCEPT_PRECISION,
    SHARE_OF_LIMIT,
    SLOPE_PRECISION,
    Estimates,
    Known,
    LinearModel,
)
from slurm_asrpt.core.policies.gated.late_share import LateShare

SECONDS = st.floats(1.0, 1e7)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (Known(70.0), 70.0),
        (Known(70.0, 600.0), 70.0),
        (Known(700.0, 600.0), 600.0),
        (Known(0.0, 600.0), 600.0 * SHARE_OF_LIMIT),
        (Known(0.0), FIRST_GUESS_S),
    ],
)
def test_before_any_job_has_ended_predictions_are_believed_exactly(known, expected):
    assert Estimates().seconds(known) == expected


def test_true_predictions_stay_as_they_are():
    estimates = Estimates()
    for seconds in (10.0, 500.0, 86400.0) * 50:
        estimates.ended(Known(seconds, 10 * seconds), seconds)
    assert estimates.seconds(Known(3000.0, 90_000.0)) == 3000.0


def test_worthless_predictions_count_for_little():
    rng, estimates = np.random.default_rng(0), Estimates()
    for predicted, seconds in np.exp(rng.normal(7.0, 2.0, (2000, 2))).tolist():
        estimates.ended(Known(predicted), seconds)
    short, long = (estimates.seconds(Known(predicted)) for predicted in (60.0, 60_000.0))
    assert long / short < 1.5  # 1000 as predicted
    assert 400 < short < 3000  # the geometric mean is 1100 s


def test_limits_that_users_choose_well_count_instead():
    rng, estimates = np.random.default_rng(0), Estimates()
    for predicted, limit in np.exp(rng.normal(7.0, 2.0, (2000, 2))).tolist():
        estimates.ended(Known(predicted, limit), limit / 3)
    assert estimates.seconds(Known(100.0, 30_000.0)) == pytest.approx(10_000, rel=0.1)


def test_jobs_with_other_knowledge_have_lines_of_their_own():
    estimates = Estimates()
    for _ in range(100):
        estimates.ended(Known(0.0), 10.0)
    assert estimates.seconds(Known(0.0)) < 20
    assert estimates.seconds(Known(5000.0)) == 5000.0


@given(runs=st.lists(st.tuples(st.just(0.0) | SECONDS, SECONDS | st.just(math.inf), SECONDS), max_size=30))
def test_estimates_are_positive_within_the_limit_and_survive_json(runs):
    estimates, again = Estimates(), Estimates()
    for predicted, limit, seconds in runs:
        estimates.ended(Known(predicted, limit), seconds)
    again.load(json.loads(json.dumps(estimates.dump(), allow_nan=False)))
    for predicted, limit, _ in runs:
        found = estimates.seconds(Known(predicted, limit))
        assert 0 < found <= limit
        assert again.seconds(Known(predicted, limit)) == found


@given(rows=st.lists(st.tuples(st.floats(-8, 8), st.floats(-8, 8), st.floats(-5, 5)), min_size=1, max_size=20))
def test_a_line_is_the_ridge_regression_of_its_data(rows):
    line = LinearModel(3)
    for first, second, value in rows:
        line.learn((1.0, first, second), value)
    fade = (1.0 - 1.0 / 2000) ** np.arange(len(rows) - 1, -1, -1)
    features = np.array([[1.0, first, second] for first, second, _ in rows])
    values = np.array([value for *_, value in rows])
    penalty = np.diag([INTERCEPT_PRECISION, SLOPE_PRECISION, SLOPE_PRECISION])
    expected = np.linalg.solve(features.T @ (fade[:, None] * features) + penalty, features.T @ (fade * values))
    at = (1.0, 2.0, -3.0)
    assert line.value(at) == pytest.approx(float(expected @ at), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("state", [{"p": [[1.0]]}, {"x": [[1.0], [0.0]]}, {"": [[math.nan], [0.0]]}, {"": 3}])
def test_an_invalid_state_is_rejected(state):
    with pytest.raises((ValueError, KeyError, TypeError)):
        Estimates().load(state)


def test_what_rounding_leaves_of_a_debt_is_no_debt():
    """Its payment would be due now, and again now."""
    share = LateShare(0.25)
    share.total, share.time, share.debt = 8, 1.8e9, 1e-8
    share.advance(1.8e9)
    assert share.paid_at is None
    assert share.allows(1, 0)
