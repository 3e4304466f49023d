"""How many more rounds a job will run, at least: the predictors of HLAS-P and HLAS-L (section V-A, Fig. 13)."""

from __future__ import annotations

from typing import Protocol

from papers.hare.jobs import Progress
from slurm_asrpt.predict import convergence

LAGGING = 2.0
"""A member of a search is far behind if its loss has fallen less than 1 / LAGGING of what the best one's has."""
REDUCED = 0.25
"""What is left of a lagging member's prediction."""


class RoundPredictor(Protocol):
    """Predictions are rounds; 0 means that nothing is known."""

    def predict(self, job: Progress) -> float:
        """R^p, rounds that the job will run after those it has done."""

    def learn(self, job: Progress) -> None:
        """A job has ended."""


class NoPredictor:
    """HLAS: sizes are attained service alone."""

    def predict(self, job: Progress) -> float:
        return 0.0

    def learn(self, job: Progress) -> None:
        return None


class LossFit:
    """HLAS-L: all that the fitted loss curve says is left (Optimus [19]), right or wrong."""

    def predict(self, job: Progress) -> float:
        return fitted(job) or 0.0

    def learn(self, job: Progress) -> None:
        return None


class Known:
    """The truth, for comparison: more than this no prediction can tell HLAS."""

    def predict(self, job: Progress) -> float:
        return float((job.job.rounds or 0) - job.done)

    def learn(self, job: Progress) -> None:
        return None


def fitted(job: Progress) -> float | None:
    """Rounds left by the fitted loss curve; None where nothing can be fitted."""
    curve = job.job.curve
    return None if curve is None else convergence.rounds_left(convergence.fitted(curve, job.done), job.done)


class Conservative:
    """HLAS-P: ``conservative_estimate``, of which a member of a search that is far behind the others gets REDUCED."""

    def __init__(self, alpha: int) -> None:
        self.alpha = alpha
        self._ran: dict[str, tuple[int, int]] = {}  # by RoundJob.history: jobs, and their rounds
        self._searches: dict[str, dict[str, Progress]] = {}

    def predict(self, job: Progress) -> float:
        jobs, ran = self._ran.get(job.job.history, (0, 0))
        mean = ran / jobs if jobs else None
        rounds = convergence.conservative_estimate(fitted(job), job.done, mean, self.alpha)
        return rounds * REDUCED if self._lags(job) else rounds

    def learn(self, job: Progress) -> None:
        jobs, ran = self._ran.get(job.job.history, (0, 0))
        self._ran[job.job.history] = (jobs + 1, ran + job.done)
        self._searches.get(job.job.search, {}).pop(job.job.id, None)

    def _lags(self, job: Progress) -> bool:
        """Compared with the member whose loss has fallen most, both after the rounds that both have done."""
        if not job.job.search:
            return False
        others = self._searches.setdefault(job.job.search, {})
        others[job.job.id] = job
        return any(
            _fall(job, both) * LAGGING < _fall(other, both)
            for other in others.values()
            if other is not job and (both := min(job.done, other.done)) > 0
        )


def _fall(job: Progress, done: int) -> float:
    first, last = job.loss(0), job.loss(done)
    return 0.0 if first is None or last is None else first - last
