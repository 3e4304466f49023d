"""What a round of the demo comes to: figures from Slurm's records of its jobs, their table, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from slurm_asrpt.errors import MachineError
from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.lab.workload import DemoJob
from slurm_asrpt.slurm.records import JobRecord

DONE = "COMPLETED"


@dataclass(frozen=True)
class Round:
    """One way of scheduling the jobs. Times in seconds; lost_gpu_hours: beyond the best placement's run time.

    prediction_error: mean of |predicted - real| / real iterations; None for the round that learns.
    """

    completed: int
    avg_jct_s: float
    total_jct_s: float
    makespan_s: float
    lost_gpu_hours: float
    prediction_error: float | None


def measure(jobs: Sequence[DemoJob], records: Mapping[str, JobRecord], predicted: bool) -> Round:
    """Figures of a round over the jobs that completed; records by the job's name. Raises MachineError for none."""
    done = [(job, records[job.name]) for job in jobs if job.name in records and records[job.name].state == DONE]
    if not done:
        raise MachineError("no job completed; run it with --keep and see the logs in the lab's directory")
    times = [record.end_time - record.submit_time for _, record in done]
    lost = [job.gpus * max(0.0, r.end_time - r.start_time - job.ideal_s) for job, r in done]
    errors = [abs(_prediction(record) - job.iterations) / job.iterations for job, record in done]
    return Round(
        completed=len(done),
        avg_jct_s=sum(times) / len(times),
        total_jct_s=sum(times),
        makespan_s=max(r.end_time for _, r in done) - min(r.submit_time for _, r in done),
        lost_gpu_hours=sum(lost) / 3600,
        prediction_error=sum(errors) / len(errors) if predicted else None,
    )


def _prediction(record: JobRecord) -> int:
    tag = parse_tag(record.admin_comment)
    return tag.iterations if tag else 0


def table(rounds: Mapping[str, Round]) -> Table:
    """The rounds side by side by name; in brackets over the first one. Readable from 40 columns on."""
    first = next(iter(rounds.values()))
    shown = Table(title="Same jobs, same Slurm", caption="in brackets: over the first column")
    shown.add_column("", overflow="fold")
    for name in rounds:
        shown.add_column(name, justify="right", overflow="fold")
    rows: dict[str, tuple[str, str]] = {
        "jobs completed": ("completed", "d"),
        "average completion time, s": ("avg_jct_s", ".1f"),
        "total completion time, s": ("total_jct_s", ".0f"),
        "makespan, s": ("makespan_s", ".0f"),
        "GPU hours lost to placement": ("lost_gpu_hours", ".3f"),
    }
    for title, (field, form) in rows.items():
        shown.add_row(title, *(_cell(found, first, field, form) for found in rounds.values()))
    errors = [found.prediction_error for found in rounds.values()]
    shown.add_row("mean prediction error", *("-" if error is None else f"{error:.1%}" for error in errors))
    return shown


def _cell(found: Round, first: Round, field: str, form: str) -> str:
    value, before = getattr(found, field), getattr(first, field)
    over = f" ({value / before:.2f})" if before and form != "d" and found is not first else ""
    return format(value, form) + over


def ratio(backfill: Round, other: Round) -> float:
    """Average completion time of a round over that under backfill; below 1 backfill is the slower one."""
    return other.avg_jct_s / backfill.avg_jct_s


def meaning(backfill: Round, other: Round, name: str) -> str:
    """The ratio in words. Completion time: from a job's submission to its end, so waiting counts."""
    change = ratio(backfill, other) - 1
    if abs(change) < 0.005:
        verdict = f"as long under {name} as under backfill"
    else:
        verdict = f"{abs(change):.0%} {'less' if change < 0 else 'more'} time under {name}"
    return f"ratio {1 + change:.2f}: from submission to end a job took {verdict} on average (below 1: {name} is better)"
