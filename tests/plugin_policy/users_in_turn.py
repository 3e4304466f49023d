"""users-in-turn: round robin over the users with pending jobs."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from slurm_asrpt.core.job import Job
from slurm_asrpt.core.policies.options import PolicyOptions
from slurm_asrpt.core.policies.queue_policy import QueuePolicy


class TurnOptions(PolicyOptions):
    """The options of this policy, in [policy] of asrpt.toml."""

    jobs_per_turn: Annotated[int, Field(ge=1, le=1000)] = Field(1, description="Jobs of a user in each turn.")


class UsersInTurn(QueuePolicy):
    """The first job of each user runs before the second of any; each user's jobs start in order of submission."""

    Options = TurnOptions

    def order(self, now: float) -> Sequence[Job]:
        before = Counter[str]()
        turn: dict[str, int] = {}
        for job in self.waiting.values():
            turn[job.id] = before[job.user] // self.options.jobs_per_turn
            before[job.user] += 1
        return sorted(self.waiting.values(), key=lambda job: turn[job.id])
