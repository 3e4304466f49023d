"""The settings of hlas."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slurm_asrpt.core.policies.options import InterruptOptions


class HlasOptions(InterruptOptions):
    """The queues by attained service, and when a running job may be preempted."""

    queues: Annotated[int, Field(ge=1, le=64)] = Field(
        8,
        description="K, the number of queues. Jobs with less attained GPU time are in earlier queues, which go first.",
    )
    first_gpu_s: Annotated[float, Field(gt=0)] = Field(
        3600.0, description="Attained GPU-seconds from which a job is in the second queue."
    )
    reserve_after_s: Annotated[float, Field(gt=0)] = Field(
        600.0,
        description="Once a job has waited for this many seconds, freed GPUs are kept for it; for one job at a time.",
    )
    factor: Annotated[float, Field(gt=1, le=1000)] = Field(
        4.0, description="Each following queue begins at this many times the GPU-seconds of the previous queue."
    )
    predict: Literal["none", "loss"] = Field(
        "none",
        description='"loss": HLAS-P. The size of a job that reports its loss is what it has attained and what its loss '
        'curve and past runs say that it will still attain. Other jobs, and all with "none": attained service only.',
    )
    alpha_gpu_s: Annotated[float, Field(gt=0)] = Field(
        3600.0,
        description='With predict = "loss": the loss curve is only asked whether a job will attain this many more '
        "GPU-seconds, not how many.",
    )
