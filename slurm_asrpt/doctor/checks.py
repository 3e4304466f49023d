"""What a check finds."""

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

UNITS = ("asrptd.service", "asrpt-retrain.timer")
PROPERTIES = "Id,LoadState,ActiveState,Result,UnitFileState,NeedDaemonReload"
TIMEOUT_S = 10.0

Unit = Mapping[str, str]


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """What one check found. remedy: what to do, "" where nothing is."""

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
    """config: by scontrol show config. ahead_s: of the controller's clock before this machine's, at least and at most.

    units: of systemd. trouble: why Slurm did not answer; then nothing else of it is known.
    """

    config: Mapping[str, str] = field(default_factory=dict)
    ahead_s: tuple[float, float] = (0.0, 0.0)
    nodes: Sequence[NodeRecord] = ()
    jobs: Sequence[JobRecord] = ()
    trouble: str = ""
    units: Sequence[Unit] = ()


def take_snapshot(settings: Settings) -> Snapshot:
    """Everything, in five questions."""
    client, units = CliClient(settings.slurm), read_units()
    try:
        client.check_conf()
        before = time.time()
        clock = client.config().time or before
        ahead = clock - time.time(), clock + 1 - before  # it is told in whole seconds
        return Snapshot(client.settings_of_slurm(), ahead, client.nodes(), client.jobs(), units=units)
    except SlurmError as error:
        return Snapshot(trouble=one_line(error), units=units)


def read_units() -> list[Unit]:
    """What systemd says of our units; nothing where none answers."""
    command = ["systemctl", "show", *UNITS, f"--property={PROPERTIES}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_units(done.stdout) if done.returncode == 0 else []


def parse_units(text: str) -> list[Unit]:
    """The answer of ``systemctl show``: a block a unit."""
    return [dict(line.partition("=")[::2] for line in block.splitlines()) for block in text.split("\n\n") if block]
