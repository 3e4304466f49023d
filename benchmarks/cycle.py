"""asrptd's cycle beside sched/backfill's on the same queue: python -m benchmarks.cycle --pending 2300 --json

One lab of 250 nodes with 8 GPUs, all taken by running jobs, and ``--pending`` jobs of Table I's models behind them.
Plain Slurm has the queue for a while, then asrptd in mode enforce, with leases as of a daemon that has been there for
long, then plain Slurm again, ``--turns`` times each and ``--seconds`` in all: a machine has its moods, and what is
compared shall have the same. Meanwhile a user submits, looks at the queue and cancels, and every other second a running
job ends, so that there is something to start.

``cycle_s``: median of asrptd's cycles, which are ``read_s`` (squeue, scontrol and their parsing), ``decide_s`` and
``write_s`` (state, starts, leases renewed); ``whole_s``: with what comes after them, ``show_s`` (status.json,
hook.conf) and the step of the forecast. ``cpu_s_per_cycle`` is CPU time, Slurm's commands included. ``between_s``: mean
of what is done in the pause after that, as no decision waits for it (state saved again, jobs read in full, host files).
``slurm_backfill_cycle_s``: sdiag's mean. ``ratio``: ``cycle_s`` over it, ``whole_ratio``: ``whole_s`` over it.
``rpc_per_cycle``: what asrptd asked of slurmctld, by sdiag. ``slurmctld_cpu_share``: CPU time of slurmctld over elapsed
time while asrptd schedules; ``_plain``: while Slurm does. ``sbatch_ratio``, ``squeue_ratio``: median latency under
asrptd over that under plain Slurm just before, the median of the turns, which ``_ratios`` has; ``_p90_ratio``: the same
of the 90th percentiles, as no cycle is under way most of the time; ``_inside_ms``: the part of it in which slurmctld
waits for its locks and answers, by sdiag (means); the rest is the command itself. ``period_s``: from cycle to cycle,
more than ``--interval`` where they cost much. ``--cycles``: after the last turn asrptd goes on until it has done so
many cycles: ``rss_mb`` after a tenth of them, at the end and at most. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.busylab import Bystander, big_lab, cpu_s, hand_over_all, lease_all, occupy, rss_mb
from slurm_asrpt.config.settings import DEFAULT_POLICY, DaemonSettings
from slurm_asrpt.daemon.state import FILE_NAME as STATE
from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.lab.demo import asrptd
from slurm_asrpt.lab.spec import LabSpec

LEASE_S = 600
NICE = 10
"""Of asrptd's session: a tenth of another's weight, as CPUWeight=10 of its unit gives its service."""
ASKED = ("REQUEST_JOB_INFO", "REQUEST_JOB_INFO_SINGLE", "REQUEST_NODE_INFO", "REQUEST_PARTITION_INFO")
RPCS = {"sbatch": "REQUEST_SUBMIT_BATCH_JOB", "squeue": "REQUEST_JOB_USER_INFO"}
"""What slurmctld is asked by a user's sbatch and squeue --me."""
CYCLE = re.compile(r"cycle of \d+ jobs took ([\d.]+) s: (.*)")
BETWEEN = re.compile(r"between cycles ([\d.]+) s")
DECISIVE = ("read", "decide", "write")
PARTS = ("cycle", "whole", *DECISIVE, "show")


@dataclass
class Phase:
    """What was seen while one of the two scheduled. sdiag: its text at the end; counts start at the phase's start."""

    sdiag: str
    slurmctld_cpu_share: float
    sbatch: Sequence[float]
    squeue: Sequence[float]

    def backfill(self, name: str) -> float:
        """A figure of sdiag's backfilling section, times in seconds; 0.0 where there was no cycle."""
        found = re.search(rf"Backfilling stats.*?\t{name}:\s+(\d+)", self.sdiag, re.DOTALL)
        return int(found[1]) * (1e-6 if "cycle" in name and "Total" not in name else 1.0) if found else 0.0

    def rpcs(self, kind: str) -> int:
        return self._of_rpc(kind, "count")

    def rpc_ms(self, kind: str) -> float:
        """What slurmctld took to answer, on average: its locks and its work, without the user's command."""
        return self._of_rpc(kind, "ave_time") / 1e3

    def _of_rpc(self, kind: str, figure: str) -> int:
        found = re.search(rf"^\t{kind}\s.*?{figure}:(\d+)", self.sdiag, re.MULTILINE)
        return int(found[1]) if found else 0


def observe(lab: Lab, seconds: float) -> Phase:
    pid = int((lab.paths.pids / "slurmctld.own").read_text(encoding="ascii"))
    lab.run(["sdiag", "--reset"])
    began, cpu = time.monotonic(), cpu_s(pid)
    with Bystander(lab) as user:
        time.sleep(seconds)
    share = (cpu_s(pid) - cpu) / (time.monotonic() - began)
    return Phase(lab.run(["sdiag"]).stdout, share, user.sbatch, user.squeue)


class Log:
    """The cycles in asrptd's log, as it says them at log level debug."""

    def __init__(self, lab: Lab) -> None:
        self.path = lab.paths.log / f"asrptd-enforce-{DEFAULT_POLICY}.log"
        self.path.touch()  # before asrptd has begun it

    def cycles(self) -> list[dict[str, float]]:
        text = self.path.read_text(encoding="utf-8", errors="replace")
        found = [{"whole": float(took), **_parts(parts)} for took, parts in CYCLE.findall(text)]
        return [{**cycle, "cycle": sum(cycle[part] for part in DECISIVE)} for cycle in found]

    def between(self) -> list[float]:
        """Seconds of work in the pause after each of them."""
        return [float(took) for took in BETWEEN.findall(self.path.read_text(encoding="utf-8", errors="replace"))]

    def wait(self, cycles: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while len(self.cycles()) < cycles and time.monotonic() < deadline:
            time.sleep(0.5)


def _parts(text: str) -> dict[str, float]:
    return {name: float(seconds) for name, _, seconds in (part.partition(" ") for part in text.split(", "))}


@dataclass
class Turn:
    """Plain Slurm and asrptd after it. cpu_s: of asrptd and its commands. memory: after the last turn."""

    plain: Phase
    ours: Phase
    cycles: list[dict[str, float]]
    between: list[float]
    cpu_s: float
    lease_s: float
    memory: dict[str, float]


def take_turn(lab: Lab, seconds: float, cycles: int) -> Turn:
    hand_over_all(lab)
    plain = observe(lab, seconds)
    lease_s, log = lease_all(lab, DaemonSettings(lease_s=LEASE_S)), Log(lab)
    # one that remembers takes leases that it has not written for begin times of the jobs' owners
    (lab.paths.asrpt / "state" / STATE).unlink(missing_ok=True)
    old = len(log.cycles())
    with asrptd(lab, "enforce", DEFAULT_POLICY, "debug") as pid:
        _as_a_service(pid)
        log.wait(old + 2, 120.0)  # the first ones tell the policy of all jobs
        before, cpu = len(log.cycles()), cpu_s(pid, children=True)
        ours = observe(lab, seconds)
        done, between, cpu = log.cycles()[before:], log.between()[before:], cpu_s(pid, children=True) - cpu
        return Turn(plain, ours, done, between, cpu, lease_s, _memory(log, pid, cycles))


def _as_a_service(pid: int) -> None:
    """Less weight against all others: a nice value alone counts within a session, where the kernel has autogroups."""
    os.setpriority(os.PRIO_PROCESS, pid, NICE)
    session = Path(f"/proc/{pid}/autogroup")
    if session.exists():
        session.write_text(str(NICE), encoding="ascii")


def measure(lab: Lab, options: argparse.Namespace) -> dict[str, object]:
    occupy(lab, options.pending)
    seconds, last = options.seconds / options.turns, options.turns - 1
    turns = [take_turn(lab, seconds, options.cycles if n == last else 0) for n in range(options.turns)]
    cycles = [cycle for turn in turns for cycle in turn.cycles]
    if not cycles:
        raise MachineError(f"asrptd did no cycle in {seconds:g} s; give --seconds more")
    between = [seconds for turn in turns for seconds in turn.between]
    found = _cycle_figures(cycles) | {"between_s": round(statistics.fmean(between or [0.0]), 4)}
    found |= {"cpu_s_per_cycle": round(sum(turn.cpu_s for turn in turns) / len(cycles), 3), **_slurm_figures(turns)}
    backfill = found["slurm_backfill_cycle_s"]
    asked = sum(_asked(turn.ours) for turn in turns)
    return {
        "pending": options.pending,
        **found,
        **_latencies(turns),
        "ratio": round(found["cycle_s"] / backfill, 3) if backfill else None,
        "whole_ratio": round(found["whole_s"] / backfill, 3) if backfill else None,
        "rpc_per_cycle": round(asked / len(cycles), 1),
        "period_s": round(options.seconds / len(cycles), 2),
        "lease_all_s": round(statistics.median(turn.lease_s for turn in turns), 2),
        **turns[-1].memory,
        "load_average": round(os.getloadavg()[0], 1),
    }


def _asked(phase: Phase) -> int:
    """RPCs of asrptd."""
    return sum(phase.rpcs(kind) for kind in (*ASKED, "REQUEST_UPDATE_JOB")) - len(phase.squeue)


def _cycle_figures(cycles: Sequence[Mapping[str, float]]) -> dict[str, float]:
    found = {f"{name}_s": statistics.median(cycle[name] for cycle in cycles) for name in PARTS}
    worst = max(cycle["cycle"] for cycle in cycles)
    return {name: round(value, 4) for name, value in found.items()} | {"cycle_max_s": worst, "cycles": len(cycles)}


def _slurm_figures(turns: Sequence[Turn]) -> dict[str, float]:
    """What Slurm's own statistics say, as means over the turns."""
    phases = [turn.plain for turn in turns if turn.plain.backfill("Total cycles")]
    names = {"cycle_s": "Mean cycle", "last_s": "Last cycle", "cycles": "Total cycles", "depth": "Depth Mean"}
    found = {
        f"slurm_backfill_{key}": statistics.fmean([phase.backfill(name) for phase in phases] or [0.0])
        for key, name in names.items()
    }
    found["slurmctld_cpu_share"] = statistics.fmean(turn.ours.slurmctld_cpu_share for turn in turns)
    found["slurmctld_cpu_share_plain"] = statistics.fmean(turn.plain.slurmctld_cpu_share for turn in turns)
    return {name: round(value, 3) for name, value in found.items()}


def _latencies(turns: Sequence[Turn]) -> dict[str, float | list[float]]:
    """What users saw of both, in milliseconds."""
    found: dict[str, float | list[float]] = {}
    for name, rpc in RPCS.items():
        inside = [statistics.fmean(phase.rpc_ms(rpc) for phase in side) for side in zip(*_phases(turns), strict=True)]
        found |= {f"{name}_inside_ms": round(inside[0], 1), f"{name}_inside_plain_ms": round(inside[1], 1)}
        pairs = [[statistics.median(getattr(phase, name)) for phase in phases] for phases in _phases(turns)]
        with_us, without = (1e3 * statistics.median(side) for side in zip(*pairs, strict=True))
        ratios = [round(ours / plain, 3) for ours, plain in pairs]
        found |= {f"{name}_ms": round(with_us, 1), f"{name}_plain_ms": round(without, 1)}
        found |= {f"{name}_ratio": round(statistics.median(ratios), 3), f"{name}_ratios": ratios}
        slow = [_slowest_tenth(getattr(turn.ours, name)) / _slowest_tenth(getattr(turn.plain, name)) for turn in turns]
        found |= {f"{name}_p90_ratio": round(statistics.median(slow), 3)}
    return found


def _phases(turns: Sequence[Turn]) -> list[tuple[Phase, Phase]]:
    return [(turn.ours, turn.plain) for turn in turns]


def _slowest_tenth(seconds: Sequence[float]) -> float:
    """Where it begins."""
    return statistics.quantiles(seconds, n=10)[-1]


def _memory(log: Log, pid: int, cycles: int) -> dict[str, float]:
    """Resident memory until so many cycles are done, from a tenth of them on."""
    if not cycles:
        return {}
    log.wait(cycles // 10, 3600.0)
    seen = [rss_mb(pid)]
    for done in range(cycles // 10, cycles, max(1, cycles // 50)):
        log.wait(done, 3600.0)
        seen.append(rss_mb(pid))
    log.wait(cycles, 3600.0)
    seen.append(rss_mb(pid))
    figures = {"rss_first_mb": seen[0], "rss_last_mb": seen[-1], "rss_peak_mb": max(seen)}
    return {name: round(value, 1) for name, value in figures.items()} | {"rss_cycles": len(log.cycles())}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--pending", type=int, default=2300)
    parser.add_argument("--nodes", default="250x8")
    parser.add_argument("--seconds", type=float, default=100.0, help="for each of the two")
    parser.add_argument("--turns", type=int, default=4, help="they take turns, so many each")
    parser.add_argument("--interval", type=float, default=5.0, help="daemon.interval_s")
    parser.add_argument("--cycles", type=int, default=0, help="then go on to so many cycles and look at the memory")
    parser.add_argument("--scheduler-parameters", default="bf_interval=30", help="of slurm.conf; this is the default")
    parser.add_argument("--port", type=int, default=28000, help="the lab takes this one to 260 further")
    options = parser.parse_args(arguments)
    spec = LabSpec(
        nodes=options.nodes,
        base_port=options.port,
        users=4,
        scheduler_parameters=options.scheduler_parameters,
        settings={"daemon": {"interval_s": options.interval, "lease_s": LEASE_S}},
    )
    with big_lab(spec) as lab:
        found = measure(lab, options)
    print(json.dumps(found, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
