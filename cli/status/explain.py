"""asrpt-status --explain: one reason in plain words, the evidence, what would change it, and all that is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from slurm_asrpt_cli._app.tables import fold_nodes, print_facts, safe
from slurm_asrpt_cli.status.columns import attained, date, durations, gpu_hours, gpus_in_words, learned_from, share

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.status.document import UNUSED_PROFILE, JobStatus, Status
from slurm_asrpt.status.explain import Ahead, Ending, Explanation, explain
from slurm_asrpt.text import UNKNOWN, counted, slurm_time

Facts = list[tuple[str, str]]


def explain_command(found: Status, job: JobStatus, as_json: bool) -> None:
    """Print it: a fact a line, or as JSON with the job's own record."""
    if as_json:
        print(json.dumps(document(found, job), indent=2))
        return
    rank = f", number {job.rank} in line" if job.rank is not None else ""
    lines = [
        ("Job", f"{safe(job.job_id)} ({safe(job.name)}) of {safe(job.user)}, partition {safe(job.partition)}"),
        ("State", safe(job.state) + rank),
    ]
    print_facts([*lines, *why_it_waits(explain(found, job), job), *_record(job)])


def document(found: Status, job: JobStatus) -> dict[str, Any]:
    """The same as JSON has it, with the job's own record."""
    return {"schema": found.schema, **asdict(explain(found, job)), "job": asdict(job)}


def why_it_waits(said: Explanation, job: JobStatus) -> Facts:
    """The reason, the rule and what would change it, and the evidence."""
    lines = [("Why", safe(said.why))]
    lines += [("Rule", safe(said.rule))] if said.rule else []
    lines += [("What changes it" if not number else "", safe(text)) for number, text in enumerate(said.changes)]
    return lines + _evidence(said, job)


def _evidence(said: Explanation, job: JobStatus) -> Facts:
    lines: Facts = []
    if said.ahead is not None:
        lines.append(("Ahead of it", _ahead(said.ahead)))
    if said.own_gpu_s is not None and job.state != Phase.RUNNING:
        lines.append(("Its own work", _work(said.own_gpu_s)))
    if job.rank is not None:
        lines.append(("Free GPUs", fold_nodes(said.free) if said.free else "none"))
    if said.ends:
        lines.append(("Free next", _ends(said.ends)))
    return lines


def _ahead(ahead: Ahead) -> str:
    if not ahead.jobs:
        return "nobody"
    more = ", ..." if ahead.jobs > len(ahead.nearest) else ""
    unseen = f", {ahead.unseen} of them unseen" if ahead.unseen else ""
    work = f" with {_work(ahead.gpu_s)}" if ahead.gpu_s else ""
    follow = f", and {ahead.tasks} more of their arrays" if ahead.tasks else ""
    jobs = f"{counted(ahead.jobs, 'job')} for {counted(ahead.gpus, 'GPU')}"
    return f"{jobs}{work}{unseen} ({', '.join(map(safe, ahead.nearest))}{more}){follow}"


def _work(gpu_s: float) -> str:
    return f"{gpu_hours(gpu_s)} GPU-hours of predicted work"


def _ends(ends: Sequence[Ending]) -> str:
    """When enough GPUs will be free, by the predictions of what runs."""
    named = ", ".join(safe(each.job_id) for each in ends[:3]) + (", ..." if len(ends) > 3 else "")
    last = ends[-1].remaining_s
    when = f"in about {slurm_time(last)}" if last is not None else "nobody knows when"
    verb = "ends" if len(ends) == 1 else "end"
    return f"enough GPUs once {named} {verb}, {when}"


def _record(job: JobStatus) -> Facts:
    """All else that is known of the job."""
    lines = [
        ("GPUs", gpus_in_words(job.gpus, job.profile, str(job.facts.get(UNUSED_PROFILE, "")))),
        (_nodes_label(job), fold_nodes(job.nodes)),
        ("Submitted", date(job.submit_time)),
        ("Started", date(job.start_time) if job.start_time is not None else "not yet"),
        *expected_start(job),
        ("Prediction", _prediction(job)),
        ("Iteration", _iteration(job)),
        ("By type of GPU", _by_type(job)),
    ]
    if job.band is not None:
        lines.append(("Fair-share", f"band {job.band} (1 goes first)"))
    if job.queue is not None:
        lines.append(("Service", _service(job)))
    if job.never_interrupted is not None:
        lines.append(("Interruption", _interruption(job.never_interrupted)))
    if job.iterations_done is not None:
        lines.append(("Progress", _progress(job)))
    if job.remaining_s is not None:
        lines.append(("Time left", f"{slurm_time(job.remaining_s)}{_within(job)}, {_basis(job)}"))
    elif job.remaining_low_s is not None:
        lines.append(("Time left", f"longer than predicted already{_within(job)}"))
    return [line for line in lines if line[1] != UNKNOWN] + _facts(job)


def _service(job: JobStatus) -> str:
    """What goes before what with policy hlas."""
    times = "never" if not job.interruptions else "once" if job.interruptions == 1 else f"{job.interruptions} times"
    return f"{attained(job)} GPU-hours so far: queue {job.queue} (1 goes first); interrupted {times}"


def _interruption(never: str) -> str:
    if never:
        return f"never: {safe(never)}"
    return "may be interrupted (policy.min_run_s, policy.max_interruptions): its owner has agreed"


def _facts(job: JobStatus) -> Facts:
    """What the reason rests on, as far as the words above do not say it."""
    said = {
        "need",
        "free",
        "runs",
        "head",
        "ahead",
        "why",
        "word",
        "slurm_reason",
        "nodes",
        "shape",
        "reservation",
        "more",
        "most",
        "in_s",
    }
    said.add(UNUSED_PROFILE)
    return [(f"  {safe(key)}", _value(value)) for key, value in sorted(job.facts.items()) if key not in said]


def _nodes_label(job: JobStatus) -> str:
    return "Nodes" if job.state in (Phase.RUNNING, Phase.STARTING) else "Nodes on offer"


def _prediction(job: JobStatus) -> str:
    if not job.group:
        return "none: the hook has not tagged it"
    if job.predicted_iterations <= 0:
        return f"none: no finished job of its group ({safe(job.group)}) is known"
    run = slurm_time(job.predicted_run_s)
    within = f" (10-90%: {durations(job.predicted_run_low_s, job.predicted_run_high_s)})"
    likely = within if job.predicted_run_low_s is not None else ""
    mean = f" (mean {job.predicted_mean}, for the order)" if job.predicted_mean else ""
    iterations = counted(job.predicted_iterations, "iteration")
    return f"{iterations}{mean}, run time {run}{likely}, {learned_from(job.predicted_by)}"


def expected_start(job: JobStatus) -> Facts:
    """When a waiting job will start, or why nobody can say."""
    if job.state == Phase.LEFT:
        return []
    if job.start_earliest is None:
        told = job.start_unknown not in ("", job.text)  # what is said above already is no news
        return [("Expected start", f"unknown: {safe(job.start_unknown)}")] if told else []
    asof = f"(10-90%), as of {date(job.start_made)}; no promise"
    if job.reason != "array":
        return [("Expected start", f"{_between(job.start_earliest, job.start_latest)} {asof}")]
    lines = [("Next start", f"{_between(job.start_earliest, job.start_latest)} {asof}")]
    if job.last_start_earliest is None:
        return [*lines, ("Last start", "later than can be foreseen")]
    return [*lines, ("Last start", f"{_between(job.last_start_earliest, job.last_start_latest)} (10-90%)")]


def _between(earliest: float, latest: float | None) -> str:
    return f"{date(earliest)} to {date(latest) if latest is not None else 'later than can be foreseen'}"


def _within(job: JobStatus) -> str:
    return "" if job.remaining_low_s is None else f" (10-90%: {durations(job.remaining_low_s, job.remaining_high_s)})"


def _progress(job: JobStatus) -> str:
    total = f" of {job.iterations_total}" if job.iterations_total else ""
    part = f" ({share(job)})" if total else ""
    pace = f", {job.alpha_observed:.4g} s each" if job.alpha_observed else ""
    return f"{job.iterations_done}{total} iterations done{part}{pace}"


def _basis(job: JobStatus) -> str:
    """What the remaining time rests on."""
    if job.iterations_done is None or not job.iterations_total:
        return "by the predicted run time"
    return "at its present speed" if job.alpha_observed else "at the speed computed for these nodes"


def _iteration(job: JobStatus) -> str:
    """alpha, the seconds per iteration on ``nodes``, against alpha~min, those in the best placement.

    Without a profile an iteration is a second, wherever it runs.
    """
    if job.alpha is None or not job.alpha_min or (job.alpha == job.alpha_min and not job.profile):
        return UNKNOWN
    times = job.alpha / job.alpha_min
    return f"alpha {job.alpha:.4g} s on these nodes, {job.alpha_min:.4g} s at best (alpha~min): {times:.2f} times"


def _by_type(job: JobStatus) -> str:
    """alpha on each type that could hold the job alone, the fastest first; nothing where all are alike."""
    if not job.alpha_by_type or len(set(job.alpha_by_type.values())) == 1:
        return UNKNOWN
    found = sorted(job.alpha_by_type.items(), key=lambda item: item[1])
    return ", ".join(f"{safe(name)} {alpha:.4g} s" for name, alpha in found) + " an iteration"


def _value(value: Any) -> str:
    return safe(value if isinstance(value, str) else json.dumps(value))
