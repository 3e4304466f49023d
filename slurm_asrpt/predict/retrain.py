"""From history to the hook's table: samples, forest, model, table, each step whole before the next begins.

The table is replaced last. A crash before that leaves the hook with the former table, a valid one; after a crash
between model and table the next retraining brings both together again.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurm_asrpt.config import Settings
from slurm_asrpt.errors import AsrptError
from slurm_asrpt.predict import table
from slurm_asrpt.predict.forest import fit_table
from slurm_asrpt.predict.history import FILE_NAME as HISTORY_NAME
from slurm_asrpt.predict.history import History
from slurm_asrpt.predict.historycare import tend
from slurm_asrpt.predict.model import prune_models, save_model


class RetrainError(AsrptError):
    """Retraining could not be done."""


@dataclass(frozen=True)
class RetrainReport:
    rows: int
    groups: int
    seconds: float
    model: Path
    table: Path


def retrain(settings: Settings, now: float, progress: Callable[[int], None] = lambda done: None) -> RetrainReport:
    """Learn from the history and replace model and table. Raises HistoryError, RetrainError.

    progress: called after each tree with the number of trees grown.
    """
    started = time.monotonic()
    state, hook = settings.paths.state, settings.paths.hook
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        hook.mkdir(mode=0o755, parents=True, exist_ok=True)
        with _alone(state / "retrain.lock"):
            return _retrain(settings, now, started, progress)
    except OSError as error:
        where = error.filename or state
        raise RetrainError(f"{where}: {error.strerror}; run as the daemon's user, or set paths.*") from error


def _retrain(settings: Settings, now: float, started: float, progress: Callable[[int], None]) -> RetrainReport:
    options, state = settings.predict, settings.paths.state
    with History(state / HISTORY_NAME) as history:
        tend(history, options.keep_days, now)
        samples = history.samples()
    by_group = fit_table(samples, options.trees, options.seed, progress)
    predictions = {group: table.Entry.plain(iterations) for group, iterations in by_group.items()}
    model = save_model(state / "models", predictions, options.seed, options.trees, len(samples), now)
    target = settings.paths.hook / table.FILE_NAME
    table.write_table(target, predictions)
    prune_models(state / "models", options.keep_models)
    return RetrainReport(len(samples), len(predictions), time.monotonic() - started, model, target)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One retraining at a time: the lock goes with the process, however that ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RetrainError("another retraining is under way; wait for it to end") from None
        yield
    finally:
        os.close(descriptor)
