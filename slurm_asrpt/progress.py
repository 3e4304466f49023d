"""Report the progress of a training job to asrpt.

    from slurm_asrpt import progress

    for batch in progress.track(loader, total=epochs * len(loader)):
        train(batch)

or call ``progress.report(step, total=steps, loss=loss)`` after each iteration. At most one call per second, and the end
of the process, write ``<done> <total> <loss> <start>`` to $ASRPT_PROGRESS_DIR/iterations. Other calls only check the
clock. Outside of a job and on ranks other than 0, nothing is written. Failed writes are dropped: no call raises an
exception, except for KeyboardInterrupt and the like. The caller's thread writes, so a file server that does not respond
delays it, as it delays the training's own checkpoints.

Iterations are absolute: they count from the beginning of the training. After a restart from a checkpoint, call
``resume`` or pass ``start=``, so that asrpt learns only the iterations of this job.

Imports little, and only from the standard library, because this module is imported into users' programs.
"""

from __future__ import annotations

import atexit
import itertools
import os
import time

TYPE_CHECKING = False  # importing typing would take longer than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, TypeVar

    Item = TypeVar("Item")

FOLDER_VARIABLE = "ASRPT_PROGRESS_DIR"
FILE_NAME = "iterations"
LOSSES_NAME = "losses"
CHECKPOINT_NAME = "checkpoint"

EVERY_S = 1.0
COST = 100.0  # after a write of t seconds, none for 100 t: a slow file system costs 1% at most
MAX_ITERATIONS = 10**15 - 1
MAX_LOSSES = 256

# The launcher's rank takes precedence: srun may have started one torchrun per node, and torchrun assigns the ranks.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
STEP_VARIABLES = ("SLURM_PROCID", "LOCAL_RANK")


def report(iteration: Any, total: Any = None, loss: Any = None) -> None:
    """Report that ``iteration`` iterations of ``total`` are done. Values: numbers, or what int() and float() convert.

    loss: of this iteration. A tensor is only converted when a write is due.
    """
    (_reporter or _open()).report(iteration, total, loss)


def resume(iteration: Any) -> None:
    """Report that training resumes from a checkpoint: ``iteration`` iterations were done before the job started."""
    (_reporter or _open()).resume(iteration)


def checkpointed(iteration: Any) -> None:
    """Report that a checkpoint of this iteration is written. asrptd waits for this when it preempts the job."""
    (_reporter or _open()).checkpointed(iteration)


def flush() -> None:
    """Write the last report now. The end of the process does so too, unless it ends by a signal or os._exit.

    In that case the reports of the last second are lost; a signal handler in users' programs is not worth it.
    """
    if _reporter is not None:
        _reporter.flush()


def reporting(total: Any = None, start: Any = None) -> Reporter:
    """``with progress.reporting(total=steps) as job: ... job.report(step, loss=loss)``. The block's end flushes.

    start: as in ``resume``.
    """
    reporter = _reporter or _open()
    if start is not None:
        reporter.resume(start)
    reporter.report(reporter.done, total)
    return reporter


def track(items: Iterable[Item], total: Any = None, start: Any = None) -> Iterator[Item]:
    """Yield the items, and count each as an iteration after the loop's body.

    A second loop continues the count of the first, so that epochs add up; ``total`` counts all of them.
    start: as in ``resume``.
    """
    reporter = _reporter or _open()
    if start is not None:
        reporter.resume(start)
    done = reporter.done
    reporter.report(done, total)
    for item in items:
        yield item
        done += 1
        reporter.report(done)


class Reporter:
    """The reports of one process. A context manager: the end of its block writes the last report."""

    def __init__(self, environment: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = (environment.get(FOLDER_VARIABLE) or None) if has_rank_zero(environment) else None
        self._clock, self._process = clock, os.getpid()
        self._done: Any = 0
        self._total: Any = 0
        self._loss: Any = None
        self._start: int | None = None  # the iteration that training resumes from
        self._losses: Losses | None = None  # once the files of earlier processes have been read
        self._next = 0.0 if self._folder else float("inf")

    @property
    def writes(self) -> bool:
        """Whether this process writes reports."""
        return self._folder is not None

    @property
    def done(self) -> int:
        """Iterations of the last report; 0 if it was not a number."""
        return to_count(self._done) or 0

    def report(self, iteration: Any, total: Any = None, loss: Any = None) -> None:
        """As the function ``report``."""
        self._done = iteration
        if total is not None:
            self._total = total
        due = self._clock() >= self._next
        if loss is not None and (due or type(loss) is float):
            self._loss = loss
        if due:
            self.flush()

    def resume(self, iteration: Any) -> None:
        """As the function ``resume``."""
        self.begin_at(iteration)
        self.report(iteration)

    def begin_at(self, iteration: Any) -> None:
        """As ``resume``, without a report: more iterations have been done since."""
        self._start = to_count(iteration)

    def checkpointed(self, iteration: Any) -> bool:
        """As the function ``checkpointed``; False if nothing was written."""
        done = to_count(iteration)
        if self._folder is None or self._process != os.getpid() or done is None:
            return False
        try:
            _replace(self._folder, CHECKPOINT_NAME, f"{done}\n")
        except Exception:  # as in flush: asrptd then waits a little longer
            return False
        return True

    def flush(self) -> bool:
        """Write the last report now; False if that fails. Does nothing in a forked child."""
        if self._folder is None or self._process != os.getpid():
            return False
        began = self._clock()
        self._next = began + EVERY_S  # for a signal handler or thread that reports while this writes
        try:
            return self._write(self._folder)
        except Exception:  # whatever it is, it must not end the training
            return False
        finally:
            self._next = began + max(EVERY_S, COST * (self._clock() - began))

    def _write(self, folder: str) -> bool:
        done, loss = to_count(self._done), to_number(self._loss)
        if done is None:
            return False
        losses = self._losses or self._take_up(folder, done)
        self._loss = loss  # not the tensor: it may keep a graph alive
        written = "-" if loss is None else f"{loss:.6g}"
        _replace(folder, FILE_NAME, f"{done} {to_count(self._total) or 0} {written} {self._start or 0}\n")
        if loss is not None and losses.add(done, loss):
            _replace(folder, LOSSES_NAME, losses.text())
        return True

    def _take_up(self, folder: str, done: int) -> Losses:
        """Continue from the reports of earlier processes: a job may run several in turn, and be requeued."""
        words = [int(word) if is_count(word) else 0 for word in _read(folder, FILE_NAME).split()[:4]]
        if words:
            total, start = (*words, 0, 0, 0)[1:4:2]
            self._total = self._total or total
            self._start = start if self._start is None else min(start, self._start)
        self._losses = Losses(_read(folder, LOSSES_NAME), before=done)
        return self._losses

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()


class Losses:
    """A loss curve of at most MAX_LOSSES points, spread evenly; one line per point in the file."""

    def __init__(self, text: bytes = b"", before: int = 0) -> None:
        """text: from an earlier process of this job; its points from iteration ``before`` on are discarded."""
        self.points = [point for point in parse_losses(text) if point[0] < before]
        if len(self.points) > MAX_LOSSES // 2:
            del self.points[1::2]
        self._offered, self._stride = 0, 1

    def add(self, iteration: int, loss: float) -> bool:
        """Offer a point. Returns whether it was kept."""
        self._offered += 1
        if (self._offered - 1) % self._stride:
            return False
        while self.points and self.points[-1][0] >= iteration:  # reported twice, or resumed from a checkpoint
            self.points.pop()
        self.points.append((iteration, loss))
        if len(self.points) >= MAX_LOSSES:
            del self.points[1::2]
            self._stride *= 2
        return True

    def text(self) -> str:
        return "".join(f"{iteration} {loss:.6g}\n" for iteration, loss in self.points)


def parse_losses(text: bytes) -> list[tuple[int, float]]:
    """The valid points of a loss file. Its contents are the user's: data only."""
    points = []
    for line in text.splitlines()[:MAX_LOSSES]:
        words = line[:64].split()
        loss = to_number(words[1]) if len(words) == 2 else None
        if loss is not None and is_count(words[0]):
            points.append((int(words[0]), loss))
    return points


def to_count(value: Any) -> int | None:
    """A whole number of iterations, or None."""
    try:
        number = int(value)
    except Exception:
        return None
    return number if 0 <= number <= MAX_ITERATIONS else None


def to_number(value: Any) -> float | None:
    """A finite number, or None."""
    try:
        number = float(value)
    except Exception:
        return None
    return number if number - number == 0 else None


def is_count(word: bytes) -> bool:
    """Whether a word of a progress file is a whole number of at most MAX_ITERATIONS' length."""
    return word.isdigit() and len(word) <= len(str(MAX_ITERATIONS))


def has_rank_zero(environment: Mapping[str, str]) -> bool:
    """Whether this process reports for its job: it has rank 0, or no rank."""
    ranks = [environment[name] for name in RANK_VARIABLES if name in environment]
    ranks = ranks[:1] or [environment.get(name, "0") for name in STEP_VARIABLES]
    return all(rank == "0" for rank in ranks)


_reporter: Reporter | None = None
_temporary = itertools.count()


def _open() -> Reporter:
    global _reporter
    _reporter = Reporter(os.environ)
    return _reporter


def _forget() -> None:
    """A forked child may be a rank of its own, and must not write its parent's pending report."""
    global _reporter
    _reporter = None


atexit.register(flush)
os.register_at_fork(after_in_child=_forget)


def _read(folder: str, name: str) -> bytes:
    """The beginning of a file of this job; empty if there is none."""
    try:
        descriptor = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 64 * MAX_LOSSES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _replace(folder: str, name: str, text: str) -> None:
    """Replace the file atomically, like files.replace_file, but with fewer imports and without waiting for the disk.

    Each write, of any process, node or thread, has its own temporary file. Raises OSError; nothing is left behind.
    """
    temporary = f"{folder}/.{name}.{os.uname().nodename}.{os.getpid()}.{next(_temporary)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            os.fchmod(descriptor, 0o644)  # regardless of the umask: asrptd reads it
            data = text.encode("ascii")
            if os.write(descriptor, data) != len(data):
                raise OSError("disk full")
            if "FAKETIME" in os.environ:  # an accelerated lab: the kernel would set the time of the machine's clock
                os.utime(descriptor, ns=(time.time_ns(), time.time_ns()))
        finally:
            os.close(descriptor)
        os.replace(temporary, f"{folder}/{name}")
    except BaseException:
        _discard(temporary)
        raise


def _discard(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # may fail for the same reason as the write
        return
