"""What a check works on and returns: a snapshot of Slurm and systemd, and findings."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.errors import SlurmError, one_line
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.records import JobRecord, NodeRecord
from slurm_asrpt.slurm.topology import Topology

UNITS = ("asrptd.service", "asrpt-retrain.timer")
PROPERTIES = "Id,LoadState,ActiveState,Result,UnitFileState,NeedDaemonReload"
TIMEOUT_S = 10.0

Unit = Mapping[str, str]


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Here:
    """What this machine knows of asrptd itself. leads: whether one leads in the state directory; None: not known here.

    refuses: why asrptd would not start with these settings; "" if it would.
    """

    leads: bool | None = None
    refuses: str = ""


@dataclass(frozen=True)
class Finding:
    """The result of one check. remedy: what to do, "" if nothing."""

    check: str
    state: State
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, State.OK, text)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, State.WARNING, text, remedy)


def failure(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, State.FAILURE, text, remedy)


@dataclass(frozen=True)
class Snapshot:
    """Slurm and systemd, read once.

    config: from scontrol show config. ahead_s: lower and upper bound of the seconds by which the controller's clock is
    ahead of this machine's. units: asrpt's systemd units. trouble: why Slurm did not answer; then the rest is empty.
    """

    config: Mapping[str, str] = field(default_factory=dict)
    ahead_s: tuple[float, float] = (0.0, 0.0)
    nodes: Sequence[NodeRecord] = ()
    jobs: Sequence[JobRecord] = ()
    trouble: str = ""
    units: Sequence[Unit] = ()
    topology: Topology = field(default_factory=Topology)


def take_snapshot(settings: Settings) -> Snapshot:
    """Read everything, in seven queries or so. Never raises: ``trouble`` has Slurm's error."""
    client, units = CliClient(settings.slurm), read_units()
    try:
        client.check_conf()
        before = time.time()
        clock = client.config().time or before
        ahead = clock - time.time(), clock + 1 - before  # in whole seconds
        topology = client.topology(settings.slurm.partitions)
        config = client.settings_of_slurm()
        return Snapshot(config, ahead, client.nodes(), client.jobs(), units=units, topology=topology)
    except SlurmError as error:
        return Snapshot(trouble=one_line(error), units=units)


def read_units() -> list[Unit]:
    """Properties of asrpt's units; empty without systemd."""
    command = ["systemctl", "show", *UNITS, f"--property={PROPERTIES}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_units(done.stdout) if done.returncode == 0 else []


def parse_units(text: str) -> list[Unit]:
    """Parse the output of ``systemctl show``: one block per unit."""
    return [dict(line.partition("=")[::2] for line in block.splitlines()) for block in text.split("\n\n") if block]
