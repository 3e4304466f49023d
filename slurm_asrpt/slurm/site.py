"""The limits, priorities and scheduler of a site, made from the same answers of slurmctld."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_asrpt.slurm.gpu_defaults import GpuDefaults, gpu_defaults_of
from slurm_asrpt.slurm.limits import (
    Association,
    SiteLimits,
    parse_assoc_mgr,
    parse_licenses,
    qos_before_partitions,
    qos_of_partitions,
)
from slurm_asrpt.slurm.parse import enforces_limits, is_safe
from slurm_asrpt.slurm.partitions import Partition, partitions_of, rows_of
from slurm_asrpt.slurm.priorities import SitePriorities, parse_weights, site_priorities
from slurm_asrpt.slurm.scheduler import SchedulerSettings, parse_scheduler


@dataclass(frozen=True)
class Site:
    """limits: of licenses and, if they are enforced, of QOS and associations.

    associations: as those of the limits, but also where no limits are enforced; empty unless ``needs_accounts``.
    gpu_defaults: by partition.
    """

    limits: SiteLimits = field(default_factory=SiteLimits)
    priorities: SitePriorities = field(default_factory=SitePriorities)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    associations: Mapping[tuple[str, str, str], Association] = field(default_factory=dict)
    gpu_defaults: Mapping[str, GpuDefaults] = field(default_factory=dict)
    partitions: Mapping[str, Partition] = field(default_factory=dict)


def needs_accounts(config: Mapping[str, str]) -> bool:
    """Whether limits or priorities come from QOS or associations. Raises SlurmError."""
    weights = parse_weights(config)
    return enforces_limits(config) or (weights is not None and weights.accounts)


def site_of(config: Mapping[str, str], partitions: str, licenses: str, assoc_mgr: str, qos_flags: str) -> Site:
    """From Slurm's texts. Raises SlurmError.

    assoc_mgr: with flags=qos,assoc; "" unless ``needs_accounts``. qos_flags: sacctmgr's, "" if unknown.
    """
    qos, associations = parse_assoc_mgr(assoc_mgr)
    rows = rows_of(partitions)
    limits = SiteLimits(licenses=parse_licenses(licenses))
    if enforces_limits(config):
        weights = parse_weights(config)
        limits = SiteLimits(
            qos,
            associations,
            qos_of_partitions(rows),
            limits.licenses,
            first_qos=qos_before_partitions(qos_flags),
            safe=is_safe(config),
            period_s=weights.period_s if weights else math.inf,
        )
    priorities = site_priorities(config, rows, qos, associations)
    return Site(
        limits,
        priorities,
        parse_scheduler(config),
        associations,
        gpu_defaults_of(config, rows),
        partitions_of(rows),
    )
