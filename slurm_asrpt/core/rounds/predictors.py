"""The predictors of HLAS-P and HLAS-L: the minimum number of remaining rounds (section V-A, Fig. 13)."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from slurm_asrpt.core import convergence
from slurm_asrpt.core.rounds.jobs import Progress


class RoundPredictor(Protocol):
    """Predictions are in rounds; 0 means unknown."""

    def predict(self, job: Progress) -> float:
        """R^p, the job's remaining rounds."""

    def learn(self, job: Progress) -> None:
        """Learn from an ended job."""


class NoPredictor:
    """HLAS: sizes are attained service only."""

    def predict(self, job: Progress) -> float:
        return 0.0

    def learn(self, job: Progress) -> None:
        return None


class LossFit:
    """HLAS-L: the remaining rounds by the fitted loss curve (Optimus [19])."""

    def predict(self, job: Progress) -> float:
        return fitted(job) or 0.0

    def learn(self, job: Progress) -> None:
        return None


class Known:
    """The true remaining rounds, for comparison: no prediction is better."""

    def predict(self, job: Progress) -> float:
        return float((job.job.rounds or 0) - job.done)

    def learn(self, job: Progress) -> None:
        return None


def fitted(job: Progress) -> float | None:
    """Remaining rounds by the fitted loss curve; None if it cannot be fitted."""
    curve = job.job.curve
    return None if curve is None else convergence.rounds_left(convergence.fitted(curve, job.done), job.done)


class Conservative:
    """HLAS-P: ``conservative_estimate``, times REDUCED for jobs that lag behind the others of their search."""

    def __init__(self, alpha: int) -> None:
        self.alpha = alpha
        self._ran: dict[str, tuple[int, int]] = {}  # by RoundJob.history: number of jobs, and their rounds
        self._searches: dict[str, dict[str, Progress]] = {}

    def predict(self, job: Progress) -> float:
        jobs, ran = self._ran.get(job.job.history, (0, 0))
        mean = ran / jobs if jobs else None
        rounds = convergence.conservative_estimate(fitted(job), job.done, mean, self.alpha)
        return rounds * convergence.REDUCED if self._lags(job) else rounds

    def learn(self, job: Progress) -> None:
        jobs, ran = self._ran.get(job.job.history, (0, 0))
        self._ran[job.job.history] = (jobs + 1, ran + job.done)
        self._searches.get(job.job.search, {}).pop(job.job.id, None)

    def _lags(self, job: Progress) -> bool:
        """Whether the job lags behind the one whose loss has fallen most, after the same number of rounds."""
        if not job.job.search:
            return False
        others = self._searches.setdefault(job.job.search, {})
        others[job.job.id] = job
        rivals = ((partial(_fall, other), other.done) for other in others.values() if other is not job)
        return convergence.lags(partial(_fall, job), job.done, rivals)


def _fall(job: Progress, done: int) -> float:
    first, last = job.loss(0), job.loss(done)
    return 0.0 if first is None or last is None else first - last
