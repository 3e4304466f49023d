"""The stand-in's checkpoints: on a signal it notes how far it is, waits to be requeued, and goes on from there.

Standard library only, as train.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from slurm_asrpt.errors import InputError
from slurm_asrpt.progress import Reporter, to_count

LOOKS_EVERY_S = 1.0
SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)


class Course:
    """How far a training is: by the clock, ``each_s`` seconds an iteration, but not while it is stopped."""

    def __init__(self, iterations: int, each_s: float, done: int = 0) -> None:
        """done: iterations found done, at a checkpoint."""
        self.iterations, self._each_s = iterations, each_s
        self._base, self._since = min(done, iterations), time.monotonic()
        self._stopped = False

    @property
    def done(self) -> int:
        if self._stopped:
            return self._base
        passed = int((time.monotonic() - self._since) / self._each_s) if self._each_s > 0 else self.iterations
        return min(self.iterations, self._base + passed)

    @property
    def left_s(self) -> float:
        return self._since + (self.iterations - self._base) * self._each_s - time.monotonic()

    def stop(self) -> int:
        """The iteration that is under way is thrown away."""
        self._base, self._stopped = self.done, True
        return self._base

    def go_on(self) -> None:
        self._since, self._stopped = time.monotonic(), False


class Checkpoint:
    """A file with the iterations done. wait_s: how long a requeue is waited for, seconds; then the training goes on.

    asked: a signal has come, and nobody has looked since.
    """

    def __init__(self, path: Path, wait_s: float) -> None:
        self.path, self._wait_s = path, wait_s
        self.asked = False
        for number in SIGNALS:
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        self.asked = True

    def read(self) -> int:
        """Iterations done by runs before this one, 0 without any. Raises InputError."""
        try:
            done = to_count(self.path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path}: cannot be read ({error}); name another file with --checkpoint") from None
        if done is None:
            raise InputError(f"{self.path}: no checkpoint of asrpt-lab train; name another file with --checkpoint")
        return done

    def write(self, first: int, done: int) -> None:
        """Lasting before it returns; a line says which iterations this covers. Raises InputError."""
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with draft.open("w", encoding="ascii") as file:
                file.write(f"{done}\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written ({error.strerror}); mend --checkpoint") from None
        print(f"asrpt-train: iterations {first} to {done} are done", flush=True)

    def make_way(self, course: Course, first: int, reporter: Reporter) -> int:
        """Write, say so, and wait for the end of this run; the iterations done if it does not come."""
        self.asked = False
        done = course.stop()
        self.write(first, done)
        reporter.report(done)
        reporter.flush()
        reporter.checkpointed(done)
        self._wait(done, reporter)
        course.go_on()
        return done

    def _wait(self, done: int, reporter: Reporter) -> None:
        """Who signals again does not know that the checkpoint is there: say so again."""
        until = time.monotonic() + self._wait_s
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(LOOKS_EVERY_S, left))
            if self.asked:
                self.asked = False
                reporter.checkpointed(done)
