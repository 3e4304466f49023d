"""What differs between the two sides of a queue: values in, values out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.trials.queues.draw import Act
from tests.trials.queues.play import Done, Outcome, Side

LATE_S = 20.0
"""A job that waits so much longer than under plain Slurm, although the cluster is empty for as long, is reported."""
LEASED_S = 5.0
"""A begin time so far ahead, once asrptd is disabled, is a lease."""
_STUCK = re.compile("DependencyNeverSatisfied|QOS|Assoc|Max|Partition|BadConstraints")
"""Slurm's reasons for jobs that will not start: after one of another end, over a limit, or not as they are."""
_HELD = "JobHeldAdmin"
"""Slurm's reason for a job in a reservation that has ended, also a magnetic one into which Slurm would have put it."""
ALIVE = ("pending", "running", "waiting", "starting")
Found = dict[str, list[dict[str, Any]]]


def job_of(name: str) -> str:
    """``j3`` of ``j3_1`` and ``j3+0``."""
    return re.split(r"[_+]", name)[0]


def findings(acts: Sequence[Act], plain: Side, ours: Side) -> Found:
    """By kind; a kind without any is an empty list."""
    free = loose(acts, plain, ours)
    words = {act.job: " ".join(act.words) for act in acts if act.submits}
    found = {
        "submissions": list(_submissions(acts, plain, ours)),
        "admin": list(_admin(acts, plain, ours)),
        "missing": list(_missing(acts, plain, ours, free)),
        "other": list(_other(plain, ours, free)),
        "only_asrptd": list(_only_ours(plain, ours, free)),
        "late": list(_late(plain, ours)),
        "log": [{"line": line} for line in ours.log if " disabled: " not in line],
        "shown": [
            {"job": name, "state": state, "slurm": ours.outcomes[name].state}
            for name, state in ours.shown.items()
            if name in ours.outcomes and ours.outcomes[name].ended and state in ALIVE
        ],
        "leases": [
            {"job": name, "begin_in_s": one.eligible - ours.disabled, "nodes": one.pinned}
            for name, one in ours.left.items()
            if one.eligible > ours.disabled + LEASED_S or (one.pinned and not _own_nodes(acts, name))
        ],
    }
    for row in (row for rows in found.values() for row in rows if "job" in row):
        row["words"] = words.get(job_of(row["job"]), "")
        row["acts"] = [" ".join(act.words) for act in acts if act.job == job_of(row["job"]) and not act.submits]
    return found


def loose(acts: Sequence[Act], plain: Side, ours: Side) -> set[str]:
    """Jobs whose end may differ: an act met them in another state, a run was cut short, or they name one of these."""
    pairs = list(zip(acts, plain.done, ours.done, strict=True))
    found = {act.job for act, one, two in pairs if not act.submits and (_state(one) != _state(two) or _ends(act, one))}
    cut = [name for side in (plain, ours) for name, one in side.outcomes.items() if one.restarts or _cut(one)]
    found |= set(map(job_of, cut))
    for act in acts:
        if found & set(act.others):
            found.add(act.job)
    return found - {""}


def _ends(act: Act, done: Done | None) -> bool:
    """Whether the command ends a job that may end by itself in the same moment."""
    return act.words[0] == "scancel" and done is not None and "PENDING" not in done.states


def _state(done: Any) -> Any:
    return done and (done.ok, done.states)


def _cut(one: Outcome) -> bool:
    return one.state in ("PREEMPTED", "NODE_FAIL", "TIMEOUT")


def _submissions(acts: Sequence[Act], plain: Side, ours: Side) -> Iterator[dict[str, Any]]:
    """Without those over a limit on submitted jobs: how many there are depends on how many have ended."""
    for act, one, two in zip(acts, plain.done, ours.done, strict=True):
        if act.submits and one and two and one.ok != two.ok and "MaxSubmitJob" not in one.said + two.said:
            yield {"job": act.job, "plain": one.said or "taken", "asrptd": two.said or "taken"}


def _admin(acts: Sequence[Act], plain: Side, ours: Side) -> Iterator[dict[str, Any]]:
    for act, one, two in zip(acts, plain.done, ours.done, strict=True):
        if not act.job and one and two and one.ok != two.ok:
            yield {"command": " ".join(act.words), "plain": one.said or "done", "asrptd": two.said or "done"}


def _missing(acts: Sequence[Act], plain: Side, ours: Side, free: set[str]) -> Iterator[dict[str, Any]]:
    """Jobs that end under plain Slurm only, without those whose submission was refused.

    One that waits for a job of another end may wait for ever, and so may one that was changed or moved before it could
    start, and exceeds a limit since. Its reason is the one that Slurm gives once asrptd is disabled.
    """
    reservations = any(map(_ends_reservation, acts))
    refused = {act.job for act, done in zip(acts, ours.done, strict=True) if act.submits and done and not done.ok}
    for name, one in plain.outcomes.items():
        two = ours.outcomes.get(name)
        if not one.ended or (two and two.ended) or job_of(name) in refused:
            continue
        two = ours.left.get(name, two)
        if two and job_of(name) in free and _STUCK.match(two.reason):
            continue
        if two and reservations and two.reason == _HELD:
            continue
        yield {"job": name, "plain": one.state, "asrptd": two.state if two else "", "reason": two.reason if two else ""}


def _ends_reservation(act: Act) -> bool:
    return not act.job and any(word.startswith("ReservationName=") for word in act.words)


def _other(plain: Side, ours: Side, free: set[str]) -> Iterator[dict[str, Any]]:
    for name, one in plain.outcomes.items():
        two = ours.outcomes.get(name)
        both = two is not None and one.ended and two.ended and job_of(name) not in free
        if two and both and _end(one) != _end(two):
            yield {"job": name, "plain": f"{one.state} {one.exit_code}", "asrptd": f"{two.state} {two.exit_code}"}


def _end(one: Outcome) -> tuple[str, str]:
    """The exit code of a cancelled job depends on the moment."""
    return one.state, "" if one.state == "CANCELLED" else one.exit_code


def _only_ours(plain: Side, ours: Side, free: set[str]) -> Iterator[dict[str, Any]]:
    for name, two in ours.outcomes.items():
        one = plain.outcomes.get(name)
        if two.ended and one and not one.ended and job_of(name) not in free:
            yield {"job": name, "plain": one.state, "reason": one.reason, "asrptd": two.state}


def _late(plain: Side, ours: Side) -> Iterator[dict[str, Any]]:
    gaps = list(idle(ours.outcomes))
    for name, two in ours.outcomes.items():
        one = plain.outcomes.get(name)
        ran = one is not None and one.ended and two.ended and one.start and two.start  # others have a begin time there
        more = (two.start - two.submit) - (one.start - one.submit) if one and ran else 0.0
        if more > LATE_S and any(low <= two.start <= high + 1 and two.submit < low for low, high in gaps):
            yield {"job": name, "waited_s": two.start - two.submit, "plain_s": two.start - two.submit - more}


def idle(outcomes: Mapping[str, Outcome]) -> Iterator[tuple[float, float]]:
    """Times of LATE_S and more at which no job ran, between the first start and the last."""
    runs = sorted((one.start, one.end) for one in outcomes.values() if one.start and one.ended)
    until = [max(end for _, end in runs[: number + 1]) for number in range(len(runs))]
    for before, (start, _) in zip(until, runs[1:], strict=False):
        if start - before > LATE_S:
            yield before, start


def _own_nodes(acts: Sequence[Act], name: str) -> bool:
    """Whether the job's user has named nodes."""
    return any(re.search(r"(^| )(-w|ReqNodeList=.)", " ".join(act.words)) for act in acts if act.job == job_of(name))
