"""Owners and admins act at random on jobs and array tasks, while asrptd and slurmctld are stopped and restarted.

No job may be lost by this: a released job runs once for each restart that Slurm has counted; a held job stays held; a
cancelled job does not start any more; and after ``asrpt-admin disable``, no pending job has a lease or a node list of
asrptd.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from random import Random

from slurm_asrpt.errors import AsrptError, SlurmError
from slurm_asrpt.slurm.records import PENDING, JobRecord
from tests.faults.arena import CRED_EXPIRE_S, Arena
from tests.faults.faults import fault
from tests.faults.invariants import SLACK_S, Ticket, Wish
from tests.faults.load import USER

REST_S = 2.0
"""If StartTime=now is set in the second of a requeue, Slurm starts the job and then fails it (invalid credential)."""
MANY = 120
"""Actions in a round."""
ENDING_S = 4
"""Limit for a job to end after its requeue, in seconds."""


class Owners:
    """Their actions, each on a job that was to run, in any state. Actions that Slurm rejects do not count."""

    def __init__(self, arena: Arena, rng: Random) -> None:
        self.arena, self.rng = arena, rng
        self._stopped = False
        self._released: set[str] = set()  # by anybody; Slurm may still show them as held

    def do(self) -> None:
        (deed,) = self.rng.choices(list(DEEDS), list(DEEDS.values()))
        deed(self)

    def settle(self) -> None:
        """Release held jobs, except some that never started, which stay held."""
        self.wake()
        self.arena.ensure()
        for _ in range(ENDING_S):  # a job that was held while running becomes held after its requeue
            self.arena.look()
            for ticket in self._to_run():
                record = self.arena.records.get(ticket.token)
                if record is not None and record.state == PENDING and record.reason.startswith("JobHeld"):
                    self._release(ticket, record)
            time.sleep(1.0)

    def _release(self, ticket: Ticket, record: JobRecord) -> None:
        began = record.restarts or any(start.token == ticket.token for start in self.arena.starts())
        awaited = any(ticket.job_id in other.dependency for other in self.arena.records.values())
        if began or awaited or ticket.token in self._released or self.rng.random() < 0.7:
            self._released.add(ticket.token)
            self.arena.scontrol("release", ticket.job_id)
        else:
            self.arena.wishes({ticket.token: Wish.HELD})

    # actions of owners

    def hold(self) -> None:
        self._tell("hold")

    def release(self) -> None:
        ticket = self._one()
        if ticket is not None and self._accepted("scontrol", "release", ticket.job_id):
            self._released.add(ticket.token)

    def requeue(self) -> None:
        self._tell("requeue")

    def requeue_twice(self) -> None:
        ticket = self._one()
        if ticket is not None:
            self._accepted("scontrol", "requeue", ticket.job_id)
            time.sleep(self.rng.uniform(0.0, 1.0))
            self._accepted("scontrol", "requeue", ticket.job_id)

    def requeue_and_hold(self) -> None:
        self._tell("requeuehold")

    def put_off(self) -> None:
        ticket = self._one()
        if ticket is not None:
            when = f"StartTime=now+{self.rng.randint(1, 5)}"
            self._accepted("scontrol", "update", f"JobId={ticket.job_id}", when)

    def start_now(self) -> None:
        """Start the job now, but not in the second of a requeue."""
        ticket = self._one()
        if ticket is not None:
            with contextlib.suppress(SlurmError):
                self.arena.look()
            record = self.arena.records.get(ticket.token)
            if record is not None and time.time() > record.submit_time + REST_S:
                self._accepted("scontrol", "update", f"JobId={ticket.job_id}", "StartTime=now")

    def cancel(self) -> None:
        ticket = self._one()
        if ticket is not None and self._accepted("scancel", ticket.job_id):
            self.arena.cancelled[ticket.token] = time.time()

    def _tell(self, verb: str) -> None:
        ticket = self._one()
        if ticket is not None:
            self._accepted("scontrol", verb, ticket.job_id)

    def _one(self) -> Ticket | None:
        """One of the latest jobs, most of which have not ended."""
        tickets = self._to_run()[-30:]
        return self.rng.choice(tickets) if tickets else None

    def _to_run(self) -> list[Ticket]:
        taken_back = self.arena.cancelled
        return [t for t in self.arena.tickets if t.job_id and t.wish is Wish.RUN and t.token not in taken_back]

    def _accepted(self, *command: str) -> bool:
        return self.arena.lab.run(command, user=self.rng.choice((USER, None)), check=False).returncode == 0

    # actions on daemons

    def restart_slurmctld(self) -> None:
        self.wake()  # else it would be the leader for longer than its leases last
        self.arena.lab.restart_slurmctld()

    def kill(self) -> None:
        self._stopped = False
        self.arena.kill()
        self.arena.daemon = self.arena.launch()

    def stop(self) -> None:
        """Stop asrptd, possibly between a read and a write; a later action wakes it."""
        if self.arena.daemon is not None and not self._stopped:
            self.arena.daemon.send_signal(signal.SIGSTOP)
            self._stopped = True

    def wake(self) -> None:
        if self.arena.daemon is not None and self._stopped:
            self.arena.daemon.send_signal(signal.SIGCONT)
        self._stopped = False

    def disable_and_enable(self) -> None:
        self.wake()
        try:
            self.arena.admin("disable")
            time.sleep(self.rng.uniform(0.0, 1.0))
        finally:
            self.arena.admin("enable")


DEEDS: Mapping[Callable[[Owners], None], float] = {
    Owners.hold: 14, Owners.release: 16, Owners.requeue: 18, Owners.requeue_twice: 4, Owners.requeue_and_hold: 5,
    Owners.put_off: 6, Owners.start_now: 6, Owners.cancel: 6, Owners.stop: 8, Owners.wake: 12, Owners.kill: 2,
    Owners.restart_slurmctld: 1, Owners.disable_and_enable: 1,
}  # fmt: skip
"""The actions and their weights."""


@fault("owners", f"owners hold, release, requeue and cancel at random, {MANY} times; then asrptd is disabled")
def owners(arena: Arena, rng: Random, size: int) -> int:
    some = Owners(arena, rng)
    try:
        for _ in range(MANY):
            some.do()
            time.sleep(rng.uniform(0.0, 0.4))
    finally:
        some.wake()
    some.settle()
    arena.admin("disable")
    try:
        first = _pinned_or_leased(arena)
        time.sleep(2.0)  # jobs that the hook leased meanwhile are released in the next cycle
        last = _pinned_or_leased(arena)
        if rng.random() < 0.5:  # Slurm alone finishes the jobs
            arena.drain(60.0)
    finally:
        arena.admin("enable")
    bear = [text for token, text in last.items() if token in first]
    if bear:
        raise AsrptError(f"still pinned or leased after disable: {'; '.join(bear)}")
    return 1


def _pinned_or_leased(arena: Arena) -> dict[str, str]:
    """Pending jobs with a pin or a lease of asrptd, as text, by token."""
    arena.look()
    now, found = time.time(), dict[str, str]()
    for ticket in arena.tickets:
        record = arena.records.get(ticket.token)
        if (
            record is not None
            and ticket.managed
            and ticket.wish is not Wish.LATER
            and _is_pinned_or_leased(record, ticket, now)
        ):
            begin = record.eligible_time - now
            found[ticket.token] = f"{ticket.token} ({record.job_id}): '{record.required_nodes}', begin in {begin:.0f} s"
    return found


def _is_pinned_or_leased(record: JobRecord, ticket: Ticket, now: float) -> bool:
    """Slurm delays a requeued job until its credential has expired, and owners delay jobs for some seconds."""
    most = CRED_EXPIRE_S + 1.0 if record.restarts else SLACK_S + 1.0
    return record.state == PENDING and (record.required_nodes != ticket.nodes or record.eligible_time > now + most)
