"""Rounds of faults on one lab: a round is a fault under load, a drain, and the checker; the result is counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from random import Random

import pytest

from slurm_asrpt.errors import AsrptError, one_line
from tests.faults.arena import Arena
from tests.faults.counts import Counts
from tests.faults.faults import Fault

DRAIN_S = 150.0
PER_JOB_S = 0.4
"""Additional drain time per job, because all jobs start and end on one machine."""

Say = Callable[[str], None]


def play(arena: Arena, fault: Fault, seed: str, size: int) -> Counts:
    """Run one round. Every choice is determined by ``seed``."""
    rng, began, counts = Random(f"{seed}/{fault.name}"), time.monotonic(), Counts(fault.name)
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
    told = [text.split()[0] for text in found.other if text.split()[0] in arena.records]
    counts.evidence += [
        line for token in (found.lost + found.stuck + found.twice + told)[:5] for line in arena.records_of(token)
    ]
    counts.evidence += arena.slurm_view() if found.stuck else []
    arena.tidy()
    counts.seconds = time.monotonic() - began
    return counts


def _tell(arena: Arena, text: str) -> str:
    """A token with the last state that Slurm reported."""
    record = arena.records.get(text)
    return f"{text} (job {record.job_id}, {record.state}, {record.reason})" if record else text


def _inject(arena: Arena, fault: Fault, rng: Random, size: int) -> int:
    if fault.own_load:
        return fault.inject(arena, rng, size)
    arena.put_some(rng, rng.randint(3, 8))
    with arena.load(rng):
        time.sleep(rng.uniform(0.0, 1.0))
        return fault.inject(arena, rng, size)


def campaign(arena: Arena, faults: Iterable[Fault], seed: int, times: int, totals: list[Counts], say: Say) -> None:
    """Inject each fault this many times, also after failures, so that the counts are complete.

    totals: one row per fault, updated after every round, so that an interrupted campaign keeps its counts.
    """
    for fault in faults:
        total, round_ = Counts(fault.name), 0
        totals.append(total)
        while total.injected < times:
            size = fault.size if fault.own_load else min(fault.size, times - total.injected)
            counts = play(arena, fault, f"{seed}.{round_}", size)
            total.add(counts)
            round_ += 1
            verdict = "; ".join(counts.failures) or "sound"
            say(f"{fault.name} {total.injected}/{times}, {counts.submitted} jobs, {counts.seconds:.0f} s: {verdict}")
            for line in counts.evidence:
                say(f"    {line}")
            if not counts.injected:
                break
