"""What policies declare as their settings, and two settings that several of them share.

The keys of all built-in policies together are the section [policy] of asrpt.toml (``config.settings``), which every
command reads: modules with options import nothing but pydantic.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class PolicyOptions(BaseModel):
    """Settings of a policy: a field each, with type, bounds, default and description. Every field needs a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class PatienceOptions(PolicyOptions):
    """For policies whose order alone could let a job wait forever."""

    patience_s: Annotated[float, Field(gt=0)] = Field(
        604800.0, description="A job that has waited for so many seconds goes before younger ones."
    )


class ContentionOptions(PolicyOptions):
    """For policies that can take contention for NICs into account."""

    contention: bool = Field(
        False,
        description="true: jobs that span servers share the NICs; count the jobs that use each NIC. "
        "false: each job has its GPUs' share of the NIC.",
    )
