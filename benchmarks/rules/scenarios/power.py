"""Power saving: programs that really start and stop slurmd, as a cloud does."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from benchmarks.rules.scenario import ENFORCE, Scenario, Work, admin, mean_completion
from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab.cluster import Lab

_POWER = """\
#!{python}
import subprocess, sys
from pathlib import Path
from slurm_asrpt.lab import machine, processes
from slurm_asrpt.lab.cluster import load
lab = load(Path({directory!r}))
sys.stderr = (lab.paths.log / "power.log").open("a")
print(sys.argv, file=sys.stderr, flush=True)
names = subprocess.run(["scontrol", "show", "hostnames", sys.argv[1]], env=lab.env, capture_output=True, text=True)
for name in names.stdout.split():
    {action}
"""
_RESUME = """\
command = [machine.program("slurmd"), "-D", "-b", "-N", name, "-f", str(lab.slurm_conf)]
    processes.start(f"slurmd.{name}", command, lab.env, lab.paths.log / f"{name}.out", lab.paths.pids)"""
_SUSPEND = """\
daemon = processes.read_daemon(lab.paths.pids / f"slurmd.{name}.pid")
    processes.end([daemon] if daemon else [], patience_s=2.0)  # an idle slurmd may ignore SIGTERM"""
_CLOUD = """
SuspendProgram={etc}/suspend
ResumeProgram={etc}/resume
SuspendTime={suspend_s}
SuspendTimeout=15
ResumeTimeout=60
PrivateData=cloud
"""
POWERED_DOWN = ("n3", "n4")


def power_down(lab: Lab) -> None:
    """Make two nodes cloud nodes and power them down. Raises MachineError."""
    save_power(lab, POWERED_DOWN, 3600)


def power_cycles(lab: Lab) -> None:
    """The same with three of four, which Slurm powers down again after ten idle seconds."""
    save_power(lab, ("n2", *POWERED_DOWN), 10)


def save_power(lab: Lab, nodes: Sequence[str], suspend_s: int) -> None:
    """Make these nodes cloud nodes and power them down; suspend_s: SuspendTime. Raises MachineError."""
    etc = lab.paths.etc
    for name, action in (("suspend", _SUSPEND), ("resume", _RESUME)):
        (etc / name).write_text(_POWER.format(python=sys.executable, directory=str(lab.directory), action=action))
        (etc / name).chmod(0o755)
    lab.stop_slurmctld()
    lines = lab.slurm_conf.read_text(encoding="utf-8").splitlines()
    cloud = tuple(f"NodeName={name} " for name in nodes)
    lines = [line.replace("State=UNKNOWN", "State=CLOUD") if line.startswith(cloud) else line for line in lines]
    lab.slurm_conf.write_text("\n".join(lines) + _CLOUD.format(etc=etc, suspend_s=suspend_s), encoding="utf-8")
    lab.start_slurmctld()
    lab.wait_for_nodes()
    lab.run(["scontrol", "update", f"NodeName={','.join(nodes)}", "State=POWER_DOWN_FORCE"])
    deadline = time.monotonic() + 60.0
    while not (states := _node_states(lab, nodes)) or not all(state.endswith("~") for state in states):
        if time.monotonic() > deadline:
            raise MachineError(f"the nodes are not powered down after a minute: {states}")
        time.sleep(0.5)


def _node_states(lab: Lab, nodes: Sequence[str]) -> list[str]:
    return lab.run(["sinfo", "-h", "-N", "-n", ",".join(nodes), "-p", "gpu", "-o", "%T"]).stdout.split()


SCENARIOS = [
    Scenario(
        "powered_down",
        "two of four nodes are powered down; jobs for one and for both, three times",
        420,
        [
            work
            for at_s in (0, 140, 280)  # at three times of the half minute after which Slurm looks whether nodes are up
            for work in (
                Work("fill", "asrpt1", 2, 100, 8, at_s, options="-N1", fixed=True),
                Work("small", "asrpt2", 4, 10, 1, at_s + 2, fixed=True),
                Work("both", "asrpt3", 1, 10, 16, at_s + 4, options="-N2", fixed=True),
            )
        ],
        prepare=power_down,
        acts=[(at_s, admin("scontrol update NodeName=n3,n4 State=POWER_DOWN_FORCE")) for at_s in (112, 252)],
        modes=(ENFORCE,),
        measured=["small", "both"],
        measure=mean_completion,
    ),
    Scenario(
        "power_cycles",
        "three of four nodes are powered down whenever they are idle for ten seconds: three rushes of jobs, with lulls",
        260,
        [
            Work(role, user, count, seconds, gpus, at_s + 0.5 * number, every_s, options="-N1", fixed=True)
            for at_s in (0, 75, 150)
            for number, (role, user, count, seconds, gpus, every_s) in enumerate(
                (
                    ("small", "asrpt1", 14, 10, 1, 1.5),
                    ("medium", "asrpt2", 10, 15, 4, 2),
                    ("node", "asrpt3", 5, 12, 8, 4),
                )
            )
        ]
        + [Work("wide", "asrpt4", 1, 12, 16, at_s, ask="-N2 --gpus-per-node=8", fixed=True) for at_s in (8, 80, 154)],
        prepare=power_cycles,
        modes=(ENFORCE,),
        measure=mean_completion,
    ),
]
