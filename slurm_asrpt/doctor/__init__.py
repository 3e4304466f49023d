"""asrpt-admin doctor: what is wrong, or soon will be, and what to do about it. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.doctor import daemon, hook, permissions, predictions, slurm, systemd
from slurm_asrpt.doctor.findings import Finding, State, failure
from slurm_asrpt.doctor.look import Look, look_at_slurm

__all__ = ["Finding", "Look", "State", "examine", "look_at_slurm"]

OUR_CHECKS: tuple[Callable[[Settings, float], Iterator[Finding]], ...] = (
    *(daemon.switched, daemon.alive, daemon.release),
    *predictions.CHECKS,
)
SLURM_CHECKS: tuple[Callable[[Settings, float, Look], Iterator[Finding]], ...] = (
    *(slurm.answers, hook.plugin, hook.include, hook.scripts, hook.tags, daemon.leases, daemon.clock),
    *(slurm.conf, slurm.fights, slurm.gpus, permissions.owners),
)


def examine(settings: Settings, now: float, look: Look | None) -> list[Finding]:
    """All checks; without a look at Slurm only those of our own files. now: seconds since the epoch."""
    found = [finding for check in OUR_CHECKS for finding in check(settings, now)]
    if look is None:
        return found
    found += systemd.units(list(look.units))
    if look.trouble:
        return [*found, failure("slurm", look.trouble, "systemctl status slurmctld; slurm.conf and slurm.bin_dir")]
    return found + [finding for each in SLURM_CHECKS for finding in each(settings, now, look)]
