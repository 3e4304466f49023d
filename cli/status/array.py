"""asrpt-status --explain of an array by its own number: what becomes of its tasks, and why the next one waits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from slurm_asrpt_cli._app.tables import print_facts, safe
from slurm_asrpt_cli.status.explain import Facts, document, expected_start, why_it_waits

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.status.document import NEAREST, JobStatus, Status
from slurm_asrpt.status.explain import explain
from slurm_asrpt.text import counted

BEGUN = (Phase.RUNNING, Phase.STARTING)


def explain_array(found: Status, tasks: Sequence[JobStatus], as_json: bool) -> None:
    """Print it, or as JSON with the explanation of the next task. tasks: in the order in which they should start."""
    array, waiting = tasks[0].job_id.partition("_")[0], [task for task in tasks if task.state not in BEGUN]
    if as_json:
        following = document(found, waiting[0]) if waiting else None
        print(json.dumps({"schema": found.schema, "array": array, "tasks": _count(tasks), "next": following}, indent=2))
        return
    first = tasks[0]
    lines: Facts = [
        ("Array", f"{safe(array)} ({safe(first.name)}) of {safe(first.user)}, partition {safe(first.partition)}"),
        ("Tasks", _tasks(tasks)),
    ]
    print_facts([*lines, *(_next(found, waiting) if waiting else [])])


def _count(tasks: Sequence[JobStatus]) -> dict[str, int]:
    """Tasks of each state, those that wait in the array's record, too."""
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
    """Of the task that starts next all but who it is, and when the last one starts."""
    job, last = waiting[0], waiting[-1]
    line = f", number {job.rank} in line" if job.rank is not None else ""
    name = safe(job.job_id) if "_" in job.job_id else counted(int(job.facts.get("more", 1)), "task")
    lines: Facts = [("Next", f"{name}, {safe(job.state)}{line}"), *why_it_waits(explain(found, job), job)]
    lines += expected_start(job)
    if last is job or last.start_earliest is None:
        return lines
    label = "Last start" if last.reason == "array" else "Expected start"
    return lines + [("Last start", text) for known, text in expected_start(last) if known == label]
