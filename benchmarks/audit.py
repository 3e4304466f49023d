"""Measure the cost of the audit trail: python -m benchmarks.audit --pending 10000 --json

Runs a daemon's scheduler with asrpt-gated on a Slurm in memory (tests/benches/fake_slurm.py) with 250 nodes of 8 GPUs.
All GPUs are in use and ``--pending`` jobs are pending. ``idle`` are cycles without changes; in each ``busy`` cycle,
one job ends and one starts. Times are medians in CPU microseconds. ``witness_us``: recording the inputs of the
decision, in each cycle. ``told_us``: the digest of the inputs and the line of the cycle, in cycles with events.
``start_us``: the facts of a start, including the runner-up. ``share``: these three as a share of a whole busy cycle;
with a real Slurm, a cycle takes longer because its answers must be read. ``idle_bytes``: bytes written in the idle
cycles. ``bytes_per_start``: mean length of the line of a start. ``bytes_per_decision``: all bytes written over the
number of starts."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_asrpt.daemon.record import decisions
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import FakeSlurm

NODES, GPUS, CYCLES = 250, 8, 20
PARTS = {"inputs_of": "witness", "cycle_facts": "told", "start_facts": "start"}
"""The functions of ``decisions`` that are timed, and their names in the figures."""


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Add up the time that the scheduler spends on records of decisions, without that of the policy."""
    kept = {function: getattr(decisions, function) for function in PARTS}

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments)
            finally:
                spent[name] = spent.get(name, 0.0) + time.process_time() - began

        return run

    for function, name in PARTS.items():
        setattr(decisions, function, wrap(name, kept[function]))
    try:
        yield
    finally:
        for function, original in kept.items():
            setattr(decisions, function, original)


def cycles(bench: Bench, before: Callable[[], None]) -> list[dict[str, float]]:
    """Seconds by part, over this number of cycles."""
    found = []
    for _ in range(CYCLES):
        before()
        spent: dict[str, float] = {}
        with timed(spent):
            began = time.process_time()
            bench.scheduler.cycle(bench.slurm.now)
            spent["whole"] = time.process_time() - began
        bench.slurm.tick(1.0)
        found.append(spent)
    return found


def measure(pending: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="asrpt-audit-") as folder:
        slurm = FakeSlurm((GPUS,) * NODES)
        slurm._schedule = lambda: None  # type: ignore[method-assign]  # takes minutes with this many jobs; see start
        bench = Bench(Path(folder), slurm, policy="asrpt-gated", forecast_s=0.0, unpin_after_s=1e6)
        try:
            return _measured(bench, pending)
        finally:
            bench.close()


def _measured(bench: Bench, pending: int) -> dict[str, Any]:
    slurm, trail = bench.slurm, bench.settings.paths.state / "audit.jsonl"
    for number in range(NODES * 2 + pending):
        slurm.submit(4, 1000 + number % 977, "flat")
    bench.cycle()
    _start_pinned(bench)
    bench.cycle()
    size = trail.stat().st_size
    idle = cycles(bench, lambda: None)
    idle_bytes, lines = trail.stat().st_size - size, len(trail.read_text().splitlines())

    def one_ends() -> None:
        _start_pinned(bench)
        slurm.end(next(job_id for job_id, record in slurm.records.items() if record.state == "RUNNING"))

    busy = cycles(bench, one_ends)
    new_lines = trail.read_text().splitlines()[lines:]
    starts = [line for line in new_lines if '"event": "start"' in line]
    share = statistics.median((spent["whole"] and sum(_parts(spent).values()) / spent["whole"]) for spent in busy)
    return {
        "pending": pending,
        "idle": _microseconds(idle),
        "busy": _microseconds(busy),
        "share": round(share, 3),
        "idle_bytes": idle_bytes,
        "bytes_per_start": round(statistics.mean(len(line) + 1 for line in starts)),
        "bytes_per_decision": round(sum(len(line) + 1 for line in new_lines) / len(starts)),
    }


def _start_pinned(bench: Bench) -> None:
    """Start a pinned job, as Slurm does."""
    for tracked in bench.scheduling.jobs.values():
        if tracked.pin is not None and tracked.record.state == "PENDING":
            bench.slurm.change(tracked.record.job_id, state="RUNNING", reason="None", start_time=bench.slurm.now,
                               nodes=",".join(tracked.pin.gpus), gpus_by_node=tracked.pin.gpus)  # fmt: skip


def _parts(spent: dict[str, float]) -> dict[str, float]:
    return {name: seconds for name, seconds in spent.items() if name != "whole"}


def _microseconds(found: Sequence[dict[str, float]]) -> dict[str, int]:
    names = {name for spent in found for name in spent}
    return {f"{name}_us": round(1e6 * statistics.median(s.get(name, 0.0) for s in found)) for name in sorted(names)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--pending", type=int, default=2300)
    options = parser.parse_args(arguments)
    print(json.dumps(measure(options.pending), indent=None if options.json else 2))


if __name__ == "__main__":
    main()
