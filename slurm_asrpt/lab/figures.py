"""What a round of the demo comes to: figures from Slurm's records of its jobs, their table, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab.workload import DemoJob
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.slurm.tag import parse_tag

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


def table(backfill: Round, asrpt: Round) -> Table:
    """Both rounds side by side."""
    shown = Table(title="Same jobs, same Slurm, two schedulers")
    for title in ("", "Slurm backfill", "asrptd", "ratio"):
        shown.add_column(title, justify="left" if not title else "right")
    rows: dict[str, tuple[float, float, str]] = {
        "jobs completed": (backfill.completed, asrpt.completed, "d"),
        "average completion time, s": (backfill.avg_jct_s, asrpt.avg_jct_s, ".1f"),
        "total completion time, s": (backfill.total_jct_s, asrpt.total_jct_s, ".0f"),
        "makespan, s": (backfill.makespan_s, asrpt.makespan_s, ".0f"),
        "GPU hours beyond the best placement": (backfill.lost_gpu_hours, asrpt.lost_gpu_hours, ".3f"),
    }
    for title, (before, after, form) in rows.items():
        shown.add_row(title, format(before, form), format(after, form), f"{after / before:.2f}" if before else "-")
    error = asrpt.prediction_error
    shown.add_row("mean prediction error", "-", "-" if error is None else f"{error:.1%}", "-")
    return shown


def ratio(backfill: Round, asrpt: Round) -> float:
    """Average completion time under asrptd over that under backfill; below 1 asrptd is the better one."""
    return asrpt.avg_jct_s / backfill.avg_jct_s


def meaning(backfill: Round, asrpt: Round) -> str:
    """The ratio in words. Completion time: from a job's submission to its end, so waiting counts."""
    change = ratio(backfill, asrpt) - 1
    if abs(change) < 0.005:
        verdict = "as long under both"
    else:
        verdict = f"{abs(change):.0%} {'less' if change < 0 else 'more'} time under asrptd"
    return f"ratio {1 + change:.2f}: from submission to end a job took {verdict} on average (below 1: asrptd is better)"
