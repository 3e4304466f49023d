"""The price of reservations: idle time shared by jobs, and how long reservations last."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.policies.gated.idle_time import FIRST_RATIO, Overruns, of_delay, shared
from slurm_asrpt.core.policies.gated.servers import Reservation
from tests.unit.forecast.test_forecast import job

GPUS = 6
SIZE = range(4, 8)
"""Jobs of these numbers of GPUs count together."""


def held(number: int, until: float, mask: int = 0b11, gpus: int = GPUS) -> Reservation:
    return Reservation(job(number, gpus), mask, until, kept=False)


@given(st.floats(0, 1e9), st.lists(st.floats(0, 1e9), min_size=1, max_size=30).map(sorted))
def test_shared_idle_time_is_the_least_mean(idle: float, works: list[float]) -> None:
    means = [(idle + math.fsum(works[:number])) / number for number in range(1, len(works) + 1)]
    assert shared(idle, iter(works)) == pytest.approx(min(means))
    assert works[0] * (1 - 1e-9) <= shared(idle, iter(works)) <= idle + works[0]


USED = st.floats(0.01, 1000)


@given(st.floats(0, 1e9), st.integers(1, 1000), USED, USED)
def test_a_job_pays_for_the_gpus_that_nobody_uses_beside_it(work, larger, beside, later) -> None:
    found = of_delay(work, larger, 1, beside, later)
    assert found == pytest.approx(work * max(1.0, larger / beside))
    assert of_delay(work, larger, 1, beside + 1, later) <= found <= of_delay(work, larger + 1, 1, beside, later)


@given(st.floats(0, 1e9), st.integers(1, 1000), st.integers(1, 1000), USED, USED)
def test_other_larger_jobs_pay_for_what_it_uses_more_of_now_than_later(work, larger, jobs, beside, later) -> None:
    first, found = (of_delay(work, larger, number, beside, later) for number in (1, jobs))
    if beside >= min(later, larger):  # it saves nothing by waiting
        assert found == first
    else:
        saved = first - of_delay(work, larger, 1, later, later)
        assert found == pytest.approx(first + (jobs - 1) * saved)


def test_reservations_that_lead_to_starts_as_predicted_make_the_ratio_one() -> None:
    overruns = Overruns()
    assert overruns.ratio(GPUS) == FIRST_RATIO
    for number in range(300):
        overruns.follow(held(number, 1000.0 * number + 500.0), {JobId(str(number))}, 1000.0 * number)
        overruns.follow(None, (), 1000.0 * number + 500.0)
    assert [overruns.ratio(gpus) for gpus in SIZE] == [pytest.approx(1.0, abs=0.03)] * 4
    assert overruns.ratio(SIZE[0] - 1) == overruns.ratio(SIZE[-1] + 1) == FIRST_RATIO


def test_reservations_that_are_given_up_raise_the_ratio() -> None:
    overruns, waiting = Overruns(), {JobId("1")}
    for number in range(4):
        overruns.follow(held(1, 1000.0 * number + 100.0), waiting, 1000.0 * number)
        overruns.follow(None, waiting, 1000.0 * number + 300.0)
    assert overruns.ratio(GPUS) > 10


def test_a_reservation_that_goes_on_for_another_job_is_the_same() -> None:
    one, other = Overruns(), Overruns()
    one.follow(held(1, 100.0, 0b011), {"1", "2"}, 0.0)
    one.follow(held(2, 500.0, 0b110), {"1", "2"}, 50.0)
    one.follow(None, {"1"}, 200.0)
    other.follow(held(2, 100.0), {"2"}, 0.0)
    other.follow(None, (), 200.0)
    assert one.dump() == other.dump()
    one.follow(held(1, 300.0, 0b011), {"1", "3"}, 200.0)
    one.follow(held(3, 900.0, 0b100), {"1", "3"}, 300.0)  # other servers: the first one was given up
    assert one.ratio(GPUS) > other.ratio(GPUS)


def test_the_ratio_survives_a_restart_and_changed_servers_do_not_count() -> None:
    overruns, again = Overruns(), Overruns()
    overruns.follow(held(1, 100.0), {"1"}, 0.0)
    overruns.follow(None, (), 700.0)
    again.load(overruns.dump())
    assert again.ratio(GPUS) == overruns.ratio(GPUS) != FIRST_RATIO
    overruns.follow(held(2, 800.0), {"2"}, 700.0)
    overruns.forget()
    overruns.follow(None, {"2"}, 5000.0)
    assert overruns.dump() == again.dump()


@pytest.mark.parametrize("state", [{"x": [1, 1, 1, 1]}, {"3": [1, 1]}, {"3": [1, -1, 1, 1]}, {"3": [0, 0, 0, 0]}])
def test_an_invalid_state_is_an_error(state: dict[str, list[float]]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Overruns().load(state)
    with pytest.raises(ValueError, match="finite"):
        Overruns().load({"3": [1.0, math.inf, 1.0, 1.0]})
