"""What a scheduler works with."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from slurm_asrpt.config.settings import Mode, Settings
from slurm_asrpt.core.policies.base import Policy
from slurm_asrpt.daemon.forecasts.arrivals import Arrivals
from slurm_asrpt.daemon.jobs.admission import Profiles
from slurm_asrpt.daemon.record.audit import Audit
from slurm_asrpt.daemon.record.history import Recorder
from slurm_asrpt.daemon.record.progress import ProgressWatch
from slurm_asrpt.daemon.state import Store
from slurm_asrpt.forecast.conformal import Margins
from slurm_asrpt.predict.conformal import Misses
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig


@dataclass
class Parts:
    """Everything from outside; tests put their own in. disabled: by asrpt-admin disable.

    margins: of start times. misses: of predictions.
    """

    settings: Settings
    client: SlurmClient
    slurm: SlurmConfig
    policy: Policy
    profiles: Profiles
    store: Store
    audit: Audit
    recorder: Recorder
    watch: ProgressWatch
    arrivals: Arrivals = field(default_factory=Arrivals)
    margins: Margins = field(default_factory=Margins)
    misses: Misses = field(default_factory=Misses)
    clock: Any = field(default=time)
    disabled: bool = False

    @property
    def mode(self) -> Mode:
        """What may be done now: while disabled no more than in mode shadow."""
        return Mode.SHADOW if self.disabled else self.settings.daemon.mode
