"""asrpt-admin shadow-report: what mode enforce would have done with the jobs that asrptd has recorded.

The runs of the history arrive at their submission times. The configured policy decides when and where they start, with
the hook's predictions at that time. For a job with a profile, the runtime is that of its iterations in its placement;
any other job keeps its actual runtime. Otherwise this is ``sim.what_if``, with the same limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.config.settings import PolicySettings
from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import ANYWHERE, UNPROFILED, Job, JobId, JobProfile, unprofiled
from slurm_asrpt.core.placement.best_alpha import fits
from slurm_asrpt.core.policies import policy_settings
from slurm_asrpt.errors import InputError
from slurm_asrpt.history.store import Origin, Run
from slurm_asrpt.sim import simulated_slurm, what_if, what_if_remarks
from slurm_asrpt.sim.engine import Progress, Result
from slurm_asrpt.sim.predictor_evaluation import trace_of_runs
from slurm_asrpt.sim.shares import Share, values
from slurm_asrpt.sim.what_if import KnownSite, Outcome, Past
from slurm_asrpt.slurm.limits import SiteLimits
from slurm_asrpt.text import counted

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Servers:
    """The cluster. node_gpus: GPUs of each server. profile_of: a profile by name and GPUs, else the default profile."""

    node_gpus: Sequence[int]
    fabric: Fabric
    profile_of: Callable[[str, int], JobProfile]


@dataclass(frozen=True)
class Report:
    """outcomes: Slurm as it was, the policy, Slurm simulated. shares: by user, account, size. headline: a sentence."""

    past: Past
    outcomes: Sequence[Outcome]
    shares: dict[str, list[Share]]
    headline: str
    interrupted: bool

    @property
    def users(self) -> list[Share]:
        return self.shares["user"]

    @property
    def sizes(self) -> list[Share]:
        return self.shares["size"]


def report(
    runs: Sequence[Run],
    servers: Servers,
    policy: PolicySettings,
    progress: Progress | None = None,
    limits: SiteLimits | None = None,
    site: KnownSite | None = None,
) -> Report:
    """Replay the runs on these servers, under the limits of the site. Raises InputError if there is nothing to
    replay.

    site: the Slurm that is simulated beside the policy; None: Slurm's defaults.
    """
    recorded = [run for run in runs if run.origin is Origin.ASRPTD and run.group_id and run.gpus]
    if not recorded:
        raise InputError(
            "asrptd recorded no job in this period; let it run in mode shadow, or choose a longer period with --since"
        )
    past = _as_they_ran(what_if.replay(trace_of_runs(recorded), servers.node_gpus), recorded, servers)
    if limits is not None:
        past = what_if.under_limits(past, limits)
    if site is not None:
        past = what_if.under_slurm(past, *site)
    chosen = policy.chosen(policy_settings(policy.name))
    result, outcomes = _simulated(past, policy.name, chosen, servers, progress)
    slurm = result if result.interrupted else None
    if slurm is None:
        slurm, baseline = _simulated(past, simulated_slurm.NAME, {}, servers, _second(progress, len(past.table)))
        outcomes = outcomes + baseline
    outcomes = [what_if.outcome(what_if.AS_IT_WAS, past, past.wait), *outcomes]
    found, said = what_if.by_group(past, outcomes[1], outcomes)
    return Report(past, what_if.with_baseline(outcomes), found, said, slurm.interrupted)


def _simulated(
    past: Past, name: str, settings: Mapping[str, Any], servers: Servers, progress: Progress | None
) -> tuple[Result, list[Outcome]]:
    result = what_if.simulate_past(past, name, settings, servers.fabric, progress)
    return result, [what_if.outcome(name, past, what_if.waits_of(result), result.end - result.start)]


def _second(progress: Progress | None, jobs: int) -> Progress | None:
    """Progress of the second simulation of as many jobs."""
    return None if progress is None else lambda done, _, clock: progress(jobs + done, 2 * jobs, clock)


def _as_they_ran(past: Past, runs: Sequence[Run], servers: Servers) -> Past:
    """The jobs with their profiles, iterations and predictions at submission."""
    known = {f"{run.job_id}@{run.start_time}": run for run in runs}
    ran = [known[job] for job in past.jobs["job_id"]]
    profiles = [_profile(run, past, servers) for run in ran]
    number = {profile: at for at, profile in enumerate(dict.fromkeys(profiles))}
    profiled = np.array([profile.name != UNPROFILED for profile in profiles])
    alpha = np.array([run.alpha or 1.0 for run in ran])
    predicted = np.array([run.predicted_mean or run.predicted_iterations for run in ran], dtype=float)
    table = replace(
        past.table,
        requests=(),
        profiles=tuple(number),
        profile=np.array([number[profile] for profile in profiles]),
        iterations=past.duration / np.where(profiled, alpha, 1.0),
        predicted=predicted * np.where(profiled, 1.0, alpha),  # iterations of the default profile are seconds
    )
    table = what_if.on_asked_nodes(table, past.jobs, past.cluster)
    zero = float((predicted == 0).mean())
    notes = {"predictor": "as the hook gave them", "predicted_zero": zero, "profiled": int(profiled.sum())}
    return replace(past, table=table, notes={**past.notes, **notes})


def _profile(run: Run, past: Past, servers: Servers) -> JobProfile:
    """The profile with which the run was scheduled, if it fits the servers and the actual placement is known."""
    profile = servers.profile_of(run.profile, run.gpus) if run.alpha > 0 else unprofiled(run.gpus)
    job = Job(JobId("0"), "", run.gpus, profile, request=ANYWHERE)
    return profile if fits(job, past.cluster.nodes) else unprofiled(run.gpus)


def limitations(past: Past) -> list[str]:
    """What the replay leaves out; every report includes it."""
    return [
        "Jobs without a profile run as long as they did, wherever they are placed: placement does not help them.",
        *past.notes["limits"][1:],
        "Pending and running jobs are missing on both sides: the shorter the period, the larger their share.",
    ]


def not_only_slurm(modes: Sequence[str]) -> str:
    """What the headline begins with if asrptd was in these modes then."""
    return (
        f"asrptd was in mode {' and '.join(modes)} in this time, so what is called Slurm here is partly its own work; "
        "choose a time in mode shadow with --since."
    )


def remarks(found: Report, left: int, vanished: int) -> list[str]:
    """Notes on the data. left, vanished: numbers of jobs left to Slurm, and of jobs that ended unobserved."""
    profiled, jobs = found.past.notes["profiled"], found.past.notes["jobs"]
    lines = [*what_if_remarks.unlike_slurm(found.outcomes), *what_if_remarks.remarks(found.past)]
    lines.append(f"{profiled} of {counted(jobs, 'job')} with a profile: their runtime depends on the placement.")
    if left:
        lines.append(
            f"{counted(left, 'job')} simulated like the others, although asrptd would have left such jobs to Slurm "
            "(asrpt:off, shards, MPS ...)."
        )
    if vanished:
        lines.append(f"{counted(vanished, 'job')} missing: ended while asrptd was not running.")
    return lines


def document(found: Report, notes: Sequence[str]) -> Mapping[str, Any]:
    """What --json prints."""
    return {
        "kind": "asrpt-admin shadow-report",
        "notes": {
            **found.past.notes,
            "limits": limitations(found.past),
            "simulated_slurm": what_if.simulated(found.past),
        },
        "remarks": list(notes),
        "headline": found.headline,
        "rows": [{"policy": each.name, **each.figures} for each in found.outcomes],
        **values(found.shares),
        "interrupted": found.interrupted,
    }
