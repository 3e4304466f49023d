"""How long a running job will go on, as its reported losses say (Hare, section V-A), beside what past runs say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.rounds.hlas import ALPHA
from slurm_asrpt.core.rounds.job import Progress, RoundJob
from slurm_asrpt.core.rounds.losscurve import LossCurve, ReportedCurve, fit, observed
from slurm_asrpt.core.rounds.predictor import Conservative

STOP_SHARE = 0.01
"""Training is taken to stop when the loss has come within this share of its fall so far of the floor of the curve."""


@dataclass(frozen=True)
class Convergence:
    """points: (iteration, loss) as reported. curve: fitted to them, None where it cannot be.

    ends: the iteration at which the curve says that training stops. asked: further iterations that the conservative
    predictor is asked about. expected: how many it counts on, from the curve and the past runs.
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
    """What a job that has done so many iterations has still before it; None where it has reported no loss.

    points: (iteration, loss), ascending. past: iterations of past runs of the same group or user.
    """
    rising = [point for at, point in enumerate(points) if not at or point[0] > points[at - 1][0]]
    if not rising:
        return None
    reported = ReportedCurve(tuple(rising), STOP_SHARE)
    done = max(done, rising[-1][0])
    curve = fit(*observed(reported, done), reported.stop) if reported.stop > 0 else None
    predictor = Conservative(asked)
    job = RoundJob(JobId("0"), 0.0, 1, (1.0,), (0.0,), history="past", curve=reported)
    for iterations in past:
        predictor.learn(Progress(job, iterations))
    expected = predictor.predict(Progress(job, done))
    ends = None if curve is None else max(done, curve.rounds)
    return Convergence(reported.points, done, curve, ends, asked, expected)
