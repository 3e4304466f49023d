"""The settings of slurm-backfill: Slurm's own parameters."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slurm_asrpt.core.multifactor import Weights
from slurm_asrpt.core.policies.options import PolicyOptions


class SlurmOptions(PolicyOptions):
    """Slurm's SchedulerParameters and settings of priority/multifactor; times in seconds."""

    bf_interval_s: Annotated[float, Field(gt=0)] = Field(30.0, description="Seconds between backfill cycles.")
    bf_window_s: Annotated[float, Field(gt=0)] = Field(86400.0, description="How far ahead jobs are planned.")
    bf_resolution_s: Annotated[float, Field(gt=0)] = Field(60.0, description="Plans begin and end at multiples of it.")
    bf_window_linear_s: Annotated[float, Field(ge=0)] = Field(
        0.0, description="By how much the groups grow in which far ends are seen; 0: they double."
    )
    bf_max_job_test: Annotated[int, Field(ge=1)] = Field(500, description="Jobs that a cycle plans.")
    bf_max_job_user: Annotated[int, Field(ge=0)] = Field(0, description="Of each user; 0: no limit.")
    favor_small: bool = Field(False, description="Jobs of fewer GPUs go first.")
    weight_age: Annotated[float, Field(ge=0)] = Field(0.0, description="PriorityWeightAge.")
    weight_fair_share: Annotated[float, Field(ge=0)] = Field(0.0, description="PriorityWeightFairshare.")
    weight_job_size: Annotated[float, Field(ge=0)] = Field(0.0, description="PriorityWeightJobSize.")
    max_age_s: Annotated[float, Field(gt=0)] = Field(604800.0, description="PriorityMaxAge.")
    half_life_s: Annotated[float, Field(ge=0)] = Field(
        604800.0, description="PriorityDecayHalfLife; 0: usage does not decay."
    )
    calc_period_s: Annotated[float, Field(gt=0)] = Field(300.0, description="PriorityCalcPeriod.")
    fair_tree: bool = Field(True, description="false: PriorityFlags=NO_FAIR_TREE.")

    @property
    def weights(self) -> Weights:
        return Weights(
            age=self.weight_age,
            fair_share=self.weight_fair_share,
            job_size=self.weight_job_size,
            max_age_s=self.max_age_s,
            half_life_s=self.half_life_s,
            period_s=self.calc_period_s,
            fair_tree=self.fair_tree,
            favor_small=self.favor_small,
        )
