"""The settings of hlas."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slurm_asrpt.core.policies.options import PolicyOptions


class HlasOptions(PolicyOptions):
    """The queues by attained service, and what a running job is spared."""

    queues: Annotated[int, Field(ge=1, le=64)] = Field(
        8, description="K, queues by the GPU time that a job has had; the first goes first."
    )
    first_gpu_s: Annotated[float, Field(gt=0)] = Field(
        3600.0, description="GPU-seconds from which a job is in the second queue."
    )
    factor: Annotated[float, Field(gt=1, le=1000)] = Field(
        4.0, description="Each next queue begins at so many times the GPU-seconds."
    )
    max_interruptions: Annotated[int, Field(ge=0, le=1000)] = Field(
        3, description="A job is interrupted at most so many times, then it runs to its end; 0: no job ever is."
    )
    min_run_s: Annotated[float, Field(ge=0)] = Field(
        600.0, description="Seconds for which a job runs undisturbed each time that it has started."
    )
