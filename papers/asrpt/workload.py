"""The jobs of the A-SRPT paper's experiments, and what the paper leaves open about them as options.

The paper takes consecutive jobs from Alibaba's PAI trace, which is not available to us in that form. It is generated
(``pai_like``) from what is published about it, at the original rate of 758,223 jobs in 60 days. As in the paper, the
predictors learn from the first 80%; the jobs that follow are simulated, with the trace's arrival times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from papers.asrpt.models import LIBRARY, MODEL_SETS
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.workload import Workload, build
from slurm_asrpt.traces import Trace
from slurm_asrpt.traces.synthetic import DAYS, pai_like

Floats = NDArray[np.float64]

TRACE_JOBS = 758_223
HISTORY = 0.8
JOBS = 75_000
SERVERS = 250
TESTBED_GPUS, TESTBED_GBYTE, TESTBED_JOBS, TESTBED_SETS = 14, 128.0, 75, 3
TESTBED_LARGEST = 8
"""GPUs of the largest job of the testbed: the largest size of a trace below its 14 GPUs. Larger jobs get this size."""
ZERO, PRIOR, TRUTH = "zero", "prior", "truth"
UNSEEN = (ZERO, PRIOR, TRUTH)
"""ñ of jobs of unseen groups: 0 as in the paper, the mean work of first runs, or n itself."""


@dataclass(frozen=True)
class Jobs:
    """A workload without its seed. divide: divisor of the paper's numbers of jobs and servers. nic: Gbit/s.

    single: share of single-GPU jobs, None for that of the trace. load: None keeps the arrival times.
    retrain_s: seconds between retrainings, 0 for never; the paper trains once (section V-A.1-c).
    models: one of MODEL_SETS. unseen: one of UNSEEN. unseen_share: share of the jobs in unseen groups, None for that
    of the trace. testbed: a window of TESTBED_JOBS jobs on TESTBED_GPUS GPUs; None, or the window's number from 0.
    """

    jobs: int = JOBS
    single: float | None = None
    nic: float = 10.0
    predictor: str = "forest"
    divide: int = 1
    load: float | None = None
    retrain_s: float = 0.0
    models: str = LIBRARY
    unseen: str = ZERO
    unseen_share: float | None = None
    testbed: int | None = None

    @property
    def cluster(self) -> Cluster:
        if self.testbed is not None:
            return Cluster(servers=1, gpus=TESTBED_GPUS, intra_gbyte=TESTBED_GBYTE)
        return Cluster(servers=max(1, round(SERVERS / self.divide)), nic_gbit=self.nic)


@lru_cache(maxsize=1)
def make(jobs: Jobs, seed: int) -> Workload:
    """The jobs of one seed; cached for one workload."""
    rng = np.random.default_rng([seed, 28])
    built = _built(
        replace(jobs, models=LIBRARY, unseen=ZERO, unseen_share=None, testbed=None if jobs.testbed is None else 0), seed
    )
    table = built.table if jobs.testbed is None else _window(built.table, jobs.testbed, seed)
    table = MODEL_SETS[jobs.models](table, jobs.cluster)
    if jobs.unseen_share is not None:
        table = with_unseen(table, jobs.unseen_share, rng)
    if jobs.unseen != ZERO:
        table = replace(table, predicted=known(table, jobs, seed))
    return replace(built, table=table, cluster=jobs.cluster)


@lru_cache(maxsize=1)
def _built(jobs: Jobs, seed: int) -> Workload:
    """The jobs as the simulator makes them. For the testbed: all jobs after the history, from which windows are cut."""
    options = Options(
        single_gpu=jobs.single,
        load=jobs.load,
        jobs=None if jobs.testbed is not None else max(1, jobs.jobs // jobs.divide),
        history=HISTORY,
        predictor=jobs.predictor,
        retrain_s=jobs.retrain_s,
        seed=seed,
    )
    trace = trace_of(jobs.divide, seed)
    return build(_small(trace) if jobs.testbed is not None else trace, jobs.cluster, options)


@lru_cache(maxsize=1)
def trace_of(divide: int, seed: int) -> Trace:
    """The whole trace; cached."""
    return pai_like(round(TRACE_JOBS / divide), DAYS, seed)


def _small(trace: Trace) -> Trace:
    return replace(trace, jobs=trace.jobs.assign(gpus=trace.jobs["gpus"].clip(upper=TESTBED_LARGEST)))


def _window(table: JobTable, number: int, seed: int) -> JobTable:
    """The window of this number: consecutive jobs from a random row on."""
    starts = np.random.default_rng([seed, TESTBED_JOBS]).integers(0, len(table) - TESTBED_JOBS, size=number + 1)
    return rows(table, slice(int(starts[number]), int(starts[number]) + TESTBED_JOBS))


def rows(table: JobTable, some: slice) -> JobTable:
    """Consecutive jobs of a table, the first submitted at 0."""
    return replace(
        table,
        submit=table.submit[some] - table.submit[some.start],
        profile=table.profile[some],
        iterations=table.iterations[some],
        predicted=table.predicted[some],
        time_limit=table.time_limit[some],
        users=table.users[some],
        groups=table.groups[some],
    )


# unseen groups


def with_unseen(table: JobTable, share: float, rng: np.random.Generator) -> JobTable:
    """The same jobs with about this share of them in unseen groups, drawn by group.

    A group that becomes seen gets predictions as wrong as those of seen groups: the ratio of a random seen job.
    """
    codes = np.unique(np.asarray(table.groups), return_inverse=True)[1]
    runs = np.bincount(codes)
    unseen = table.predicted == 0
    natural = np.bincount(codes, weights=unseen) > 0
    order = rng.permutation(len(runs))
    order = np.concatenate([order[natural[order]], order[~natural[order]]])  # groups that are unseen stay so first
    hidden = np.zeros(len(runs), dtype=bool)
    hidden[order[np.cumsum(runs[order]) <= share * len(table)]] = True
    ratios = (table.predicted / table.iterations)[~unseen]
    learned = np.where(unseen, table.iterations * rng.choice(ratios, len(table)), table.predicted)
    return replace(table, predicted=np.where(hidden[codes], 0.0, learned))


def known(table: JobTable, jobs: Jobs, seed: int) -> Floats:
    """ñ with another treatment of unseen jobs: the truth, or the mean work of first runs in the history."""
    unseen = table.predicted == 0
    if jobs.unseen == TRUTH:
        return np.where(unseen, table.iterations, table.predicted)
    alpha = np.nan_to_num(table.best_alphas(jobs.cluster.nodes, jobs.cluster.fabric), nan=1.0)  # nan: fits no server
    return np.where(unseen, first_runs_s(jobs.divide, seed) / alpha, table.predicted)


@lru_cache(maxsize=1)
def first_runs_s(divide: int, seed: int) -> float:
    """The mean duration of the first run of each group in the history, seconds: what is known of an unseen job."""
    jobs = trace_of(divide, seed).jobs
    first = jobs.iloc[: int(len(jobs) * HISTORY)].drop_duplicates(["user", "group"])
    return float(first["duration_s"].mean())


def shares(table: JobTable, cluster: Cluster) -> tuple[float, float]:
    """The share of unseen jobs, and their share of the work (GPU-seconds in the best placement)."""
    unseen = table.predicted == 0
    work = table.gpus * table.iterations * np.nan_to_num(table.best_alphas(cluster.nodes, cluster.fabric))
    return float(unseen.mean()), float(work[unseen].sum() / work.sum())
