"""The base class of policy settings, and settings that several policies share.

The keys of all built-in policies form the section [policy] of asrpt.toml (``config.settings``), which every command
reads. Modules with options therefore import only pydantic.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class PolicyOptions(BaseModel):
    """Settings of a policy: one field each, with type, bounds, default and description. Every field needs a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class PatienceOptions(PolicyOptions):
    """For policies whose order could starve a job."""

    patience_s: Annotated[float, Field(gt=0)] = Field(
        604800.0, description="A job that has waited for this many seconds goes before younger jobs."
    )


class ContentionOptions(PolicyOptions):
    """For policies that can take contention for NICs into account."""

    contention: bool = Field(
        False,
        description="true: jobs that span servers share the NICs; count the jobs that use each NIC. "
        "false: each job has its GPUs' share of the NIC.",
    )


class InterruptOptions(PolicyOptions):
    """For policies that preempt running jobs."""

    max_interruptions: Annotated[int, Field(ge=0, le=1000)] = Field(
        3, description="A job is preempted at most this many times; then it runs to its end. 0: never."
    )
    min_run_s: Annotated[float, Field(ge=0)] = Field(
        600.0, description="Seconds for which a job is not preempted after each start."
    )
