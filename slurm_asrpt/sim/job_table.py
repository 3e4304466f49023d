"""The jobs of one simulation as columns, including what the policy must not see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import cast

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import ANYWHERE, Job, JobId, JobProfile, Request, trusted_job
from slurm_asrpt.core.limits import Charges
from slurm_asrpt.core.placement.best_alpha import best_alpha, fewest_servers, fits
from slurm_asrpt.sim.predictors import Learning

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_OPTIONAL = ("time_limit", "users", "groups", "charges")
_CHUNK = 4096  # rows converted to Python numbers at a time


@dataclass(frozen=True)
class JobTable:
    """n jobs in columns of shape (n,), in the order of submission; a job's id is its row number.

    submit: seconds. profile: index into ``profiles``. iterations: n_i, the actual number; predicted: ñ_i.
    time_limit: of the job, seconds, inf for none; an empty column if no job has one.
    users, groups: one name per job, or empty.
    charges: what each job counts against the limits of the site; empty without limits. caps: what each limit allows.
    learning: how predictions are updated during the simulation; None if they stay as in ``predicted``.
    requests: the form of request of each profile; empty if Slurm may use any nodes.

    Raises ValueError for columns of different lengths, decreasing submission times, or invalid figures.
    """

    profiles: tuple[JobProfile, ...]
    submit: Floats
    profile: Ints
    iterations: Floats
    predicted: Floats
    time_limit: Floats = field(default_factory=lambda: np.empty(0))
    users: Sequence[str] = ()
    groups: Sequence[str] = ()
    learning: Learning | None = None
    charges: Sequence[Charges] = ()
    caps: Mapping[str, float] = field(default_factory=dict)
    requests: Sequence[Request] = ()

    def __post_init__(self) -> None:
        for name in ("profile", "iterations", "predicted", *_OPTIONAL):
            column = getattr(self, name)
            optional = name in _OPTIONAL and len(column) == 0
            if len(column) != len(self) and not optional:
                raise ValueError(f"column {name} has {len(column)} rows, submit {len(self)}")
        for name in ("submit", "iterations", "predicted"):
            column = getattr(self, name)
            if not np.all(np.isfinite(column)) or (name != "submit" and np.any(column < 0)):
                raise ValueError(f"column {name} must have finite numbers, and no negative iterations")
        if np.any(np.diff(self.submit) < 0):
            raise ValueError("jobs must be in the order of submission")
        if np.any((self.profile < 0) | (self.profile >= len(self.profiles))):
            raise ValueError(f"column profile must name one of {len(self.profiles)} profiles")

    def __len__(self) -> int:
        return len(self.submit)

    @property
    def gpus(self) -> Ints:
        """g_i of each job."""
        return np.array([p.gpus for p in self.profiles], dtype=np.int64)[self.profile]

    def perfect(self) -> JobTable:
        """The same jobs, predicted exactly: with this table A-SRPT is the paper's A-SRPT-Perfect."""
        return replace(self, predicted=self.iterations, learning=None)

    def on_fewest_nodes(self, nodes: Sequence[Node]) -> JobTable:
        """The same jobs; each requests, as with ``-N``, the fewest of these nodes that could hold it."""
        return replace(self, requests=tuple(_fewest(profile, nodes) for profile in self.profiles))

    def with_nodes(self, asked: Sequence[tuple[int, int]], nodes: Sequence[Node]) -> JobTable:
        """The same jobs; each requests its (fewest, most) nodes, 0 for no bound.

        A request that these nodes cannot meet is left out.
        """
        kinds: dict[tuple[int, int, int], int] = {}
        rows = zip(self.profile.tolist(), asked, strict=True)
        profile = np.array([kinds.setdefault((kind, *bounds), len(kinds)) for kind, bounds in rows], dtype=np.int64)
        profiles = tuple(self.profiles[kind] for kind, _, _ in kinds)
        requests = tuple(_between(self.profiles[kind], least, most, nodes) for kind, least, most in kinds)
        return replace(self, profiles=profiles, profile=profile, requests=requests)

    def job(self, row: int) -> Job:
        """The job in this row as a policy sees it."""
        return next(self.jobs(row, row + 1))

    def jobs(self, first: int = 0, last: int | None = None) -> Iterator[Job]:
        """The jobs in rows ``first`` up to ``last`` (exclusive) as a policy sees them, made lazily."""
        last = len(self) if last is None else last
        chunks = (range(begin, min(begin + _CHUNK, last)) for begin in range(first, last, _CHUNK))
        return chain.from_iterable(map(self._jobs, chunks))

    def _jobs(self, rows: range) -> Iterator[Job]:
        part = slice(rows.start, rows.stop)
        kinds = self.profile[part].tolist()
        asked = self.requests or [ANYWHERE] * len(self.profiles)
        forms = [(p.gpus, p, one.in_groups(p.tensor)) for p, one in zip(self.profiles, asked, strict=True)]
        gpus, profiles, requests = (map(column.__getitem__, kinds) for column in zip(*forms, strict=True))
        ids = cast(Iterator[JobId], map(str, rows))  # calling JobId takes time
        users, groups = (names[part] if len(names) else repeat("") for names in (self.users, self.groups))
        limits = self.time_limit[part].tolist() if len(self.time_limit) else repeat(float("inf"))
        predicted, submit = self.predicted[part].tolist(), self.submit[part].tolist()
        # the table has checked its columns
        jobs = map(trusted_job, ids, users, gpus, profiles, requests, predicted, submit, groups, limits)
        if not len(self.charges):
            return jobs
        return (replace(job, charges=charges) for job, charges in zip(jobs, self.charges[part], strict=True))

    def best_alphas(self, nodes: Sequence[Node], fabric: Fabric) -> Floats:
        """α̃_min of each job on these nodes, seconds per iteration; nan for a job that does not fit them."""
        per_profile = np.full(len(self.profiles), np.nan)
        for number, profile in enumerate(self.profiles):
            job = Job(JobId("0"), "", profile.gpus, profile, request=ANYWHERE)
            if fits(job, nodes):
                per_profile[number] = best_alpha(job, nodes, fabric)
        return np.asarray(per_profile[self.profile])


def _between(profile: JobProfile, least: int, most: int, nodes: Sequence[Node]) -> Request:
    request = Request(min_nodes=max(1, least), max_nodes=most or None)
    return request if fits(Job(JobId("0"), "", profile.gpus, profile, request=request), nodes) else ANYWHERE


def _fewest(profile: JobProfile, nodes: Sequence[Node]) -> Request:
    """A request for exactly the fewest nodes; any nodes for one GPU, and for a job that does not fit."""
    job = Job(JobId("0"), "", profile.gpus, profile)
    if profile.gpus == 1 or not fits(job, nodes):
        return ANYWHERE
    count = fewest_servers(job, nodes)
    return Request(min_nodes=count, max_nodes=count)
