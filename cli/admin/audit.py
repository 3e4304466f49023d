"""asrpt-admin audit: what asrptd decided, from what, and what Slurm did."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption, check_folder
from slurm_asrpt_cli._app.progress import progress
from slurm_asrpt_cli._app.tables import GAP, Column, fold_nodes, print_prose, safe, show_table, terminal_width
from slurm_asrpt_cli.admin.access import of_asrptd
from slurm_asrpt_cli.status.selection import Wanted, read_jobs, words
from slurm_asrpt_cli.status.table import gpu_hours

from slurm_asrpt.audit.trail import Entry, entries, size
from slurm_asrpt.errors import InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.slurm.notation import read_time
from slurm_asrpt.status.reason_texts import LEFT_WORDS, in_words
from slurm_asrpt.text import counted, slurm_time

if TYPE_CHECKING:
    from slurm_asrpt.config.settings import Settings

SCHEMA = 1
BIG = 32 << 20
"""Bytes of audit trail from which reading takes so long that it shows a bar."""
LEAST_TEXT = 30
"""Minimum width of the last column, however narrow the terminal."""


@dataclass(frozen=True)
class Asked:
    """The part of the audit trail to show. Times: seconds since the epoch."""

    settings: Settings
    since: float
    until: float
    jobs: Sequence[Wanted]
    users: Sequence[str]

    @property
    def some(self) -> bool:
        """Whether only some jobs are asked for."""
        return bool(self.jobs or self.users)

    def wants_job(self, entry: Entry) -> bool:
        """Whether the entry belongs to one of these jobs, or to no job."""
        job = str(entry.get("job", ""))
        return not (self.jobs and job) or any(wanted.names(job) for wanted in self.jobs)


def audit_command(
    job: Annotated[
        str,
        typer.Option("--job", "-j", metavar="JOBS", help="Only these jobs: 12 (all tasks of array 12), 12_3, 12+1."),
    ] = "",
    user: Annotated[str, typer.Option("--user", "-u", metavar="USERS", help="Only jobs of these users.")] = "",
    since: Annotated[
        str, typer.Option("--since", "-S", metavar="TIME", help="Start time; default: today, with --job all.")
    ] = "",
    until: Annotated[str, typer.Option("--until", "-E", metavar="TIME", help="End time.")] = "now",
    cycles: Annotated[bool, typer.Option("--cycles", help="Include a line per scheduling cycle.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page with a timeline.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what asrptd decided, why, and what Slurm then did.

    Prints a line per decision and per answer of Slurm:
    where a job starts, the key that put it first, the
    runner-up, why other jobs wait, and what really ran.

    \b
    Examples:
      asrpt-admin audit --job 4711
      asrpt-admin audit --user ann --since now-2hours
      asrpt-admin audit --since 11/20 --html audit.html
    """
    now = time.time()
    begin = read_time(since or "today", now) if since or not job else 0.0
    asked = Asked(of_asrptd(config), begin, read_time(until, now), read_jobs([job]), words(user))
    if asked.until <= asked.since:
        raise InputError(f"--until {until} is not after --since {since}")
    if html:
        check_folder("--html", html)
    everything = as_json and not (job or user)
    found = list(_read(asked, cycles or html is not None or everything))
    if html:
        from slurm_asrpt.reporting import audit  # jinja2 takes a tenth of a second to import

        text = audit.page(found, begin or _first(found, now), min(asked.until, now), _what(asked), asked.some)
        replace_file(html, text.encode("utf-8", "backslashreplace"), mode=0o600)
        print(f"{safe(str(html))}: open it in a browser; it needs no network. It contains user names.")
    elif as_json:
        print(json.dumps({"kind": "asrpt-admin audit", "schema": SCHEMA, "entries": found}, indent=2))
    else:
        _show(found, NOTHING_OF_IT if job and not since else NOTHING_THEN)


def _first(found: Sequence[Entry], now: float) -> float:
    return float(found[0]["time"]) if found else now


def _what(asked: Asked) -> str:
    jobs = ", ".join(wanted.name for wanted in asked.jobs)
    parts = [f"job {jobs}" if jobs else "", f"user {', '.join(asked.users)}" * bool(asked.users)]
    return "; ".join(part for part in parts if part) or "all jobs"


def _read(asked: Asked, cycles: bool) -> Iterator[Entry]:
    """Only some events of a job name its user, perhaps before ``since``; the others get it from them.

    Raises AsrptError.
    """
    state, found, owners = asked.settings.paths.state, list[Entry](), dict[str, str]()
    with progress("reading the audit trail") if size(state) > BIG else nullcontext() as show:
        on_progress = None if show is None else lambda done, total: show(done, "", total)
        numbers = {wanted.job_id.partition("_")[0] for wanted in asked.jobs}
        for entry in entries(state, 0.0 if asked.users else asked.since, asked.until, on_progress, numbers):
            if entry.get("user"):
                owners[str(entry.get("job", ""))] = str(entry["user"])
            if entry["time"] >= asked.since and asked.wants_job(entry):
                found.append(entry)
    for entry in found:
        owner = owners.get(str(entry.get("job", "")), "")
        if not entry.get("job"):
            wanted = cycles if entry["event"] == "cycle" else not (asked.jobs or asked.users)
        else:
            wanted = not asked.users or owner in asked.users
        if wanted:
            yield {**entry, "user": owner} if owner else entry


TITLES = ("TIME", "JOBID", "USER", "EVENT", "WHAT")


NOTHING_THEN = "no entries in that time: asrptd records changes only; try --since yesterday"
NOTHING_OF_IT = "no entries for that job: asrptd did not manage it, or the audit trail does not go back that far"


def _show(found: Sequence[Entry], nothing: str) -> None:
    """nothing: the message if there are no entries."""
    if not found:
        print_prose(nothing)
        return
    days = {_day(entry) for entry in found}
    rows = [_row(entry, len(days) > 1) for entry in found]
    cells = zip(*_wrapped(rows, terminal_width()), strict=True)
    show_table([Column(title, column) for title, column in zip(TITLES, cells, strict=True)])


def _wrapped(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[Sequence[str]]:
    """On a terminal, long texts wrap. width: None: it is none."""
    before = sum(max(len(row[at]) for row in (TITLES, *rows)) + len(GAP) for at in range(4))
    room = max(LEAST_TEXT, (width or 0) - before)
    for *head, text in rows:
        first, *more = textwrap.wrap(text, room) if width and text else [text]
        yield (*head, first)
        yield from (("", "", "", "", line) for line in more)


def _day(entry: Entry) -> str:
    return datetime.fromtimestamp(entry["time"]).strftime("%m-%d")


def _row(entry: Entry, dated: bool) -> list[str]:
    form = "%m-%dT%H:%M:%S" if dated else "%H:%M:%S"
    when = datetime.fromtimestamp(entry["time"]).strftime(form)
    job, user = safe(str(entry.get("job", ""))), safe(str(entry.get("user", "")))
    return [when, job, user, safe(entry["event"]), safe(what(entry))]


def what(entry: Entry) -> str:
    """An entry in words; its bare facts if another release wrote it in another form."""
    try:
        describe = _WHAT.get(entry["event"])
        if describe is not None:
            return describe(entry)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError):
        pass
    facts = {name: fact for name, fact in entry.items() if name not in ("time", "event", "job", "user")}
    return json.dumps(facts)


def _queued(entry: Entry) -> str:
    work = entry["iterations"]
    seconds = not entry.get("profiled", True)  # an iteration without a profile is one; earlier trails do not say it
    figure = slurm_time(work) if seconds else counted(round(work), "iteration")
    predicted = f"{figure} predicted" if work else "no prediction"
    return f"{entry.get('name', '')}: {counted(entry['gpus'], 'GPU')}, {predicted}"


def _wait(entry: Entry) -> str:
    return in_words(entry["reason"], entry)


def _start(entry: Entry) -> str:
    best, parts = entry.get("alpha_min"), [fold_nodes(entry["gpus"])]
    if "by_slurm" in entry:
        parts[0] = f"Slurm chooses its nodes; room kept on {parts[0]}"
    parts[0] += _slower(entry["alpha"], best)
    if entry.get("runner_up"):
        other = entry["runner_up"]
        parts.append(f"runner-up {fold_nodes(other['gpus'])}{_slower(other['alpha'], best) or ' (equally fast)'}")
    elif "runner_up" in entry:
        parts.append("no runner-up")
    if entry.get("preempts"):
        parts.append(f"Slurm preempts {', '.join(entry['preempts'])}")
    if "filling" in entry:
        parts.append(f"kept for job {entry['filling']}, for which it may be preempted")
    return "; ".join([*parts, *key_words(entry.get("key", {}), entry.get("weight", 1.0))])


def key_words(key: Mapping[str, float], weight: float = 1.0) -> list[str]:
    """What put a job first, in words. weight: of its priority, by which its work was divided."""
    whole = {name: part * weight if name == "gpu_seconds" else part for name, part in key.items()}
    words = [_KEYS[name](part) for name, part in whole.items() if name in _KEYS and part]
    return words if weight == 1.0 else [*words, f"its work counts 1/{weight:.3g} by its priority"]


_KEYS: Mapping[str, Callable[[float], str]] = {
    "rank": lambda rank: (
        f"band {rank + 1:.0f}" if rank == int(rank) > 0 else "head of the queue: its last start was withdrawn"
    ),
    "gpu_seconds": lambda work: f"predicted work {counted(round(work), 'GPU-second')}",
    "seconds": lambda length: f"predicted runtime {slurm_time(length)}",
    "submitted": lambda time: f"submitted {datetime.fromtimestamp(time):%m-%dT%H:%M:%S}",
    "queue": lambda queue: f"queue {queue + 1:.0f} by attained service",
    "place_in_fifo": lambda place: f"{place} ahead",
    "place_in_queue": lambda place: f"position {place} in the queue",
}


def _slower(alpha: float | None, best: float | None) -> str:
    """How much slower the placement is than the best one; empty if it is as fast."""
    return f" ({alpha / best:.2f} x alpha~min)" if alpha and best and alpha > 1.005 * best else ""


def _running(entry: Entry) -> str:
    planned = "" if "as_planned" not in entry else ", as planned" if entry["as_planned"] else ", not as planned"
    where = f"{fold_nodes(entry['gpus'])}{planned}{_slower(entry['alpha'], entry.get('alpha_min'))}"
    waited = f", {slurm_time(entry['began'] - entry['submitted'])} after submission" if "began" in entry else ""
    return where + waited


def _ended(entry: Entry) -> str:
    ran = entry["ended"] - entry["began"]
    if not (entry["predicted"] and entry["iterations"]):
        return f"{entry['state']} after {slurm_time(ran)}"
    predicted = ran * entry["predicted"] / entry["iterations"]
    return f"{entry['state']} after {slurm_time(ran)}, {slurm_time(predicted)} predicted"


def _gone(entry: Entry) -> str:
    if not (entry["gpus"] or entry.get("nodes")):
        return f"{entry['state']} before it started"
    return f"{entry['state']} after {slurm_time(entry['ended'] - entry['began'])}; not used for learning"


def _cycle(entry: Entry) -> str:
    phases = ", ".join(f"{name} {seconds:.3f}" for name, seconds in entry["phases"].items())
    free = sum(int(gpus) * servers for gpus, servers in entry["free"].items())
    jobs = f"{entry['queued']} queued, {entry['running']} running, {free} of {counted(entry['gpus'], 'GPU')} free"
    return f"inputs {entry['inputs']}: {jobs}; {entry['mode']}, {entry['policy']}; seconds: {phases}"


def _not_started(entry: Entry) -> str:
    again = round(max(0.0, entry["retry_at"] - entry["time"]))
    return f"Slurm did not start it ({entry['why']}); retry " + (f"in {again} s" if again else "now")


def _not_followed(entry: Entry) -> str:
    return f"Slurm has not started it where asrptd would have ({entry['why']}); it is considered again"


def _left(entry: Entry) -> str:
    word = str(entry["why"])
    why = LEFT_WORDS.get(word, word)
    return why if word == "component" else f"left to Slurm: {why}"


def _had(entry: Entry) -> str:
    return f", after {gpu_hours(entry['gpu_s'])} GPU-hours"


def _size_predicted(entry: Entry) -> str:
    """What HLAS-P expects of a job by its losses."""
    ends, past, expected = entry["ends"], entry["past_gpu_s"], entry["expected_gpu_s"]
    curve = "no curve fits its losses" if ends is None else f"its loss curve ends at iteration {ends}"
    similar = "" if past is None else f"; similar jobs took {gpu_hours(past)} GPU-hours"
    behind = "; it lags behind others of its array" if entry["lags"] else ""
    size = f"{gpu_hours(expected)} GPU-hours" if expected else f"less than {gpu_hours(entry['alpha_gpu_s'])} more"
    done = f"{counted(entry['done'], 'iteration')} and {gpu_hours(entry['gpu_s'])} GPU-hours done"
    return f"{done}, {curve}{similar}{behind}: {size} expected"


def _refused(entry: Entry) -> str:
    return f"Slurm refused: {entry['error']}"


_WHAT: Mapping[str, Callable[[Any], str]] = {
    "queued": _queued,
    "wait": _wait,
    "start": _start,
    "start-cpus": lambda entry: f"{counted(entry['cpus'], 'CPU')} on {','.join(entry['nodes'])}",
    "running": _running,
    "ended": _ended,
    "gone": _gone,
    "interrupt": lambda entry: f"preempted for job {entry['head']}: preemption {entry['nth']}{_had(entry)}",
    "yields": lambda entry: f"preempted before maintenance: reservation {entry['reservation']}",
    "size-predicted": _size_predicted,
    "signalled": lambda entry: f"signal {entry['signal']}: asked to write a checkpoint",
    "requeued": lambda entry: (
        "its checkpoint is written" if entry["reported"] else "the time for its checkpoint is over"
    ),
    "requeued-again": lambda _: "Slurm had lost the requeue and still showed the old run",
    "interrupt-refused": _refused,
    "owner-told": lambda entry: (
        _refused(entry) if "error" in entry else "its output says that it reported no checkpoint in time"
    ),
    "cut": lambda entry: f"ended by a requeue after {slurm_time(entry['ended'] - entry['began'])}",
    "cycle": _cycle,
    "not-followed": _not_followed,
    "not-started": _not_started,
    "released-ahead": lambda entry: _refused(entry) if "error" in entry else "Slurm may start it as soon as a job ends",
    "predicted-late": lambda entry: f"runs like it have ended: {entry.get('figure')} {entry.get('unit')} are expected",
    "leased-again": lambda entry: _refused(entry) if "error" in entry else "others start before it",
    "left": _left,
    "pin-failed": lambda entry: f"Slurm ended it because node {entry['nodes']} is gone: {entry['remedy']}",
    "cluster": lambda entry: f"{counted(entry['gpus'], 'GPU')} on {counted(entry['nodes'], 'node')} can run jobs",
    "lease-refused": _refused,
    "fence-refused": _refused,
    "hand-back-refused": _refused,
    "handed-back": lambda entry: "asrptd removed what it had written; Slurm schedules the job",
    "vanished": lambda entry: f"Slurm no longer knows it; it was {entry['place']}",
    "slurm-changed": lambda entry: f"slurm.conf or Slurm's release has changed ({entry['version']})",
    "clock-step": lambda entry: f"the clock stepped by {entry['seconds']:+.0f} s",
}
