"""Texts for the reasons of ``core.reasons``: why a job is pending, the rule behind it, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slurm_asrpt.core.reasons import Reason
from slurm_asrpt.status.dependency_texts import awaited
from slurm_asrpt.text import counted, slurm_time


@dataclass(frozen=True)
class Wording:
    """The texts for a kind of reason. text: the reason, with its facts; rule: the rule behind it; change: what must
    change for the job to start."""

    text: str
    rule: str = ""
    change: str = ""


_COUNTED = (
    *(("GPU", "need"), ("CPU", "cpus"), ("whole node", "whole"), ("node", "asked")),
    *(("job", "ahead"), ("job", "victims"), ("task", "more")),
)
"""Facts that are counts: the texts have ``{GPUs}``, ``{jobs}`` and so on, which become singular or plural."""
_DURATIONS = ("remaining_s", "work_s", "left_s")
"""Facts in seconds. The texts have them without ``_s``, in Slurm's notation."""
_SHORTER = "jobs with less predicted work go first"
_SPACE = "a job starts when all its GPUs are free at the same time"
_HOLDS = "asrptd does not start jobs that Slurm holds"
_PREEMPTS = "a job may preempt running jobs of a later queue, which have had more GPU time (HLAS)"

WORDS = {
    "virtual": Wording(
        f"{_SHORTER} ({{remaining}} of {{work}} left on the virtual machine)",
        f"{_SHORTER}: a job may start once it has completed on the virtual machine (A-SRPT)",
        "no action needed: it moves up by itself; with fewer GPUs or iterations it completes sooner there",
    ),
    "gpus": Wording(
        "needs {GPUs}, {free} free for it{kept}",
        _SPACE,
        "running jobs must end{fewer}",
    ),
    "shape": Wording(
        "needs {GPUs}, {shape}; {free} free for it, at most {most} on one",
        f"{_SPACE}, in the requested shape",
        "running jobs must end; a request without a shape (--gpus or --gpus-per-task, no -N) fits more often",
    ),
    "resources": Wording(
        "needs {GPUs}, {free} free for it, but not enough CPUs or memory there",
        "a job starts when its GPUs, its memory and its CPUs (within the partition's MaxCPUsPerNode) are free together",
        "running jobs must end; a request for fewer CPUs or less memory may start sooner",
    ),
    "gres": Wording(
        "needs {GPUs}, {free} free for it, but no {gres} left there",
        "a job starts when its GPUs and its other generic resources are free on the same nodes",
        "running jobs must end; a request for less of these may start sooner",
    ),
    "cpus": Wording(
        "needs {CPUs} and no GPUs; too few are free that its partition may use and waiting GPU jobs do not need",
        "jobs without GPUs start by priority, then submission, on CPUs within MaxCPUsPerNode that no GPU job waits for",
        "running jobs must end, or waiting GPU jobs must start; a job with fewer CPUs may start sooner",
    ),
    "whole-nodes": Wording(
        "needs {whole nodes} and no GPUs (--exclusive); too few that it may use are idle",
        "a job with --exclusive starts on nodes without any other job; jobs without GPUs start by priority, then by "
        "submission",
        "the jobs on {whole nodes} that it may use must end; without --exclusive it may start sooner",
    ),
    "kept-room": Wording(
        "would delay job {head} (no GPUs), for which room is kept; it can start {start}",
        "the first job without GPUs that cannot start keeps room on the nodes where it can start first; jobs that end "
        "before then by their time limits, or fit beside it, may start",
        "job {head} must start; with a time limit (--time) that ends before that, this job may start earlier",
    ),
    "capacity": Wording(
        "needs {GPUs}; the nodes that it may use have fewer, or not in that shape",
        "a job that the current nodes cannot hold does not block other jobs",
        "nodes must return to service, or the owner must resubmit the job with a smaller request",
    ),
    "next": Wording(
        "head of the queue; the next cycle decides whether it can start",
        _SHORTER,
        "no action needed: it is considered first",
    ),
    "behind": Wording(
        "{jobs} ahead; job {head} is next",
        _SHORTER,
        "job {head} must start first",
    ),
    "priority": Wording(
        "{jobs} of a higher priority ahead{by}; job {head} is next",
        "jobs of a higher priority go first: partition tier, then QOS, partition, nice, or a priority set by an admin",
        "job {head} must start first; scontrol show job shows the priorities",
    ),
    "service": Wording(
        "{jobs} with less attained service ahead; job {head} is next",
        "the queue with the least GPU time goes first; within a queue, jobs run in order of arrival (HLAS)",
        "job {head} must start first",
    ),
    "room": Wording(
        "preempting {runs} to free {GPUs} for it",
        _PREEMPTS,
        "no action needed: this job starts after the checkpoint of {runs}",
    ),
    "interrupting": Wording(
        "preempted for job {head}: Slurm has signaled it to write a checkpoint",
        _PREEMPTS,
        "no action needed: it resumes from its checkpoint when it is its turn again",
    ),
    "yielding": Wording(
        "preempted before maintenance: Slurm has signaled it to write a checkpoint",
        "its nodes have a maintenance reservation, and its owner, partition or QOS lets it be preempted",
        "no action needed: it resumes from its checkpoint, on other nodes or after the maintenance",
    ),
    "interrupted": Wording(
        "preempted for job {head}: it has just been requeued",
        _PREEMPTS,
        "no action needed: in a moment it is back in the queue, by the GPU time that it has had",
    ),
    "reserved": Wording(
        "has {GPUs} reserved {when}",
        "the first job that cannot start reserves the servers that will be free soonest",
        "the jobs that run there must end",
    ),
    "reservation": Wording(
        "would delay job {head}, which has {GPUs} reserved {when}",
        "no job may delay the reservation of the first job in the queue",
        "job {head} must start; a job that ends before that may start earlier",
    ),
    "ahead": Wording(
        "its time limit reaches into reservation {reservation}, which begins {when}; a shorter --time may help",
        "a job does not start where its time limit reaches into a Slurm reservation",
        "a shorter time limit (scontrol update job=ID timelimit=...), or the end of the reservation",
    ),
    "reserved-nodes": Wording(
        "the nodes that are free for it are in reservation {reservation}, which does not admit it",
        "a reservation admits only jobs that name it, and if it is magnetic, jobs of its users and accounts, from "
        "Slurm 25.11 on only those that end before it does by their time limits",
        "running jobs on other nodes must end, or the reservation",
    ),
    "reservation-begins": Wording(
        "its reservation {reservation} begins {when}",
        "a job that names a reservation runs on its nodes, not before it begins",
        "wait, or resubmit it without --reservation",
    ),
    "placement": Wording(
        "waits up to {left} for a better placement: alpha is {ratio:.1f} times its minimum here now",
        "a communication-heavy job waits for servers closer together, but only until its deadline (A-SRPT)",
        "GPUs must become free closer together; after {left} it starts on any free GPUs",
    ),
    "array": Wording(
        "{tasks} of the array will enter the queue as earlier ones start or end",
        "asrptd queues a hundred tasks of an array at a time, and no more than may run at once (--array=...%N)",
        "earlier tasks of the array must start, or end if the array limits how many run at once",
    ),
    "array-limit": Wording(
        "as many tasks of its array run as may at once ({tasks})",
        "the array limits how many of its tasks run at once (--array=...%N)",
        "a task of the array must end, or its owner must raise the limit (ArrayTaskThrottle of scontrol update)",
    ),
    "dependency": Wording(
        "waits for {awaited}",
        "no job starts before its dependency is satisfied",
        "no action needed: then it enters the queue; scontrol update job=ID dependency=... changes what it waits for",
    ),
    "dependency-never": Wording(
        "its dependency can never be satisfied: a job that it depends on did not end as required",
        _HOLDS,
        "the owner must cancel it or change its dependency (scontrol update job=ID dependency=...)",
    ),
    "begin": Wording(
        "not before {begins} (--begin, or Slurm's delay after a requeue)",
        "no job starts before its begin time",
        "wait, or scontrol update job=ID starttime=now",
    ),
    "held": Wording(
        "held; Slurm's reason: {slurm_reason}",
        _HOLDS,
        "the owner or an admin must release it (scontrol release ID); if its priority stays 0, the owner must "
        "change its request, which no node can satisfy (BadConstraints)",
    ),
    "partition-closed": Wording(
        "partition {partition} starts no jobs now (its state is DOWN or INACTIVE)",
        "Slurm starts no jobs in such a partition, so asrptd keeps no GPUs for them",
        "an admin must set its state to UP, or the owner name another one (scontrol update job=ID partition=...)",
    ),
    "over-limit": Wording(
        "would exceed limit {limit}",
        "limits on users, accounts, QOS and licenses always apply; other jobs go first meanwhile",
        "other jobs that count against this limit must end, or an admin must raise the limit",
    ),
    "limit": Wording(
        "a Slurm limit holds it: {slurm_reason}",
        "Slurm's limits on accounts, QOS and partitions always apply",
        "other jobs of the same user, account or QOS must end, or an admin must raise the limit",
    ),
    "left": Wording(
        "left to Slurm: {why}",
        "asrptd does not schedule jobs whose requests it cannot honor; Slurm starts them by its own rules",
        "squeue --start and scontrol show job show what Slurm waits for",
    ),
    "starting": Wording(
        "released to Slurm on the chosen nodes",
        "asrptd chooses the nodes, and Slurm starts the job there",
        "no action needed: Slurm starts it in a moment",
    ),
    "would-start": Wording(
        "asrptd would start it on these nodes",
        "in this mode asrptd writes no starts: Slurm starts jobs by itself",
        "no action needed: Slurm starts it when it has room",
    ),
    "preempting": Wording(
        "released to Slurm on the chosen nodes; preempts {jobs} of {kinds}",
        "the site lets this job preempt them; asrptd chooses the nodes where they lose least, Slurm the jobs there",
        "no action needed: Slurm starts it when the preempted jobs have ended",
    ),
    "filling": Wording(
        "released to Slurm on nodes that are kept for job {head}; preempted when that can start",
        "its owner, partition or QOS lets it be preempted, so it may use GPUs that idle until the job can start for "
        "which they are kept",
        "no action needed: Slurm starts it in a moment",
    ),
    "slurm-starts": Wording(
        "it is next: Slurm chooses its nodes ({why}), and asrptd keeps room for it",
        "asrptd keeps room for such a job until Slurm has started it or some time has passed; then it waits again",
        "no action needed: Slurm starts it when nodes that suit it are free",
    ),
    "not-started": Wording(
        "Slurm did not start it on the chosen nodes; asrptd plans it again",
        "if Slurm does not start a job, asrptd withdraws the placement and retries after a pause",
        "no action needed: the next attempt follows; if this persists, an admin should run asrpt-admin doctor",
    ),
    "not-followed": Wording(
        "asrptd would have started it; in this mode Slurm decides, and has not started it yet",
        "in modes shadow and order, Slurm starts jobs by its own rules; asrptd only compares",
        "no action needed: Slurm starts it when its turn comes",
    ),
    "configuring": Wording(
        "Slurm is preparing its nodes: they power up, or run a prolog",
        "a job may get nodes that are powered down if those that are up would not be free sooner",
        "no action needed: it runs when its nodes are up; if they fail, Slurm requeues it",
    ),
    "running": Wording("it runs"),
}

_TOO_LARGE = WORDS["capacity"].rule
CAPACITY_WORDS = {
    "all": Wording(
        "no node has what it asks for (GPU type, -C, -w or partition)",
        _TOO_LARGE,
        "the owner must resubmit it for nodes that there are",
    ),
    "any": Wording(
        "none of the nodes that it may use is in service",
        _TOO_LARGE,
        "{returns}the owner must resubmit it for other nodes",
    ),
    "nodes": Wording(
        "asks for {nodes}; the nodes that it may use{now} are {able}",
        _TOO_LARGE,
        "{returns}the owner must resubmit it with fewer nodes (-N)",
    ),
    "gpus": Wording(
        "needs {GPUs}; the nodes that it may use{now} have {have}",
        _TOO_LARGE,
        "{returns}the owner must resubmit it with fewer GPUs",
    ),
    "shape": Wording(
        "needs {GPUs}, {shape}; the nodes that it may use{now} do not have them so",
        _TOO_LARGE,
        "{returns}the owner must resubmit it with another shape or fewer GPUs",
    ),
}
"""The texts for jobs that are too large, by what they lack. A status of an earlier release does not say that."""

HELD_WORDS = {
    "JobHeldUser": Wording("held (JobHeldUser)", _HOLDS, "its owner or an admin must release it (scontrol release ID)"),
    "JobHeldAdmin": Wording(
        "held by an admin (JobHeldAdmin)", _HOLDS, "an admin must release it (scontrol release ID)"
    ),
}
"""The texts for holds, by Slurm's reason, where that says who can release the job."""

OVER_LIMIT_ALONE = Wording(
    "alone exceeds limit {limit} (it asks for {asks:g}, the limit is {most:g})",
    WORDS["over-limit"].rule,
    "the owner must resubmit it with a smaller request, or an admin must raise the limit",
)

BELOW_MINIMUM = Wording(
    "it asks for less than a limit of the site: {limit} (it asks for {asks:g}, the limit is {most:g})",
    WORDS["over-limit"].rule,
    "the owner must resubmit it with a larger request or with another QOS, or an admin must lower the limit",
)
OVER_WHAT_IS_LEFT = Wording(
    "by its time limit, it may use more than is left of a limit of the site: {limit} (minutes: {asks:g}, of which "
    "{most:.0f} are left)",
    "AccountingStorageEnforce=safe: a job starts only if the minutes that are left suffice for its time limit",
    "the owner must lower its time limit or resubmit it with a smaller request, or an admin must raise the limit",
)
"""The same for a limit on minutes of which some are used up."""
ALL_USED_UP = Wording(
    "the minutes of a limit of the site are used up: {limit}",
    WORDS["over-limit"].rule,
    "an admin must raise the limit or reset its usage, or the usage must decay (PriorityDecayHalfLife)",
)
_MINIMUM = "MinTRESPJ="
_OF_MINUTES = ("GrpTRESMins=", "GrpWall ")
REFUSES = "Slurm refuses it: "
REFUSED_REQUEST = Wording(
    REFUSES + "{limit}",
    "the limits of partitions, accounts and QOS always apply; other jobs go first meanwhile",
    "the owner must change its request (scontrol update job=ID timelimit=..., partition=...), or an admin the limit",
)
"""The texts for a limit that Slurm refused a job for by its request, whatever runs."""
_OF_REQUESTS = (
    *("PartitionTimeLimit", "PartitionNodeLimit", "Invalid", "AccountNotAllowed", "QOSNotAllowed"),
    *("Requested partition", "Requested account"),  # Slurm's answers to updates
)

COMPONENT = Wording(
    "{why}",
    "asrptd schedules a heterogeneous job as a whole, and shows it with its first component",
    "no action needed: the first component says what the job waits for{first}",
)
"""The texts for the other components of a heterogeneous job, which are neither managed nor left to Slurm."""

LEFT_WORDS = {
    "interactive": "an interactive job",
    "het": "a heterogeneous job",
    "federation": "it belongs to a federation, in which any cluster may start it",
    "scrontab": "it is a scrontab job, which Slurm lets nobody change",
    "component": "it starts with the first component of its heterogeneous job",
    "held": "its owner holds it",
    "array": "a job array",
    "nodelist": "some nodes of its -w are not managed, or they cannot hold it",
    "exclude": "its owner excluded nodes (-x)",
    "exclusive": "it shares its nodes with some jobs only (--exclusive=user)",
    "reservation": "asrptd does not plan in its reservation",
    "features": "its -C counts nodes, or too few nodes have these features",
    "contiguous": "it asks for contiguous nodes",
    "switches": "it asks for a number of switches",
    "arbitrary": "it asks for an arbitrary distribution of its tasks (-m arbitrary)",
    "constraints": "Slurm does not start it with a list of nodes",
    "partitions": "one of its partitions does not admit its account or QOS",
    "segment": "it may ask for segments of blocks (--segment)",
    "bound": "Slurm shows fewer nodes for it than its GPUs need",
    "block": "no block or tree of Slurm's topology can hold it",
    "gres": "it asks for shards, MPS, several GPU types, or other generic resources without GPUs or by task",
    "mixed": "only nodes with several GPU types, shards or MPS could hold it",
    "deadline": "it has a deadline (--deadline)",
    "too-late": "a run of its whole time limit cannot end before its deadline (--deadline), so that Slurm cancels it",
    "expand": "it gives its nodes to another job (--dependency=expand)",
    "preempts": "it may preempt other jobs, on which only policy asrpt-gated counts",
    "suspends": "it may preempt others, but only in some of its partitions, or PreemptMode is not REQUEUE or CANCEL",
    "socket": "it asks for GPUs or tasks per socket",
    "nogpu": "it asks for no GPUs",
    "shape": "its form of GPU request is not managed",
    "time-min": "Slurm may shorten it to its --time-min, so that it ends before a reservation begins",
    "tasks": "it asks for more nodes than it has tasks, so that Slurm never starts it",
    "mincpus": "it needs more nodes than it has tasks, and asks for CPUs on each (--mincpus)",
    "partition": "its partition is not managed",
    "off": "its owner set asrpt:off",
    "untagged": "the hook has not tagged it",
    "shadow": "asrptd only observes (mode shadow)",
}
"""Why asrptd leaves a job to Slurm, by kind."""
LEFT_CHANGES = {
    "interactive": "use sbatch instead of salloc or srun",
    "het": "submit one job per component",
    "federation": "submit it where the cluster is in no federation",
    "nodelist": "submit it without -w, or with enough nodes in -w",
    "exclude": "submit it without -x",
    "exclusive": "submit it with plain --exclusive, or without",
    "reservation": "submit it without --reservation",
    "features": "submit it without -C, or with plain features, & and |, or [a|b]",
    "contiguous": "submit it without --contiguous",
    "switches": "submit it without --switches",
    "arbitrary": "submit it without -m arbitrary",
    "partitions": "leave out that partition (AllowAccounts and AllowQos in scontrol show partition)",
    "constraints": "ask for its GPUs in one way only (for example --gpus without --gpus-per-node)",
    "segment": "submit it without --segment and -N",
    "bound": "if it asks for so few nodes with -N, request no more GPUs than these have",
    "block": "request no more GPUs than a block or tree of Slurm's topology has",
    "gres": "request whole GPUs or MIG instances of one type, and other generic resources by node (--gres)",
    "mixed": "name a GPU type (--gpus=TYPE:N)",
    "deadline": "submit it without --deadline",
    "too-late": "submit it with a later --deadline, or a shorter --time",
    "socket": "request GPUs with --gpus or --gpus-per-task",
    "shape": "request GPUs with --gpus or --gpus-per-task",
    "time-min": "submit it with a --time that ends before the reservation begins",
    "tasks": "change its tasks or its nodes (scontrol update NumTasks, NumNodes)",
    "mincpus": "submit it without --mincpus, or with a task for each node",
    "off": "submit it without asrpt:off in --comment",
    "untagged": "resubmit it; if that does not help, an admin should run asrpt-admin doctor",
    "held": "release it (scontrol release)",
}
"""What the owner can do so that asrptd schedules such a job. Some kinds have no entry."""


OPEN_ENDS = {
    "few-starts": "too few starts yet",
    "horizon": "perhaps days",
    "late-starts": "waits outlast estimates",
}
"""Why the interval of a start has no upper end, in a few words."""


def why_open(kind: str) -> str:
    """In words. kind: as in ``start_open``; empty in a status of an earlier release."""
    return OPEN_ENDS.get(kind, "no upper bound yet")


def by_slurm_text(word: str) -> str:
    """What is added to the text of a waiting job whose nodes Slurm must choose, for a key of LEFT_WORDS."""
    return f" (at its turn, Slurm will choose its nodes: {LEFT_WORDS.get(word, word)})"


def text_of(reason: Reason) -> str:
    """A reason as a sentence, as ``in_words``."""
    return in_words(reason.kind, reason.facts)


def in_words(kind: str, facts: Mapping[str, Any]) -> str:
    """A reason as a sentence. Raises KeyError for an unknown kind or a missing fact."""
    return _filled(_wording(kind, facts).text, facts)


def in_local_time(kind: str, text: str, facts: Mapping[str, Any]) -> str:
    """A text of asrptd with its time in the time zone of this process, which may be another one than asrptd's."""
    before, time, after = WORDS[kind].text.partition("{begins}") if kind in WORDS else ("", "", "")
    if not time or "until" not in facts or after not in text:
        return text
    return before + _begins(facts["until"]) + text[text.index(after) :]


def rule_of(kind: str, facts: Mapping[str, Any]) -> str:
    """The rule behind a reason; "" for an unknown kind."""
    return _wording(kind, facts).rule if kind in WORDS else ""


def change_of(kind: str, facts: Mapping[str, Any]) -> str:
    """What must change for the job to start; "" for an unknown kind."""
    return _filled(_wording(kind, facts).change, facts) if kind in WORDS else ""


def is_refused(kind: str, facts: Mapping[str, Any]) -> bool:
    """Whether Slurm refuses the job for what it asks for, so that no end of other jobs helps."""
    return kind == "over-limit" and str(facts.get("limit", "")).startswith(_OF_REQUESTS)


def _wording(kind: str, facts: Mapping[str, Any]) -> Wording:
    if kind == "over-limit" and "asks" in facts:
        if str(facts["limit"]).startswith(_MINIMUM):
            return BELOW_MINIMUM
        if not str(facts["limit"]).startswith(_OF_MINUTES):
            return OVER_LIMIT_ALONE
        return OVER_WHAT_IS_LEFT if facts["asks"] else ALL_USED_UP
    if is_refused(kind, facts):
        return REFUSED_REQUEST
    if kind == "left" and facts.get("word") == "component":
        return COMPONENT
    if kind == "held":
        return HELD_WORDS.get(str(facts.get("slurm_reason")), WORDS[kind])
    return CAPACITY_WORDS.get(str(facts.get("lacks")), WORDS[kind]) if kind == "capacity" else WORDS[kind]


def _filled(text: str, facts: Mapping[str, Any]) -> str:
    counts = {f"{word}s": counted(facts[of], word) for word, of in _COUNTED if of in facts}
    times = {key.removesuffix("_s"): slurm_time(facts[key]) for key in _DURATIONS if key in facts}
    by = f" ({facts['by']})" if facts.get("by") else ""
    returns = {"now": " now", "returns": "nodes must return to service, or "} if facts.get("returns") else {}
    fewer = "" if facts.get("need") == 1 else "; a request for fewer GPUs may start sooner"
    others = {
        "first": f" (asrpt-status --explain {facts['first']})" if facts.get("first") else "",
        "by": by,
        "fewer": fewer,
        "kept": _kept(facts),
        "when": _when(facts.get("in_s")),
        "start": _start(facts.get("in_s")),
        "begins": _begins(facts.get("until")),
        "awaited": awaited(str(facts.get("dependency") or "its dependency")),
        "now": "",
        "returns": "",
        **returns,
    }
    return text.format(**{**facts, **counts, **times, **others})


def _kept(facts: Mapping[str, Any]) -> str:
    """That GPUs are free, but promised to jobs that Slurm has not started yet."""
    if "kept_for" not in facts:
        return ""
    several = "," in facts["kept_for"]
    return f" and {facts['kept']} kept for {'jobs' if several else 'job'} {facts['kept_for']}, about to start"


def _start(in_s: float | None) -> str:
    """When a job can start for which room is kept, by the time limits of the jobs on its nodes."""
    if in_s is None or not math.isfinite(in_s):
        return "at an unknown time (a job on its nodes has no time limit)"
    return "as soon as the jobs on its nodes end" if in_s < 1 else f"in {slurm_time(in_s)} by time limits"


def _begins(until: float | None) -> str:
    """The local time before which a job must not start."""
    return "its begin time" if until is None else datetime.fromtimestamp(until).isoformat(timespec="seconds")


def _when(in_s: float | None) -> str:
    """When a reservation of asrptd or Slurm begins. Unknown if it depends on jobs without a time limit or GPUs."""
    if in_s is None or not math.isfinite(in_s):
        return "as soon as they are free (a job there has no time limit or no GPUs, so the time is unknown)"
    if in_s < 1:  # the job there has exceeded its limit, or is not managed
        return "as soon as they are free"
    return f"about {slurm_time(in_s)} from now"
