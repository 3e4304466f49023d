"""asrpt-status --explain: why a job or array waits, the evidence, what would change it, and the job's record."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slurm_asrpt_cli._app.tables import fold_nodes, print_facts, safe
from slurm_asrpt_cli.status import selection
from slurm_asrpt_cli.status.selection import holds, one, tasks_of
from slurm_asrpt_cli.status.status_file import around, ended_of, warn_if_stale
from slurm_asrpt_cli.status.table import (
    against_best,
    attained,
    date,
    durations,
    gpu_hours,
    gpus_in_words,
    learned_from,
    share,
)

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.status.document import (
    COMMUNICATION,
    DRAWN_BY,
    NEAREST,
    OWN_ORDER,
    PREEMPTED_BY_NONE,
    RESERVED_IN,
    UNUSED_PROFILE,
    JobStatus,
    Status,
)
from slurm_asrpt.status.explain import Ahead, Ending, Explanation, explain
from slurm_asrpt.status.reason_texts import is_refused, why_open
from slurm_asrpt.text import UNKNOWN, counted, slurm_time

Facts = list[tuple[str, str]]


def show_explanation(folder: Path, job_id: str, as_json: bool = False) -> None:
    """Explain the job, or the array, with that ID. Raises AsrptError if there is none."""
    job_id = selection.read_job(job_id).job_id
    found = around(folder, time.time(), job_id)
    warn_if_stale(found, time.time())
    tasks = tasks_of(found.jobs, job_id)
    past = [] if tasks or holds(found.jobs, job_id) else ended_of(folder, job_id)
    if past:
        from slurm_asrpt_cli.status.ended import show_ended

        show_ended(found, past, as_json)
    elif tasks:
        explain_array(found, tasks, as_json)
    else:
        explain_command(found, one(found.jobs, job_id), as_json, job_id)


def explain_command(found: Status, job: JobStatus, as_json: bool, asked: str = "") -> None:
    """Print the explanation of one job: a fact per line, or JSON with the job's record.

    asked: the ID of an array task which has no record of its own yet.
    """
    if as_json:
        print(json.dumps(document(found, job), indent=2))
        return
    lines = [("Job", identity(asked or job.job_id, job)), ("State", _state(job)), *_mode(found, job)]
    print_facts([*lines, *why_it_waits(explain(found, job), job), *_record(job)])


def identity(job_id: str, job: JobStatus) -> str:
    """The job by its number, name, owner and partition."""
    return f"{safe(job_id)} ({safe(job.name)}), user {safe(job.user)}, partition {safe(job.partition)}"


def _state(job: JobStatus) -> str:
    return safe(job.state) + (f", position {job.rank} in the queue" if job.rank is not None else "")


_SLURM_DECIDES = "Slurm decides; what follows is what asrptd would do"
_MODES = {
    "shadow": _SLURM_DECIDES,
    "disabled": _SLURM_DECIDES,
    "order": "asrptd orders the jobs; Slurm decides when and where they start",
    "unsaved": "asrptd cannot save its state: Slurm decides until it can",
}


def _mode(found: Status, job: JobStatus) -> Facts:
    """A mode in which asrptd does not start the jobs, for one that it would start."""
    decides = _MODES.get(found.mode, "") if job.state not in (Phase.RUNNING, Phase.LEFT) else ""
    return [("Mode", f"{safe(found.mode)}: {decides}")] if decides else []


def document(found: Status, job: JobStatus) -> dict[str, Any]:
    """The explanation as a JSON object, with the job's record."""
    return {"schema": found.schema, **asdict(explain(found, job)), "job": asdict(job)}


def why_it_waits(said: Explanation, job: JobStatus) -> Facts:
    """The reason, the rule behind it, what would change it, and the evidence."""
    lines = [("Why", safe(said.why))]
    lines += [("Rule", safe(said.rule))] if said.rule else []
    lines += [("What would help" if not number else "", safe(text)) for number, text in enumerate(said.changes)]
    return lines + _evidence(said, job)


def _evidence(said: Explanation, job: JobStatus) -> Facts:
    lines: Facts = []
    if said.ahead is not None:
        lines.append(("Ahead", _ahead(said.ahead)))
    if said.own_gpu_s is not None and job.state != Phase.RUNNING:
        lines.append(("Predicted work", f"{gpu_hours(said.own_gpu_s)} GPU-hours"))
    if job.rank is not None:
        lines.append(("Free GPUs", fold_nodes(said.free) if said.free else "none"))
    if said.ends:
        lines.append(("Next free GPUs", _ends(said.ends)))
    return lines


def _ahead(ahead: Ahead) -> str:
    if not ahead.jobs:
        return "no jobs"
    more = ", ..." if ahead.jobs > len(ahead.nearest) else ""
    unseen = f", {ahead.unseen} without a prediction" if ahead.unseen else ""
    work = f", {gpu_hours(ahead.gpu_s)} GPU-hours of predicted work" if ahead.gpu_s else ""
    follow = f", and {counted(ahead.tasks, 'more task')} of their arrays" if ahead.tasks else ""
    higher = f", {ahead.higher} of a higher priority" if ahead.higher else ""
    jobs = f"{counted(ahead.jobs, 'job')}{higher}, {counted(ahead.gpus, 'GPU')}"
    return f"{jobs}{work}{unseen} ({', '.join(map(safe, ahead.nearest))}{more}){follow}"


def _ends(ends: Sequence[Ending]) -> str:
    """When enough GPUs become free, according to the predictions of the running jobs."""
    named = ", ".join(safe(each.job_id) for each in ends[:3]) + (", ..." if len(ends) > 3 else "")
    last = ends[-1]
    if last.remaining_s is not None:
        when = f"in about {slurm_time(last.remaining_s)}"
    else:
        whose = "the last by its" if len(ends) > 1 else "by its"
        when = f"{whose} time limit at {date(last.limit_end)}" if last.limit_end else "at an unknown time"
    return f"enough after job{'s' * (len(ends) > 1)} {named} {'end' if len(ends) > 1 else 'ends'}, {when}"


def _priority(job: JobStatus) -> str:
    rounded = f"{job.weight:,.0f}" if job.weight >= 100 else f"{job.weight:.3g}"
    waits = job.state not in BEGUN and OWN_ORDER not in job.priority  # else its work does not count
    by_work = waits and job.weight != 1.0
    weight = f"for the order, its predicted work is divided by {rounded} (age, fair share, size)" if by_work else ""
    return "; ".join(filter(None, [job.priority and safe(job.priority), weight]))


def _record(job: JobStatus) -> Facts:
    """The rest of what is known about the job."""
    lines = [
        ("GPUs", _gpus(job)),
        (_nodes_label(job), fold_nodes(job.nodes)),
        ("Reservation", _reservation(job)),
        ("Begin time", date(job.facts.get("until"))),
        ("Dependency", safe(str(job.facts.get("dependency", "")))),
        ("Submitted", date(job.submit_time)),
        ("Started", date(job.start_time) if job.start_time is not None else "not yet"),
        *expected_start(job),
        ("Prediction", prediction(job)),
        ("Iterations", iteration(job)),
        ("NVLink domains", _domains(job)),
        ("Communication", safe(str(job.facts.get(COMMUNICATION, "")))),
        ("By GPU type", _by_type(job)),
    ]
    if job.released_ahead and not is_refused(job.reason, job.facts):
        lines.append(("Lease", "none: it is among the next jobs, and Slurm starts it as soon as there is room"))
    if priority := _priority(job):
        lines.append(("Priority", priority))
    if job.band is not None:
        lines.append(("Fair-share", f"band {job.band} (band 1 runs first)"))
    if job.queue is not None:
        lines.append(("Service", _service(job)))
    if PREEMPTED_BY_NONE in job.facts:
        lines.append(("Preemption", _only_maintenance(str(job.facts[PREEMPTED_BY_NONE]))))
    if job.never_interrupted is not None:
        lines.append(("Preemption", _preemption(job.never_interrupted)))
    if job.iterations_done is not None:
        lines.append(("Progress", _progress(job)))
    if job.remaining_s is not None:
        lines.append(("Time left", f"{slurm_time(job.remaining_s)}{_within(job)}, {_basis(job)}"))
    elif job.remaining_low_s is not None:
        lines.append(("Time left", f"unknown: running longer than predicted{_within(job)}"))
    return [line for line in lines if line[1] != UNKNOWN] + _facts(job)


def _gpus(job: JobStatus) -> str:
    """Their number, the layout that the owner asked for, and the profile."""
    layout = f" ({safe(job.layout)})" if job.layout else ""
    return gpus_in_words(f"{job.gpus}{layout}", job.profile, str(job.facts.get(UNUSED_PROFILE, "")))


def _reservation(job: JobStatus) -> str:
    """The reservation that the job names or runs in, or the magnetic ones that draw it."""
    if DRAWN_BY in job.facts:
        return f"{safe(str(job.facts[DRAWN_BY]))} (magnetic: its nodes are considered first)"
    return safe(str(job.facts.get(RESERVED_IN, "")))  # UNKNOWN if there is none


def _service(job: JobStatus) -> str:
    """The job's attained service, which decides its order under policy hlas."""
    times = "never" if not job.interruptions else "once" if job.interruptions == 1 else f"{job.interruptions} times"
    by_loss = "" if job.expected_gpu_s is None else f", {gpu_hours(job.expected_gpu_s)} expected by its losses (hlas-p)"
    return f"{attained(job)} GPU-hours so far{by_loss}; queue {job.queue} (queue 1 runs first); preempted {times}"


def _preemption(never: str) -> str:
    if never:
        return f"never: {safe(never)}"
    return "allowed by its owner, partition or QOS (policy.min_run_s and policy.max_interruptions limit it)"


def _only_maintenance(policy: str) -> str:
    setting = " without policy.interrupts" if policy == "asrpt-gated" else ""
    return f"allowed, but policy {safe(policy)}{setting} preempts no jobs; asrptd does before maintenance of its nodes"


_SAID = {
    *(
        "need",
        "free",
        "cpus",
        "whole",
        "runs",
        "head",
        "ahead",
        "why",
        "word",
        "first",
        "slurm_reason",
        "nodes",
        "shape",
    ),
    *("reservation", "limit", "more", "most", "in_s", "kept", "kept_for", "lacks", "asked", "asks", "able", "have"),
    *("returns", "dependency", "until", "tasks", "gres"),
    *(UNUSED_PROFILE, PREEMPTED_BY_NONE, COMMUNICATION, DRAWN_BY, RESERVED_IN),
}
"""Facts that other lines mention."""


def _facts(job: JobStatus) -> Facts:
    """The facts behind the reason that the lines above do not mention."""
    return [(f"  {safe(key)}", _value(value)) for key, value in sorted(job.facts.items()) if key not in _SAID]


def _nodes_label(job: JobStatus) -> str:
    return "Nodes" if job.state in (Phase.RUNNING, Phase.STARTING) else "Offered nodes"


def prediction(job: JobStatus) -> str:
    """The predicted runtime, which the order uses, with its interval, and what it was learned from."""
    if not job.group:
        return "none: the hook did not tag this job"
    if job.predicted_iterations <= 0:
        if job.state == Phase.ENDED:  # it may have completed itself
            return f"none: no run of its group ({safe(job.group)}) had completed before"
        return f"none: no completed run of its group ({safe(job.group)})"
    if job.predicted_run_s is None:  # where a job would run is unknown if it is left to Slurm
        return UNKNOWN
    run = slurm_time(job.predicted_run_s)
    within = f" (10-90%: {durations(job.predicted_run_low_s, job.predicted_run_high_s)})"
    likely = within if job.predicted_run_low_s is not None else ""
    counted_in_iterations = job.profile and UNUSED_PROFILE not in job.facts  # others' predictions are seconds
    iterations = counted(job.predicted_mean or job.predicted_iterations, "iteration")
    work = f", {iterations}" if counted_in_iterations else ""
    return f"runtime {run}{likely}{work}, {learned_from(job.predicted_by)}"


def expected_start(job: JobStatus) -> Facts:
    """When a waiting job is expected to start, or why that is unknown."""
    if job.state == Phase.LEFT:
        return []
    if job.start_earliest is None:
        told = job.start_unknown not in ("", job.text)  # not what "Why" has said already
        return [("Expected start", f"unknown: {safe(job.start_unknown)}")] if told else []
    asof = f"(5-90%), as of {date(job.start_made)}; an estimate, not a promise"
    if job.reason != "array":
        return [("Expected start", f"{_between(job.start_earliest, job.start_latest, job.start_open)} {asof}")]
    lines = [("Next start", f"{_between(job.start_earliest, job.start_latest, job.start_open)} {asof}")]
    if job.last_start_earliest is None:
        return [
            *lines,
            ("Last start", "unknown: it starts in too few simulations (3 days each, less if the queue is long)"),
        ]
    last = _between(job.last_start_earliest, job.last_start_latest, job.last_start_open)
    return [*lines, ("Last start", f"{last} (5-90%)")]


def _between(earliest: float, latest: float | None, why: str) -> str:
    if latest is not None:
        return f"{date(earliest)} to {date(latest)}"
    return f"{date(earliest)} or later, no upper bound ({why_open(why)})"


def _within(job: JobStatus) -> str:
    return "" if job.remaining_low_s is None else f" (10-90%: {durations(job.remaining_low_s, job.remaining_high_s)})"


def _progress(job: JobStatus) -> str:
    total = f" of {job.iterations_total}" if job.iterations_total else ""
    part = f" ({share(job)})" if total else ""
    pace = f", {job.alpha_observed:.4g} s each" if job.alpha_observed else ""
    return f"{job.iterations_done}{total} iterations done{part}{pace}"


def _basis(job: JobStatus) -> str:
    """What the remaining time is computed from."""
    if job.iterations_done is None or not job.iterations_total:
        return "from the predicted runtime"
    return "at its current speed" if job.alpha_observed else "at the speed computed for these nodes"


def iteration(job: JobStatus) -> str:
    """alpha, the seconds per iteration on ``nodes``, compared with alpha~min, those in the best placement.

    Without a profile, an iteration takes a second everywhere.
    """
    profiled = job.profile and UNUSED_PROFILE not in job.facts
    if job.alpha is None or not job.alpha_min or (job.alpha == job.alpha_min and not profiled):
        return UNKNOWN
    return f"{job.alpha:.4g} s each on these nodes, {against_best(job.alpha, job.alpha_min)}"


def _domains(job: JobStatus) -> str:
    """How its GPUs are divided over NVLink domains; ``-`` if each node has them in one."""
    if not job.domains:
        return UNKNOWN
    return ", ".join(f"{'+'.join(map(str, parts))} GPUs on {safe(name)}" for name, parts in job.domains.items())


def _by_type(job: JobStatus) -> str:
    """alpha on each GPU type that could hold the whole job, the fastest first; ``-`` if all are equal."""
    if not job.alpha_by_type or len(set(job.alpha_by_type.values())) == 1:
        return UNKNOWN
    found = sorted(job.alpha_by_type.items(), key=lambda item: item[1])
    return ", ".join(f"{safe(name)} {alpha:.4g} s" for name, alpha in found) + " per iteration"


def _value(value: Any) -> str:
    return safe(value if isinstance(value, str) else json.dumps(value))


BEGUN = (Phase.RUNNING, Phase.STARTING)


def explain_array(found: Status, tasks: Sequence[JobStatus], as_json: bool) -> None:
    """Print what the tasks of an array do, and why the next one waits. tasks: in the order in which they start."""
    array, waiting = tasks[0].job_id.partition("_")[0], [task for task in tasks if task.state not in BEGUN]
    if as_json:
        following = document(found, waiting[0]) if waiting else None
        print(json.dumps({"schema": found.schema, "array": array, "tasks": _count(tasks), "next": following}, indent=2))
        return
    lines: Facts = [("Array", identity(array, tasks[0])), ("Tasks", _tasks(tasks))]
    lines += _mode(found, waiting[0]) if waiting else []
    print_facts([*lines, *(_next(found, waiting) if waiting else [])])


def _count(tasks: Sequence[JobStatus]) -> dict[str, int]:
    """Tasks per state, including the remaining tasks that share the array's record."""
    count = Counter[str]()
    for task in tasks:
        count[task.state] += int(task.facts.get("more", 1)) if task.reason == "array" else 1
    return dict(count)


def _tasks(tasks: Sequence[JobStatus]) -> str:
    said = []
    for state, number in _count(tasks).items():
        names = [task.job_id for task in tasks if task.state == state and "_" in task.job_id]
        more = ", ..." if number > len(names[:NEAREST]) else ""
        said.append(f"{number} {safe(state)}" + (f" ({', '.join(map(safe, names[:NEAREST]))}{more})" if names else ""))
    return ", ".join(said)


def _next(found: Status, waiting: Sequence[JobStatus]) -> Facts:
    """The explanation of the task that starts next, and when the last task starts."""
    job, last = waiting[0], waiting[-1]
    name = safe(job.job_id) if "_" in job.job_id else counted(int(job.facts.get("more", 1)), "task")
    lines: Facts = [
        ("Next", f"{name}, {_state(job)}"),
        ("GPUs", f"{_gpus(job)}, for each task"),
        *why_it_waits(explain(found, job), job),
    ]
    lines += expected_start(job)
    if last is job or last.start_earliest is None:
        return lines
    label = "Last start" if last.reason == "array" else "Expected start"
    return lines + [("Last start", text) for known, text in expected_start(last) if known == label]
