"""The results of faults over rounds and runs: counted, stored as JSON, and shown as the table of docs/faults.md."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LEDGER = Path(__file__).with_name("counts.json")
"""The runs that docs/faults.md shows."""
COLUMNS = ("injected", "submitted", "lost", "stuck", "twice", "other", "slurms_own")
TITLES = ("injected", "jobs submitted", "lost", "stuck", "run twice", "other breaches", "Slurm's own")


@dataclass
class Counts:
    """The results of one fault over all rounds. failures: failed rounds and breaches as text, each with its seed.

    evidence: records of slurmctld, sacct and the audit trail for jobs that were lost, stuck or run twice.
    """

    fault: str
    injected: int = 0
    submitted: int = 0
    lost: int = 0
    stuck: int = 0
    twice: int = 0
    slurms_own: int = 0
    other: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)

    def add(self, more: Counts) -> None:
        for name, value in asdict(more).items():
            if name != "fault":
                setattr(self, name, getattr(self, name) + value)


def keep(path: Path, totals: Sequence[Counts], seed: int, policy: str) -> None:
    """Append a run to the file, which need not exist."""
    runs = load(path) if path.exists() else []
    date = time.strftime("%Y-%m-%d", time.gmtime())
    counts = [{**asdict(total), "seconds": round(total.seconds)} for total in totals]
    runs.append({"date": date, "seed": seed, "policy": policy, "counts": counts})
    path.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> list[dict[str, Any]]:
    """The runs in a file."""
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return runs


def of(runs: Iterable[dict[str, Any]], names: Iterable[str]) -> list[tuple[Counts, list[int]]]:
    """The counts of each of these faults over all runs, and the seeds."""
    rows = [(run["seed"], Counts(**counts)) for run in runs for counts in run["counts"]]
    found = []
    for name in names:
        total, seeds = Counts(name), dict[int, None]()
        for seed, counts in rows:
            if counts.fault == name:
                total.add(counts)
                seeds[seed] = None
        if seeds:
            found.append((total, list(seeds)))
    return found


def table(rows: Sequence[tuple[str, Counts, Sequence[int]]]) -> str:
    """A Markdown table of each fault's text, counts and seeds."""
    lines = ["| fault | " + " | ".join(TITLES) + " | seeds |", "|---|" + "---:|" * len(COLUMNS) + "---|"]
    for text, counts, seeds in rows:
        lines.append(f"| {text} | {_cells(counts)} | {', '.join(map(str, seeds))} |")
    total = Counts("all")
    for _, counts, _ in rows:
        total.add(counts)
    return "\n".join([*lines, f"| **all** | {_cells(total)} | |"])


def _cells(counts: Counts) -> str:
    return " | ".join(str(getattr(counts, name)) for name in COLUMNS)
