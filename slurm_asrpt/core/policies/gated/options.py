"""The settings of asrpt-gated."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slurm_asrpt.core.policies.options import ContentionOptions, InterruptOptions, PatienceOptions


class GatedOptions(PatienceOptions, ContentionOptions, InterruptOptions):
    """How good a placement must be, and how long a job may wait for it."""

    gate: Annotated[float, Field(ge=1)] = Field(
        1.1, description="A job starts only where alpha is at most this many times its minimum."
    )
    scatter: bool = Field(
        False,
        description="true: the first job that cannot start on the fewest servers starts on more, unless a profile or "
        "earlier runs tell how much its GPUs communicate. For sites whose jobs communicate little. No effect with "
        "interrupts and fills.",
    )
    late_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1,
        description="The share of all GPUs that jobs beyond patience_s may take before their turn; one such job at a "
        "time may take more.",
    )
    interrupts: bool = Field(
        False,
        description="true: a job with little work may preempt jobs whose owners allow it (--comment=asrpt:interrupt), "
        "if that shortens the sum of completion times.",
    )
    fills: bool = Field(
        False,
        description="true, with interrupts: jobs whose owners allow it may also start on GPUs that are kept for "
        "another job. They are preempted as soon as that job can start there.",
    )
    interruption_s: Annotated[float, Field(ge=0)] = Field(
        300.0,
        description="What a preemption is assumed to delay the preempted job beside the run of the other: checkpoint, "
        "requeue and restart, seconds.",
    )
    interruption_gain: Annotated[float, Field(ge=1)] = Field(
        3.0, description="A job preempts others only if it gains at least this many times what they lose."
    )
