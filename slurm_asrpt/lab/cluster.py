"""A lab: bring a real Slurm up in a directory, use it, take it down.

lab = up(LabSpec(directory=Path("/tmp/my-lab"), nodes="4x8"))
lab.run(["sbatch", "--wrap", "srun hostname"], user="asrpt1")
lab.down()
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_asrpt.errors import InputError, MachineError, SlurmError
from slurm_asrpt.lab import accounting, files, hooks, machine, processes, users
from slurm_asrpt.lab.client import LabClient
from slurm_asrpt.lab.paths import STATE_FILE
from slurm_asrpt.lab.processes import Daemon
from slurm_asrpt.lab.spec import LabSpec
from slurm_asrpt.text import counted

Say = Callable[[str], None]


def _silent(text: str) -> None:
    """Say nothing: the default listener of ``up``."""


@dataclass(frozen=True)
class LabStatus:
    """What runs now. dead: daemons that were started and are gone. nodes, jobs: how many in each state."""

    directory: str
    controller: bool
    alive: int
    dead: tuple[str, ...]
    nodes: Mapping[str, int]
    jobs: Mapping[str, int]


class Lab(LabClient):
    """A lab that is up, or was. Made by ``up`` and ``load``."""

    # ---- daemons

    @property
    def daemons(self) -> list[Daemon]:
        """Every daemon that this lab has started, dead or alive."""
        return processes.read_daemons(self.paths.pids)

    @property
    def running(self) -> bool:
        return any(daemon.alive for daemon in self.daemons)

    def start_slurmctld(self, timeout_s: float = 30.0) -> None:
        """Start the controller and wait for its first answer. Raises MachineError with the tail of its log."""
        command = [machine.program("slurmctld"), "-D", "-f", str(self.slurm_conf)]
        daemon = self._start("slurmctld", command)
        self._wait("slurmctld answers", self.controller_up, [daemon], self.paths.log / "slurmctld.log", timeout_s)

    def stop_slurmctld(self, crash: bool = False) -> None:
        """Stop the controller; crash: without a chance to save its state."""
        daemon = processes.read_daemon(self.paths.pids / "slurmctld.pid")
        if daemon and crash:
            daemon.signal(9)
        if daemon:
            processes.end([daemon], patience_s=30.0)

    def restart_slurmctld(self) -> None:
        """Stop and start the controller, and wait until it knows its nodes' state again. Raises MachineError."""
        self.stop_slurmctld()
        self.start_slurmctld()
        self.wait_for_nodes()

    def wait_for_nodes(self, timeout_s: float = 60.0) -> None:
        """Wait until no node is unknown or silent (``*``) to the controller. Raises MachineError."""

        def known() -> bool:
            return not any("unknown" in state or "*" in state for state in self.node_states())

        self._wait("every node has answered", known, [], self.paths.log / "slurmctld.log", timeout_s)

    def start_node(self, name: str) -> Daemon:
        """Start the slurmd of a node that slurm.conf has."""
        return self._start(f"slurmd.{name}", [machine.program("slurmd"), "-D", "-N", name, "-f", str(self.slurm_conf)])

    def stop_node(self, name: str) -> None:
        """End the slurmd of a node; its jobs go on until Slurm misses it."""
        daemon = processes.read_daemon(self.paths.pids / f"slurmd.{name}.pid")
        processes.end([daemon] if daemon else [])

    def _start(self, name: str, command: Sequence[str]) -> Daemon:
        return processes.start(name, command, self.env, self.paths.log / f"{name}.out", self.paths.pids)

    def _wait(
        self, what: str, ready: Callable[[], bool], needed: Sequence[Daemon], log: Path, timeout_s: float
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            dead = next((daemon.name for daemon in needed if not daemon.alive), None)
            if dead or time.monotonic() > deadline:
                why = f"{dead} has ended" if dead else f"not within {timeout_s:g} s"
                raise MachineError(f"waited until {what}: {why}; the end of {log}: {tail(log)}")
            time.sleep(0.05)

    # ---- bringing up

    def _bring_up(self, say: Say) -> None:
        users.register(self.directory, self.spec.user_names)
        files.write(self.spec, self.paths)
        munged = self._start_munged()
        self._wait("munged answers", self.paths.munge_socket.exists, [munged], self.paths.log / "munged.out", 10.0)
        if self.spec.accounting:
            say("starting MariaDB and slurmdbd")
            self._start_accounting()
        say("starting slurmctld")
        self.start_slurmctld(timeout_s=60.0)
        self._start_nodes(say)

    def _start_munged(self) -> Daemon:
        folder = self.paths.munge
        key = folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        options = {
            "socket": self.paths.munge_socket,
            "key-file": key,
            "pid-file": folder / "pid",
            "log-file": folder / "log",
            "seed-file": folder / "seed",
        }
        arguments = [f"--{name}={path}" for name, path in options.items()]
        return self._start("munged", [machine.program("munged"), "--foreground", "--num-threads=10", *arguments])

    def _start_accounting(self) -> None:
        database = accounting.start_database(self.spec, self.paths, self.env)
        log = self.paths.log / "mariadbd.log"
        self._wait("MariaDB answers", (self.paths.database / "s").exists, [database], log, 60.0)
        slurmdbd = accounting.start_slurmdbd(self.paths, self.env)
        log = self.paths.log / "slurmdbd.log"
        first, *others = accounting.association_commands(self.spec)
        self._wait("slurmdbd answers", lambda: self.run(first, check=False).returncode == 0, [slurmdbd], log, 60.0)
        for command in others:
            self.run(command)

    def _start_nodes(self, say: Say) -> None:
        names = [node.name for node in self.spec.node_list]
        say(f"starting {counted(len(names), 'node')}")
        daemons = [self.start_node(name) for name in names]

        def idle() -> bool:
            states = self.node_states()
            say(f"{states.get('idle', 0)} of {counted(len(names), 'node')} idle")
            return states.get("idle", 0) == len(names)

        log = self.paths.log / f"slurmd.{names[0]}.log"
        self._wait("every node is idle", idle, daemons, log, 30.0 + 0.5 * len(names))

    # ---- looking

    def status(self) -> LabStatus:
        """What runs now. Raises SlurmError."""
        daemons = self.daemons
        up = self.running and self.controller_up()
        return LabStatus(
            directory=str(self.directory),
            controller=up,
            alive=sum(daemon.alive for daemon in daemons),
            dead=tuple(daemon.name for daemon in daemons if not daemon.alive),
            nodes=dict(self.node_states()) if up else {},
            jobs=dict(self.job_states()) if up else {},
        )

    # ---- taking down

    def down(self, purge: bool = False) -> None:
        """End every process of this lab and its jobs; purge: delete its files too. Does nothing twice.

        Raises MachineError if the test users cannot be removed.
        """
        if self.running:
            self.cancel_jobs()
        self._end_daemons()
        users.unregister(self.directory)
        if purge:
            self._delete_files()
            with contextlib.suppress(OSError):  # keeps what somebody else put there
                self.directory.rmdir()

    def cancel_jobs(self, patience_s: float = 5.0) -> None:
        """Cancel all jobs and wait for their end; a controller that is gone must not keep the lab up."""
        with contextlib.suppress(SlurmError, MachineError):
            if not self.controller_up():
                return
            for state in ("PENDING", "RUNNING", "SUSPENDED"):
                self.run(["scancel", "--state", state], check=False)
            deadline = time.monotonic() + patience_s
            while self.run(["squeue", "-h", "-o", "%A"]).stdout.strip() and time.monotonic() < deadline:
                time.sleep(0.05)

    def _end_daemons(self) -> None:
        """End the daemons, those that others need last: nodes, their jobs, controller, slurmdbd, database, munged.

        A node that is just launching a job talks to the controller, and would wait for it for long.
        """
        order = ("slurmctld", "slurmdbd", "mariadbd", "munged")
        daemons = {daemon.name: daemon for daemon in self.daemons}
        last = [daemons.pop(name) for name in order if name in daemons]
        processes.end(daemons.values())
        processes.end_jobs(self.slurm_conf, self.directory)
        for daemon in last:
            processes.end([daemon], patience_s=30.0)
        for file in self.paths.pids.glob("*.pid"):
            file.unlink(missing_ok=True)

    def _delete_files(self) -> None:
        """Delete what a lab puts into its directory, and nothing else."""
        for folder in self.paths.top_level():
            shutil.rmtree(folder, ignore_errors=True)
        self.paths.state_file.unlink(missing_ok=True)


def up(spec: LabSpec, say: Say = _silent) -> Lab:
    """Bring a lab up and wait until every node is idle; ``say`` hears of the progress.

    A failure or an interrupt ends what was started; the logs stay. Raises InputError and MachineError.
    """
    machine.check_root()
    _check_free(spec.directory)
    if spec.hook:
        hooks.hooks_folder(spec)
    machine.check(spec)
    lab = Lab(spec)
    lab._delete_files()  # of a lab that was down
    try:
        lab.paths.create()
        lab._bring_up(say)
    except OSError as error:
        lab.down()
        raise MachineError(f"{error.filename or spec.directory}: {error.strerror}") from error
    except BaseException:
        lab.down()
        raise
    return lab


def load(directory: Path) -> Lab:
    """The lab in ``directory``, up or down. Raises InputError if there is none."""
    file = Path(directory).absolute() / STATE_FILE
    try:
        _check_owner(file.parent)
        return Lab(LabSpec.from_json(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{directory}: no lab there ({error.strerror}: {file.name}); type: asrpt-lab up") from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{file}: damaged; delete the directory and type asrpt-lab up") from error


def _check_owner(directory: Path) -> None:
    """Raises InputError for a folder of somebody else: its pid files could name any process. Raises OSError."""
    found = directory.lstat()
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
        raise InputError(f"{directory}: a link, or not owned by the user that you are; name another with --dir")


def _check_free(directory: Path) -> None:
    """Raises InputError unless the directory is missing, empty, or holds a lab that is down."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: not a directory; name another with --dir")
    if not directory.exists():
        return
    _check_owner(directory)
    if not any(directory.iterdir()):
        return
    if not (directory / STATE_FILE).exists():
        raise InputError(f"{directory}: not empty and not a lab's; name another with --dir")
    if load(directory).running:
        raise InputError(f"{directory}: a lab is running there; take it down first: asrpt-lab down --dir {directory}")


def tail(log: Path, lines: int = 5) -> str:
    """The last lines of a log on one line; what is unreadable is said to be so."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"({error.strerror})"
    return " | ".join(text.splitlines()[-lines:]) or "(empty)"


def status_json(status: LabStatus) -> str:
    """A status as one JSON object."""
    return json.dumps(vars(status), default=list)
