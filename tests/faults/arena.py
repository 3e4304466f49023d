"""A lab under load with asrptd beside it: what the faults act on and what the checker is told."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from slurm_asrpt.audit.trail import FILE_NAME as AUDIT
from slurm_asrpt.errors import AsrptError, SlurmError
from slurm_asrpt.lab.cluster import Lab, up
from slurm_asrpt.lab.spec import LabSpec
from slurm_asrpt.predict.history import FILE_NAME as HISTORY
from slurm_asrpt.predict.history import History
from slurm_asrpt.slurm.arraytasks import read_tasks
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.records import PENDING, RUNNING_STATES, JobRecord
from tests.e2e.conftest import BASE_PORT, COMMANDS, Cluster
from tests.faults.invariants import Facts, Findings, Start, Ticket, Wish, check, long_lease
from tests.faults.wrapper import Wrapper

LEASE_S = 8
TIMEOUT_S = 20.0
CRED_EXPIRE_S = 12
"""Slurm keeps a requeued job waiting for a second longer; its default of 120 s would be most of a campaign."""
USER = "asrpt1"
SCRIPT = 'echo "{token} $SLURM_JOB_ID ${{SLURM_RESTART_COUNT:-0}} $SLURMD_NODENAME $(date +%s.%N)" >> ran.out\n{rest}\n'
JOB = r"JobId=(\d+(?:_\d+)?)(?:\(\d+\))?"
"""As slurmctld's log says it: 12, or 12_3(15)."""
STATE_MB = 24
POLICIES: dict[str, dict[str, Any]] = {
    "hlas": {"queues": 3, "first_gpu_s": 4.0, "min_run_s": 3.0, "max_interruptions": 2},
}
"""Settings that are not the defaults, by policy: hours are seconds here."""
GRACE_S = 6.0
WARNINGS = ("history.sqlite is damaged", "and are lost")
"""Words of a line of asrptd's log that says that its history misses something."""


@contextlib.contextmanager
def arena(port: int = BASE_PORT + 100, policy: str = "asrpt", plain: bool = False) -> Iterator[Arena]:
    """A lab with accounting, Slurm's commands behind wrappers, and a state folder on a small file system of its own.

    plain: without asrptd, to see what Slurm alone makes of a fault.
    """
    directory = Path(tempfile.mkdtemp(prefix="asrpt-f-", dir="/tmp"))
    directory.rmdir()
    wrappers = directory.with_name(directory.name + "-bin")
    settings: dict[str, dict[str, Any]] = {
        "slurm": {"bin_dir": str(wrappers), "timeout_s": TIMEOUT_S, "client": "cli"},
        "daemon": {"interval_s": 0.5, "progress_s": 1.0, "lease_s": LEASE_S, "unpin_after_s": 4.0},
        "policy": {"name": policy, **POLICIES.get(policy, {})},
        "interrupt": {"grace_s": GRACE_S},
    }
    extra = f"AuthInfo=socket={directory}/munge/s,cred_expire={CRED_EXPIRE_S}\n"
    spec = LabSpec(
        directory=directory, nodes="4x4", base_port=port, users=1, accounting=True, settings=settings,
        slurm_conf_extra=extra,
    )  # fmt: skip
    state = directory / "asrpt" / "state"
    lab = up(spec)
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={STATE_MB}m,mode=700", "tmpfs", state], check=True)
        made = Arena(lab, Wrapper(wrappers), plain)
        try:
            yield made
        finally:
            made.close()
            if "ASRPT_TEST_KEEP" not in os.environ:
                subprocess.run(["umount", "-l", state], check=False)
    finally:
        lab.down(purge="ASRPT_TEST_KEEP" not in os.environ)
        shutil.rmtree(wrappers, ignore_errors=True)


class Arena(Cluster):
    """One campaign's cluster. tickets, records: of the present round.

    cancelled: tokens of what an owner has taken back in the middle of it, and when Slurm had said yes.
    """

    def __init__(self, lab: Lab, wrapper: Wrapper, plain: bool) -> None:
        super().__init__(lab)
        self.wrapper, self.plain = wrapper, plain
        self.log.touch()
        self.tickets: list[Ticket] = []
        self.records: dict[str, JobRecord] = {}
        self.long_leases: list[str] = []
        self.lost_state, self.held = False, set[str]()
        self.cancelled: dict[str, float] = {}
        self._ever_lost_state = False
        self._number = 0
        self._began, self._controller_began, self._audited = (0.0, 0), 0, 0
        self._lock = threading.Lock()

    # asrptd

    def launch(self, command: Sequence[str | Path] = (COMMANDS / "asrptd",)) -> subprocess.Popen[bytes]:
        """Start asrptd and wait for nothing."""
        with self.log.open("ab") as log:
            return subprocess.Popen(command, env=self.lab.env, stdout=log, stderr=log)

    def ensure(self, limit_s: float = 90.0) -> None:
        """asrptd runs and has done a cycle; it is started where it has ended, as systemd would."""
        if self.plain:
            return
        before, deadline = time.time(), time.monotonic() + limit_s
        while self.status_written() < before:
            if self.daemon is None or self.daemon.poll() is not None:
                self.daemon = self.launch()
                time.sleep(0.5)
            if time.monotonic() > deadline:
                raise AsrptError(f"asrptd has not done a cycle within {limit_s:g} s; see {self.log}")
            time.sleep(0.1)

    def kill(self) -> None:
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            daemon.kill()
            daemon.wait()

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop_daemon()
        self.kill()

    # the load

    def begin(self) -> None:
        """A new round: what came before has been checked."""
        self.tickets, self.records, self.long_leases, self.lost_state = [], {}, [], False
        self.held, self.cancelled = set[str](), {}
        self._controller_began = len(self.controller_log())
        self._began = (time.time(), self.log.stat().st_size)
        self._audited = len(self._all_entries())

    def put(
        self, wish: Wish, *options: str, seconds: float = 0.5, gpus: int = 1, managed: bool = True, node: str = ""
    ) -> Ticket:
        """Submit one job; an sbatch that fails may have submitted it all the same, so it is noted too."""
        where = [*([] if managed else ["-p", "other"]), *(["-w", node] if node else [])]
        words = ["-n", str(gpus), "--gpus-per-task=1", *where, *options]
        ticket = Ticket(self._token(), "", wish, managed and not self.plain, nodes=node)
        return self._put(ticket, words, f"sleep {seconds:.2f}")

    def put_training(self, iterations: int, silent: bool) -> Ticket:
        """A job of a node's GPUs that may be interrupted, 20 iterations a second. silent: reports no checkpoint."""
        token = self._token()
        train = f"{self.lab.train} --checkpoint {token}.at --iterations {iterations} --speedup 20 --wait 300"
        rest = f"trap '' USR1\nexec {'env -u ASRPT_PROGRESS_DIR ' if silent else ''}{train} >> {token}.out"
        words = ["-N1", "-n1", "--gpus=4", "--requeue", "--comment=asrpt:interrupt=B:USR1"]
        return self._put(Ticket(token, "", iterations=iterations), words, rest)

    def put_array(self, tasks: int, bound: int, seconds: float = 0.5, gpus: int = 1) -> list[Ticket]:
        """Submit an array, of which so many tasks may run at once, 0 for all; a ticket for each of its tasks."""
        name = self._token()
        words = ["-n", str(gpus), "--gpus-per-task=1", f"--array=1-{tasks}{f'%{bound}' if bound else ''}"]
        whole = Ticket(name, "", Wish.RUN, not self.plain)
        job_id = self._submit(whole, words, f"sleep {seconds:.2f}", f"{name}.$SLURM_ARRAY_TASK_ID")
        tickets = [
            replace(whole, token=f"{name}.{task}", job_id=job_id and f"{job_id}_{task}") for task in range(1, tasks + 1)
        ]
        with self._lock:
            self.tickets += tickets
        return tickets

    def wishes(self, changed: Mapping[str, Wish]) -> None:
        """Their owners want these jobs elsewhere now."""
        with self._lock:
            self.tickets = [replace(t, wish=changed.get(t.token, t.wish)) for t in self.tickets]

    def _token(self) -> str:
        with self._lock:
            self._number += 1
            return f"t{self._number:05}"

    def _put(self, ticket: Ticket, words: Sequence[str], rest: str) -> Ticket:
        ticket = replace(ticket, job_id=self._submit(ticket, words, rest, ticket.token))
        with self._lock:
            self.tickets.append(ticket)
        return ticket

    def _submit(self, ticket: Ticket, words: Sequence[str], rest: str, said: str) -> str:
        """The job's id, "" where sbatch failed. said: the token, as the script says it."""
        script = SCRIPT.format(token=said, rest=rest)
        with contextlib.suppress(SlurmError):
            return self.submit("-J", ticket.token, "-o", "/dev/null", *words, script=script, user=USER)
        return ""

    def put_some(self, rng: Random, count: int) -> None:
        """A mixed bag: most to run at once, some held, put off, dependent, cancelled, choosy, or not for asrptd."""
        for _ in range(count):
            self._put_one(rng)

    def _put_one(self, rng: Random) -> None:
        seconds, gpus, kind = rng.uniform(0.1, 1.0), rng.choice((1, 1, 2, 3, 4, 6, 8)), rng.random()
        if kind < 0.06:
            self.put(Wish.HELD, "--hold", seconds=seconds, gpus=gpus)
        elif kind < 0.12:
            self.put(Wish.LATER, "--begin=now+2hours", seconds=seconds, gpus=gpus)
        elif kind < 0.18:
            ticket = self.put(Wish.CANCELLED, seconds=seconds, gpus=gpus)
            with contextlib.suppress(SlurmError):
                self.cancel(*filter(None, [ticket.job_id]))
        elif kind < 0.24:
            self.put(Wish.RUN, seconds=seconds, gpus=min(gpus, 4), managed=False)
        elif kind < 0.34:
            self.put_array(rng.randint(2, 5), rng.choice((0, 0, 1, 2)), seconds=seconds, gpus=min(gpus, 4))
        elif kind < 0.42 and self.tickets and self.tickets[-1].job_id and self.tickets[-1].wish is Wish.RUN:
            self.put(Wish.RUN, f"--dependency=afterany:{self.tickets[-1].job_id}", seconds=seconds, gpus=gpus)
        elif kind < 0.48:
            self.put(Wish.RUN, seconds=seconds, gpus=min(gpus, 2), node=rng.choice(("n1", "n2")))
        elif kind < 0.54:
            self.put(Wish.RUN, rng.choice(("--exclude=n1", "--exclusive")), seconds=seconds, gpus=min(gpus, 4))
        else:
            self.put(Wish.RUN, seconds=seconds, gpus=gpus)

    def put_many(self, count: int, *options: str, wish: Wish = Wish.RUN) -> None:
        """So many sbatch at once as this machine can."""
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda _: self.put(wish, *options, seconds=0.0), range(count)))

    @contextlib.contextmanager
    def load(self, rng: Random, pause_s: float = 0.25) -> Iterator[None]:
        """Submissions in the background while a fault happens."""
        stop, own = threading.Event(), Random(rng.random())

        def submit() -> None:
            while not stop.is_set():
                self._put_one(own)
                stop.wait(own.uniform(0, 2 * pause_s))

        thread = threading.Thread(target=submit, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    # looking

    def look(self) -> None:
        """Note what Slurm says of each of our jobs now. Raises SlurmError."""
        self._ever_lost_state |= self.lost_state
        if self._ever_lost_state:  # the numbers that it gives anew may be of rounds before
            self._resume_drained()
        read_in_full = CliClient(self.client.settings)  # one that knows many jobs already tells of new ones later
        found = {token: record for record in read_in_full.jobs() for token in tokens_of(record)}
        now = time.time()  # a crowded machine may read for seconds, and leases are renewed meanwhile
        if self._ever_lost_state:
            self._cancel_ghosts(found.values())
        for ticket in list(self.tickets):
            record = found.get(ticket.token)
            if record is not None:
                self.records[ticket.token] = record
                held = ticket.wish is Wish.RUN and record.state == PENDING and not record.priority
                if held and self._ever_lost_state:
                    self._release(record)
                if self.daemon is not None and ticket.managed:
                    self.long_leases += long_lease(ticket, record, LEASE_S, now)

        for token in self.cancelled.keys() - found.keys():
            if token in self.records and self.records[token].array_tasks:
                del self.records[token]  # Slurm keeps no record of a task that is cancelled before it is parted
        going = set(self.waited_for())
        missed = (t for t in self.tickets if t.job_id and (t.token in going or t.token not in self.records))
        self._ask_sacct([ticket for ticket in missed if ticket.token not in found])

    def _ask_sacct(self, tickets: Sequence[Ticket]) -> None:
        """Slurm forgets ended jobs after MinJobAge, and a crowded machine may not have looked in time."""
        if not tickets:
            return
        tokens = {ticket.job_id: ticket.token for ticket in tickets}
        fields = "jobid,jobname,state,admincomment"
        said = self.lab.run(["sacct", "-n", "-P", "-X", "-j", ",".join(tokens), "-o", fields]).stdout
        for job_id, name, state, comment in (line.split("|") for line in said.splitlines()):
            token = token_of(job_id, name)
            going = state in (PENDING, *RUNNING_STATES)
            if tokens.get(job_id) == token and going and self.lost_state:
                self.records.pop(token, None)  # slurmctld, which has just answered, has forgotten it
            elif tokens.get(job_id) == token:
                unseen = JobRecord(job_id, token, USER, -1, "gpu", "", "", 0.0, admin_comment=comment)
                known = self.records.get(token, unseen)  # of a job that runs sacct has no comment
                tag = known.admin_comment or comment
                self.records[token] = replace(known, state=state.split(" ")[0], admin_comment=tag)

    def _resume_drained(self) -> None:
        """As an admin does: a slurmctld that has given a number anew drains the node that refuses it for that."""
        for line in self.lab.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %E"]).stdout.splitlines():
            name, _, reason = line.partition(" ")
            if reason == "Duplicate jobid":
                self.lab.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"], check=False)

    def _release(self, record: JobRecord) -> None:
        """As an admin does: a slurmctld that has lost its state gives numbers anew that its nodes still run jobs of."""
        self.held.update(tokens_of(record))
        self.lab.run(["scontrol", "release", record.job_id], check=False)

    def _cancel_ghosts(self, records: Iterable[JobRecord]) -> None:
        """As an admin does: a slurmctld that has forgotten the end of jobs lets them hold GPUs for minutes.

        Of rounds before, too: it comes back with them each time.
        """
        gone = ghosts(self.controller_log())
        for record in records:
            if record.state in RUNNING_STATES and record.job_id in gone:
                self.held.update(tokens_of(record))
                self.lab.run(["scancel", record.job_id], check=False)

    def waited_for(self) -> list[str]:
        """Tokens of jobs that must end and have not, by the last look.

        Not what a killed slurmctld forgot, nor what was cancelled and is gone.
        """
        going, over = (PENDING, *RUNNING_STATES), self._completed()
        wanted = [t for t in self.tickets if t.wish in (Wish.RUN, Wish.CANCELLED)]
        known = self.records.keys() | self.cancelled.keys()
        unseen = [t.token for t in wanted if t.job_id and t.token not in known and not self.lost_state]
        left = {t.token: self.records[t.token] for t in wanted if t.token in self.records}
        return unseen + [token for token, record in left.items() if record.state in going and record.job_id not in over]

    def drain(self, limit_s: float) -> None:
        """Wait until every job that is to end has ended and asrptd has seen it; on a broken promise no longer."""
        self._until(lambda: not self.waited_for(), limit_s)
        self._until(lambda: not self._unseen(), 15.0 + 0.02 * len(self.tickets))  # its cycles take longer with many

    def _until(self, done: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            with contextlib.suppress(SlurmError):
                self.look()
                if done():
                    return
            time.sleep(0.4)

    def _unseen(self) -> list[str]:
        told = {entry.get("job") for entry in self.entries() if entry["event"] in ("ended", "vanished")}
        ran = {start.token for start in self.starts()}
        return [t.job_id for t in self.tickets if t.managed and t.token in ran and t.job_id not in told]

    def findings(self) -> Findings:
        """The invariants on everything that this round has brought."""
        said = self.log.read_bytes()[self._began[1] :].decode(errors="replace")
        facts = Facts(
            tickets=self.tickets,
            starts=self.starts(),
            records=self.records,
            runs=self.times_run(),
            audit=self.entries(),
            lease_s=LEASE_S,
            now=time.time(),
            warned=any(word in said for word in WARNINGS),
            hook_warned="asrpt: " in self._controller_said(),
            slurm_lost_state=self.lost_state,
            recovered=recovered(self._controller_said()) if self.lost_state else (),
            completed=self._completed(),
            held=sorted(self.held & {ticket.token for ticket in self.tickets}),
            cancelled=self.cancelled,
            spans={ticket.token: self.spans(ticket.token) for ticket in self.tickets if ticket.iterations},
            most_interruptions=POLICIES["hlas"]["max_interruptions"],
        )
        found = check(facts)
        found.other += sorted(set(self.long_leases))
        found.other += [f"asrptd raised: {line}" for line in said.splitlines() if line.startswith("Traceback")]
        return found

    def said_of(self, token: str) -> list[str]:
        """Everything that was written about a job: by asrptd, slurmctld, slurmdbd, and by itself."""
        ids = {ticket.job_id for ticket in self.tickets if ticket.token == token}
        named = re.compile(rf"JobId=({'|'.join(ids) or '-'})\b")
        said = [str(ticket) for ticket in self.tickets if ticket.token == token]
        said += [str(self.records[token])] if token in self.records else []
        said += [str(start) for start in self.starts() if start.token == token]
        said += [json.dumps(entry) for entry in self.entries() if entry.get("job") in ids]
        said += [line for line in self._controller_said().splitlines() if named.search(line) or "Saving all" in line]
        fields = "jobid,jobname,state,submit,start,end,restarts,nodelist"
        return (
            said
            + self.lab.run(["sacct", "-D", "-P", "-j", ",".join(ids), "-o", fields], check=False).stdout.splitlines()
        )

    def as_slurm_shows_it(self) -> list[str]:
        """Nodes and queue: why jobs wait for ever may stand at neither of them."""
        nodes = ["sinfo", "-N", "-O", "NodeList,StateLong,Gres,GresUsed:30,Reason:30"]
        jobs = ["squeue", "-a", "-t", "all", "-o", "%i %j %T %r %S %D %N %p"]
        return [line for ask in (nodes, jobs) for line in self.lab.run(ask, check=False).stdout.splitlines()]

    def _controller_said(self) -> str:
        return self.controller_log()[self._controller_began :]

    def _completed(self) -> set[str]:
        """Ids of jobs that slurmctld has seen to their end; killed then, it may call them running again for minutes."""
        return set(re.findall(rf"_job_complete: {JOB} done", self._controller_said())) if self.lost_state else set()

    def starts(self) -> list[Start]:
        file = self.lab.home(USER) / "ran.out"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        mine = {ticket.token for ticket in self.tickets}
        rows = [line.split() for line in lines]
        return [Start(row[0], row[1], int(row[2]), row[3], float(row[4])) for row in rows if row[0] in mine]

    def spans(self, token: str) -> list[tuple[int, int]]:
        """The iterations that a training has said to be done, as (first, last)."""
        file = self.lab.home(USER) / f"{token}.out"
        said = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        return [(int(first), int(last)) for first, last in re.findall(r"iterations (\d+) to (\d+) are done", said)]

    def entries(self) -> list[dict[str, Any]]:
        """The audit trail of this round: a slurmctld that has lost its state gives numbers of earlier ones anew."""
        return self._all_entries()[self._audited :]

    def _all_entries(self) -> list[dict[str, Any]]:
        """A line that a kill has torn cannot be read."""
        entries = []
        for file in sorted((self.paths / "state").glob(f"{AUDIT}*")):
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    entries.append(json.loads(line))
        return [entry for entry in entries if abs(entry["time"] - time.time()) < 2 * 86400]

    def times_run(self) -> Counter[str]:
        with contextlib.suppress(AsrptError), History(self.paths / "state" / HISTORY, read_only=True) as history:
            return Counter(run.job_id for run in history.runs(since=int(self._began[0]) - 7200))
        return Counter()

    def tidy(self) -> None:
        """The owner takes back what was to wait, and the cluster is whole again."""
        waiting = [t.job_id for t in self.tickets if t.job_id and t.wish in (Wish.HELD, Wish.LATER)]
        stuck = [t.job_id for t in self.tickets if t.token in self.waited_for()]
        if waiting or stuck:
            self.lab.run(["scancel", *waiting, *stuck], check=False)

    def signal_all(self, daemons: Sequence[str], number: int = signal.SIGKILL) -> None:
        """Send a signal to daemons of the lab by name."""
        for daemon in self.lab.daemons:
            if daemon.name in daemons:
                daemon.signal(number)


def token_of(job_id: str, name: str) -> str:
    """Of a job: its name; of a task of an array with its number."""
    _, _, task = job_id.partition("_")
    return f"{name}.{task}" if task else name


def tokens_of(record: JobRecord) -> list[str]:
    """Of a job, or of all tasks of an array that wait in this record."""
    if record.array_tasks:
        return [f"{record.name}.{task}" for some in read_tasks(record.array_tasks) for task in some]
    return [token_of(record.job_id, record.name)]


def recovered(log: str) -> set[str]:
    """Ids of jobs that slurmctld has started, then found waiting when it came back, and started again."""
    again = set[str]()
    begun: dict[str, bool] = {}  # whether it has come back since the start
    for what, job_id in re.findall(rf"(Allocate|Started|Recovered) {JOB}", log):
        if what == "Recovered":
            begun |= {job_id: True} if job_id in begun else {}
        else:
            again |= {job_id} if begun.get(job_id) else set()
            begun[job_id] = False
    return again


def ghosts(log: str) -> set[str]:
    """Ids of jobs that slurmctld has seen to their end, and has called running again since it came back."""
    over: dict[str, bool] = {}  # whether it has come back since the end
    events = rf"(submit_batch_job:|Allocate|Started|Recovered|_job_complete:) {JOB}( Assoc| done)?"
    for what, job_id, more in re.findall(events, log):
        if more == " done":
            over[job_id] = False
        elif what == "Recovered" and job_id in over:
            over[job_id] = True
        elif what in ("submit_batch_job:", "Allocate", "Started"):  # another job, or another run
            over.pop(job_id, None)
    return {job_id for job_id, back in over.items() if back}
