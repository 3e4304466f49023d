"""asrpt-admin doctor: finds problems and names a remedy for each. Read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.doctor import daemon, hook, permissions, predictions, slurm, topology
from slurm_asrpt.doctor.checks import Finding, Here, Snapshot, State, failure, take_snapshot

__all__ = ["Finding", "Here", "Snapshot", "State", "examine", "take_snapshot"]

_UNKNOWN = Here()
SLURM_CHECKS: tuple[Callable[[Settings, float, Snapshot], Iterator[Finding]], ...] = (
    *(slurm.answers, hook.plugin, hook.include, hook.scripts, hook.tags, hook.wakes, daemon.leases, daemon.clock),
    *(slurm.conf, slurm.fights, slurm.gpus, topology.levels, permissions.owners),
)


def examine(settings: Settings, now: float, snapshot: Snapshot | None, here: Here = _UNKNOWN) -> list[Finding]:
    """Run all checks; without a snapshot, only those of asrpt's own files. now: seconds since the epoch."""
    found = [*daemon.switched(settings, here), *daemon.state(settings)]
    found += [*daemon.starts(here), *daemon.alive(settings, now, here), *daemon.release(settings, here)]
    found += [finding for check in predictions.CHECKS for finding in check(settings, now)]
    if snapshot is None:
        return found
    found += daemon.units(list(snapshot.units))
    if snapshot.trouble:
        return [
            *found,
            failure(
                "slurm",
                snapshot.trouble,
                "systemctl status slurmctld; check slurm.conf and slurm.bin_dir in asrpt.toml",
            ),
        ]
    return found + [finding for each in SLURM_CHECKS for finding in each(settings, now, snapshot)]
