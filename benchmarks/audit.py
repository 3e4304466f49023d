"""What the audit trail costs: python -m benchmarks.audit --pending 10000 --json

A daemon's scheduler on a Slurm in memory (tests/benches/fake_slurm.py), 250 nodes of 8 GPUs, asrpt-gated, all GPUs
taken and ``--pending`` jobs waiting. ``idle``: cycles in which nothing changes; ``busy``: one job ends and one starts
in each. CPU microseconds, medians. ``witness_us``: to keep what a decision is made from, in each cycle. ``told_us``:
the digest of the inputs and the line of the cycle, in cycles in which something was recorded. ``start_us``: facts of a
start, the runner-up included. ``share``: of these three in the whole of a busy cycle; a real Slurm's answers take
longer to read. ``idle_bytes``: written in the idle cycles. ``bytes_per_start``: mean length of a start's line;
``bytes_per_decision``: of all that was written over the starts.
"""

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
PARTS = ("decide", "cycle_facts", "start_facts")


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Meanwhile the time that the scheduler spends on records of decisions is added up, but for the policy's own."""
    kept = {name: getattr(decisions, name) for name in PARTS}
    inputs = decisions._inputs

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments)
            finally:
                spent[name] = spent.get(name, 0.0) + time.process_time() - began

        return run

    decisions._inputs = wrap("witness", inputs)
    decisions.cycle_facts = wrap("told", kept["cycle_facts"])
    decisions.start_facts = wrap("start", kept["start_facts"])
    try:
        yield
    finally:
        decisions._inputs = inputs
        decisions.cycle_facts, decisions.start_facts = kept["cycle_facts"], kept["start_facts"]


def cycles(bench: Bench, before: Callable[[], None]) -> list[dict[str, float]]:
    """Seconds by part of so many cycles."""
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
        slurm._schedule = lambda: None  # type: ignore[method-assign]  # of so many jobs it takes minutes; see start
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
    told = trail.read_text().splitlines()[lines:]
    starts = [line for line in told if '"event": "start"' in line]
    share = statistics.median((spent["whole"] and sum(_parts(spent).values()) / spent["whole"]) for spent in busy)
    return {
        "pending": pending,
        "idle": _microseconds(idle),
        "busy": _microseconds(busy),
        "share": round(share, 3),
        "idle_bytes": idle_bytes,
        "bytes_per_start": round(statistics.mean(len(line) + 1 for line in starts)),
        "bytes_per_decision": round(sum(len(line) + 1 for line in told) / len(starts)),
    }


def _start_pinned(bench: Bench) -> None:
    """What Slurm does with a pinned job."""
    for tracked in bench.scheduler.jobs.values():
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
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--pending", type=int, default=2300)
    options = parser.parse_args(arguments)
    print(json.dumps(measure(options.pending), indent=None if options.json else 2))


if __name__ == "__main__":
    main()
