"""The settings of asrpt."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slurm_asrpt.core.policies.options import ContentionOptions


class AsrptOptions(ContentionOptions):
    """Thresholds of Algorithm 1, and whether a delayed job blocks the jobs behind it."""

    tau: Annotated[float, Field(ge=0, le=1e6)] = Field(
        1.0, description="A-SRPT's tau: a job waits for a better placement for at most tau (g_i/G) n_i alpha_i seconds."
    )
    comm_heavy: Annotated[float, Field(ge=1)] = Field(
        1.5, description="alpha_max/alpha_min from which a job counts as communication-heavy."
    )
    delay: Literal["block", "aside"] = Field(
        "block",
        description="block: a job that is delayed for placement blocks the queue, as the paper's proofs assume. "
        "aside: jobs behind it may pass.",
    )
