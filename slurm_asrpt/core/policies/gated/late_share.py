"""How much of the cluster late jobs may take before their turn (docs/decisions/0032)."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_asrpt.core.job import JobId


class LateShare:
    """Bounds the GPUs that late jobs hold before their turn: running, or kept idle for the first of them.

    They hold at most ``share`` of all GPUs, or one job at a time holds more. What it holds beyond the share is a debt,
    in GPU-seconds, which decreases by the share; until it is paid no other late job goes before its turn. In the long
    run, late jobs therefore take no more than their share from the others, however wrong the predictions.

    running: GPUs of the running jobs that started before their turn. debt: GPU-seconds.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.running: dict[JobId, int] = {}
        self.debt = 0.0

    def advance(self, kept: int, total: int, seconds: float) -> None:
        """Time has passed, in which ``kept`` of ``total`` GPUs were idle for a late job."""
        self.debt = max(0.0, self.debt + (self._held(kept) - self.share * total) * seconds)

    def _held(self, kept: int) -> int:
        return kept + sum(self.running.values())

    def allows(self, gpus: int, kept: int, total: int) -> bool:
        """Whether another late job of this size may go before its turn, while ``kept`` GPUs are idle for the first."""
        held = self._held(kept)
        return self.debt <= 0.0 and (not held or held + gpus <= self.share * total)

    def paid_at(self, kept: int, total: int, now: float) -> float | None:
        """When the debt will be paid; None if there is none, or if it does not decrease until a job ends."""
        rate = self.share * total - self._held(kept)
        return now + self.debt / rate if self.debt > 0.0 and rate > 0.0 else None

    def load(self, debt: float, running: Mapping[JobId, int]) -> None:
        self.debt, self.running = debt, dict(running)
