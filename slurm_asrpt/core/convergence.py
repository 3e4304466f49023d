"""How long a running job will go on, by the losses that it reports and by past runs (Hare, section V-A)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slurm_asrpt.core.loss_curve import Curve, LossCurve, ReportedCurve, fit, observed

STOP_SHARE = 0.01
"""Training is taken to stop when the loss is within this share of its fall so far of the floor of the curve."""
ALPHA = 100
"""The conservative estimate asks whether a job will run so many more rounds or iterations."""
LAGGING = 2.0
"""A job of a search lags if its loss has fallen by less than 1 / LAGGING of the best one's."""
REDUCED = 0.25
"""Factor on the prediction of a lagging job."""

Fall = Callable[[int], float]
"""By how much a job's loss has fallen after so many rounds or iterations."""


@dataclass(frozen=True)
class Convergence:
    """points: (iteration, loss) as reported. curve: fitted to them, None where that is not possible.

    done: iterations so far. ends: the iteration at which training stops by the curve. asked: the further iterations
    that the conservative estimate asks about. expected: how many it counts on, by the curve and by past runs.
    """

    points: tuple[tuple[int, float], ...]
    done: int
    curve: LossCurve | None
    ends: int | None
    asked: int
    expected: float


def convergence(
    points: Sequence[tuple[int, float]], done: int, past: Sequence[int], asked: int = ALPHA
) -> Convergence | None:
    """What remains of a job that has done so many iterations; None if it has reported no loss.

    points: (iteration, loss), ascending. past: iterations of past runs of the same group or user.
    """
    rising = [point for at, point in enumerate(points) if not at or point[0] > points[at - 1][0]]
    if not rising:
        return None
    reported = ReportedCurve(tuple(rising), STOP_SHARE)
    done = max(done, rising[-1][0])
    curve = fitted(reported, done)
    mean = sum(past) / len(past) if past else None
    expected = conservative_estimate(rounds_left(curve, done), done, mean, asked)
    return Convergence(
        reported.points, done, curve, None if curve is None else max(done, curve.rounds), asked, expected
    )


def fitted(curve: Curve, done: int) -> LossCurve | None:
    """The loss curve fitted to the losses of so many rounds; None if nothing can be fitted."""
    return fit(*observed(curve, done), curve.stop) if curve.stop > 0 else None


def rounds_left(curve: LossCurve | None, done: int) -> float | None:
    """Rounds left by a fitted curve; None without one."""
    return None if curve is None else max(0.0, float(curve.rounds - done))


def conservative_estimate(left: float | None, done: float, past_mean: float | None, alpha: float) -> float:
    """R^p, the rounds that HLAS-P counts on: not how many are left, but whether ``alpha`` more are.

    1. alpha if the fitted curve says that at least so many are left, else 0.
    2. If jobs of the same name or user have ended: the mean of that and of their mean rounds, less those done.

    left: rounds left by the fitted curve. past_mean: mean rounds of past jobs, None without any. All of them may be
    iterations, or GPU-seconds, as well.
    """
    rounds = float(alpha) if left is not None and left >= alpha else 0.0
    return rounds if past_mean is None else (rounds + max(0.0, past_mean - done)) / 2


def fall_of(curve: Curve) -> Fall:
    """The fall of a curve."""
    return lambda done: curve.loss(0) - curve.loss(done)


def lags(fall: Fall, done: int, others: Iterable[tuple[Fall, int]]) -> bool:
    """Whether a job lags behind the one whose loss has fallen most, after the same number of rounds.

    others: the other jobs of its search, with the rounds that they have done. HLAS-P multiplies the estimate of a
    lagging job by REDUCED, because it may be stopped soon.
    """
    return any(fall(both) * LAGGING < other(both) for other, ran in others if (both := min(done, ran)) > 0)
