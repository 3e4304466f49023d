"""The invariants after every fault: a pure function of submissions, starts, Slurm's records and our traces.

The jobs provide the evidence: each start of a script appends its token, id, restart count and node to a file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.records import PENDING, RUNNING_STATES, JobRecord

SLACK_S = 5.0
"""Tolerance for Slurm's whole seconds, our clock, and the duration of a read on a busy machine."""


class Wish(StrEnum):
    """What the owner wants of a job."""

    RUN = "run"
    HELD = "held"
    LATER = "later"  # --begin, far away
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Ticket:
    """One submission. job_id: empty if sbatch failed. managed: in a partition that asrptd manages.

    iterations: of a training that writes checkpoints, else 0. nodes: its -w.
    """

    token: str
    job_id: str
    wish: Wish = Wish.RUN
    managed: bool = True
    iterations: int = 0
    nodes: str = ""


@dataclass(frozen=True)
class Start:
    """A line that a job writes when it starts. restart: SLURM_RESTART_COUNT. at: the time."""

    token: str
    job_id: str
    restart: int
    node: str
    at: float = 0.0


@dataclass(frozen=True)
class Facts:
    """records: the last record of each token. runs: the number of runs in the history, by job id.

    audit: entries since the jobs were submitted. warned: asrptd reported that its history is incomplete.
    hook_warned: the hook reported that it left jobs untagged.
    slurm_lost_state: slurmctld was killed; it forgets all that it has not saved, whichever scheduler is used.
    recovered: job ids that were pending after that, though slurmctld had started them before.
    completed: job ids that slurmctld had seen end before.
    held: tokens of jobs that an admin had to release (slurmctld held them) or cancel (it forgot their end).
    cancelled: the times at which jobs that were to run were cancelled, by token.
    spans: the iterations, (first, last), that trainings reported as done, by token, in order of time.
    most_interruptions: how often asrptd may preempt a job.
    """

    tickets: Sequence[Ticket]
    starts: Sequence[Start]
    records: Mapping[str, JobRecord]
    runs: Mapping[str, int]
    audit: Sequence[Mapping[str, Any]]
    lease_s: float
    now: float
    warned: bool = False
    hook_warned: bool = False
    slurm_lost_state: bool = False
    recovered: Collection[str] = ()
    completed: Collection[str] = ()
    held: Collection[str] = ()
    cancelled: Mapping[str, float] = field(default_factory=dict)
    spans: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    most_interruptions: int = 0


@dataclass
class Findings:
    """Tokens by outcome, and every other breach as text.

    slurms_own: caused by Slurm itself: after a kill, it forgot the job, its start or its end, or held it because its id
    was in use; or a node died under the job (NODE_FAIL, except for a node that only our pin named). asrptd never
    cancels, requeues or holds a job.
    """

    submitted: int = 0
    lost: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    slurms_own: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not (self.lost or self.stuck or self.twice or self.other)


def check(facts: Facts) -> Findings:
    """Compare all observations with all requests."""
    found = Findings(submitted=sum(1 for ticket in facts.tickets if ticket.job_id))
    found.slurms_own += facts.held
    starts = _by_token(facts.starts)
    for ticket in facts.tickets:
        record = facts.records.get(ticket.token)
        _check_wish(found, ticket, record, starts[ticket.token], facts)
        _check_twice(found, ticket, record, starts[ticket.token], facts)
        if record is not None and record.state == PENDING:
            found.other += _waiting(ticket, record, facts)
        if ticket.managed and record is not None and _ended(record) and starts[ticket.token]:
            found.other += _traces(ticket, record, starts[ticket.token], facts)
        if record is not None and record.state == "FAILED" and not ticket.iterations and not facts.slurm_lost_state:
            found.other.append(f"{ticket.token} (job {record.job_id}) has failed, but its script cannot fail")
        if ticket.iterations and record is not None and _ended(record) and ticket.token not in facts.held:
            found.other += _course(ticket, record, facts)
    return found


def _by_token(starts: Iterable[Start]) -> defaultdict[str, list[Start]]:
    grouped: defaultdict[str, list[Start]] = defaultdict(list)
    for start in starts:
        grouped[start.token].append(start)
    return grouped


def _ended(record: JobRecord) -> bool:
    return record.state != PENDING and record.state not in RUNNING_STATES


def _check_wish(
    found: Findings, ticket: Ticket, record: JobRecord | None, starts: Sequence[Start], facts: Facts
) -> None:
    """The job ran, or is in the state that its owner wants."""
    if not ticket.job_id:
        return  # rejected, or the answer was lost: it may have run, but not twice
    if record is None:
        if not starts and ticket.token not in facts.cancelled:
            (found.slurms_own if facts.slurm_lost_state else found.lost).append(ticket.token)
    elif ticket.token in facts.cancelled:
        found.other += _taken_back(ticket, starts, facts)
        if not _ended(record):
            found.stuck.append(ticket.token)
    elif ticket.wish is Wish.RUN:
        if not _ended(record):
            forgotten = record.state != PENDING and record.job_id in facts.completed
            (found.slurms_own if forgotten else found.stuck).append(ticket.token)
        elif not starts:
            pinned = bool(record.required_nodes and not record.nodes)  # else Slurm would have kept it pending
            (found.slurms_own if record.state == "NODE_FAIL" and not pinned else found.lost).append(ticket.token)
    elif ticket.wish is Wish.CANCELLED:
        if not _ended(record):
            found.stuck.append(ticket.token)
    elif starts or record.state != PENDING:
        found.other.append(
            f"{ticket.token} was to stay pending ({ticket.wish}), but is {record.state}, {len(starts)} start(s)"
        )


def _taken_back(ticket: Ticket, starts: Sequence[Start], facts: Facts) -> Iterable[str]:
    """A start that was in progress at the cancellation may still write its line."""
    late = [start.at - facts.cancelled[ticket.token] for start in starts]
    if late and max(late) > SLACK_S:
        yield f"{ticket.token} (job {ticket.job_id}) started {max(late):.0f} s after it was cancelled"


def _check_twice(
    found: Findings, ticket: Ticket, record: JobRecord | None, starts: Sequence[Start], facts: Facts
) -> None:
    """Slurm may start a job again after a requeue, which it counts; no other repeated start is allowed."""
    again = [restart for restart, count in Counter(start.restart for start in starts).items() if count > 1]
    allowed = 1 + (record.restarts if record is not None else 0)
    if again or len(starts) > allowed or len({start.job_id for start in starts}) > 1:
        (found.slurms_own if ticket.job_id in facts.recovered else found.twice).append(ticket.token)


def _waiting(ticket: Ticket, record: JobRecord, facts: Facts) -> Iterable[str]:
    """A pending job has no node list but its owner's, and no lease longer than allowed."""
    if record.required_nodes != ticket.nodes:
        yield f"{ticket.token} is pending with node list {record.required_nodes}"
    yield from long_lease(ticket, record, facts.lease_s, facts.now)


def long_lease(ticket: Ticket, record: JobRecord, lease_s: float, now: float) -> Iterable[str]:
    """Unless delayed by its owner, a job must reach Slurm within one lease, whatever happens to asrptd."""
    if ticket.wish is Wish.RUN and record.state == PENDING and not record.restarts and not record.dependency:
        left = record.eligible_time - now
        if left > lease_s + SLACK_S:
            yield f"{ticket.token} is leased for {left:.0f} s; the limit is {lease_s:.0f} s"


def _course(ticket: Ticket, record: JobRecord, facts: Facts) -> Iterable[str]:
    """Each iteration after the last checkpoint is done once, and asrptd has not preempted too often."""
    spans = facts.spans.get(ticket.token, ())
    whole = [0, *(last for _, last in spans)] == [*(first for first, _ in spans), ticket.iterations]
    if not (whole and record.state == "COMPLETED") and record.job_id not in facts.recovered:
        yield f"{ticket.token} (job {record.job_id}, {record.state}): {list(spans)} of {ticket.iterations} iterations"
    interrupts = sum(entry["event"] == "interrupt" and entry.get("job") == record.job_id for entry in facts.audit)
    if interrupts > facts.most_interruptions:
        yield f"{ticket.token} (job {record.job_id}) was preempted {interrupts} times"


def _traces(ticket: Ticket, record: JobRecord, starts: Sequence[Start], facts: Facts) -> Iterable[str]:
    """The history and the audit trail have the run, or asrptd reported that they are incomplete."""
    if parse_tag(record.admin_comment) is None:
        if not facts.hook_warned:
            yield f"{ticket.token} (job {record.job_id}) has no tag, and slurmctld's log has no reason"
        return
    events = {str(entry["event"]) for entry in facts.audit if entry.get("job") == record.job_id}
    vanished = "vanished" in events
    if not facts.runs.get(record.job_id) and not vanished and not facts.warned:
        yield f"{ticket.token} (job {record.job_id}) ran but is not in the history"
    if not events & {"ended", "vanished"} and not facts.warned:
        yield f"{ticket.token} (job {record.job_id}) ran but the audit trail has no end"
    if record.required_nodes != ticket.nodes and "start" not in events:
        yield f"{ticket.token} (job {record.job_id}) was given nodes but the audit trail has no start"
    # after a lease has expired, Slurm itself adds nodes if the owner's node has too few free GPUs
    if ticket.nodes and ticket.nodes not in {start.node for start in starts} | set(expand(record.nodes)):
        yield f"{ticket.token} (job {record.job_id}) did not run on {ticket.nodes}"
