"""Expensive work is followed by pauses."""

import pytest

from slurm_asrpt.throttle import PAUSE_FACTOR, Throttle


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
