"""GPUs of several types: the speed of a job, and its profile at that speed.

All GPUs of a job wait for each other in every iteration, so the slowest GPU determines the speed (Hare, section VI-D:
"the total round training time is often limited by the slowest (straggler) GPU"). Let v_i^t be the speed of type t for
job i, relative to the GPU of the profile, and T the types that a placement uses. Then computation in (7) takes

    (p_s^f + p_s^b) / min_{t in T} v_i^t

while (5), (6) and all other communication do not change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.job import JobProfile


def slowest(profile: JobProfile, nodes: Iterable[Node]) -> float:
    """min v_i^t on these servers: from the profile, else from the site's settings."""
    if not profile.speeds:
        return min([node.speed for node in nodes])
    own = dict(profile.speeds)
    return min([own.get(node.gpu_type, node.speed) for node in nodes])


def fastest(profile: JobProfile, nodes: Iterable[Node]) -> float:
    """max v_i^t on these servers; 1 without servers."""
    return max([slowest(profile, (node,)) for node in nodes], default=1.0)


@lru_cache(maxsize=65536)
def at_speed(profile: JobProfile, speed: float) -> JobProfile:
    """The profile as it would have been measured on GPUs of this speed."""
    if speed == 1.0:
        return profile
    stages = tuple(
        replace(stage, forward_s=stage.forward_s / speed, backward_s=stage.backward_s / speed)
        for stage in profile.stages
    )
    return replace(profile, stages=stages, speeds=())
