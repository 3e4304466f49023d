"""Sides that are played at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future, as_completed
from threading import Event
from typing import TypeVar

T = TypeVar("T")


def results(pool: Executor, sides: Sequence[Future[T]], stop: Event) -> list[T]:
    """The results of all sides. If one fails, or at Ctrl-C, the others are stopped. Raises what the side raised."""
    try:
        for side in as_completed(sides):
            side.result()
    except BaseException:
        stop.set()
        pool.shutdown(cancel_futures=True)
        raise
    return [side.result() for side in sides]
