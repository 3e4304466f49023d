"""What the checks need to know of Slurm, read once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.doctor.systemd import Unit, look_at_units
from slurm_asrpt.errors import SlurmError, one_line
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.records import JobRecord, NodeRecord


@dataclass(frozen=True)
class Look:
    """config: by scontrol show config. ahead_s: of the controller's clock before this machine's, at least and at most.

    units: of systemd. trouble: why Slurm did not answer; then nothing else of it is known.
    """

    config: Mapping[str, str] = field(default_factory=dict)
    ahead_s: tuple[float, float] = (0.0, 0.0)
    nodes: Sequence[NodeRecord] = ()
    jobs: Sequence[JobRecord] = ()
    trouble: str = ""
    units: Sequence[Unit] = ()


def look_at_slurm(settings: Settings) -> Look:
    """Everything, in five questions."""
    client, units = CliClient(settings.slurm), look_at_units()
    try:
        client.check_conf()
        before = time.time()
        clock = client.config().time or before
        ahead = clock - time.time(), clock + 1 - before  # it is told in whole seconds
        return Look(client.settings_of_slurm(), ahead, client.nodes(), client.jobs(), units=units)
    except SlurmError as error:
        return Look(trouble=one_line(error), units=units)
