"""How much of the cluster late jobs may take before their turn (docs/decisions/0032)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_asrpt.core.job import JobId

_PAID = 1e-3
"""A debt of fewer GPU-seconds is what rounding has left of one: the time of its payment would be now."""


class LateShare:
    """Bounds the GPUs that late jobs hold before their turn: running, or kept idle for the first of them.

    They hold at most ``share`` of all GPUs, or one job at a time holds more. What it holds beyond the share is a debt,
    in GPU-seconds, which decreases by the share; until it is paid no other late job goes before its turn. In the long
    run, late jobs therefore take no more than their share from the others, however wrong the predictions.

    total: all GPUs. running: GPUs of the running jobs that started before their turn. kept: GPUs that are idle for a
    late job. debt: GPU-seconds at ``time``.
    """

    def __init__(self, share: float) -> None:
        self.share, self.total, self.kept = share, 0, 0
        self.running: dict[JobId, int] = {}
        self.debt = self.time = 0.0

    @property
    def _rate(self) -> float:
        """By how much the debt increases per second."""
        return self.kept + sum(self.running.values()) - self.share * self.total

    def advance(self, now: float) -> None:
        """Bring the debt up to date; called before what is held changes."""
        debt = self.debt + self._rate * max(0.0, now - self.time)
        self.debt, self.time = debt if debt > _PAID else 0.0, now

    def allows(self, gpus: int, claimed: int) -> bool:
        """Whether another late job of this size may go before its turn.

        claimed: GPUs of a late job that has reserved servers.
        """
        taken = claimed + sum(self.running.values())
        return self.debt <= 0.0 and (not taken or taken + gpus <= self.share * self.total)

    @property
    def paid_at(self) -> float | None:
        """When the debt will be paid; None if there is none, or if it does not decrease until a job ends."""
        return self.time - self.debt / self._rate if self.debt > 0.0 > self._rate else None

    def dump(self) -> list[Any]:
        return [self.debt, self.time, self.kept, dict(self.running)]

    def load(self, state: Sequence[Any]) -> None:
        """Raises TypeError or ValueError for an invalid state."""
        debt, time, kept, running = state
        self.debt, self.time, self.kept = float(debt), float(time), int(kept)
        self.running = {JobId(job_id): int(gpus) for job_id, gpus in running.items()}
