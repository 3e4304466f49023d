"""Reads the progress that running jobs report.

A thread reads it, because the spool is often on NFS, and a server that does not respond blocks the reader. Then jobs
keep their last figures, and the cycles continue. (The cycle itself writes the host files of new jobs and reads the last
report of an ended job.) Each job is read at a fixed interval, with one open, one read of 256 bytes and one close.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_asrpt.spool import Progress, read_losses, read_progress, remove_progress

LOG = logging.getLogger("asrptd")


@dataclass(frozen=True)
class Observed:
    """A job's last report. alpha: seconds per iteration since the first report seen of this run, if that is another.

    losses: (iteration, loss) of all its runs, if they are read.
    """

    progress: Progress
    alpha: float | None = None
    losses: tuple[tuple[int, float], ...] = ()


@dataclass
class _Watched:
    """A running job. started: start of this run, seconds since the epoch. due: time of the next read, by the watch's
    clock."""

    started: float
    due: float = float("-inf")
    first: Progress | None = None
    done: int = 0

    def observe(self, last: Progress) -> Observed | None:
        """The observation from a report; None if the report is older than this run of a requeued job."""
        if last.written < self.started:
            return None
        if self.first is None or last.done < self.done:  # back to a checkpoint
            self.first = last
        self.done = last.done
        done, seconds = last.done - self.first.done, last.written - self.first.written
        return Observed(last, seconds / done if done > 0 and seconds > 0 else None)


class ProgressWatch:
    """Reads each job's progress at most every ``every_s`` seconds; inside ``look`` until ``start`` is called."""

    def __init__(self, spool: Path, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._spool, self._every_s, self._clock = spool, every_s, clock
        self.reads_losses = False
        """Whether loss curves are read too: one more file of at most 16 KiB for each job that reports a loss."""
        self._running: Mapping[str, float] = {}
        self._watched: dict[str, _Watched] = {}
        self._observed: dict[str, tuple[float, Observed]] = {}  # with the start of the run
        self._to_remove: deque[str] = deque()
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def look(self, running: Mapping[str, float]) -> Mapping[str, Observed]:
        """The current observations of these jobs (number and start time); others are forgotten."""
        self._running = running
        if self._thread is None:
            self._read_due()
        self._wake.set()
        known = self._observed.copy()  # the thread continues meanwhile
        return {number: seen for number, (started, seen) in known.items() if running.get(number) == started}

    def remove(self, number: str) -> None:
        """Remove the directory of an ended job, as soon as the spool responds."""
        self._to_remove.append(number)
        if self._thread is None:
            self._remove()
        self._wake.set()

    def start(self) -> None:
        """Read in a thread from now on: a daemon thread, so that it cannot keep the process if it hangs."""
        self._thread = threading.Thread(target=self._read_when_asked, name="progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def _read_when_asked(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                self._remove()
                self._read_due()
            except Exception:  # a bug; scheduling continues, and a later pass may succeed
                LOG.exception("reading jobs' progress failed")

    def _remove(self) -> None:
        while self._to_remove:
            remove_progress(self._spool, self._to_remove.popleft())

    def _read_due(self) -> None:
        """One pass over the jobs. Only the thread changes the observations; ``look`` returns the current ones."""
        running, now = self._running, self._clock()
        for number in self._watched.keys() - running.keys():
            del self._watched[number]
            self._observed.pop(number, None)
        for number, started in running.items():
            watched = self._watched.get(number)
            if watched is None or watched.started != started:
                watched = self._watched[number] = _Watched(started)
                self._observed.pop(number, None)
            if now >= watched.due:
                watched.due = now + self._every_s
                self._read(number, watched)

    def _read(self, number: str, watched: _Watched) -> None:
        """Read a job's progress. If that fails, keep the last one: on NFS, a file may be missing during a rename."""
        last = read_progress(self._spool, number)
        observed = watched.observe(last) if last is not None else None
        if observed is None:
            return
        if self.reads_losses and observed.progress.loss is not None:
            observed = replace(observed, losses=tuple(read_losses(self._spool, number)))
        self._observed[number] = (watched.started, observed)


def total_iterations(observed: Observed | None, predicted: int) -> int | None:
    """Iterations of the whole training: reported, else those before this job plus ``predicted``, else None."""
    if observed is not None and observed.progress.total:
        return observed.progress.total
    start = observed.progress.start if observed is not None else 0
    return start + predicted if predicted > 0 else None


def remaining_s(
    observed: Observed | None, total: int | None, alpha: float | None, predicted_s: float | None, ran_s: float
) -> float | None:
    """Remaining runtime of a running job, seconds; None if unknown or if the job has exceeded its prediction.

    From its reports and their speed (else ``alpha``, seconds per iteration), else from the predicted runtime.
    """
    if observed is None or total is None:
        return predicted_s - ran_s if predicted_s is not None and predicted_s > ran_s else None
    left = total - observed.progress.done
    seconds = observed.alpha or alpha
    if left < 0 or seconds is None:
        return None
    return left * seconds
