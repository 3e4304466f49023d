"""The models of the simulated jobs: our profiles, or the same with the communication that the paper's Table II implies.

Only the ratio of communication to computation matters to a schedule, because a job's iterations are its duration over
α̃_min. Table II has two figures for each of two models: VGG19 takes 88.11 ms with Heavy-Edge and 82.96 ms in the exact
placement, GPT-175B (of three layers) 10.14 ms in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.core.timing.pipeline import worst_iteration_time
from slurm_asrpt.sim.description import Cluster
from slurm_asrpt.sim.job_table import Floats, JobTable

LIBRARY, TENTH, TABLE2 = "library", "tenth", "table2"
VGG_BYTES = 0.012
"""With this share of our bytes, and our computation, VGG19 takes 88.11 ms over the cases of our Table II."""
GPT_BYTES = 0.002
"""With this share of our bytes, Heavy-Edge is within 0.0005 of the exact placement for GPT-175B, as printed."""
LAYERED = ("gpt-", "t5-")
"""The models of which the paper profiles three layers (section V-A.1-b)."""


def with_bytes(profile: JobProfile, share: float) -> JobProfile:
    """The same computation with this share of the bytes."""
    stages = (
        replace(
            stage,
            bytes_in=share * stage.bytes_in,
            bytes_out=share * stage.bytes_out,
            param_bytes=share * stage.param_bytes,
        )
        for stage in profile.stages
    )
    return replace(profile, stages=tuple(stages))


def of_table2(profile: JobProfile) -> JobProfile:
    """A profile with the bytes that Table II implies: those of VGG19, and of GPT-175B for models of three layers."""
    return with_bytes(profile, GPT_BYTES if profile.name.startswith(LAYERED) else VGG_BYTES)


def _recast(table: JobTable, cluster: Cluster, change: Callable[[JobProfile], JobProfile]) -> JobTable:
    """The same jobs, which run as long, with other profiles."""
    profiles = tuple(change(profile) for profile in table.profiles)
    changed = replace(table, profiles=profiles)
    before, after = (each.best_alphas(cluster.nodes, cluster.fabric) for each in (table, changed))
    ratio = np.where(np.isnan(after), 1.0, before / after)
    return replace(changed, iterations=table.iterations * ratio, predicted=table.predicted * ratio)


MODEL_SETS: Mapping[str, Callable[[JobTable, Cluster], JobTable]] = {
    LIBRARY: lambda table, _: table,
    TENTH: lambda table, cluster: _recast(table, cluster, lambda profile: with_bytes(profile, 0.1)),
    TABLE2: lambda table, cluster: _recast(table, cluster, of_table2),
}
"""The sets of models by name. TENTH: a tenth of the bytes, as if the network were ten times as fast."""


def heaviness(table: JobTable, cluster: Cluster) -> Floats:
    """α_max/α̃_min of each job on several GPUs, shape (k,): how much a placement can cost it."""
    best = table.best_alphas(cluster.nodes, cluster.fabric)
    worst = np.array([worst_iteration_time(each, cluster.gpus, cluster.fabric) for each in table.profiles])
    several = (table.gpus > 1) & ~np.isnan(best)
    return np.asarray((worst[table.profile] / best)[several])
