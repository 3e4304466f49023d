"""What a cycle writes to Slurm. Everything that a restart needs is saved before Slurm is touched."""

from __future__ import annotations

from slurm_asrpt.config.settings import Mode
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.preemption import Preemption
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.state import StateSaver
from slurm_asrpt.daemon.writes.order import OrderWriter
from slurm_asrpt.daemon.writes.release import Release
from slurm_asrpt.daemon.writes.release_ahead import ReleaseAhead
from slurm_asrpt.daemon.writes.starts import Starts, StartWithdrawal
from slurm_asrpt.switch import OperatingMode


class SlurmWriter:
    """Writes what the mode allows: starts and leases in enforce, the order in order. Methods may raise SlurmError."""

    def __init__(
        self,
        starts: Starts,
        withdrawal: StartWithdrawal,
        release: Release,
        order: OrderWriter,
        ahead: ReleaseAhead,
        preemption: Preemption,
        saver: StateSaver,
        audit: AuditWriter,
        mode: OperatingMode,
    ) -> None:
        self._starts, self._withdrawal, self._release, self._order = starts, withdrawal, release, order
        self._ahead, self._preemption, self._saver, self._audit, self._mode = ahead, preemption, saver, audit, mode

    def undo(self, now: float) -> None:
        """Before a decision: withdraw starts that Slurm has not made. Outside of mode enforce, release all jobs."""
        if self._mode.enforcing:
            self._withdrawal.withdraw_late_starts(now)
        else:
            self._release.release_all(now)
            self._withdrawal.withdraw_starts_not_followed(now)

    def write(self, starts: list[ManagedJob], now: float) -> bool:
        """Write a decision. Returns whether the next cycle is due at once."""
        intended = self._starts.intend(starts, now) if self._mode.enforcing else None
        ahead = self._ahead.intend(now) if self._mode.enforcing else None
        self._preemption.intend_yields(now)
        self._preemption.intend_requeues(now)
        moved = self._order.intend(now) if self._mode.current is Mode.ORDER else []
        self._saver.save(now)
        self._audit.flush()  # what is about to be written to Slurm
        if intended is not None and ahead is not None:
            self._ahead.write_leases(ahead, now)
            self._starts.write(intended, now)
            self._ahead.write_releases(ahead, now)
        elif moved:
            self._order.write(moved)
        self._preemption.carry_out(now)
        return intended is not None and intended.again
