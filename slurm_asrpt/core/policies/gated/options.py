"""The settings of asrpt-gated."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slurm_asrpt.core.policies.options import ContentionOptions, PatienceOptions


class GatedOptions(PatienceOptions, ContentionOptions):
    """How good a placement must be, and how long a job may wait for it."""

    gate: Annotated[float, Field(ge=1)] = Field(
        1.1, description="A job starts only where alpha is at most this many times its minimum."
    )
