"""Predictors that back off from narrow keys to wide ones: which key gives the prediction, and its value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.hook.table import Answer, answer
from slurm_asrpt.predict.predictors import Chain, Features, make_predictor
from slurm_asrpt.predict.predictors.backoff import LONG, SHORT

NONE: Features = {}


def keys(exact: str = "e", group: str = "g", program: str = "p", user: str = "u") -> Chain:
    levels = ("exact", "group", "program", "user", "cluster")
    return tuple(zip(levels, (exact, group, program, user, "c"), strict=True))


def predict(
    *runs: tuple[Chain, float, Features], ask: Chain, features: Features = NONE, name: str = "expected"
) -> Answer:
    predictor = make_predictor(name)
    for chain, iterations, what in runs:
        predictor.learn(chain, iterations, what)
    return answer(ask, features, predictor.entry)


def test_the_narrowest_known_key_gives_the_prediction() -> None:
    runs = [
        (keys(), 100.0, NONE),
        (keys("e2"), 200.0, NONE),
        (keys("e3", "g3"), 300.0, NONE),
        (keys("e4", "g4", "p4"), 400.0, NONE),
    ]
    levels = [
        predict(*runs, ask=ask).level
        for ask in (
            keys(),
            keys("new"),
            keys("new", "new"),
            keys("new", "new", "new"),
            keys("new", "new", "new", "new"),
        )
    ]
    assert levels == ["exact", "group", "program", "user", "cluster"]
    assert predict(*runs, ask=keys()).iterations == 100
    assert predict(ask=keys()) == Answer()


@given(st.floats(1, 1e9), st.integers(1, 300))
def test_equal_runs_predict_their_value(iterations: float, count: int) -> None:
    found = predict(*[(keys(), iterations, NONE)] * count, ask=keys(user="other"))
    assert found.iterations == pytest.approx(iterations, abs=0.51)


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=60))
def test_a_prediction_is_within_the_range_of_its_runs(values: list[float]) -> None:
    for level in range(5):
        ask = [(name, key if place >= level else "new") for place, (name, key) in enumerate(keys())]
        found = predict(*[(keys(), value, NONE) for value in values], ask=ask).iterations
        assert min(values) - 0.51 <= found <= max(values) * (1 + 1e-9) + 0.51


def test_typical_ignores_one_short_run_and_follows_a_lasting_change() -> None:
    usual = [(keys(), 1000.0, NONE)] * 60
    assert predict(*usual, (keys(), 3.0, NONE), ask=keys(), name="typical").iterations == 1000
    changed = [(keys(), 50.0, NONE)] * 60
    assert predict(*usual, *changed, ask=keys(), name="typical").iterations == 50


@pytest.mark.parametrize(("name", "window"), [("expected", LONG), ("typical", SHORT)])
def test_only_the_latest_runs_are_stored(name: str, window: int) -> None:
    old, new = [(keys(), 7.0, NONE)] * 1000, [(keys(), 9.0, NONE)] * window
    found = predict(*old, *new, ask=keys("new", "new"), name=name)
    assert (found.iterations, found.order) == (9, 9)


def epochs(count: int, per_epoch: float = 10.0, **others: float) -> tuple[Chain, float, Features]:
    return keys(f"e{count}"), count * per_epoch, {"epochs": float(count), **others}


def test_a_group_with_iterations_proportional_to_epochs_is_predicted_per_epoch() -> None:
    runs = [epochs(10), epochs(20), epochs(90)]
    assert predict(*runs, ask=keys("new"), features={"epochs": 300.0}).iterations == 3000
    assert predict(*runs, ask=keys("e20"), features={"epochs": 20.0}).iterations == 200
    assert predict(*runs, ask=keys("new")).level == "user"  # no prediction per epoch for a job without epochs


def test_steps_have_precedence_over_epochs() -> None:
    runs = [
        (keys(f"e{n}"), 5.0 * steps, {"epochs": float(n), "steps": steps})
        for n, steps in enumerate((10.0, 900.0, 30.0), 1)
    ]
    assert predict(*runs, ask=keys("new"), features={"epochs": 3.0, "steps": 100.0}).iterations == 500


def test_the_table_omits_entries_that_equal_those_of_the_group() -> None:
    predictor = make_predictor("typical")
    for chain in (keys("e1", "g1"), keys("e2", "g2"), keys("e3", "g2")):
        predictor.learn(chain, 100.0, NONE)
    assert set(predictor.entries()) == {"g1", "e2", "e3", "g2", "p", "u", "c"}


def test_epochs_that_explain_nothing_are_not_used() -> None:
    runs = [(keys(f"e{n}"), 500.0, {"epochs": float(n)}) for n in (10, 20, 90)]
    assert predict(*runs, ask=keys("new"), features={"epochs": 300.0}).iterations == 500


def test_a_user_with_one_run_is_predicted_like_the_cluster() -> None:
    others = [(keys("e1", "g1", "p1", "many"), 100.0, NONE)] * 200
    one = (keys("e2", "g2", "p2", "one"), 100_000.0, NONE)
    found = predict(*others, one, ask=keys("new", "new", "new", "one")).order
    everybody = predict(*others, one, ask=keys("new", "new", "new", "new")).order
    assert found == pytest.approx(everybody, rel=0.2)
    steady = [(keys("e2", "g2", "p2", "one"), 100_000.0, NONE)] * 1000
    assert predict(*others, *steady, ask=keys("new", "new", "new", "one")).order == pytest.approx(100_000, rel=0.05)


def test_both_predict_the_median_and_expected_orders_by_the_mean() -> None:
    runs = [(keys(), iterations, NONE) for iterations in (10.0, 20.0, 9000.0)]
    for ask in (keys(), keys("new", "new", "new", "new")):
        expected, typical = predict(*runs, ask=ask), predict(*runs, ask=ask, name="typical")
        assert (expected.iterations, expected.order) == (20, 3010)
        assert (typical.iterations, typical.order) == (20, 20)
