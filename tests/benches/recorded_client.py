"""A Slurm client that replays recorded answers of a real Slurm, and records writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_asrpt.slurm import parse
from slurm_asrpt.slurm.client import SlurmConfig
from slurm_asrpt.slurm.preemption import PreemptionDefaults, PreemptionRules
from slurm_asrpt.slurm.records import JobRecord, NodeRecord, Reservation, Update
from slurm_asrpt.slurm.site import Site
from slurm_asrpt.slurm.topology import Topology


class RecordedClient:
    """Answers from a directory with ``squeue.json``, ``nodes.txt``, ``jobs.txt``, ``config.txt`` of one moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[Update] = []
        self.errors: dict[str, str] = {}
        self.interrupted: list[tuple[str, str]] = []

    def _text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def config(self) -> SlurmConfig:
        values = parse.parse_config(self._text("config.txt"))
        multifactor = values["PriorityType"] == "priority/multifactor"
        memory = "memory" in values["SelectTypeParameters"].lower()
        return SlurmConfig(values["SLURM_VERSION"], values["ClusterName"], multifactor, memory)

    def jobs(self) -> list[JobRecord]:
        return parse.parse_jobs(self._text("squeue.json"))

    def catch_up(self) -> None:
        return None

    def nodes(self) -> list[NodeRecord]:
        return parse.parse_nodes(self._text("nodes.txt"))

    def reservations(self, nodes: Sequence[NodeRecord]) -> list[Reservation]:
        return []

    def fair_shares(self) -> Mapping[tuple[str, str], float]:
        return {}

    def preemption(self, defaults: PreemptionDefaults) -> PreemptionRules:
        return PreemptionRules()

    def topology(self, partitions: Sequence[str]) -> Topology:
        return Topology()

    def site(self) -> Site:
        return Site()

    def allocations(self, job_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        return {k: v for k, v in parse.parse_allocations(self._text("jobs.txt")).items() if k in job_ids}

    def update(self, updates: Sequence[Update]) -> list[str]:
        self.written.extend(updates)
        return [self.errors.get(update.job_id, "") for update in updates]

    def notify(self, job_id: str, text: str) -> None:
        self.interrupted.append((job_id, text))

    def signal(self, job_id: str, name: str, batch: bool) -> None:
        self.interrupted.append((job_id, name))

    def requeue(self, job_id: str, failed: bool = False) -> None:
        self.interrupted.append((job_id, "requeue"))
