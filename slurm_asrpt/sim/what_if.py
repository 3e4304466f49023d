"""What each policy would have done with the past jobs of a Slurm cluster, compared with what Slurm did.

Jobs keep their submission time, GPUs and runtime; the policy decides when they start. LIMITS lists what this leaves
out (LIMITS_BESIDES_SITE if the limits of the site are simulated), and every report includes it.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.config.settings import PolicySettings
from slurm_asrpt.core.policies import policy_names
from slurm_asrpt.errors import InputError
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.sim import site_limits
from slurm_asrpt.sim.engine import PERFECT, Result, simulate_named
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.metrics import mean_of, percentile
from slurm_asrpt.sim.predictors import RETRAIN_S
from slurm_asrpt.sim.site_limits import with_limits
from slurm_asrpt.sim.workload import Cluster, Options, build, offered_load
from slurm_asrpt.slurm.limits import SiteLimits
from slurm_asrpt.text import counted
from slurm_asrpt.traces import Trace
from slurm_asrpt.traces.trace import recurrence_key

Floats = NDArray[np.float64]

AS_IT_WAS = "Slurm as it was"
LIMITS = (
    "Jobs have no profile here: their runtime does not depend on the placement, so placement does not help.",
    "Priorities, limits per user or account, reservations, dependencies and preemption are not simulated: under the "
    "policies, a job may start as soon as it is submitted. Slurm's figures include the waits that these caused.",
    "The nodes are taken as they are now, all of them up, and jobs may run on any of them, whatever the type of their "
    "GPUs, their CPUs or their memory.",
    "The simulated cluster is empty at first; jobs that were running then but are not listed are missing.",
)
LIMITS_BESIDES_SITE = (
    LIMITS[0],
    "Priorities, reservations, dependencies and preemption are not simulated: under the policies, a job may start as "
    "soon as it is submitted and its limits have room. Slurm's figures include the waits that these caused.",
    "The limits are those of today, and only the simulated jobs count against them. Used-up minutes (GrpTRESMins, "
    "GrpWall) are not simulated.",
    *LIMITS[2:],
)


@dataclass(frozen=True)
class Past:
    """Jobs to replay. wait: under Slurm, seconds, shape (jobs,), nan where unknown. notes: for reports, JSON values.

    jobs: the columns of the trace, in the order of ``table``.
    """

    table: JobTable
    cluster: Cluster
    wait: Floats
    duration: Floats
    notes: Mapping[str, Any]
    jobs: pd.DataFrame


@dataclass(frozen=True)
class Outcome:
    """One row of the comparison. wait: of the compared jobs, seconds. figures: JSON values."""

    name: str
    wait: Floats
    figures: Mapping[str, Any]


def default_policies() -> list[str]:
    """FIFO, EASY backfill with the jobs' time limits, the best baseline, the paper's policy and asrptd's default."""
    names = ["fifo", "easy-backfill", "wcs-workload", "asrpt", PolicySettings().name]
    return [name for name in dict.fromkeys(names) if name in policy_names()]


def checked_policies(text: str) -> list[str]:
    """Parse names separated by commas. Raises InputError that lists the valid ones."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    wrong = [name for name in names if name.removesuffix(PERFECT) not in policy_names()]
    if wrong or not names:
        raise InputError(f"no policy is called {(wrong or [''])[0]!r}; known: {', '.join(policy_names())}")
    return names


def replay(
    trace: Trace, node_gpus: Sequence[int], history: float = 0.0, seed: int = 0, retrain_s: float = RETRAIN_S
) -> Past:
    """The part of the trace that can be replayed on these servers. Raises InputError if there is none.

    history: share of the jobs, from the first, that only trains the forest. With 0 all jobs are replayed, and a job's
    prediction is the median of its group's runs that had actually ended when it was submitted.
    retrain_s: seconds of simulated time between retrainings of the forest on jobs that have ended there; 0 for never.
    """
    cluster = Cluster.of(node_gpus)
    fitting = (trace.jobs["gpus"] <= cluster.total_gpus).to_numpy()
    kept = replace(trace, jobs=trace.jobs[fitting].reset_index(drop=True))
    predictor = "forest" if history else "perfect"
    try:
        options = Options(models="none", history=history, predictor=predictor, retrain_s=retrain_s, seed=seed)
        workload = build(kept, cluster, options)
    except ValueError as error:
        raise InputError(f"{trace.name}: {error}") from error
    jobs = kept.jobs.iloc[len(kept) - len(workload.table) :]
    table = workload.table
    if not history:
        table = replace(table, predicted=online_medians(jobs))
    notes = {
        "trace": trace.name,
        "jobs": len(table),
        "rows": trace.rows,
        "left_out": dict(trace.left_out),
        "too_large": int((~fitting).sum()),
        "history_jobs": len(kept) - len(table),
        "predictor": _predictor_text(history, retrain_s),
        "predicted_zero": float((table.predicted == 0).mean()),
        "cluster": cluster.text,
        "gpus": cluster.total_gpus,
        "most_gpus_in_use": most_in_use(jobs),
        "load": _finite(offered_load(table, cluster)),
        "days": float(table.submit[-1] - table.submit[0]) / 86400,
        "wait_unknown": int(jobs["wait_s"].isna().sum()),
        "limits": list(LIMITS),
    }
    return Past(table, cluster, jobs["wait_s"].to_numpy(), jobs["duration_s"].to_numpy(), notes, jobs)


def under_limits(past: Past, limits: SiteLimits) -> Past:
    """The same jobs under the limits of the site."""
    table, facts = with_limits(past.table, past.jobs, limits)
    notes = {**past.notes, "limits": list(LIMITS_BESIDES_SITE), "site_limits": facts}
    return replace(past, table=table, notes=notes)


def _predictor_text(history: float, retrain_s: float) -> str:
    if not history:
        return "median of the group's earlier runs"
    return f"forest on the history, retrained every {_span(retrain_s)}" if retrain_s else "forest on the history"


def _finite(value: float) -> float | None:
    """None for infinity (all jobs arrive at once), which JSON cannot represent."""
    return value if np.isfinite(value) else None


def _span(seconds: float) -> str:
    """``2.5 days``, down to seconds."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s"


def online_medians(jobs: pd.DataFrame) -> Floats:
    """Predicted seconds of each job at its submission, from the runs that had ended by then; 0 for a new group.

    jobs: columns of a trace, in the order of submission.
    """
    group = recurrence_key(jobs).tolist()
    submit, duration = jobs["submit_s"].tolist(), jobs["duration_s"].tolist()
    end = (jobs["submit_s"] + jobs["wait_s"].fillna(0.0) + jobs["duration_s"]).tolist()
    running: list[tuple[float, int]] = []
    known: dict[str, list[float]] = {}
    predicted = np.zeros(len(jobs))
    for row, now in enumerate(submit):
        while running and running[0][0] <= now:
            _, ended = heapq.heappop(running)
            insort(known.setdefault(group[ended], []), duration[ended])
        if group[row] in known:
            predicted[row] = median(known[group[row]])
        heapq.heappush(running, (end[row], row))
    return predicted


def most_in_use(jobs: pd.DataFrame) -> int:
    """The most GPUs that these jobs held at once under Slurm. If the nodes have fewer, nodes are missing."""
    known = jobs[jobs["wait_s"].notna()]
    start = (known["submit_s"] + known["wait_s"]).to_numpy()
    times = np.concatenate([start + known["duration_s"].to_numpy(), start])  # at any instant ends come first
    gpus = known["gpus"].to_numpy()
    order = np.argsort(times, kind="stable")
    return int(np.cumsum(np.concatenate([-gpus, gpus])[order]).max(initial=0))


def compare(
    past: Past, policies: Sequence[str], progress: Callable[[str, int, int], None] = lambda name, done, jobs: None
) -> tuple[list[Outcome], bool]:
    """Slurm as it was, then each policy; and whether Ctrl-C interrupted the comparison.

    Figures cover the jobs whose wait under Slurm is known. progress: called with a policy, its ended jobs and all jobs.
    """
    outcomes = [outcome(AS_IT_WAS, past, past.wait)]
    for name in policies:
        result = simulate_named(
            name, past.cluster.nodes, past.table, past.cluster.fabric, progress=_reporter(progress, name)
        )
        if result.interrupted:
            return outcomes, True
        outcomes.append(outcome(name, past, waits_of(result)))
    return outcomes, False


def _reporter(progress: Callable[[str, int, int], None], name: str) -> Callable[[int, int, float], None]:
    return lambda done, jobs, clock: progress(name, done, jobs)


def waits_of(result: Result) -> Floats:
    """Wait of each job in seconds; nan for jobs that never started."""
    return np.asarray(np.where(result.end <= result.clock, result.waits, np.nan))


def outcome(name: str, past: Past, wait: Floats, ran: Floats | None = None) -> Outcome:
    """Means, percentiles and ratios to Slurm, over the jobs whose wait is known in the simulation and under Slurm.

    ran: runtime of each job in the simulation, seconds; None: as under Slurm.
    """
    compared = ~np.isnan(past.wait) & ~np.isnan(wait)
    waits, duration = wait[compared], (past.duration if ran is None else ran)[compared]
    done = waits + duration
    real = (past.wait + past.duration)[compared]
    figures: dict[str, Any] = {
        "jobs": int(compared.sum()),
        "never_started": int((~np.isnan(past.wait) & np.isnan(wait)).sum()),
        "mean_wait_s": mean_of(waits),
        **{f"p{share}_wait_s": percentile(waits, share) for share in (50, 90, 99)},
        "max_wait_s": percentile(waits, 100),
        "mean_jct_s": mean_of(done),
        "p99_jct_s": percentile(done, 99),
        "mean_slowdown": mean_of(done / duration),
        "jct_over_real": float(done.sum() / real.sum()) if len(real) else None,
        "wait_over_real": float(waits.sum() / past.wait[compared].sum()) if past.wait[compared].sum() > 0 else None,
        "later_than_real": float((waits > past.wait[compared] + 60).mean()) if len(waits) else None,
    }
    return Outcome(name, waits, figures)


def document(past: Past, outcomes: Sequence[Outcome], interrupted: bool) -> dict[str, Any]:
    """What --json prints."""
    rows = [{"policy": each.name, **each.figures} for each in outcomes]
    return {"kind": "asrpt-sim what-if", "notes": dict(past.notes), "rows": rows, "interrupted": interrupted}


def unread(why: str) -> str:
    """The remark that the limits could not be read."""
    return f"The limits of QOS and accounts are not simulated: {why}."


def remarks(past: Past) -> list[str]:
    """Notes on the data, in sentences."""
    notes = past.notes
    load = "" if notes["load"] is None else f", load {notes['load']:.2f}"
    none = f"none for {100 * notes['predicted_zero']:.0f}% of jobs"
    lines = [
        f"{counted(notes['jobs'], 'job', ',')} submitted within {_span(86400 * notes['days'])}, "
        f"on {notes['cluster']}{load}; "
        f"predictions: {notes['predictor']} ({none}{' from the history' if notes['history_jobs'] else ''}).",
    ]
    if notes.get("only_user"):
        lines.append(
            f"All jobs belong to {notes['only_user']}, who ran this command. Slurm may hide other users' jobs "
            "(PrivateData); then the policies look better than they are. Run it as root or as a Slurm operator."
        )
    left = [f"{count} {why}" for why, count in notes["left_out"].items()]
    if notes["too_large"]:
        left.append(f"{notes['too_large']} larger than the nodes found")
    if left:
        lines.append(f"Left out of {counted(notes['rows'], 'row')}: {', '.join(left)}.")
    if notes["history_jobs"]:
        lines.append(
            f"The first {counted(notes['history_jobs'], 'job')} only trained the predictor. If some were still running "
            "or pending when the others arrived, the real cluster was not empty, and the policies look too good."
        )
    if "site_limits" in notes:
        lines += site_limits.remarks(notes["site_limits"], notes["jobs"])
    if notes.get("limits_unread"):
        lines.append(unread(notes["limits_unread"]))
    if notes["wait_unknown"]:
        lines.append(f"{counted(notes['wait_unknown'], 'job')} without a known wait: simulated, but in no figure.")
    if notes["most_gpus_in_use"] > notes["gpus"]:
        lines.append(
            f"Under Slurm these jobs held up to {counted(notes['most_gpus_in_use'], 'GPU')} at once, but the nodes "
            f"found have {notes['gpus']}: nodes are missing, and the policies look worse than they are."
        )
    return lines
