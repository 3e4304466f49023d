"""Expensive work is followed by pauses."""

import pytest

from slurm_asrpt.throttle import PAUSE_FACTOR, Throttle, backoff_s


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_expensive_work_is_followed_by_a_proportional_pause() -> None:
    clock = Clock()
    work = Throttle(clock)
    assert work.due
    with work.spending():
        clock.now += 2.0
    assert work.last == clock.now
    clock.now += 2.0 * PAUSE_FACTOR - 0.1
    assert not work.due
    clock.now += 0.2
    assert work.due


def test_the_pause_can_be_bounded() -> None:
    clock = Clock()
    work = Throttle(clock, most_s=5.0)
    with work.spending():
        clock.now += 60.0
    clock.now += 4.9
    assert not work.due
    clock.now += 0.2
    assert work.due


def test_failed_work_stays_due() -> None:
    clock = Clock()
    work = Throttle(clock)

    def fail() -> None:
        with work.spending():
            clock.now += 2.0
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert work.due
    assert work.last == float("-inf")


@pytest.mark.parametrize(("retries", "pause_s"), [(-1, 2.5), (0, 5.0), (3, 40.0), (7, 300.0), (100_000, 300.0)])
def test_pauses_double_with_each_retry_up_to_a_limit(retries: int, pause_s: float) -> None:
    assert backoff_s(5.0, 300.0, retries) == pause_s
