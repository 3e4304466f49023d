"""Online conformal adjustment of run intervals, per user: 10% misses on either side."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.history.store import History, Origin, Run
from slurm_asrpt.predict.conformal import KEPT, MAX_USERS, REMEMBERED_S, RunConformal

RUN = Run("1", 1, end_time=200, state="COMPLETED", uid=7, group_id="0" * 16, iterations=100,
          predicted_iterations=100, predicted_low=80, predicted_high=120)  # fmt: skip
TRUTHS = st.floats(1, 1e9)


def shares_beyond(truths: list[float]) -> tuple[float, float]:
    """The shares of misses in the last thousand runs of one user, with the interval 80 to 125."""
    conformal, beyond = RunConformal(), []
    for truth in truths:
        low, high = conformal.adjusted("u", 80, 100, 125)
        beyond.append((truth < low, truth > high))
        conformal.learn("u", 80, 100, 125, truth)
    below, above = np.mean(beyond[-1000:], axis=0)
    return float(below), float(above)


def test_wrong_intervals_are_adjusted_to_10_percent_misses_per_side() -> None:
    rng = np.random.default_rng(0)
    assert shares_beyond(rng.lognormal(math.log(300), 1.0, 2000).tolist()) == pytest.approx((0.1, 0.1), abs=0.02)


def test_intervals_follow_a_drift() -> None:
    """Runs grow and shrink by a factor of e within about three hundred, while the table stays the same."""
    rng = np.random.default_rng(1)
    truths = [100 * math.exp(math.sin(place / 100) + rng.normal()) for place in range(2000)]
    assert shares_beyond(truths) == pytest.approx((0.1, 0.1), abs=0.03)


def test_too_wide_intervals_become_narrower() -> None:
    conformal = RunConformal()
    for place in range(200):
        conformal.learn("u", 1, 100, 10_000, 95 + place % 11)
    low, high = conformal.adjusted("u", 1, 100, 10_000)
    assert 90 < low <= 100 <= high < 110


@given(st.lists(TRUTHS, max_size=80), st.floats(1, 1e6), st.floats(1, 100), st.floats(1, 100))
def test_the_median_stays_inside_and_no_end_moves_beyond_the_observed_misses(
    truths: list[float], middle: float, down: float, up: float
) -> None:
    conformal, low, high = RunConformal(), middle / down, middle * up
    for truth in truths:
        conformal.learn("u", low, middle, high, truth)
    found = conformal.adjusted("u", low, middle, high)
    assert found[0] <= middle <= found[1]
    assert min([low, *truths]) * (1 - 1e-9) <= max(found[0], 1.0)
    assert found[1] <= max([high, middle, *truths]) * (1 + 1e-9)


def test_without_runs_the_interval_of_the_table_is_used() -> None:
    assert RunConformal().adjusted("u", 50, 100, 300) == (50, 300)


def test_a_new_user_gets_the_common_adjustment_and_others_their_own() -> None:
    conformal = RunConformal()
    for _ in range(KEPT):
        conformal.learn("long", 80, 100, 125, 1000)
        conformal.learn("short", 80, 100, 125, 100)
    assert conformal.adjusted("long", 80, 100, 125)[1] == pytest.approx(1000)
    assert conformal.adjusted("short", 80, 100, 125)[1] < 200
    assert conformal.adjusted("new", 80, 100, 125)[1] == pytest.approx(1000)


def test_published_offsets_give_the_same_intervals() -> None:
    conformal = RunConformal()
    for _ in range(9):
        conformal.learn(7, 80, 100, 125, 1000)
        conformal.learn(8, 80, 100, 125, 90)
    for uid in (7, 8, 9):
        assert conformal.offsets().adjusted(uid, 80, 100, 125) == conformal.adjusted(uid, 80, 100, 125)


def test_old_conformity_scores_are_forgotten() -> None:
    conformal = RunConformal()
    for truth in [5000.0] * 200 + [100.0] * (KEPT + 20):
        conformal.learn("u", 90, 100, 110, truth)
    assert conformal.adjusted("u", 90, 100, 110)[1] < 125


def test_the_number_of_stored_users_is_limited() -> None:
    conformal = RunConformal()
    for user in range(MAX_USERS + 10):
        for _ in range(5):
            conformal.learn(user, 80, 100, 125, 20 if user in (9, 11) else 300)
    assert conformal.adjusted(9, 80, 100, 125) == conformal.adjusted("new", 80, 100, 125)
    assert conformal.adjusted(11, 80, 100, 125) != conformal.adjusted("new", 80, 100, 125)


@pytest.mark.parametrize(
    "change",
    [
        {"state": "CANCELLED"},
        {"state": "REQUEUED"},
        {"predicted_iterations": 0},
        {"predicted_high": 0},
        {"iterations": 0},
    ],
)
def test_runs_that_are_not_learned_do_not_adjust_intervals(change: dict[str, object]) -> None:
    conformal = RunConformal()
    conformal.learn_run(replace(RUN, **change))  # type: ignore[arg-type]
    assert conformal.adjusted(7, 80, 100, 120) == (80, 120)
    conformal.learn_run(replace(RUN, iterations=900))
    assert conformal.adjusted(7, 80, 100, 120)[1] > 130


def test_a_tag_with_ends_in_the_wrong_order_is_harmless() -> None:
    conformal = RunConformal()
    conformal.learn_run(replace(RUN, predicted_low=500, predicted_high=3))
    low, high = conformal.adjusted(7, 500, 100, 3)
    assert low <= 100 <= high


def test_the_adjustment_is_restored_from_the_history_in_order_of_ends(tmp_path: Path) -> None:
    truths = [50 + 37 * place % 400 for place in range(90)]
    runs = [
        replace(RUN, job_id=str(n), end_time=1000 + n, uid=n % 3, iterations=truth) for n, truth in enumerate(truths)
    ]
    live = RunConformal()
    for run in runs:
        live.learn_run(run)
    with History(tmp_path / "h.sqlite") as history:
        history.record(runs[::-1])
        anew = RunConformal.of_history(history, 2000)
    for user in (0, 1, 2, 3):
        assert anew.adjusted(user, 80, 100, 120) == live.adjusted(user, 80, 100, 120)


def test_imported_and_old_runs_are_not_learned(tmp_path: Path) -> None:
    end = REMEMBERED_S + 1000
    wrong = [replace(RUN, job_id=f"c{n}", end_time=end + 9, iterations=9000, origin=Origin.CSV) for n in range(50)]
    old = [replace(RUN, job_id=f"o{n}", end_time=999, iterations=9000) for n in range(50)]
    late = [replace(RUN, job_id=f"l{n}", end_time=end) for n in range(20)]
    with History(tmp_path / "h.sqlite") as history:
        history.record([*wrong, *old, *late])
        assert RunConformal.of_history(history, end).adjusted(7, 80, 100, 120)[1] < 125
        assert RunConformal.of_history(history, end - 1).adjusted(7, 80, 100, 120)[1] > 500
