"""Compare the cycles of asrptd and sched/backfill on the same queue: python -m benchmarks.cycle --pending 2300 --json

The lab has 250 nodes with 8 GPUs, all in use, and ``--pending`` pending jobs of Table I's models. Plain Slurm schedules
for a while, then asrptd in mode enforce, with leases as under a long-running daemon, then plain Slurm again:
``--turns`` turns each and ``--seconds`` in total. The speed of a machine varies, and alternating turns give both the
same conditions. Meanwhile, a user submits, lists and cancels jobs, and every other second a running job ends, so that
there is something to start.

``cycle_s``: median of asrptd's cycles, which consist of ``read_s`` (squeue, scontrol and their parsing), ``decide_s``
and ``write_s`` (state, starts, lease renewals). ``whole_s``: the same with the steps after the cycle, ``show_s``
(status.json, hook.conf) and the step of the forecast. ``cpu_s_per_cycle``: CPU time, including Slurm's commands and
forecasts; ``cpu_share``: of a core. ``between_s``: mean time of the work in the following pause, which delays no
decision (saving state again, reading jobs in full, host files). ``slurm_backfill_cycle_s``: mean from sdiag. ``ratio``:
``cycle_s`` over it. ``whole_ratio``: ``whole_s`` over it. ``rpc_per_cycle``: asrptd's requests to slurmctld, from
sdiag. ``slurmctld_cpu_share``: CPU time of slurmctld over elapsed time while asrptd schedules; ``_plain``: while Slurm
does. ``sbatch_ratio``, ``squeue_ratio``: median latency under asrptd over that under plain Slurm just before, the
median of the turns; ``_ratios`` has each turn. ``_p90_ratio``: the same for the 90th percentiles, because most of the
time no cycle is running. ``_inside_ms``: the part of the latency in which slurmctld waits for its locks and answers,
from sdiag (means); the rest is the command itself. ``period_s``: time from cycle to cycle, longer than ``--interval``
if cycles are expensive. ``--cycles``: after the last turn, asrptd continues until it has completed this number of
cycles; ``rss_mb`` is measured after a tenth of them, at the end, and at the maximum. ``--rules``: a site's limits,
priorities and preemption are in force (``busylab.RULES``). Needs root.
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

from benchmarks.busylab import (
    RULED,
    RULES,
    RULES_CONF,
    Bystander,
    big_lab,
    cpu_s,
    hand_over_all,
    lease_all,
    occupy,
    rss_mb,
    set_rules,
)
from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.config.settings import DaemonSettings
from slurm_asrpt.daemon.state import FILE_NAME as STATE
from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab.asrptd import asrptd
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.lab.spec import LabSpec

LEASE_S = 600
NICE = 10
"""Nice value of asrptd's session: a tenth of the weight of others, like CPUWeight=10 in its unit file."""
ASKED = ("REQUEST_JOB_INFO", "REQUEST_JOB_INFO_SINGLE", "REQUEST_NODE_INFO", "REQUEST_PARTITION_INFO")
RPCS = {"sbatch": "REQUEST_SUBMIT_BATCH_JOB", "squeue": "REQUEST_JOB_USER_INFO"}
"""The RPCs of a user's sbatch and squeue --me."""
CYCLE = re.compile(r"cycle of \d+ jobs took ([\d.]+) s: (.*)")
BETWEEN = re.compile(r"between cycles ([\d.]+) s")
DECISIVE = ("read", "decide", "write")
PARTS = ("cycle", "whole", *DECISIVE, "show")


@dataclass
class Phase:
    """Measurements while one of the two scheduled. sdiag: its output at the end; counts start with the phase."""

    sdiag: str
    slurmctld_cpu_share: float
    sbatch: Sequence[float]
    squeue: Sequence[float]

    def backfill(self, name: str) -> float:
        """A figure of sdiag's backfilling section, times in seconds; 0.0 if there was no cycle."""
        found = re.search(rf"Backfilling stats.*?\t{name}:\s+(\d+)", self.sdiag, re.DOTALL)
        return int(found[1]) * (1e-6 if "cycle" in name and "Total" not in name else 1.0) if found else 0.0

    def rpcs(self, kind: str) -> int:
        return self._of_rpc(kind, "count")

    def rpc_ms(self, kind: str) -> float:
        """Mean response time of slurmctld: its locks and its work, without the user's command."""
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
    """The cycles in asrptd's log, at log level debug."""

    def __init__(self, lab: Lab) -> None:
        self.path = lab.paths.log / f"asrptd-enforce-{DEFAULT_POLICY}.log"
        self.path.touch()  # before asrptd creates it

    def cycles(self) -> list[dict[str, float]]:
        text = self.path.read_text(encoding="utf-8", errors="replace")
        found = [{"whole": float(took), **_parts(parts)} for took, parts in CYCLE.findall(text)]
        return [{**cycle, "cycle": sum(cycle[part] for part in DECISIVE)} for cycle in found]

    def between(self) -> list[float]:
        """Seconds of work in the pause after each cycle."""
        return [float(took) for took in BETWEEN.findall(self.path.read_text(encoding="utf-8", errors="replace"))]

    def wait(self, cycles: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while len(self.cycles()) < cycles and time.monotonic() < deadline:
            time.sleep(0.5)


def _parts(text: str) -> dict[str, float]:
    return {name: float(seconds) for name, _, seconds in (part.partition(" ") for part in text.split(", "))}


@dataclass
class Turn:
    """Plain Slurm, then asrptd. cpu_s: of asrptd and its commands. memory: after the last turn."""

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
    # an asrptd with saved state takes leases that it did not write for begin times of the owners
    (lab.paths.asrpt / "state" / STATE).unlink(missing_ok=True)
    old = len(log.cycles())
    with asrptd(lab, "enforce", DEFAULT_POLICY, "debug") as pid:
        _as_a_service(pid)
        log.wait(old + 2, 120.0)  # the first cycles add all jobs to the policy
        before, cpu = len(log.cycles()), cpu_s(pid, children=True)
        ours = observe(lab, seconds)
        done, between, cpu = log.cycles()[before:], log.between()[before:], cpu_s(pid, children=True) - cpu
        return Turn(plain, ours, done, between, cpu, lease_s, _memory(log, pid, cycles))


def _as_a_service(pid: int) -> None:
    """Give asrptd less CPU weight than all others: with autogroups, a nice value only counts within a session."""
    os.setpriority(os.PRIO_PROCESS, pid, NICE)
    session = Path(f"/proc/{pid}/autogroup")
    if session.exists():
        session.write_text(str(NICE), encoding="ascii")


def measure(lab: Lab, options: argparse.Namespace) -> dict[str, object]:
    set_rules(lab, RULES if options.rules else ())
    occupy(lab, options.pending, RULED if options.rules else ("",))
    seconds, last = options.seconds / options.turns, options.turns - 1
    turns = [take_turn(lab, seconds, options.cycles if n == last else 0) for n in range(options.turns)]
    cycles = [cycle for turn in turns for cycle in turn.cycles]
    if not cycles:
        raise MachineError(f"asrptd completed no cycle in {seconds:g} s; increase --seconds")
    between = [seconds for turn in turns for seconds in turn.between]
    found = _cycle_figures(cycles) | {"between_s": round(statistics.fmean(between or [0.0]), 4)}
    cpu = sum(turn.cpu_s for turn in turns)
    found |= {"cpu_s_per_cycle": round(cpu / len(cycles), 3), "cpu_share": round(cpu / options.seconds, 3)}
    found |= _slurm_figures(turns)
    backfill = found["slurm_backfill_cycle_s"]
    asked = sum(_asked(turn.ours) for turn in turns)
    return {
        "pending": options.pending,
        "rules": options.rules,
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
    """Slurm's own statistics, as means over the turns."""
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
    """The latencies that users saw under both, in milliseconds."""
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
    """The 90th percentile."""
    return statistics.quantiles(seconds, n=10)[-1]


def _memory(log: Log, pid: int, cycles: int) -> dict[str, float]:
    """Resident memory until this number of cycles is complete, from a tenth of them on."""
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
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--pending", type=int, default=2300)
    parser.add_argument("--nodes", default="250x8")
    parser.add_argument("--rules", action="store_true", help="with limits, priorities and preemption of a site")
    parser.add_argument("--seconds", type=float, default=100.0, help="seconds for each of the two schedulers")
    parser.add_argument("--turns", type=int, default=4, help="number of turns of each")
    parser.add_argument("--interval", type=float, default=5.0, help="daemon.interval_s")
    parser.add_argument("--cycles", type=int, default=0, help="then continue to this cycle and measure memory")
    parser.add_argument(
        "--scheduler-parameters", default="bf_interval=30", help="for slurm.conf; the default is Slurm's"
    )
    parser.add_argument("--port", type=int, default=28000, help="first port of the lab, which uses up to 260 more")
    options = parser.parse_args(arguments)
    spec = LabSpec(
        nodes=options.nodes,
        base_port=options.port,
        users=4,
        accounting=options.rules,
        multifactor=options.rules,
        slurm_conf_extra=RULES_CONF if options.rules else "",
        scheduler_parameters=options.scheduler_parameters,
        settings={"daemon": {"interval_s": options.interval, "lease_s": LEASE_S}},
    )
    with big_lab(spec) as lab:
        found = measure(lab, options)
    print(json.dumps(found, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
