"""The words for the reasons of ``core.reasons``: why a job waits, by which rule, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_asrpt.core.reasons import Reason
from slurm_asrpt.text import counted, slurm_time


@dataclass(frozen=True)
class Wording:
    """What is said of a kind. text: with its facts; rule: what decides so; change: what would have to change."""

    text: str
    rule: str = ""
    change: str = ""


_COUNTED = (("GPU", "need"), ("job", "ahead"), ("task", "more"))
"""Words that facts are the number of: the texts have ``{GPUs}``, ``{jobs}`` and ``{tasks}``, right for one as well."""
_DURATIONS = ("remaining_s", "work_s", "left_s")
"""Facts in seconds: the texts have them without the ``_s``, as Slurm writes durations."""
_SHORTER = "less predicted work goes first"
_SPACE = "a job starts when all its GPUs are free at once"

WORDS = {
    "virtual": Wording(
        "shorter predicted work goes first ({remaining} of {work} left on the virtual machine)",
        f"{_SHORTER}: a job may start once it is through on the virtual machine (A-SRPT)",
        "it moves up by itself; a job with fewer GPUs or iterations is through earlier",
    ),
    "gpus": Wording(
        "needs {GPUs}, {free} free on nodes that it may use",
        _SPACE,
        "jobs must end first; one that asks for fewer GPUs may fit earlier",
    ),
    "shape": Wording(
        "needs {GPUs}, {shape}; {free} free on nodes that it may use, at most {most} on one",
        f"{_SPACE}, in the shape that it asks for",
        "a request that leaves the shape open (--gpus or --gpus-per-task, no -N) fits more often",
    ),
    "resources": Wording(
        "needs {GPUs}, {free} free on nodes that it may use, but not enough CPUs or memory beside them",
        "a job starts when its GPUs, CPUs and memory are free at once",
        "jobs must end first; one that asks for fewer CPUs or less memory may fit earlier",
    ),
    "capacity": Wording(
        "needs {GPUs}; the nodes that may serve it have fewer, or not in that shape",
        "a job that the present nodes can never hold keeps nobody waiting",
        "nodes must come back, or the job ask for less: submit it anew",
    ),
    "next": Wording(
        "the first in line; the next cycle decides whether it can start",
        _SHORTER,
        "nothing: it is looked at first",
    ),
    "behind": Wording(
        "{jobs} ahead; job {head} is next",
        _SHORTER,
        "job {head} must start first",
    ),
    "service": Wording(
        "{jobs} with less service so far ahead; job {head} is next",
        "the queue of those who have had least GPU time goes first, in it who came first (HLAS)",
        "job {head} must start first",
    ),
    "room": Wording(
        "interrupting {runs} to free {GPUs} for it",
        "a job that has had much GPU time makes room for one of a queue before its own (HLAS)",
        "nothing: this job starts after the checkpoint of {runs}",
    ),
    "interrupting": Wording(
        "it has been told to write a checkpoint, and makes room for job {head}",
        "a job that has had much GPU time makes room for one of a queue before its own (HLAS)",
        "nothing: it goes on from its checkpoint when it is its turn again",
    ),
    "interrupted": Wording(
        "it made room for job {head} and waits out Slurm's pause after a requeue",
        "a job that has had much GPU time makes room for one of a queue before its own (HLAS)",
        "time; then it is its turn again by the GPU time that it has had",
    ),
    "reserved": Wording(
        "has {GPUs} reserved {when}",
        "the first job that cannot start has the servers reserved that are free soonest",
        "the jobs that run there must end",
    ),
    "reservation": Wording(
        "would delay job {head}, which has {GPUs} reserved {when}",
        "nobody puts off the reservation of the first job in line",
        "job {head} must start; a job that is over before then may pass it",
    ),
    "ahead": Wording(
        "its time limit reaches into reservation {reservation}, which begins {when}; a shorter --time may do",
        "no job starts where its time limit reaches into a reservation of Slurm's",
        "a shorter time limit (scontrol update job=ID timelimit=...), or the end of the reservation",
    ),
    "placement": Wording(
        "waits up to {left} for a better placement: alpha is {ratio:.1f} times its minimum here now",
        "a job that talks much waits for servers closer together, but never beyond its deadline (A-SRPT)",
        "GPUs must become free side by side; in {left} it starts on what there is",
    ),
    "array": Wording(
        "{tasks} of the array follow as those before them start",
        "asrptd takes up the tasks of an array a hundred at a time, and no more than may run at once (--array=...%N)",
        "tasks of the same array must start, or end where it has a bound of its own",
    ),
    "dependency": Wording(
        "Slurm holds it for a dependency",
        "what Slurm holds is not asrptd's to start",
        "the jobs that it depends on must end (scontrol show job)",
    ),
    "dependency-never": Wording(
        "its dependency can never be fulfilled: a job that it depends on has ended otherwise than it asks for",
        "what Slurm holds is not asrptd's to start",
        "its owner must cancel it, or change what it depends on (scontrol update job=ID dependency=...)",
    ),
    "begin": Wording(
        "its begin time is not reached (--begin, or Slurm's pause after a requeue)",
        "no job starts before its begin time",
        "time; or scontrol update job=ID starttime=now",
    ),
    "held": Wording(
        "held; Slurm says {slurm_reason}",
        "what Slurm holds is not asrptd's to start",
        "its owner, or an admin, must release it (scontrol release)",
    ),
    "limit": Wording(
        "a limit of Slurm holds it: {slurm_reason}",
        "limits of accounts, QOS and partitions are Slurm's, and always hold",
        "other jobs of the same user, account or QOS must end, or an admin raise the limit",
    ),
    "left": Wording(
        "left to Slurm: {why}",
        "what asrptd cannot honour it leaves alone: Slurm's own rules start this job",
        "squeue --start and scontrol show job say what Slurm waits for",
    ),
    "starting": Wording(
        "released to Slurm on the chosen nodes",
        "asrptd chooses the nodes, Slurm starts the job there",
        "nothing: Slurm starts it in a moment",
    ),
    "not-started": Wording(
        "Slurm did not start it on the chosen nodes; planned again",
        "a start that Slurm does not make is taken back and planned anew, after a pause",
        "the next attempt follows by itself; if it goes on, an admin finds out by asrpt-admin doctor",
    ),
    "not-followed": Wording(
        "asrptd would have started it; Slurm, which decides in this mode, has not yet",
        "in modes shadow and order Slurm starts jobs by its own rules, and asrptd only compares",
        "nothing: Slurm starts it when its turn comes",
    ),
    "running": Wording("it runs"),
}


def text_of(reason: Reason) -> str:
    """The same as ``in_words``."""
    return in_words(reason.kind, reason.facts)


def in_words(kind: str, facts: Mapping[str, Any]) -> str:
    """A reason as a sentence. Raises KeyError for an unknown kind or a fact that is missing."""
    return _filled(WORDS[kind].text, facts)


def rule_of(kind: str) -> str:
    """The rule that decides so, in words; "" for an unknown kind."""
    return WORDS[kind].rule if kind in WORDS else ""


def change_of(kind: str, facts: Mapping[str, Any]) -> str:
    """What would have to change for the job to start, in words; "" for an unknown kind."""
    return _filled(WORDS[kind].change, facts) if kind in WORDS else ""


def _filled(text: str, facts: Mapping[str, Any]) -> str:
    counts = {f"{word}s": counted(facts[of], word) for word, of in _COUNTED if of in facts}
    times = {key.removesuffix("_s"): slurm_time(facts[key]) for key in _DURATIONS if key in facts}
    return text.format(**{**facts, **counts, **times, "when": _when(facts.get("in_s"))})


def _when(in_s: float | None) -> str:
    """When a reservation, ours or Slurm's, begins. No time is known while jobs without a time limit are in its way."""
    if in_s is None or not math.isfinite(in_s):
        return "as soon as they are free (a job there has no time limit, so no end can be told)"
    if in_s < 1:  # what runs there has outrun its limit, or is none of ours
        return "as soon as they are free"
    return f"about {slurm_time(in_s)} from now"
