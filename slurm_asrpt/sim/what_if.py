"""What each policy would have done with the past jobs of a Slurm cluster, compared with what Slurm did.

Jobs keep their submission time, GPUs and runtime; the policy decides when they start. LIMITS lists what this leaves
out (LIMITS_BESIDES_SITE if the limits of the site are simulated), and every report includes it.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.config.settings import PolicySettings
from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.placement.splitter import Split
from slurm_asrpt.core.policies import policy_names
from slurm_asrpt.core.policies.slurm_backfill.options import SlurmOptions
from slurm_asrpt.errors import InputError
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.sim import simulated_slurm
from slurm_asrpt.sim.description import RETRAIN_S, Cluster, Options
from slurm_asrpt.sim.engine import PERFECT, SPLIT, Progress, Result, prepared, simulate
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.metrics import mean_of, percentile
from slurm_asrpt.sim.scenario import parse_policies, parse_policy
from slurm_asrpt.sim.shares import GROUPS, Share, compared, headline, shares, values
from slurm_asrpt.sim.simulated_slurm import SimulatedSlurm
from slurm_asrpt.sim.site_limits import with_limits
from slurm_asrpt.sim.workload import build, offered_load
from slurm_asrpt.slurm.limits import SiteLimits
from slurm_asrpt.slurm.site import Site
from slurm_asrpt.text import span
from slurm_asrpt.traces import Trace
from slurm_asrpt.traces.trace import NODE_COLUMNS, recurrence_key

Floats = NDArray[np.float64]

AS_IT_WAS = "Slurm as it was"
WORDS = {
    PolicySettings().name: "asrptd's default",
    "asrpt": "the A-SRPT paper",
    "hlas": "the Hare paper",
    "sjf-bco-online": "the SJF-BCO paper",
    simulated_slurm.NAME: "Slurm in the simulator",
    "easy-backfill": "EASY backfill",
    "fifo": "first come, first served",
    "wcs-workload": "least work first",
    "wcs-duration": "shortest first",
    "wcs-subtime": "earliest submission first",
    "spjf": "shortest predicted runtime first",
    "spwf": "least predicted work first",
}
"""Policies in words."""
LIMITS = (
    "Jobs have no profile here: their runtime does not depend on the placement, so placement does not help.",
    "Limits per user or account, reservations, dependencies and preemption are not simulated, and priorities only "
    "under slurm-backfill: a job may start as soon as it is submitted. Slurm's figures include the waits that these "
    "caused.",
    "The nodes are taken as they are now, all of them up, and jobs may run on any of them, whatever the type of their "
    "GPUs, their CPUs or their memory.",
    "The simulated cluster is empty at first; jobs that were running then but are not listed are missing.",
    "Jobs get as many nodes as their owners asked for (-N), as far as that is known: a job that ran on as many as it "
    "asked for gets no more.",
    "slurm-backfill knows neither nice values nor priorities set by admins, and what users had used before the "
    "first job only if Slurm's accounting answers now.",
)
LIMITS_BESIDES_SITE = (
    LIMITS[0],
    "Reservations, dependencies and preemption are not simulated, and priorities only under slurm-backfill: a job may "
    "start as soon as it is submitted and its limits have room. Slurm's figures include the waits that these caused.",
    "The limits are those of today, and only the simulated jobs count against them. Used-up minutes (GrpTRESMins, "
    "GrpWall) are not simulated.",
    *LIMITS[2:],
)


class KnownSite(NamedTuple):
    """A site, where it was read from, and when: seconds since the epoch; None if it is not known."""

    site: Site
    source: str
    asked_at: float | None = None


@dataclass(frozen=True)
class Past:
    """Jobs to replay. wait: under Slurm, seconds, shape (jobs,), nan where unknown. notes: for reports, JSON values.

    jobs: the columns of the trace, in the order of ``table``. slurm: how policy slurm-backfill simulates the site.
    """

    table: JobTable
    cluster: Cluster
    wait: Floats
    duration: Floats
    notes: Mapping[str, Any]
    jobs: pd.DataFrame
    slurm: SimulatedSlurm = field(default_factory=SimulatedSlurm)


@dataclass(frozen=True)
class Outcome:
    """One row of the comparison. wait: of the compared jobs, seconds. figures: JSON values.

    waits, ran: of all jobs, seconds, shape (jobs,); nan where unknown.
    """

    name: str
    wait: Floats
    figures: Mapping[str, Any]
    waits: Floats = field(default_factory=lambda: np.zeros(0))
    ran: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def policy(self) -> str:
        """The policy's name, without its settings."""
        return self.name.partition(":")[0].removesuffix(PERFECT)

    @property
    def words(self) -> str:
        """What it is, in words."""
        said = WORDS.get(self.policy)
        return f"{said} ({self.name})" if said else self.name


def default_policies() -> list[str]:
    """asrptd's default, the site's Slurm as the simulator plays it, the paper's policy, the best baseline and FIFO."""
    names = [PolicySettings().name, simulated_slurm.NAME, "asrpt", "wcs-workload", "fifo"]
    return [name for name in dict.fromkeys(names) if name in policy_names()]


def checked_policies(text: str) -> list[str]:
    """Parse policies separated by commas, ``NAME:KEY=VALUE`` each. Raises InputError that lists the valid ones."""
    return [spec.text for spec in parse_policies(text)]


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
    table = on_asked_nodes(workload.table, jobs, cluster)
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
        "first_at": trace.first_at + float(jobs["submit_s"].iloc[0]) if trace.first_at is not None else None,
        "days": float(table.submit[-1] - table.submit[0]) / 86400,
        "wait_unknown": int(jobs["wait_s"].isna().sum()),
        "limits": list(LIMITS),
    }
    return Past(table, cluster, jobs["wait_s"].to_numpy(), jobs["duration_s"].to_numpy(), notes, jobs)


def on_asked_nodes(table: JobTable, jobs: pd.DataFrame, cluster: Cluster) -> JobTable:
    """The same jobs on as many nodes as their owners asked for, as far as it is known."""
    if not set(NODE_COLUMNS) <= set(jobs):
        return table
    bounds = jobs[list(NODE_COLUMNS)].fillna(0).astype(int).itertuples(index=False, name=None)
    return table.with_nodes(list(bounds), cluster.nodes)


def under_slurm(past: Past, site: Site, source: str, asked_at: float | None = None) -> Past:
    """The same jobs; policy slurm-backfill plays the Slurm of this site. source, asked_at: as in ``KnownSite``."""
    first_at = past.notes["first_at"]
    asked_s = asked_at - first_at if asked_at is not None and first_at is not None else None
    return replace(past, slurm=simulated_slurm.of_site(site, past.jobs, past.cluster.total_gpus, source, asked_s))


def under_limits(past: Past, limits: SiteLimits) -> Past:
    """The same jobs under the limits of the site."""
    table, facts = with_limits(past.table, past.jobs, limits)
    notes = {**past.notes, "limits": list(LIMITS_BESIDES_SITE), "site_limits": facts}
    return replace(past, table=table, notes=notes)


def _predictor_text(history: float, retrain_s: float) -> str:
    if not history:
        return "median of the group's earlier runs"
    return f"forest on the history, retrained every {span(retrain_s)}" if retrain_s else "forest on the history"


def _finite(value: float) -> float | None:
    """None for infinity (all jobs arrive at once), which JSON cannot represent."""
    return value if np.isfinite(value) else None


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
        spec = parse_policy(name)
        result = simulate_past(past, spec.name, spec.settings, past.cluster.fabric, _reporter(progress, name))
        if result.interrupted:
            return with_baseline(outcomes), True
        outcomes.append(outcome(name, past, waits_of(result)))
    return with_baseline(outcomes), False


def simulate_past(
    past: Past, name: str, settings: Mapping[str, Any], fabric: Fabric, progress: Progress | None = None
) -> Result:
    """Replay the jobs under a policy, with Slurm's split; under slurm-backfill with the site's settings where
    ``settings`` has none."""
    if name.removesuffix(PERFECT) == simulated_slurm.NAME:
        settings = {**past.slurm.settings, **settings}
    settings = {SPLIT: Split.SLURM, **settings}
    policy, table = prepared(name, settings, fabric, past.cluster.nodes, past.table)
    past.slurm.prepare(policy, float(past.table.submit[0]))
    return simulate(policy, past.cluster.nodes, table, progress, partial=True)


def with_baseline(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The same outcomes with the ratio of their mean completion times to that of the simulated Slurm."""
    named = {each.name.partition(":")[0]: each for each in reversed(outcomes)}
    base = named[simulated_slurm.NAME].figures["mean_jct_s"] if simulated_slurm.NAME in named else None

    def ratio(each: Outcome) -> float | None:
        found = each.figures["mean_jct_s"]
        return found / base if base and found is not None else None

    return [replace(each, figures={**each.figures, "jct_over_simulated": ratio(each)}) for each in outcomes]


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
        "jct_over_simulated": None,
    }
    return Outcome(name, waits, figures, wait, past.duration if ran is None else ran)


def ours(outcomes: Sequence[Outcome]) -> Outcome | None:
    """asrptd's default policy if it was simulated, else the first policy; None if there is none."""
    policies = [each for each in outcomes if each.name != AS_IT_WAS]
    return next((each for each in policies if each.policy == PolicySettings().name), policies[0] if policies else None)


def by_group(past: Past, outcome: Outcome, outcomes: Sequence[Outcome]) -> tuple[dict[str, list[Share]], str]:
    """Shares of the jobs under a policy by group, and the comparison with Slurm in one sentence. outcomes: all."""
    frame = compared(past.jobs, outcome.waits, outcome.ran)
    found = {group: shares(frame, group) for group in GROUPS}
    alike = next((each.figures["mean_wait_s"] for each in outcomes if each.name == simulated_slurm.NAME), None)
    return found, headline(frame, found["user"], found["size"], outcome.words, alike)


def document(past: Past, outcomes: Sequence[Outcome], interrupted: bool) -> dict[str, Any]:
    """What --json prints."""
    rows = [{"policy": each.name, **each.figures} for each in outcomes]
    shown = ours(outcomes)
    found, said = by_group(past, shown, outcomes) if shown else ({}, "")
    notes = {**past.notes, "simulated_slurm": simulated(past)}
    return {
        "kind": "asrpt-sim what-if",
        "headline": said,
        "notes": notes,
        "rows": rows,
        **values(found),
        "interrupted": interrupted,
    }


def simulated(past: Past) -> dict[str, Any]:
    """How slurm-backfill plays the site's Slurm, JSON values."""
    return {**past.slurm.facts, "settings": SlurmOptions(**past.slurm.settings).model_dump()}
