"""Predicting the end of a running job from its reported losses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.hare.workload import curve_for
from slurm_asrpt.core.convergence import STOP_SHARE, convergence, fall_of, rounds_left
from slurm_asrpt.core.loss_curve import LossCurve, ReportedCurve


def reports(rounds: int, done: int) -> list[tuple[int, float]]:
    """Reports of a job that stops after this many rounds, within STOP_SHARE of its total decrease."""
    curve = curve_for(rounds, STOP_SHARE * 2.0, 2.0, 0.4, 0.0, 0)
    return [(at, curve.loss(at)) for at in range(0, done, max(1, done // 50))]


def test_the_end_of_a_noiseless_curve_is_found_early() -> None:
    found = convergence(reports(10_000, 3_000), 3_000, [])
    assert found is not None
    assert found.curve is not None
    assert found.curve.floor == pytest.approx(0.4, abs=0.02)
    assert found.ends == pytest.approx(10_000, rel=0.1)
    assert found.expected == found.asked


def test_past_runs_have_the_same_weight_as_the_curve() -> None:
    alone, with_past = (convergence(reports(10_000, 3_000), 3_000, past) for past in ([], [5_000, 7_000]))
    assert alone is not None
    assert with_past is not None
    assert with_past.expected == (alone.expected + 6_000 - 3_000) / 2


@pytest.mark.parametrize("points", [[(1, 3.0)], [(at, 3.0) for at in range(6)], [(5, 1.0), (6, 2.0)]])
def test_losses_that_do_not_decrease_give_no_estimate(points: list[tuple[int, float]]) -> None:
    found = convergence(points, 6, [])
    assert found is not None
    assert (found.curve, found.ends, found.expected) == (None, None, 0.0)


def test_a_curve_its_end_and_its_fall() -> None:
    curve = LossCurve(slope=1.0, offset=2.0, floor=0.5, stop=0.01)
    assert [curve.loss(done) for done in (0, 2, 98)] == [1.0, 0.75, 0.51]
    assert curve.rounds == 98
    assert [rounds_left(curve, done) for done in (0, 90, 98, 200)] == [98.0, 8.0, 0.0, 0.0]
    reported = ReportedCurve(((0, 3.0), (10, 1.0), (20, 0.5)), STOP_SHARE)
    assert [fall_of(reported)(done) for done in (0, 10, 20)] == [0.0, 2.0, 2.5]


def test_without_losses_there_is_no_estimate() -> None:
    assert convergence([], 10, [100]) is None
    with pytest.raises(ValueError, match="a curve needs a point"):
        ReportedCurve((), STOP_SHARE)


@given(st.lists(st.tuples(st.integers(0, 10**15), st.floats(-1e30, 1e30)), max_size=40), st.integers(0, 10**15))
def test_any_reported_losses_give_a_future_end_or_none(points: list[tuple[int, float]], done: int) -> None:
    found = convergence(points, done, [1])
    if found is None:
        assert not points
    elif found.ends is not None:
        assert found.ends >= found.done >= done
