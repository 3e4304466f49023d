"""Faults in rounds on one lab: a round is a fault under load, a drain, and the checker. Counts come out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from random import Random

import pytest

from slurm_asrpt.errors import AsrptError, one_line
from tests.faults.arena import Arena
from tests.faults.faults import Fault

DRAIN_S = 150.0
PER_JOB_S = 0.4
"""What a job more may add to a drain: this many jobs start and end on one machine."""

Say = Callable[[str], None]


@dataclass
class Counts:
    """What came of one fault, over all its rounds. failures: rounds and breaches in words, with the seed for each.

    evidence: what slurmctld, sacct and the audit trail say of the jobs that were lost, stuck or run twice.
    """

    fault: str
    text: str
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


def play(arena: Arena, fault: Fault, seed: str, size: int) -> Counts:
    """One round. Every choice comes from ``seed``."""
    rng, began, counts = Random(f"{seed}/{fault.name}"), time.monotonic(), Counts(fault.name, fault.text)
    arena.begin()
    try:
        arena.ensure()
        counts.injected = _inject(arena, fault, rng, size)
        arena.ensure()
    except (AsrptError, OSError, pytest.fail.Exception) as error:
        counts.failures.append(f"{seed}: {fault.name}: {one_line(error)}")
    arena.drain(DRAIN_S + PER_JOB_S * len(arena.tickets))
    found = arena.findings()
    counts.submitted, counts.lost, counts.stuck = found.submitted, len(found.lost), len(found.stuck)
    counts.twice, counts.slurms_own, counts.other = len(found.twice), len(found.slurms_own), len(found.other)
    for kind in ("lost", "stuck", "twice", "other"):
        counts.failures += [f"{seed}: {kind}: {_tell(arena, text)}" for text in getattr(found, kind)[:5]]
    counts.evidence += [line for token in (found.lost + found.stuck + found.twice)[:5] for line in arena.said_of(token)]
    arena.tidy()
    counts.seconds = time.monotonic() - began
    return counts


def _tell(arena: Arena, text: str) -> str:
    """A token with what Slurm said of it last."""
    record = arena.records.get(text)
    return f"{text} (job {record.job_id}, {record.state}, {record.reason})" if record else text


def _inject(arena: Arena, fault: Fault, rng: Random, size: int) -> int:
    if fault.own_load:
        return fault.inject(arena, rng, size)
    arena.put_some(rng, rng.randint(3, 8))
    with arena.load(rng):
        time.sleep(rng.uniform(0.0, 1.0))
        return fault.inject(arena, rng, size)


def add(total: Counts, more: Counts) -> None:
    for name, value in asdict(more).items():
        if name not in ("fault", "text"):
            setattr(total, name, getattr(total, name) + value)


def campaign(arena: Arena, faults: Iterable[Fault], seed: int, times: int, totals: list[Counts], say: Say) -> None:
    """Each fault until it has been injected so many times; one that fails goes on: the counts shall be whole.

    totals: a row a fault, right after every round, so that an interrupted campaign has its counts.
    """
    for fault in faults:
        total, round_ = Counts(fault.name, fault.text), 0
        totals.append(total)
        while total.injected < times:
            counts = play(arena, fault, f"{seed}.{round_}", min(fault.size, times) if fault.size <= 10 else fault.size)
            add(total, counts)
            round_ += 1
            verdict = "; ".join(counts.failures) or "sound"
            say(f"{fault.name} {total.injected}/{times}, {counts.submitted} jobs, {counts.seconds:.0f} s: {verdict}")
            for line in counts.evidence:
                say(f"    {line}")
            if not counts.injected:
                break


COLUMNS = ("injected", "submitted", "lost", "stuck", "twice", "other", "slurms_own")
TITLES = ("injected", "jobs submitted", "lost", "stuck", "run twice", "other breaches", "Slurm's own")


def table(totals: Sequence[Counts]) -> str:
    """The counts in Markdown."""
    rows = ["| fault | " + " | ".join(TITLES) + " |", "|---|" + "---:|" * len(COLUMNS)]
    rows += [f"| {c.text} | " + " | ".join(str(getattr(c, name)) for name in COLUMNS) + " |" for c in totals]
    sums = " | ".join(str(sum(getattr(c, name) for c in totals)) for name in COLUMNS)
    return "\n".join([*rows, f"| **all** | {sums} |"])


def as_json(totals: Sequence[Counts], seed: int, policy: str) -> str:
    sums = {name: sum(getattr(c, name) for c in totals) for name in COLUMNS}
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return json.dumps({"date": date, "seed": seed, "policy": policy, **sums, "faults": [asdict(c) for c in totals]})
