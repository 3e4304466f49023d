"""Sizes of jobs for HLAS-P: how much longer running jobs will go on at least, from the losses that they report.

The estimate is Hare's (``core.convergence``), in GPU-seconds: an iteration of one job is not one of another, and the
policy's queues are in GPU-seconds. It stays until the job has attained it, also while the job is pending after a
preemption and across restarts of asrptd. Then, or if there was none, the job is predicted again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from slurm_asrpt.core.convergence import REDUCED, Fall, conservative_estimate, convergence, fall_of, lags
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.loss_curve import ReportedCurve
from slurm_asrpt.core.policies.base import Policy, predicts_by_loss
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.record.progress import Observed, ProgressWatch

AGAIN = 1.2
"""If there is no prediction for a job, the next attempt follows after this multiple of its attained service."""
SIMILAR = frozenset({"exact", "group", "program", "user"})
"""Levels of predictions from similar jobs: of the same name or user, as in the paper. Left out: the whole cluster's."""


class LossSizes:
    """Tells a policy what jobs are expected to attain in all. Reads losses only for a policy that wants these sizes."""

    def __init__(self, policy: Policy, jobs: JobTable, progress: ProgressWatch, audit: AuditWriter) -> None:
        self._policy, self._jobs, self._progress, self._audit = policy, jobs, progress, audit
        progress.reads_losses = predicts_by_loss(policy)

    def tell(self, now: float) -> None:
        """Predict the running jobs whose last prediction is used up, and inform the policy of all."""
        policy = self._policy
        if not predicts_by_loss(policy):
            return
        seen = self._progress.look(self._jobs.running_since())
        reporting = {
            job.record.job_id: (job, found)
            for job in self._jobs.in_state(JobState.RUNNING)
            if (found := seen.get(str(job.record.number))) is not None and found.losses
        }
        arrays = _by_array(reporting)
        for job, observed in reporting.values():
            if job.service.at(now) >= job.service.predicted_until:
                self._predict(job, observed, arrays.get(job.record.array_id, {}), policy.alpha_gpu_s, now)
        policy.expected({JobId(j.record.job_id): j.service.expected for j in self._jobs.values() if j.service.expected})

    def _predict(
        self, job: ManagedJob, observed: Observed, array: Mapping[str, Observed], alpha_gpu_s: float, now: float
    ) -> None:
        """Predict one job. array: those of its array that report losses, itself included."""
        each, service = iteration_gpu_s(job, observed), job.service.at(now)
        if not each:  # its speed is not known yet
            return
        found = convergence(observed.losses, observed.progress.done, ())
        left = None
        if found is not None and found.ends is not None:
            left = _left(found.ends - found.done, observed) * each
        past, behind = past_gpu_s(job), _lags(job.record.job_id, array)
        more = conservative_estimate(left, service, past, alpha_gpu_s) * (REDUCED if behind else 1.0)
        expected = service + more if more else 0.0
        job.size_predicted(expected, expected or service * AGAIN)
        if left is None and not more:
            return
        facts = {"gpu_s": service, "expected_gpu_s": expected, "left_gpu_s": left, "past_gpu_s": past, "lags": behind}
        ends = found.ends if found is not None else None
        facts |= {"done": observed.progress.done, "ends": ends, "alpha_gpu_s": alpha_gpu_s}
        self._audit.record(now, "size-predicted", job.record.job_id, **facts)


def iteration_gpu_s(job: ManagedJob, observed: Observed) -> float:
    """The GPU-seconds of the reference type that an iteration takes: as observed, else by the profile; 0: unknown."""
    profiled = job.job is not None and job.job.profiled and job.placement is not None
    seconds = observed.alpha or (job.placement.alpha if profiled and job.placement else 0.0)
    return seconds * job.service.rate


def past_gpu_s(job: ManagedJob) -> float | None:
    """The mean GPU-seconds of similar jobs that have ended, from the tag's prediction; None without one."""
    tag, admitted = job.prediction, job.job
    if tag is None or admitted is None or not tag.iterations or tag.level not in SIMILAR:
        return None
    return (tag.mean or tag.iterations) * job.reference_alpha * admitted.gpus or None


def _left(by_curve: int, observed: Observed) -> int:
    """Iterations left by the curve, but not more than the job itself says that there are."""
    total, done = observed.progress.total, observed.progress.done
    return min(by_curve, max(0, total - done)) if total else by_curve


def _by_array(reporting: Mapping[str, tuple[ManagedJob, Observed]]) -> Mapping[str, Mapping[str, Observed]]:
    """The jobs by job array. An array of trainings that report losses is taken for a search."""
    arrays: dict[str, dict[str, Observed]] = defaultdict(dict)
    for job_id, (job, observed) in reporting.items():
        arrays[job.record.array_id][job_id] = observed
    return arrays


def _lags(job_id: str, array: Mapping[str, Observed]) -> bool:
    own, others = array.get(job_id), list(_falls(job_id, array))
    return own is not None and bool(others) and lags(_fall(own), own.progress.done, others)


def _falls(job_id: str, array: Mapping[str, Observed]) -> Iterator[tuple[Fall, int]]:
    return ((_fall(each), each.progress.done) for other, each in array.items() if other != job_id)


def _fall(observed: Observed) -> Fall:
    return fall_of(ReportedCurve(tuple(sorted(observed.losses)), 1.0))
