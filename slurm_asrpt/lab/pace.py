"""Whether this machine bears the pace of a lab's clock: what a lab costs and how late its jobs end.

A start or an end takes the machine the same time at any pace, and so more of the lab's time, the faster its clock goes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.slurm.parse import parse_jobs

MOST_LATE_S = 60.0
"""In the lab's time. Slurm's time limits are whole minutes."""
MOST_CPU = 0.5
"""Share of the machine's CPUs that the lab's daemons may take when nothing waits."""
CPU_S_A_JOB = 0.12
"""What submitting, starting and ending a job costs."""
_JOBS_CPU = 0.4
_TRIAL_S = 1.0
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Pace:
    """A trial. late_s: median by which jobs ended late, in seconds of the lab. cpu: share of the machine's CPUs."""

    speed: float
    late_s: float
    cpu: float

    @property
    def bearable(self) -> float:
        """The speed at which this machine would reach one of the bounds."""
        return self.speed / max(self.late_s / MOST_LATE_S, self.cpu / MOST_CPU, 1e-6)

    def __str__(self) -> str:
        return f"x{self.speed:g}: jobs end {self.late_s:.1f} s of the lab late, daemons take {self.cpu:.0%} of the CPUs"


def check(lab: Lab) -> Pace:
    """Try the pace of a lab that has just started. Raises MachineError if this machine does not bear it."""
    pace = measure(lab)
    if pace.bearable < pace.speed:
        raise MachineError(f"{pace}; this machine bears at most --speed {rounded(pace.bearable):g}")
    return pace


def measure(lab: Lab) -> Pace:
    """Run as many jobs of a second of the machine's time as it has CPUs. Raises SlurmError, MachineError."""
    pids = [daemon.pid for daemon in lab.daemons]
    cpu, began = _cpu_s(pids), time.monotonic()
    late = _lateness(lab, cpus := os.cpu_count() or 1)
    passed = time.monotonic() - began
    return Pace(lab.spec.speed, median(late), (_cpu_s(pids) - cpu) / passed / cpus)


def together(paces: Sequence[Pace]) -> Pace:
    """The pace of labs of the same speed that were tried at the same time."""
    return Pace(paces[0].speed, max(each.late_s for each in paces), sum(each.cpu for each in paces))


def bearable_for(jobs: int, span_s: float) -> float:
    """The speed at which so many jobs in so many seconds of the lab leave most of this machine's CPUs idle."""
    return span_s / (jobs * CPU_S_A_JOB / (_JOBS_CPU * (os.cpu_count() or 1)))


def _lateness(lab: Lab, count: int) -> list[float]:
    seconds = round(_TRIAL_S * lab.spec.speed)
    command = ["sbatch", "--parsable", "-p", lab.spec.partitions[-1], "-c1", "-o/dev/null", f"--array=1-{count}"]
    job = lab.run([*command, "--wrap", f"exec sleep {seconds}"]).stdout.strip()
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(0.2)
        tasks = parse_jobs(lab.run(["squeue", "--json", "--states=all", f"--jobs={job}"]).stdout)
        done = [task.end_time - task.start_time - seconds for task in tasks if task.state == "COMPLETED"]
        if len(done) == count:
            return done
    lab.cancel_jobs()
    raise MachineError(f"jobs of {seconds} s of the lab have not ended after {_PATIENCE_S:g} s; choose a lower --speed")


def _cpu_s(pids: Sequence[int]) -> float:
    """CPU time that processes have taken, in seconds."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime, stime
    return ticks / os.sysconf("SC_CLK_TCK")


def rounded(speed: float) -> float:
    """A speed for people: down to two digits."""
    digits = 10 ** max(0, len(str(int(speed))) - 2)
    return max(1.0, float(speed // digits * digits))
