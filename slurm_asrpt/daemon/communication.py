"""Follows what the active model knows about the communication of jobs without a profile (docs/decisions/0042)."""

from __future__ import annotations

import logging
from pathlib import Path

from slurm_asrpt.core.job import Job
from slurm_asrpt.core.sensitivity import planned
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.errors import one_line
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.predict.communication import from_bytes, keys_for, to_rates
from slurm_asrpt.predict.model_store import ModelError, active_name, load_beliefs
from slurm_asrpt.predict.sensitivity import NOTHING, Belief, Beliefs

LOG = logging.getLogger("asrptd")


class LearnedCommunication:
    """The beliefs of the active model; empty if ``enabled`` is not set. A model that cannot be read changes nothing."""

    def __init__(self, models: Path, enabled: bool) -> None:
        self._models, self._enabled = models, enabled
        self._name = ""
        self._beliefs: Beliefs = NOTHING

    def follow(self) -> None:
        """Read the beliefs if another model has become active."""
        name = active_name(self._models) if self._enabled else ""
        if name == self._name:
            return
        self._name = name
        try:
            data = load_beliefs(self._models, name)
            self._beliefs = from_bytes(data) if data else NOTHING
        except (ModelError, ValueError) as error:
            LOG.error("communication of model %s: %s; the previous beliefs stay in force", name, one_line(error))

    @property
    def rates(self) -> dict[str, float]:
        """For ``asrpt-status --what-if``: ``to_rates``."""
        return to_rates(self._beliefs)

    def of(self, tag: Tag | None, uid: int) -> Belief | None:
        """What is known about a job without a profile, if that is of use."""
        if tag is None or tag.profile:
            return None
        found = self._beliefs.of(*keys_for(tag.group, tag.program, uid))
        return found if found is not None and found.rate else None


def with_communication(job: Job, known: Belief | None, cluster: ClusterState) -> Job:
    """The job with the profile that was learned, if there is one and it has several GPUs."""
    return planned(job, known.rate if known else 0.0, cluster.reference_alpha_of)
