"""Kills during each state of a preemption (policy hlas); see docs/decisions/0018."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from slurm_asrpt.errors import AsrptError, SlurmError
from slurm_asrpt.lab import processes
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.lab.processes import Daemon
from tests.faults.arena import Arena
from tests.faults.faults import crash_slurmctld, fault
from tests.faults.invariants import Ticket, Wish

LONG, NEWCOMERS = 4, 2
"""Trainings that fill the lab, and new jobs that preempt two of them."""
LIMIT_S = 120.0

MOMENTS: Mapping[str, tuple[str, Callable[[list[str]], bool]]] = {
    "signalled": ("its signal is sent", lambda events: "signalled" in events),
    "requeued": ("its requeue is requested", lambda events: "requeued" in events),
    "waits": ("it is pending again", lambda events: "requeued" in events and "cut" in events),
    "pinned": ("it is pinned again", lambda events: "cut" in events and events[-1] == "start"),
}
"""The states of a preemption: as text, and a test of a job's events in the audit trail."""


def interrupted(arena: Arena, rng: Random, reached: Callable[[list[str]], bool]) -> str:
    """The id of the first job in this state. Half of the trainings do not report their checkpoint."""
    longs = [arena.put_training(rng.randint(300, 400), silent=rng.random() < 0.5) for _ in range(LONG)]
    _until(lambda: _all_run(arena, longs), "all trainings are running")
    _noted(arena, longs[0].job_id)
    for _ in range(NEWCOMERS):
        arena.put(Wish.RUN, gpus=4, seconds=rng.uniform(0.5, 2.0))
    there: list[Ticket] = []

    def look() -> bool:
        there[:] = [ticket for ticket in longs if reached(_events(arena, ticket))]
        return bool(there)

    _until(look, "a training has reached the state")
    return there[0].job_id


def _all_run(arena: Arena, longs: Sequence[Ticket]) -> bool:
    with suppress(SlurmError):
        arena.look()  # a slurmctld that was killed in an earlier round may need an admin
    return all(_events(arena, ticket)[-1:] == ["running"] for ticket in longs)


def _noted(arena: Arena, job_id: str) -> None:
    """Wait until slurmctld has saved that the jobs run, or a kill would lose them. It saves after a change."""
    state, now = arena.lab.paths.slurmctld_state / "job_state", time.time()
    arena.scontrol("update", f"JobId={job_id}", "Nice=1")
    _until(lambda: state.stat().st_mtime > now, "slurmctld has saved its state")


def _events(arena: Arena, ticket: Ticket) -> list[str]:
    """The job's events in the audit trail, without pending reasons."""
    mine = (entry["event"] for entry in arena.entries() if ticket.job_id and entry.get("job") == ticket.job_id)
    return [event for event in mine if event not in ("wait", "queued")]


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AsrptError(f"timeout after {LIMIT_S:g} s: {what}")
        time.sleep(0.05)


def _slurmctld(arena: Arena, rng: Random, job_id: str) -> None:
    crash_slurmctld(arena, rng.uniform(0.0, 6.0))


def _asrptd(arena: Arena, rng: Random, job_id: str) -> None:
    arena.kill()
    time.sleep(rng.uniform(0.0, 3.0))
    arena.ensure()


def _both(arena: Arena, rng: Random, job_id: str) -> None:
    """asrptd restarts late, when slurmctld knows the end of every job."""
    arena.kill()
    crash_slurmctld(arena, rng.uniform(0.0, 6.0))
    time.sleep(rng.uniform(5.0, 15.0))
    arena.ensure()


def _node(arena: Arena, rng: Random, job_id: str) -> None:
    """Kill a node of the job's last run, or one that it will run on."""
    mine = (entry for entry in reversed(arena.entries()) if entry.get("job") == job_id)
    name = next(name for entry in mine for name in entry.get("gpus", ()))
    kill_node(arena.lab, name)
    arena.scontrol("update", f"NodeName={name}", "State=DOWN", "Reason=fault")
    time.sleep(rng.uniform(1.0, 4.0))
    arena.lab.start_node(name)
    with suppress(SlurmError):  # it may have come back by itself
        arena.scontrol("update", f"NodeName={name}", "State=RESUME")
    arena.lab.wait_for_nodes()


def kill_node(lab: Lab, name: str) -> None:
    """Kill slurmd and all jobs on the node at once: slurmstepd first, or it would report the end of its job."""
    slurmd = [daemon for daemon in lab.daemons if daemon.name == f"slurmd.{name}"]
    running = [process for process in processes.job_processes(lab.slurm_conf, lab.directory) if _on(process, lab, name)]
    for process in sorted(running, key=lambda process: not _is_stepd(process)):
        process.signal(signal.SIGKILL)
    for daemon in slurmd:
        daemon.signal(signal.SIGKILL)


def _on(process: Daemon, lab: Lab, name: str) -> bool:
    """slurmstepd has the node's log open; its children have the node's name in their environment."""
    place = Path("/proc") / str(process.pid)
    with suppress(OSError):
        if _is_stepd(process):
            log = str(lab.paths.log / f"slurmd.{name}.log")
            return any(os.readlink(file) == log for file in (place / "fd").iterdir())
        return f"SLURMD_NODENAME={name}".encode() in (place / "environ").read_bytes().split(b"\0")
    return False


def _is_stepd(process: Daemon) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8", errors="replace").strip() == "slurmstepd"
    return False


_STRIKES: Mapping[str, tuple[str, Callable[[Arena, Random, str], None]]] = {
    "slurmctld": ("slurmctld is killed and restarted", _slurmctld),
    "node": ("its node dies", _node),
    "asrptd": ("asrptd is killed and restarted", _asrptd),
    "both": ("slurmctld and asrptd are killed and restarted", _both),
}


def _add(who: str, moment: str) -> None:
    what, strike = _STRIKES[who]
    when, reached = MOMENTS[moment]

    @fault(f"{moment}-{who}", f"a preempted job: {when}, and {what}", own_load=True, policy="hlas")
    def inject(arena: Arena, rng: Random, size: int) -> int:
        job_id = interrupted(arena, rng, reached)
        time.sleep(rng.choice((0.0, rng.uniform(0.0, 1.0))))
        strike(arena, rng, job_id)
        return 1


for _who in _STRIKES:
    for _moment in MOMENTS:
        _add(_who, _moment)
