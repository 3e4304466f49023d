"""Evaluates predictors: test cases from the jobs of a trace, and the completion times that result from a predictor."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from slurm_asrpt.history.store import Run
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.predict.evaluation import EvaluationRun
from slurm_asrpt.predict.predictors import Example
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.predictors import chains_of
from slurm_asrpt.sim.workload import build
from slurm_asrpt.traces.trace import Trace, clean, recurrence_key

POLICIES = ("asrpt", "asrpt-gated")
GPUS = 8


def cases_of_trace(trace: Trace, teaching: Collection[str] = ()) -> list[EvaluationRun]:
    """The trace's jobs in the order of submission, with one iteration per second. teaching: the job states to train
    on; empty for all."""
    jobs = trace.jobs
    chains = chains_of(recurrence_key(jobs).tolist(), jobs["user"].tolist(), jobs["gpus"].tolist())
    end = jobs["submit_s"] + jobs["wait_s"].fillna(0.0) + jobs["duration_s"]
    trains = jobs["status"].str.upper().isin(teaching) if teaching else pd.Series(True, index=jobs.index)
    columns = (chains, jobs["duration_s"].tolist(), jobs["submit_s"].tolist(), end.tolist(), trains.tolist())
    return [EvaluationRun(Example(chain, run), *when) for chain, run, *when in zip(*columns, strict=True)]


def trace_of_runs(runs: Sequence[Run]) -> Trace:
    """The history as a trace, for simulations."""
    columns = {
        "job_id": [f"{run.job_id}@{run.start_time}" for run in runs],
        "submit_s": [run.submit_time or run.start_time for run in runs],
        "user": [run.user or str(run.uid) for run in runs],
        "group": [run.group_id for run in runs],
        "gpus": [run.gpus for run in runs],
        "duration_s": [run.end_time - run.start_time for run in runs],
        "status": [run.state for run in runs],
        "queue": [run.partition for run in runs],
        "account": [run.account for run in runs],
        "qos": [run.qos for run in runs],
        "tres": [run.tres for run in runs],
        "time_limit_s": [run.time_limit_s or math.inf for run in runs],
        "min_nodes": [run.min_nodes or math.nan for run in runs],
        "max_nodes": [run.max_nodes or math.nan for run in runs],
        "wait_s": [run.start_time - run.submit_time if run.submit_time else 0 for run in runs],
    }
    return clean("history", pd.DataFrame(columns), epoch=True)


def completion_times(
    trace: Trace, predictor: str, train: float, jobs: int, load: float, progress: Callable[[int], None]
) -> dict[str, float]:
    """Mean completion time in seconds by policy, of ``jobs`` jobs that follow the share ``train`` of the trace.

    Only the predictions matter: the jobs have no profiles, and the cluster has just enough servers of 8 GPUs for the
    largest job, at least two. progress: called with the number of jobs that have ended under all policies so far.
    """
    largest = int(trace.jobs["gpus"].max())
    cluster = Cluster(max(2, math.ceil(largest / GPUS)), GPUS)
    options = Options(models="none", load=load, history=train, jobs=jobs, predictor=predictor)
    table = build(trace, cluster, options).table

    def mean_completion_time(number: int, policy: str) -> float:
        def report(done: int, of: int, now: float) -> None:
            progress(number * len(table) + done)

        result = simulate_named(policy, cluster.nodes, table, cluster.fabric, progress=report)
        return float(np.mean(result.completion_times))

    return {policy: mean_completion_time(number, policy) for number, policy in enumerate(POLICIES)}
