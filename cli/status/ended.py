"""asrpt-status --explain for an ended job: what it waited for, how it ran, what would have helped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from slurm_asrpt_cli._app.tables import fold_nodes, print_facts, safe
from slurm_asrpt_cli.status.explain import Facts, identity, iteration, prediction
from slurm_asrpt_cli.status.table import date, gpu_hours, print_jobs

from slurm_asrpt.core.job import JobId, id_key
from slurm_asrpt.status.document import NEAREST, RAN_ON, JobStatus, Status
from slurm_asrpt.status.endings import ending
from slurm_asrpt.status.reason_texts import why_open
from slurm_asrpt.status.review import Review, review
from slurm_asrpt.text import UNKNOWN, counted, slurm_time

MOST_ROWS = 10
"""An array with more ended tasks is summarized."""


def show_ended(found: Status, jobs: Sequence[JobStatus], as_json: bool) -> None:
    """Look back on an ended job, or on each task of an array. jobs: not empty, the latest first."""
    if as_json:
        documents = [{"schema": found.schema, **asdict(review(job)), "job": asdict(job)} for job in jobs]
        print(json.dumps(documents if len(documents) > 1 else documents[0], indent=2))
    elif len(jobs) > MOST_ROWS:
        print_facts(_summary(jobs))
    elif len(jobs) > 1:
        print_jobs(Status(**{**vars(found), "jobs": list(reversed(jobs))}))
    else:
        print_facts(facts_of(jobs[0], review(jobs[0])))


def _summary(jobs: Sequence[JobStatus]) -> Facts:
    """The tasks of an array by state, those that have completed last."""
    array, states = jobs[0].job_id.partition("_")[0], dict[str, list[str]]()
    for job in sorted(jobs, key=lambda job: (job.reason == "completed", id_key(JobId(job.job_id)))):
        states.setdefault(job.reason.upper(), []).append(safe(job.job_id))
    tasks = (
        f"{len(names)} {safe(state)} ({', '.join(names[:NEAREST])}{', ...' if len(names) > NEAREST else ''})"
        for state, names in states.items()
    )
    first = next(iter(states.values()))[0]
    return [
        ("Array", identity(array, jobs[0])),
        ("Tasks", ", ".join(tasks)),
        ("Last end", date(jobs[0].end_time)),
        ("More", f"asrpt-status {safe(array)} lists them, asrpt-status --explain {first} explains one"),
    ]


def facts_of(job: JobStatus, said: Review) -> Facts:
    """A fact per line."""
    lines = [
        ("Job", identity(job.job_id, job)),
        ("State", safe(ending(said.job_id, said.state, said.exit_code, said.signal))),
        ("Submitted", date(job.submit_time)),
        ("Waited", _waited(said)),
        ("Expected start", _forecast(job)),
        ("Ran", _ran(job, said)),
        ("Time limit", _limit(said, job)),
        ("GPU time", f"{gpu_hours(said.gpu_s)} GPU-hours on {counted(job.gpus, 'GPU')}" if said.gpu_s else UNKNOWN),
        ("Prediction", _against(prediction(job), said.runtime_ratio, "it ran")),
        ("Iterations", iteration(job)),
        ("Progress", _progress(job, said)),
    ]
    helps = [("What would help" if not number else "", safe(text)) for number, text in enumerate(said.helps)]
    return [line for line in lines if line[1] != UNKNOWN] + helps


def _waited(said: Review) -> str:
    parts = [f"{slurm_time(min(seconds, said.waited_s))} for {safe(what)}" for what, seconds in said.waits]
    if said.not_recorded_s:
        parts.append(f"{slurm_time(said.not_recorded_s)} before this asrptd was started")
    return f"{slurm_time(said.waited_s)}{': ' * bool(parts)}{', '.join(parts)}"


def _ran(job: JobStatus, said: Review) -> str:
    if job.start_time is None:
        return f"not at all: it ended before it started, at {date(job.end_time)}"
    nodes = fold_nodes(job.nodes) if job.nodes else safe(str(job.facts.get(RAN_ON) or "unknown nodes"))
    return f"{slurm_time(said.ran_s)} on {nodes}, from {date(job.start_time)} to {date(job.end_time)}"


def _forecast(job: JobStatus) -> str:
    """The first forecast of its start, and whether the start was in it."""
    if job.start_earliest is None or job.start_time is None:
        return UNKNOWN
    until = f"to {date(job.start_latest)}" if job.start_latest is not None else f"or later ({why_open(job.start_open)})"
    late = job.start_latest is not None and job.start_time > job.start_latest
    began = "earlier" if job.start_time < int(job.start_earliest) else "later" if late else "in this interval"
    return f"{date(job.start_earliest)} {until} (5-90%), as of {date(job.start_made)}: it started {began}"


def _limit(said: Review, job: JobStatus) -> str:
    if said.limit_share is None or not said.ran_s:
        return UNKNOWN
    used = f"{said.limit_share:.0%}" if said.limit_share >= 0.01 else "less than 1%"
    return f"{slurm_time(said.ran_s / said.limit_share)}, {used} of it used"


def _against(text: str, ratio: float | None, verb: str) -> str:
    return f"{text}; {verb} {ratio:.2f} times as long" if ratio is not None else text


def _progress(job: JobStatus, said: Review) -> str:
    if said.iterations_per_s is None:
        return UNKNOWN
    return f"{job.iterations_done} iterations, {said.iterations_per_s:.3g} per second"
