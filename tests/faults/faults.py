"""The faults by name. Each is injected under load; when its function returns, the cluster is whole again."""

from __future__ import annotations

import contextlib
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from slurm_asrpt.daemon.state import UNSAVED_S
from slurm_asrpt.errors import AsrptError, SlurmError
from slurm_asrpt.history.store import FILE_NAME as HISTORY
from slurm_asrpt.hook.table import FILE_NAME as TABLE
from slurm_asrpt.hook.table import Entry, render_table
from slurm_asrpt.lab import accounting
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.slurm.records import PENDING, JobRecord
from slurm_asrpt.status.document import read_status
from tests.e2e.conftest import wait_for
from tests.faults.arena import LEASE_S, TIMEOUT_S, Arena
from tests.faults.invariants import SLACK_S, Wish
from tests.faults.wrapper import MODES

TAKEOVER_S = 10.0

Inject = Callable[[Arena, Random, int], int]
"""Inject the fault; the last argument is the requested number of injections, the result the actual one."""


@dataclass(frozen=True)
class Fault:
    """text: for the table. own_load: the fault submits its own jobs. size: of its burst; the smoke test uses less.

    policy: the only policy that it applies to; empty: any.
    """

    name: str
    text: str
    inject: Callable[[Arena, Random, int], int]
    size: int = 1
    smoke: int = 1
    own_load: bool = False
    policy: str = ""


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, text: str, size: int = 1, smoke: int = 1, own_load: bool = False, policy: str = ""
) -> Callable[[Inject], Inject]:
    """Register a fault. size: injections (or jobs) in one round; smoke: the same in the default test run."""

    def add(inject: Inject) -> Inject:
        FAULTS[name] = Fault(name, text, inject, size, smoke, own_load, policy)
        return inject

    return add


# the daemons


@fault("sigkill", "asrptd is killed at a random point", size=25, smoke=2)
def sigkill(arena: Arena, rng: Random, size: int) -> int:
    """Half of the points are anywhere, including startup; half within tenths of a second after the state was saved."""
    state, killed = arena.paths / "state" / "state.json", 0
    while killed < size:
        arena.ensure()
        if rng.random() < 0.5:
            _wait_for_save(state, 3.0)
            time.sleep(rng.uniform(0.0, 0.15))
        else:
            time.sleep(rng.uniform(0.0, 1.5))
        arena.kill()
        killed += 1
        if killed < size and rng.random() < 0.2:  # and again before it is up
            arena.daemon = arena.launch()
            time.sleep(rng.uniform(0.0, 2.0))
            arena.kill()
            killed += 1
    return size


def _wait_for_save(state: Path, limit_s: float) -> None:
    def written() -> int:
        with contextlib.suppress(OSError):
            return state.stat().st_mtime_ns
        return 0

    before, deadline = written(), time.monotonic() + limit_s
    while written() == before and time.monotonic() < deadline:
        time.sleep(0.002)


@fault("leases", "asrptd is killed and not restarted: every lease expires")
def leases(arena: Arena, rng: Random, size: int) -> int:
    arena.put_some(rng, 12)
    arena.kill()
    since = time.time()
    time.sleep(LEASE_S + SLACK_S)
    arena.look()
    left = [token for token, record in arena.records.items() if _leased(arena, token, record, since)]
    arena.ensure()
    if left:
        raise AsrptError(f"{LEASE_S + SLACK_S:g} s after asrptd was killed, {', '.join(left)} still had a lease")
    return 1


def _leased(arena: Arena, token: str, record: JobRecord, since: float) -> bool:
    """Whether a job from before still has a lease; Slurm and owners may also delay jobs."""
    wish = next(ticket.wish for ticket in arena.tickets if ticket.token == token)
    ours = wish is Wish.RUN and record.state == PENDING and not record.restarts and not record.dependency
    return ours and record.submit_time <= since and record.eligible_time > time.time()


@fault("slurmctld", "slurmctld is killed and restarted")
def slurmctld(arena: Arena, rng: Random, size: int) -> int:
    crash_slurmctld(arena, rng.uniform(0.0, 6.0))
    return 1


def crash_slurmctld(arena: Arena, away_s: float) -> None:
    arena.lost_state = True
    arena.lab.stop_slurmctld(crash=True)
    time.sleep(away_s)
    arena.lab.start_slurmctld()
    arena.lab.wait_for_nodes()


@fault("both", "asrptd and slurmctld are killed together")
def both(arena: Arena, rng: Random, size: int) -> int:
    time.sleep(rng.uniform(0.0, 1.0))
    arena.kill()
    arena.daemon = arena.launch() if rng.random() < 0.5 else None  # it waits for slurmctld, or starts later
    crash_slurmctld(arena, rng.uniform(0.0, 4.0))
    return 1


@fault("slurmdbd", "slurmdbd and its database are down temporarily")
def slurmdbd(arena: Arena, rng: Random, size: int) -> int:
    lab = arena.lab
    arena.signal_all(["slurmdbd", "mariadbd"])
    time.sleep(rng.uniform(2.0, 8.0))
    accounting.start_mariadbd(lab.spec, lab.paths, lab.env)
    accounting.start_slurmdbd(lab.paths, lab.env)
    return 1


@fault("standby", "the leading asrptd is killed, the standby takes over")
def standby(arena: Arena, rng: Random, size: int) -> int:
    second = arena.launch()
    time.sleep(rng.uniform(2.0, 4.0))
    arena.kill()
    began, arena.daemon = time.monotonic(), second
    wait_for(lambda: f" pid {second.pid} since " in read_status(arena.paths / "run").leader, "the second leads", 60.0)
    took = time.monotonic() - began
    if took > TAKEOVER_S:
        raise AsrptError(f"the standby took over after {took:.1f} s, more than {TAKEOVER_S:g} s")
    return 1


# nodes


@fault("node", "a node dies between pin and start")
def node(arena: Arena, rng: Random, size: int) -> int:
    name = rng.choice([n.name for n in arena.lab.spec.node_list])
    before = len(arena.entries())
    arena.signal_all([f"slurmd.{name}"])
    arena.put(Wish.RUN, gpus=8)
    _until(lambda: any(e["event"] == "start" and name in e["gpus"] for e in arena.entries()[before:]), 10.0)
    arena.scontrol("update", f"NodeName={name}", "State=DOWN", "Reason=fault")
    time.sleep(rng.uniform(1.0, 4.0))
    arena.lab.start_node(name)
    with contextlib.suppress(SlurmError):  # it may have come back by itself
        arena.scontrol("update", f"NodeName={name}", "State=RESUME")
    arena.lab.wait_for_nodes()
    return 1


@fault("deleted", "a node with pinned jobs is removed from slurm.conf and added back")
def deleted(arena: Arena, rng: Random, size: int) -> int:
    """Slurm 22.05 requires a restart of slurmctld; it requeues or fails the jobs that run on the node."""
    arena.put_some(rng, 4)
    with without_last_node(arena.lab):
        time.sleep(rng.uniform(2.0, 5.0))
    return 1


@contextlib.contextmanager
def without_last_node(lab: Lab) -> Iterator[None]:
    """Run slurmctld without the last node; restore the node afterwards."""
    last, files = len(lab.spec.node_list), (lab.slurm_conf, lab.paths.etc / "gres.conf")
    kept = {file: file.read_text(encoding="utf-8") for file in files}
    rest = "n1" if last == 2 else f"n[1-{last - 1}]"
    for file, text in kept.items():
        lines = [line for line in text.splitlines() if not line.startswith(f"NodeName=n{last} ")]
        file.write_text("\n".join(lines).replace(f"n[1-{last}]", rest) + "\n", encoding="utf-8")
    try:
        lab.restart_slurmctld()
        yield
    finally:
        for file, text in kept.items():
            file.write_text(text, encoding="utf-8")
        lab.restart_slurmctld()


def _until(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


# files


@fault("db-locked", "another process locks the history")
def db_locked(arena: Arena, rng: Random, size: int) -> int:
    with contextlib.closing(sqlite3.connect(arena.paths / "state" / HISTORY, timeout=30)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(rng.uniform(4.0, 15.0))
        if rng.random() < 0.5:  # it must also start while the lock is held
            arena.kill()
            arena.ensure()
        connection.execute("ROLLBACK")
    return 1


@fault("db-read-only", "the history is read-only")
def db_read_only(arena: Arena, rng: Random, size: int) -> int:
    """Mount the file read-only onto itself, because file modes do not stop root."""
    history = arena.paths / "state" / HISTORY
    arena.kill()
    with _mounted_read_only(history):
        arena.ensure()
        time.sleep(rng.uniform(2.0, 4.0))
        if rng.random() < 0.5:
            arena.kill()
    arena.ensure()
    return 1


@contextlib.contextmanager
def _mounted_read_only(path: Path) -> Iterator[None]:
    subprocess.run(["mount", "--bind", path, path], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@fault("db-corrupt", "the history's file is damaged")
def db_corrupt(arena: Arena, rng: Random, size: int) -> int:
    history = arena.paths / "state" / HISTORY
    running = rng.random() < 0.5
    if not running:
        arena.kill()
    with history.open("r+b") as file:
        for _ in range(3):
            file.seek(rng.randrange(max(1, history.stat().st_size)))
            file.write(rng.randbytes(2000))
    time.sleep(rng.uniform(1.0, 3.0))
    arena.kill()
    arena.ensure()
    return 1


@fault("disk-full", "the disk of the state directory is full")
def disk_full(arena: Arena, rng: Random, size: int) -> int:
    """The state directory is its own file system."""
    filler = arena.paths / "state" / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x")
    time.sleep(rng.uniform(2.0, 6.0))
    if rng.random() < 0.5:
        arena.kill()
        arena.daemon = arena.launch()
        time.sleep(rng.uniform(0.0, 3.0))
    filler.unlink()
    arena.ensure()
    return 1


@fault("state-read-only", "the state directory is read-only")
def state_read_only(arena: Arena, rng: Random, size: int) -> int:
    """For less time than asrptd waits before it hands the jobs to Slurm, or for more; then, what was saved is old."""
    with _mounted_read_only(arena.paths / "state"):
        time.sleep(rng.uniform(1.0, 8.0) if rng.random() < 0.3 else rng.uniform(UNSAVED_S, 2.5 * UNSAVED_S))
        if rng.random() < 0.5:
            arena.kill()
    arena.ensure()
    return 1


@fault("file-size", "files cannot grow (RLIMIT_FSIZE of asrptd)")
def file_size(arena: Arena, rng: Random, size: int) -> int:
    assert arena.daemon is not None
    limits = resource.prlimit(arena.daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(arena.daemon.pid, resource.RLIMIT_FSIZE, (rng.choice((0, 100, 4096, 20_000)), limits[1]))
    time.sleep(rng.uniform(2.0, 6.0))
    resource.prlimit(arena.daemon.pid, resource.RLIMIT_FSIZE, limits)
    return 1


@fault("half-written", "table, model, state or hook.conf is truncated or corrupt")
def half_written(arena: Arena, rng: Random, size: int) -> int:
    hook, state = arena.paths / "hook", arena.paths / "state"
    (hook / TABLE).write_bytes(render_table({f"{i:016x}": Entry.plain(100 + i) for i in range(50)}))
    files = [hook / TABLE, hook / "hook.conf", state / "state.json", *(state / "models").glob("*")]
    arena.kill()
    for path in rng.sample(files, rng.randint(1, len(files))):
        data = path.read_bytes() if path.is_file() else b""
        path.write_bytes(rng.choice((data[: rng.randrange(len(data) + 1)], rng.randbytes(300), b"")))
    arena.put_some(rng, 3)
    arena.ensure()
    return 1


# time


@fault("clock", "asrptd's clock steps by an hour, forward and back", size=2, smoke=2)
def clock(arena: Arena, rng: Random, size: int) -> int:
    """Uses an injected clock (tests/faults/stepped.py) for asrptd only; Slurm's clock does not change."""
    offset = arena.wrapper.folder / "offset"
    _step(offset, 0)
    arena.kill()
    arena.daemon = arena.launch(command=[sys.executable, "-m", "tests.faults.stepped", str(offset)])
    arena.ensure()
    for step in rng.sample((3600, -3600), 2):
        _step(offset, step)
        time.sleep(rng.uniform(3.0, 5.0))
        _step(offset, 0)
        time.sleep(rng.uniform(1.0, 3.0))
    if rng.random() < 0.5:  # and once while it is down
        arena.kill()
        _step(offset, rng.choice((3600, -3600)))
        arena.daemon = arena.launch(command=[sys.executable, "-m", "tests.faults.stepped", str(offset)])
        time.sleep(3.0)
    arena.kill()
    arena.ensure()
    return 2


def _step(offset: Path, seconds: int) -> None:
    temporary = offset.with_suffix(".new")
    temporary.write_text(str(seconds), encoding="ascii")
    temporary.replace(offset)


# crowds


@fault("burst", "thousands of sbatch at once", size=5000, smoke=60, own_load=True)
def burst(arena: Arena, rng: Random, size: int) -> int:
    """One job in ten runs; the owner cancels the other nine to spare the machine."""
    arena.put_many(size - size // 10, wish=Wish.CANCELLED)
    arena.put_many(size // 10)
    arena.cancel(*(t.job_id for t in arena.tickets if t.job_id and t.wish is Wish.CANCELLED))
    return 1


@fault("cancels", "thousands of jobs are cancelled at once", size=2000, smoke=60, own_load=True)
def cancels(arena: Arena, rng: Random, size: int) -> int:
    blockers = [arena.put(Wish.CANCELLED, gpus=4, seconds=600.0) for _ in range(4)]
    arena.put_many(size, wish=Wish.CANCELLED)
    arena.put_some(rng, 10)
    wanted = [t.job_id for t in arena.tickets if t.job_id and t.wish is Wish.CANCELLED and t not in blockers]
    arena.cancel(*wanted)
    arena.cancel(*(t.job_id for t in blockers if t.job_id))
    return 1


# Slurm's answers


def _add_corrupted_answers(mode: str, text: str) -> None:
    @fault(f"answers-{mode}", text)
    def inject(arena: Arena, rng: Random, size: int) -> int:
        arena.wrapper.set(mode, every=10)
        time.sleep(rng.uniform(10.0, 14.0) + (2 * TIMEOUT_S if mode == "hang" else 0.0))
        count = arena.wrapper.corrupted()
        arena.wrapper.set("pass")
        arena.ensure()
        return count


_TEXTS = {
    "fail": "every tenth call of a Slurm command fails",
    "after": "every tenth call succeeds but reports failure",
    "hang": "every tenth call hangs",
    "cut": "every tenth answer is truncated to half",
    "garbage": "every tenth answer is random bytes",
    "unknown": "every tenth answer has fields and states of a later release",
}
for _mode in MODES:
    _add_corrupted_answers(_mode, _TEXTS[_mode])
