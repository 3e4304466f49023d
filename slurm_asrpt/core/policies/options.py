"""The base class of policy settings, and two settings that several policies share.

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
