"""Turns a trace into a workload: models for its groups, a cluster, a load, predictions (paper, section V-A.1-b)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.cluster import capacity, with_reference_gpus
from slurm_asrpt.core.job import UNPROFILED, JobProfile, unprofiled
from slurm_asrpt.core.limits import Charges
from slurm_asrpt.core.preemption_costs import PreemptionCosts
from slurm_asrpt.errors import InputError
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.profile.documents import load_uncut
from slurm_asrpt.profile.library_tools import table1
from slurm_asrpt.profile.schema import library_names, load_profile
from slurm_asrpt.sim.description import H100, KNOWN, PERFECT, REPORTS, UNKNOWN, Cluster, Options
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.predictors import Learning, chains_of, keys_of_jobs, predictions, trained
from slurm_asrpt.sim.unnamed import Measured, without_profiles
from slurm_asrpt.traces.trace import Trace, recurrence_key

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_CLUSTER, _OPTIONS = Cluster(), Options()


@dataclass(frozen=True)
class Workload:
    """Jobs to simulate on a cluster. notes: facts about them for reports, JSON values.

    consenting: rows of the jobs that a policy may preempt; costs: what that costs.
    real: the same jobs with their profiles, if policies are not told these. measured: what is learned from their runs;
    None for nothing.
    """

    table: JobTable
    cluster: Cluster
    notes: Mapping[str, Any] = field(default_factory=dict)
    consenting: Sequence[int] = ()
    costs: PreemptionCosts = field(default_factory=PreemptionCosts)
    real: JobTable | None = None
    measured: Measured | None = None


def build(trace: Trace, cluster: Cluster = _CLUSTER, options: Options = _OPTIONS) -> Workload:
    """The jobs after the history, with models, load and predictions. Raises ValueError if there are none."""
    rng = np.random.default_rng(options.seed)
    jobs = trace.jobs
    key = recurrence_key(jobs)
    gpus = _sizes(jobs, key, options.single_gpu, rng)
    profiles, profile, moved = _models(key, gpus, options, rng)
    draft = JobTable(profiles, jobs["submit_s"].to_numpy(), profile, np.ones(len(jobs)), np.zeros(len(jobs)))
    # durations in traces are for reference GPUs
    alpha = draft.best_alphas(with_reference_gpus(cluster.nodes), cluster.fabric)
    # jobs that do not fit the cluster stay in the table: policies must report "capacity" and continue
    known_alpha = np.where(np.isnan(alpha), 1.0, alpha)
    iterations = jobs["duration_s"].to_numpy() / known_alpha
    rows = _simulated_rows(trace, options)
    names, users = key.tolist(), jobs["user"].tolist()
    predicted, learning = iterations[rows], None
    if options.predictor != PERFECT:
        models = np.array(["" if each.name == UNPROFILED else each.name for each in profiles])[profile]
        models[np.isnan(alpha)] = ""  # their iterations are not known
        keys = keys_of_jobs(chains_of(names, users, gpus.tolist()), models.tolist(), known_alpha.tolist())
        known = trained(options.predictor, (keys[row].example(iterations[row]) for row in _past(jobs, rows.start)))
        predicted = predictions(known, keys[rows])
        learning = Learning(keys[rows], known, options.retrain_s) if options.retrain_s > 0 else None
    table = JobTable(
        profiles,
        jobs["submit_s"].to_numpy()[rows] - jobs["submit_s"].iloc[rows.start],
        profile[rows],
        iterations[rows],
        predicted,
        jobs["time_limit_s"].to_numpy()[rows],
        users[rows],
        names[rows],
        learning,
    )
    own_load = offered_load(table, cluster)
    if options.load is not None:
        table = _at_load(table, own_load, options.load)
    if options.max_gpus_per_user is not None:
        table = _limited(table, options.max_gpus_per_user)
    notes = _notes(trace, table, cluster, own_load, rows.start, moved)
    consenting = np.flatnonzero(np.random.default_rng(options.seed).random(len(table)) < options.consent).tolist()
    costs = PreemptionCosts(options.checkpoint_s, options.requeue_s, options.restart_s)
    made = Workload(table, cluster, notes, consenting, costs)
    return made if options.communication == KNOWN else _hidden(made, options)


def _simulated_rows(trace: Trace, options: Options) -> slice:
    """The jobs after the history. Raises ValueError if there are none."""
    count = len(trace.jobs)
    first = int(count * options.history)
    last = count if options.jobs is None else min(count, first + options.jobs)
    if first >= last:
        raise ValueError(f"none of the {count} jobs of {trace.name} is left to simulate")
    return slice(first, last)


def _at_load(table: JobTable, own: float, load: float) -> JobTable:
    """The same jobs, submitted so much closer together or further apart. own: their load. Raises InputError."""
    if not np.isfinite(own):
        raise InputError("all jobs of the simulation are submitted at the same time, so that no load can be set")
    return replace(table, submit=table.submit * (own / load))


def _hidden(made: Workload, options: Options) -> Workload:
    """The same jobs, whose profiles policies do not know. Without retraining, nothing is learned."""
    learns = options.communication != UNKNOWN and options.retrain_s > 0
    measured = Measured(options.communication == REPORTS, retrain_s=options.retrain_s, seed=options.seed)
    table = without_profiles(made.table, made.cluster.nodes, made.cluster.fabric)
    return replace(made, table=table, real=made.table, measured=measured if learns else None)


def _limited(table: JobTable, most: int) -> JobTable:
    """The same jobs under a limit on the GPUs of each user. Raises ValueError if the trace does not name the users."""
    users = sorted({user for user in table.users if user})
    if not users:
        raise ValueError("a limit per user requires a trace that names the users")
    caps = {f"{most} GPUs of user {user}": float(most) for user in users}
    limit_of = dict(zip(users, caps, strict=True))
    amounts = [float(gpus) if gpus <= most else math.inf for gpus in table.gpus]  # a larger job never starts
    charges: list[Charges] = [
        ((limit_of[user], amount),) if user else () for user, amount in zip(table.users, amounts, strict=True)
    ]
    return replace(table, charges=charges, caps=caps)


def offered_load(table: JobTable, cluster: Cluster) -> float:
    """GPU-seconds of all jobs in their best placements, over the number of GPUs times the span of the submissions.

    Both are in terms of reference GPUs: a GPU that is twice as fast counts twice.
    """
    alphas = table.best_alphas(with_reference_gpus(cluster.nodes), cluster.fabric)
    work = table.gpus * table.iterations * np.nan_to_num(alphas)
    span = float(table.submit[-1] - table.submit[0]) if len(table) else 0.0
    available = capacity(cluster.nodes) * span
    return float(work.sum() / available) if available > 0 else float("inf")


def _past(jobs: pd.DataFrame, first: int) -> Ints:
    """Rows of the jobs that had ended when the first simulated job arrived, in the order of their ends."""
    columns = jobs.iloc[:first]
    end = (columns["submit_s"] + columns["wait_s"].fillna(0.0) + columns["duration_s"]).to_numpy()
    order = np.argsort(end, kind="stable")
    return np.asarray(order[end[order] <= jobs["submit_s"].iloc[first]], dtype=np.int64)


def _sizes(jobs: pd.DataFrame, key: pd.Series, single: float | None, rng: np.random.Generator) -> Ints:
    """GPUs of each job. With a share of single-GPU jobs, random groups become single-GPU or distributed as a whole."""
    gpus = jobs["gpus"].to_numpy(dtype=np.int64)
    if single is None:
        return gpus
    codes, names = pd.factorize(key)
    runs = np.bincount(codes)
    order = rng.permutation(len(names))
    is_single = np.zeros(len(names), dtype=bool)
    is_single[order[np.cumsum(runs[order]) <= single * len(jobs)]] = True
    several = gpus[gpus > 1]
    drawn = rng.choice(several if len(several) else np.array([2, 4, 8]), len(names))
    return np.asarray(np.where(is_single[codes], 1, np.where(gpus > 1, gpus, drawn[codes])), dtype=np.int64)


@cache
def _library(models: str) -> Mapping[int, Mapping[str, tuple[JobProfile, ...]]]:
    """Table I's configurations by GPUs, then by model."""
    found: dict[int, dict[str, tuple[JobProfile, ...]]] = {}
    for name in library_names():
        model = name.rsplit("-", 1)[0]
        profile = _on_h100(model, name) if models == H100 else load_profile(name, ())
        by_model = found.setdefault(profile.gpus, {})
        by_model[model] = (*by_model.get(model, ()), profile)
    return found


def _on_h100(model: str, name: str) -> JobProfile:
    """A configuration of the library by the measured profile of its model."""
    plan = next(plan for plan in table1.PLANS[model] if f"{model}-{plan.suffix}" == name)
    return table1.measured(plan, load_uncut(f"{model}-{H100}", ()))


def _models(
    key: pd.Series, gpus: Ints, options: Options, rng: np.random.Generator
) -> tuple[tuple[JobProfile, ...], Ints, int]:
    """Profiles, the profile of each job, and the number of jobs whose number of GPUs changed.

    For each group and size, a model is drawn, then one of its configurations of that size. A size without a
    configuration takes the nearest one by ratio (of two equally near, the larger).
    """
    codes, kinds = pd.factorize(pd.MultiIndex.from_arrays([key, gpus]))
    library = {} if options.models == "none" else _library(options.models)
    profiles: list[JobProfile] = []
    number: dict[JobProfile, int] = {}
    chosen = np.empty(len(kinds), dtype=np.int64)
    for kind, (_, size) in enumerate(kinds):
        profile = unprofiled(int(size)) if options.models == "none" else _draw(library, int(size), rng)
        chosen[kind] = number.setdefault(profile, len(number))
        if len(number) > len(profiles):
            profiles.append(profile)
    sizes = np.array([profile.gpus for profile in profiles])[chosen[codes]]
    return tuple(profiles), chosen[codes], int((sizes != gpus).sum())


def _draw(library: Mapping[int, Mapping[str, Sequence[JobProfile]]], size: int, rng: np.random.Generator) -> JobProfile:
    near = min(library, key=lambda k: (max(k / size, size / k), -k))
    models = library[near]
    configurations = models[sorted(models)[int(rng.integers(len(models)))]]
    return configurations[int(rng.integers(len(configurations)))]


def _notes(
    trace: Trace, table: JobTable, cluster: Cluster, own_load: float, history: int, moved: int
) -> dict[str, Any]:
    return {
        "trace": trace.name,
        "jobs": len(table),
        "history_jobs": history,
        "load": offered_load(table, cluster),
        "load_of_trace": own_load,
        "single_gpu": float((table.gpus == 1).mean()),
        "unseen": float((table.predicted == 0).mean()),
        "other_size": moved,
    }
