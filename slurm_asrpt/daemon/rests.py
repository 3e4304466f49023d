"""How long GPUs rest between two jobs: what Slurm and asrptd themselves take, which forecasts must know."""

from __future__ import annotations

from collections import deque
from statistics import median

KEPT = 50
"""So many of the latest ends and starts are remembered."""


class Rests:
    """Seconds that ends took to be seen here, and starts to happen once they were decided."""

    def __init__(self) -> None:
        self._ends, self._starts = deque[float](maxlen=KEPT), deque[float](maxlen=KEPT)

    def ended(self, seconds: float) -> None:
        self._ends.append(seconds)

    def started(self, seconds: float) -> None:
        self._starts.append(seconds)

    def usual(self) -> float:
        """From the end of a job to the next start on its GPUs: in the median, as some are seen after hours."""
        return max(0.0, sum(median(each) for each in (self._ends, self._starts) if each))
