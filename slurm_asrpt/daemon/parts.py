"""What a scheduler works with."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from slurm_asrpt.config.settings import Mode, Settings
from slurm_asrpt.core.policies.base import Policy
from slurm_asrpt.daemon.arrivals import Arrivals
from slurm_asrpt.daemon.audit import Audit
from slurm_asrpt.daemon.intake import Profiles
from slurm_asrpt.daemon.progresswatch import ProgressWatch
from slurm_asrpt.daemon.recorder import Recorder
from slurm_asrpt.daemon.store import Store
from slurm_asrpt.forecast.conformal import StartConformal
from slurm_asrpt.predict.conformal import RunConformal
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
    margins: StartConformal = field(default_factory=StartConformal)
    misses: RunConformal = field(default_factory=RunConformal)
    clock: Any = field(default=time)
    disabled: bool = False

    @property
    def mode(self) -> Mode:
        """What may be done now: while disabled no more than in mode shadow."""
        return Mode.SHADOW if self.disabled else self.settings.daemon.mode
