"""A lab: start a real Slurm cluster in a directory, use it, shut it down.

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
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_asrpt.errors import InputError, MachineError, SlurmError
from slurm_asrpt.lab import accounting, clock, conf, machine, processes
from slurm_asrpt.lab.machine import identity
from slurm_asrpt.lab.processes import Daemon
from slurm_asrpt.lab.spec import STATE_FILE, LabPaths, LabSpec
from slurm_asrpt.text import counted

COMMAND_TIMEOUT_S = 60.0

Say = Callable[[str], None]


def _silent(text: str) -> None:
    """The default progress listener of ``up``."""


@dataclass(frozen=True)
class LabStatus:
    """The state of a lab. dead: daemons that have exited. nodes, jobs: how many are in each state."""

    directory: str
    controller: bool
    alive: int
    dead: tuple[str, ...]
    nodes: Mapping[str, int]
    jobs: Mapping[str, int]


class Lab:
    """A lab, running or stopped. Created by ``up`` and ``load``."""

    def __init__(self, spec: LabSpec) -> None:
        self.spec = spec
        self.paths = LabPaths(spec.directory)

    @property
    def directory(self) -> Path:
        return self.spec.directory

    @property
    def settings_path(self) -> Path:
        """The lab's asrpt.toml."""
        return self.paths.settings

    @property
    def slurm_conf(self) -> Path:
        return self.paths.slurm_conf

    @property
    def train(self) -> Path:
        """The program that simulates training, for job scripts."""
        return self.paths.bin / "asrpt-train"

    @property
    def env(self) -> dict[str, str]:
        """Environment of client commands: this process's, with the lab's variables in place of Slurm's."""
        return self._machine_env | dict(self.clock.variables if self.clock else {})

    @property
    def _machine_env(self) -> dict[str, str]:
        """The same on the machine's clock."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH_", "SALLOC_", "SRUN_"))}
        return kept | {"SLURM_CONF": str(self.slurm_conf), "ASRPT_CONFIG": str(self.settings_path)}

    @property
    def clock(self) -> clock.Clock | None:
        """The lab's clock; None if it has the machine's."""
        return clock.load(self.paths) if self.spec.accelerated else None

    def time(self) -> float:
        """Seconds since 1970 on the lab's clock."""
        own = self.clock
        return own.time() if own else time.time()

    def home(self, user: str | None = None) -> Path:
        """Where a test user's jobs run and write their output."""
        return self.paths.home / (user or "root")

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        user: str | None = None,
        input: str | None = None,
        cwd: Path | None = None,
        check: bool = True,
        timeout_s: float = COMMAND_TIMEOUT_S,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a client command in the lab, as root or a test user, in that user's home directory.

        Raises SlurmError if it fails (unless check=False) or times out, InputError for an unknown user.
        """
        words = [os.fspath(word) for word in command]
        variables = self.env | {"HOME": str(self.home(user)), "USER": user or "root"} | dict(env or {})
        who = identity(user) if user else None
        try:
            done = subprocess.run(
                words,
                input=input if input is not None else "",
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                env=variables,
                cwd=cwd or self.home(user),
                timeout=timeout_s,
                user=who[0] if who else None,
                group=who[1] if who else None,
                extra_groups=[] if who else None,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmError(f"{' '.join(words[:3])}: no answer within {timeout_s:g} s") from error
        except OSError as error:
            raise SlurmError(f"{words[0]}: cannot be started ({error.strerror})") from error
        if check and done.returncode:
            raise SlurmError(f"{' '.join(words[:3])}: exit code {done.returncode}: {done.stderr or done.stdout}")
        return done

    def controller_up(self) -> bool:
        """Whether slurmctld answers."""
        with contextlib.suppress(SlurmError):
            return " UP" in self.run(["scontrol", "ping"], check=False, timeout_s=10.0).stdout
        return False

    def node_states(self) -> Counter[str]:
        """How many nodes are in each state. Raises SlurmError."""
        return _count(self.run(["sinfo", "-h", "-N", "-p", self.spec.partitions[0], "-o", "%T"]).stdout)

    def job_states(self) -> Counter[str]:
        """How many jobs are in each state. Raises SlurmError."""
        return _count(self.run(["squeue", "-h", "-t", "all", "-o", "%T"]).stdout)

    # ---- daemons

    @property
    def daemons(self) -> list[Daemon]:
        """All daemons of this lab, running or not."""
        return processes.read_daemons(self.paths.pids)

    @property
    def running(self) -> bool:
        return any(daemon.alive for daemon in self.daemons)

    def start_slurmctld(self, timeout_s: float = 30.0) -> None:
        """Start slurmctld and wait until it answers. Raises MachineError with the end of its log."""
        command = [machine.program("slurmctld"), "-D", "-f", str(self.slurm_conf)]
        daemon = self._start("slurmctld", command)
        self._wait("slurmctld answers", self.controller_up, [daemon], self.paths.log / "slurmctld.log", timeout_s)

    def stop_slurmctld(self, crash: bool = False) -> None:
        """Stop slurmctld. crash: by SIGKILL, so that it cannot save its state."""
        daemon = processes.read_daemon(self.paths.pids / "slurmctld.pid")
        if daemon and crash:
            daemon.signal(9)
        if daemon:
            processes.end([daemon], patience_s=30.0)

    def restart_slurmctld(self) -> None:
        """Restart slurmctld, and wait until it knows the state of its nodes. Raises MachineError."""
        self.stop_slurmctld()
        self.start_slurmctld()
        self.wait_for_nodes()

    def restart(self) -> None:
        """Restart slurmctld and all slurmds, which read their configuration anew. Raises MachineError."""
        names = [node.name for node in self.spec.node_list]
        self.stop_slurmctld()
        for name in names:
            self.stop_node(name)
        self.start_slurmctld()
        for name in names:
            self.start_node(name)
        self.wait_for_nodes()

    def wait_for_nodes(self) -> None:
        """Wait until no node is unknown or not responding (``*``). Raises MachineError."""

        def known() -> bool:
            return not any("unknown" in state or "*" in state for state in self.node_states())

        self._wait("every node has answered", known, [], self.paths.log / "slurmctld.log", 60.0)

    def start_node(self, name: str) -> Daemon:
        """Start the slurmd of a node in slurm.conf."""
        # On a fast clock, a slurmd that starts may give up on a pipe before its other end does, and die of SIGPIPE.
        patient = ["env", "--ignore-signal=PIPE"] if self.spec.accelerated else []
        command = [*patient, machine.program("slurmd"), "-D", "-N", name, "-f", str(self.slurm_conf)]
        return self._start(f"slurmd.{name}", command)

    def stop_node(self, name: str) -> None:
        """Stop the slurmd of a node. Its jobs run on until Slurm marks the node down."""
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
                why = f"{dead} has exited" if dead else f"timeout after {timeout_s:g} s"
                raise MachineError(f"waiting until {what}: {why}; last lines of {log}: {tail(log)}")
            time.sleep(0.05)

    # ---- start

    def _start_daemons(self, say: Say) -> None:
        machine.register(self.directory, self.spec.user_names)
        conf.write(self.spec, self.paths)
        if self.spec.accelerated:
            clock.start(self.spec.speed, self.paths)
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
        command = [machine.program("munged"), "--foreground", "--num-threads=10", *arguments]
        # on the machine's clock: it gives up on clients after two seconds, which may be milliseconds on the lab's
        return processes.start("munged", command, self._machine_env, self.paths.log / "munged.out", self.paths.pids)

    def _start_accounting(self) -> None:
        database = accounting.start_database(self.spec, self.paths, self._machine_env)  # its locks need no clock
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

    # ---- status

    def status(self) -> LabStatus:
        """The state of the lab. Raises SlurmError."""
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

    # ---- shutdown

    def down(self, purge: bool = False) -> None:
        """End the lab's daemons and jobs. purge: delete its files too. Safe to run repeatedly.

        Raises MachineError if the test users cannot be removed.
        """
        if self.running:
            self.cancel_jobs()
        self._end_daemons()
        machine.unregister(self.directory)
        if purge:
            self._delete_files()
            with contextlib.suppress(OSError):  # not empty: keep what others put there
                self.directory.rmdir()

    def cancel_jobs(self, patience_s: float = 5.0) -> None:
        """Cancel all jobs and wait until they have ended. Without a controller, do nothing."""
        with contextlib.suppress(SlurmError, MachineError):
            if not self.controller_up():
                return
            for state in ("PENDING", "RUNNING", "SUSPENDED"):
                self.run(["scancel", "--state", state], check=False)
            deadline = time.monotonic() + patience_s
            while self.run(["squeue", "-h", "-o", "%A"]).stdout.strip() and time.monotonic() < deadline:
                time.sleep(0.05)

    def _end_daemons(self) -> None:
        """End the daemons in order of dependency: nodes and their jobs, slurmctld, slurmdbd, MariaDB, munged.

        A slurmd that is launching a job would wait for a stopped controller.
        """
        order = ("slurmctld", "slurmdbd", "mariadbd", "munged", clock.NAME)
        daemons = {daemon.name: daemon for daemon in self.daemons}
        last = [daemons.pop(name) for name in order if name in daemons]
        processes.end(daemons.values())
        processes.end_jobs(self.slurm_conf, self.directory)
        for daemon in last:
            # munged looks at a signal only after its next client, if the signal comes just before it waits for one
            processes.end([daemon], patience_s=30.0, requests=30 if daemon.name == "munged" else 1)
        for file in self.paths.pids.glob("*.pid"):
            file.unlink(missing_ok=True)
        clock.remove(self.paths)

    def _delete_files(self) -> None:
        """Delete the lab's files, and nothing else in its directory."""
        for folder in self.paths.top_level():
            shutil.rmtree(folder, ignore_errors=True)
        self.paths.state_file.unlink(missing_ok=True)


def up(spec: LabSpec, say: Say = _silent) -> Lab:
    """Start a lab and wait until every node is idle. ``say`` is called with progress messages.

    On failure or interrupt, the daemons are ended; the logs stay. Raises InputError and MachineError.
    """
    machine.check_root()
    _check_free(spec.directory)
    if spec.hook:
        conf.hooks_folder(spec)
    machine.check(spec)
    lab = Lab(spec)
    lab._delete_files()  # of a stopped lab
    try:
        lab.paths.create()
        lab._start_daemons(say)
    except OSError as error:
        lab.down()
        raise MachineError(f"{error.filename or spec.directory}: {error.strerror}") from error
    except BaseException:
        lab.down()
        raise
    return lab


def load(directory: Path) -> Lab:
    """The lab in ``directory``, running or stopped. Raises InputError if there is none."""
    file = Path(directory).absolute() / STATE_FILE
    try:
        _check_owner(file.parent)
        return Lab(LabSpec.from_json(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(
            f"{directory}: no lab there ({error.strerror}: {file.name}); start one with asrpt-lab up"
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{file}: damaged; delete the directory, then run asrpt-lab up") from error


def _check_owner(directory: Path) -> None:
    """Raises InputError for another user's directory: its pid files could name any process. Raises OSError."""
    found = directory.lstat()
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
        raise InputError(f"{directory}: a link, or owned by another user; choose another directory with --dir")


def _check_free(directory: Path) -> None:
    """Raises InputError unless the directory is missing, empty, or holds a lab that is down."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: not a directory; choose another with --dir")
    if not directory.exists():
        return
    _check_owner(directory)
    if not any(directory.iterdir()):
        return
    if not (directory / STATE_FILE).exists():
        raise InputError(f"{directory}: not empty, and not a lab; choose another with --dir")
    if load(directory).running:
        raise InputError(f"{directory}: a lab is running there; stop it first: asrpt-lab down --dir {directory}")


def tail(log: Path, lines: int = 5) -> str:
    """The last lines of a log, joined; the error if it is unreadable."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"({error.strerror})"
    return " | ".join(text.splitlines()[-lines:]) or "(empty)"


def status_json(status: LabStatus) -> str:
    """A status as one JSON object."""
    return json.dumps(vars(status), default=list)


def _count(lines: str) -> Counter[str]:
    """Counts by state. Slurm's suffixes (idle*, idle~ ...) make another state."""
    return Counter(lines.lower().split())
