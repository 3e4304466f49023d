"""Pauses between cycles: an event ends one early, a flood of events does not; without the file the interval counts."""

import os
from itertools import pairwise
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.daemon.wakeup import POLL_S, SETTLED_S, SHORTEST_PAUSE_S, SOON_S, Wakeups, least_pause


class Clock:
    """Sleeping takes no time, and touches the file at given times."""

    def __init__(self, path, *touches):
        self.now, self.path, self.touches = 0.0, path, sorted(touches)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        assert 0 < seconds <= POLL_S
        self.now += seconds
        while self.touches and self.touches[0] <= self.now:
            at = int(1e9 * (1 + self.touches.pop(0)))
            os.utime(self.path, ns=(at, at))


def cycles(path, touches, until, pause_s=30.0, least_s=0.5):
    """When cycles of no length begin."""
    clock = Clock(path, *touches)
    wakeups, began = Wakeups(path, clock), []
    while clock.now < until:
        wakeups.sleep(pause_s, least_s, Event())
        began.append(clock.now)
    return began


@pytest.fixture
def path(tmp_path):
    return tmp_path / "wakeup"


def test_an_event_is_looked_at_twice(path):
    first, second, third = cycles(path, [10.0], 40)
    assert 10 + SOON_S <= first <= 10 + SOON_S + 2 * POLL_S
    assert 10 + SETTLED_S <= second <= 10 + SETTLED_S + 2 * POLL_S
    assert third == pytest.approx(second + 30)


def test_an_event_during_a_cycle_or_just_after_one_waits_for_the_least_pause(path):
    clock = Clock(path)
    wakeups = Wakeups(path, clock)
    os.utime(path, (5, 5))
    wakeups.sleep(30.0, 3.0, Event())
    assert clock.now == pytest.approx(3.0)
    wakeups.sleep(30.0, 3.0, Event())
    assert clock.now == pytest.approx(33.0), "both of its looks were due by then"


def test_a_series_is_looked_at_when_it_is_over_or_once_a_second(path):
    short = cycles(path, [10.0, 10.1, 10.2, 10.3], 40)
    assert [round(at, 1) for at in short[:2]] == [10.5, 11.4]
    long = cycles(path, [n / 10 for n in range(100, 150)], 40)
    assert [round(after - before) for before, after in pairwise(long[:4])] == [1, 1, 1]


def test_a_flood_makes_no_more_cycles_than_the_least_pause_allows(path):
    began = cycles(path, [n / 10 for n in range(1000)], 100, least_s=4.0)
    assert 20 <= len(began) <= 26


@given(
    touches=st.lists(st.floats(0, 100), max_size=20),
    pause_s=st.floats(1, 60),
    least_s=st.floats(0.1, 5),
)
def test_each_event_is_followed_by_a_cycle_and_pauses_keep_their_bounds(tmp_path_factory, touches, pause_s, least_s):
    began = cycles(tmp_path_factory.mktemp("events") / "wakeup", touches, 110, pause_s, least_s)
    pauses = [after - before for before, after in pairwise([0.0, *began])]
    assert all(min(least_s, pause_s) - 1e-6 <= pause <= pause_s + 1e-6 for pause in pauses)
    for event in touches:
        latest = event + SETTLED_S + 3 * POLL_S + least_s
        assert any(event < at <= latest for at in began)
        assert any(event + SETTLED_S <= at <= latest + SETTLED_S + least_s for at in began)


def test_the_word_to_stop_ends_a_pause(path):
    stopping, clock = Event(), Clock(path)
    wakeups = Wakeups(path, clock)
    sleep = clock.sleep

    def one_step(seconds):
        sleep(seconds)
        stopping.set()

    clock.sleep = one_step
    wakeups.sleep(30.0, 1.0, stopping)
    assert clock.now == pytest.approx(POLL_S)


def test_a_file_that_cannot_be_watched_is_logged_once_and_the_interval_counts(tmp_path, caplog):
    path = tmp_path / "missing" / "wakeup"
    clock = Clock(path)
    wakeups = Wakeups(path, clock)
    for _ in range(3):
        wakeups.sleep(30.0, 1.0, Event())
    assert clock.now == pytest.approx(90.0)
    [record] = caplog.records
    assert record.message == f"{path}: No such file or directory: submitted jobs wait for the next cycle"
    path.parent.mkdir()
    path.touch()
    wakeups.sleep(30.0, 1.0, Event())
    assert clock.now < 92


def test_early_cycles_take_a_fifth_of_the_time():
    assert least_pause(0.01) == SHORTEST_PAUSE_S
    assert least_pause(0.3) == pytest.approx(1.2)
