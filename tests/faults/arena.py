"""A lab under load with asrptd: the target of the faults, and the source of facts for the checker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_asrpt.audit.trail import FILE_NAME as AUDIT
from slurm_asrpt.errors import AsrptError, SlurmError
from slurm_asrpt.history.store import FILE_NAME as HISTORY
from slurm_asrpt.history.store import History
from slurm_asrpt.lab.cluster import Lab, up
from slurm_asrpt.lab.spec import LabSpec
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.records import PENDING, RUNNING_STATES, JobRecord
from tests.e2e.conftest import BASE_PORT, COMMANDS
from tests.faults.invariants import Facts, Findings, Start, Ticket, Wish, check, long_lease
from tests.faults.load import USER, Loaded
from tests.faults.tokens import JOB, ghosts, recovered, token_of, tokens_of
from tests.faults.wrapper import Wrapper

LEASE_S = 8
TIMEOUT_S = 20.0
CRED_EXPIRE_S = 12
"""Slurm keeps a requeued job pending for one second longer; the default of 120 s would dominate a campaign."""
TOLD_S = 45.0
"""If Slurm shows 500 jobs or more, including ended ones, asrptd reads new jobs at least every half minute."""
STATE_MB = 24
POLICIES: dict[str, dict[str, Any]] = {
    "hlas": {"queues": 3, "first_gpu_s": 4.0, "min_run_s": 3.0, "max_interruptions": 2},
}
"""Non-default settings by policy: hours are shortened to seconds."""
GRACE_S = 6.0
WARNINGS = ("history.sqlite is damaged", "and are lost")
"""Words in asrptd's log that show that its history is incomplete."""


@contextlib.contextmanager
def arena(port: int = BASE_PORT + 100, policy: str = "asrpt", plain: bool = False) -> Iterator[Arena]:
    """A lab with accounting, wrappers around Slurm's commands, and a state directory on its own small file system.

    plain: without asrptd, to see what Slurm alone does. asrpt-gated has priority/multifactor, where it releases jobs
    ahead; the other policies have priority/basic.
    """
    directory = Path(tempfile.mkdtemp(prefix="asrpt-f-"))
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
        slurm_conf_extra=extra, multifactor=policy == "asrpt-gated",
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


class Arena(Loaded):
    """The cluster of one campaign. records: those of the current round.

    cancelled: tokens of jobs that an owner cancelled during the round, and the times when Slurm confirmed.
    """

    def __init__(self, lab: Lab, wrapper: Wrapper, plain: bool) -> None:
        super().__init__(lab, plain)
        self.wrapper = wrapper
        self.log.touch()
        self.records: dict[str, JobRecord] = {}
        self.long_leases: list[str] = []
        self.lost_state, self.held = False, set[str]()
        self.cancelled: dict[str, float] = {}
        self._ever_lost_state = False
        self._began, self._controller_began, self._audited = (0.0, 0), 0, 0

    # asrptd

    def launch(self, command: Sequence[str | Path] = (COMMANDS / "asrptd",)) -> subprocess.Popen[bytes]:
        """Start asrptd without waiting."""
        with self.log.open("ab") as log:
            return subprocess.Popen(command, env=self.lab.env, stdout=log, stderr=log)

    def ensure(self, limit_s: float = 90.0) -> None:
        """Wait until asrptd has completed a cycle; restart it if it has exited, as systemd would."""
        if self.plain:
            return
        before, deadline = time.time(), time.monotonic() + limit_s
        while self.status_written() < before:
            if self.daemon is None or self.daemon.poll() is not None:
                self.daemon = self.launch()
                time.sleep(0.5)
            if time.monotonic() > deadline:
                raise AsrptError(f"asrptd has not completed a cycle within {limit_s:g} s; see {self.log}")
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

    # a round

    def begin(self) -> None:
        """Start a new round; earlier rounds have been checked."""
        self.tickets, self.records, self.long_leases, self.lost_state = [], {}, [], False
        self.held, self.cancelled = set[str](), {}
        self._controller_began = len(self.controller_log())
        self._began = (time.time(), self.log.stat().st_size)
        self._audited = len(self._all_entries())

    # looking

    def look(self) -> None:
        """Record what Slurm reports for each of our jobs now. Raises SlurmError."""
        self._ever_lost_state |= self.lost_state
        if self._ever_lost_state:  # reused job ids may be from earlier rounds
            self._resume_drained()
        read_in_full = CliClient(self.client.settings)  # a client that knows many jobs reports new ones later
        found = {token: record for record in read_in_full.jobs() for token in tokens_of(record)}
        now = time.time()  # on a busy machine this read takes seconds, and leases are renewed meanwhile
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
                del self.records[token]  # Slurm keeps no record of a task that is cancelled before it is split off
        going = set(self.waited_for())
        missed = (t for t in self.tickets if t.job_id and (t.token in going or t.token not in self.records))
        self._ask_sacct([ticket for ticket in missed if ticket.token not in found])

    def _ask_sacct(self, tickets: Sequence[Ticket]) -> None:
        """Slurm forgets ended jobs after MinJobAge, and on a busy machine ``look`` may be too late."""
        if not tickets:
            return
        tokens = {ticket.job_id: ticket.token for ticket in tickets}
        fields = "jobid,jobname,state,admincomment"
        said = self.lab.run(["sacct", "-n", "-P", "-X", "-j", ",".join(tokens), "-o", fields]).stdout
        for job_id, name, state, comment in (line.split("|") for line in said.splitlines()):
            token = token_of(job_id, name)
            going = state in (PENDING, *RUNNING_STATES)
            if tokens.get(job_id) == token and going and self.lost_state:
                self.records.pop(token, None)  # slurmctld, which has just answered, forgot it
            elif tokens.get(job_id) == token:
                unseen = JobRecord(job_id, token, USER, -1, "gpu", "", "", 0.0, admin_comment=comment)
                known = self.records.get(token, unseen)  # sacct has no comment of a running job
                tag = known.admin_comment or comment
                self.records[token] = replace(known, state=state.split(" ")[0], admin_comment=tag)

    def _resume_drained(self) -> None:
        """Resume nodes, as an admin would: a slurmctld that reuses a job id drains the node that rejects it."""
        for line in self.lab.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %E"]).stdout.splitlines():
            name, _, reason = line.partition(" ")
            if reason == "Duplicate jobid":
                self.lab.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"], check=False)

    def _release(self, record: JobRecord) -> None:
        """Release a job, as an admin would: a slurmctld that lost its state reuses ids of jobs that still run."""
        self.held.update(tokens_of(record))
        self.lab.run(["scontrol", "release", record.job_id], check=False)

    def _cancel_ghosts(self, records: Iterable[JobRecord]) -> None:
        """Cancel ended jobs, as an admin would: a slurmctld that forgot their end lets them hold GPUs for minutes.

        This includes jobs of earlier rounds, which come back each time.
        """
        gone = ghosts(self.controller_log())
        for record in records:
            if record.state in RUNNING_STATES and record.job_id in gone:
                self.held.update(tokens_of(record))
                self.lab.run(["scancel", record.job_id], check=False)

    def waited_for(self) -> list[str]:
        """Tokens of jobs that must end and have not ended, as of the last look.

        Without jobs that a killed slurmctld forgot, or that were cancelled and are gone.
        """
        going, over = (PENDING, *RUNNING_STATES), self._completed()
        wanted = [t for t in self.tickets if t.wish in (Wish.RUN, Wish.CANCELLED)]
        known = self.records.keys() | self.cancelled.keys()
        unseen = [t.token for t in wanted if t.job_id and t.token not in known and not self.lost_state]
        left = {t.token: self.records[t.token] for t in wanted if t.token in self.records}
        return unseen + [token for token, record in left.items() if record.state in going and record.job_id not in over]

    def drain(self, limit_s: float) -> None:
        """Wait, up to a limit, until every job that must end has ended and asrptd has seen it."""
        self._until(lambda: not self.waited_for(), limit_s)
        self._until(lambda: not self._unseen(), TOLD_S + 0.02 * len(self.tickets))  # cycles take longer with many jobs

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
        """Check the invariants on everything in this round."""
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
            hook_warned="asrpt: " in self._controller_output(),
            slurm_lost_state=self.lost_state,
            recovered=recovered(self._controller_output()) if self.lost_state else (),
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

    def records_of(self, token: str) -> list[str]:
        """All records of a job: by asrptd, slurmctld, slurmdbd, and the job itself."""
        ids = {ticket.job_id for ticket in self.tickets if ticket.token == token}
        named = re.compile(rf"JobId=({'|'.join(ids) or '-'})\b")
        said = [str(ticket) for ticket in self.tickets if ticket.token == token]
        said += [str(self.records[token])] if token in self.records else []
        said += [str(start) for start in self.starts() if start.token == token]
        said += [json.dumps(entry) for entry in self.entries() if entry.get("job") in ids]
        said += [line for line in self._controller_output().splitlines() if named.search(line) or "Saving all" in line]
        fields = "jobid,jobname,state,submit,start,end,restarts,nodelist"
        return (
            said
            + self.lab.run(["sacct", "-D", "-P", "-j", ",".join(ids), "-o", fields], check=False).stdout.splitlines()
        )

    def slurm_view(self) -> list[str]:
        """Nodes and queue, as evidence for stuck jobs."""
        nodes = ["sinfo", "-N", "-O", "NodeList,StateLong,Gres,GresUsed:30,Reason:30"]
        jobs = ["squeue", "-a", "-t", "all", "-o", "%i %j %T %r %S %D %N %p"]
        return [line for ask in (nodes, jobs) for line in self.lab.run(ask, check=False).stdout.splitlines()]

    def _controller_output(self) -> str:
        return self.controller_log()[self._controller_began :]

    def _completed(self) -> set[str]:
        """Ids of jobs that slurmctld saw end; after a kill, it may report them as running for minutes."""
        return set(re.findall(rf"_job_complete: {JOB} done", self._controller_output())) if self.lost_state else set()

    def starts(self) -> list[Start]:
        file = self.lab.home(USER) / "ran.out"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        mine = {ticket.token for ticket in self.tickets}
        rows = [line.split() for line in lines]
        return [Start(row[0], row[1], int(row[2]), row[3], float(row[4])) for row in rows if row[0] in mine]

    def spans(self, token: str) -> list[tuple[int, int]]:
        """The iterations that a training reported as done, as (first, last)."""
        file = self.lab.home(USER) / f"{token}.out"
        said = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        return [(int(first), int(last)) for first, last in re.findall(r"iterations (\d+) to (\d+) are done", said)]

    def entries(self) -> list[dict[str, Any]]:
        """The audit trail of this round: a slurmctld that lost its state reuses job ids of earlier rounds."""
        return self._all_entries()[self._audited :]

    def _all_entries(self) -> list[dict[str, Any]]:
        """Lines truncated by a kill are skipped."""
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
        """Cancel the jobs that were to stay pending, and those that are stuck."""
        waiting = [t.job_id for t in self.tickets if t.job_id and t.wish in (Wish.HELD, Wish.LATER)]
        stuck = [t.job_id for t in self.tickets if t.token in self.waited_for()]
        if waiting or stuck:
            self.lab.run(["scancel", *waiting, *stuck], check=False)

    def signal_all(self, daemons: Sequence[str], number: int = signal.SIGKILL) -> None:
        """Send a signal to daemons of the lab by name."""
        for daemon in self.lab.daemons:
            if daemon.name in daemons:
                daemon.signal(number)
