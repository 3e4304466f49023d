"""What a restart of asrptd must not lose of a job: one model, which state.json holds as one object a job.

A new field is one line in ``SavedJob``. Give it a default: state.json of an earlier release does not have it. What
stands in that file may be of another release, or damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter
from pydantic.dataclasses import dataclass as model

from slurm_asrpt.core.cluster import Placement
from slurm_asrpt.hook.tag import Tag, parse_tag
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.slurm.writeback import Original

LONGEST_BACKOFF_S = 300.0


class JobState(StrEnum):
    """Where a job stands with asrptd, beside the state that Slurm shows."""

    INELIGIBLE = "apart"  # pending, but not for the policy yet: dependency, --begin, held, a limit, backing off
    QUEUED = "queued"  # in the policy
    PINNED = "pinned"  # start decided; in mode enforce also written
    RUNNING = "running"
    LEFT_TO_SLURM = "left"


@dataclass(frozen=True)
class Pin:
    """A start that was decided: where, when, and what it overwrote."""

    gpus: dict[str, int]
    ranks: list[str]
    alpha: float
    at: float
    original: Original


@dataclass(frozen=True)
class Forecast:
    """When a waiting job will start, and when that was computed (``made``). Seconds since the epoch.

    The job starts by ``earliest`` with a probability of 10%, by ``median`` with 50%, by ``latest`` with 90%; None is
    beyond the horizon. simulated: the three before the conformal adjustment, which learns from them; empty where an
    earlier release made the forecast.
    """

    made: float
    earliest: float
    median: float | None
    latest: float | None
    simulated: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Interruption:
    """A preemption by asrptd under way. at: when it was decided; head: the job that gets the GPUs.

    sent: when the signal was sent, 0 for not yet, as far as is known. mark: of the checkpoint that the job had reported
    by then. asked: Slurm has accepted the requeue.
    """

    at: float
    head: str
    sent: float = 0.0
    mark: str = ""
    asked: bool = False


@dataclass(frozen=True)
class Service:
    """GPU time that a job has attained. past: GPU-seconds of the reference type, in the runs that are over.

    began: of the present run, 0 for none; rate: GPU-seconds a second in it. interruptions: by asrptd, so far.
    head: the job for which it was preempted last, until it runs again.
    """

    past: float = 0.0
    began: float = 0.0
    rate: float = 0.0
    interruptions: int = 0
    head: str = ""

    def at(self, now: float) -> float:
        """GPU-seconds attained by then."""
        return self.past + (self.rate * max(0.0, now - self.began) if self.began else 0.0)

    def cut(self, until: float, under_way: Interruption | None) -> Service:
        """After a requeue has ended its run."""
        head = under_way.head if under_way else self.head
        return Service(self.at(until), interruptions=self.interruptions, head=head)


@dataclass(frozen=True)
class RequeuedRun:
    """A run that asrptd has had requeued, or was about to: its start, and how often Slurm had restarted the job.

    original: what our pin had overwritten. A slurmctld that forgets the requeue comes back with the pin, too.
    """

    began: float
    restarts: int
    original: Original | None

    def is_of(self, record: JobRecord) -> bool:
        """Whether this is the run that Slurm shows. One that began in that second is a restart more."""
        return (record.start_time, record.restarts) == (self.began, self.restarts)


def _from_row(kind: type[Any]) -> BeforeValidator:
    """A list becomes a value of this dataclass; elements beyond its fields, of another release, are dropped."""
    names = [each.name for each in fields(kind)]
    return BeforeValidator(lambda row: dict(zip(names, row, strict=False)) if isinstance(row, list | tuple) else row)


def _to_row(empty: object = None) -> PlainSerializer:
    """state.json holds these as lists; ``empty`` stands for a value that is the same as none."""
    return PlainSerializer(lambda value: None if value is None else () if value == empty else astuple(value))


SavedTag = Annotated[
    Tag | None,
    PlainValidator(lambda text: parse_tag(text) if isinstance(text, str) else None),
    PlainSerializer(lambda tag: tag.format() if tag else ""),
]


@model(kw_only=True, config=ConfigDict(extra="ignore", ser_json_inf_nan="constants"))
class SavedJob:
    """One job in state.json. Aliases are the names of the file, where they differ."""

    submit_time: float
    restarts: int | None = None  # None: an earlier release did not note it
    tag: SavedTag = None
    state: Annotated[JobState, Field(alias="place")] = JobState.INELIGIBLE
    pin: Pin | None = None
    original: Original | None = None  # set once a pin was written, kept while Slurm may still hold it
    lease_until: float = 0.0  # of the last lease that we wrote or first saw; 0: none known
    lease_before: float = 0.0  # the previous one, where a lost answer leaves open which of them holds
    lease_spread: float = 0.0  # Slurm may show it so much later: its clock started when it read our line
    begin_time: Annotated[float | None, Field(alias="begin")] = None
    """Set by the owner after submission, or by Slurm at a requeue; None: the tag's."""
    retry_at: float = 0.0
    failures: int = 0
    mapped: bool = False  # it has a rank map
    handed_over: bool = False
    site_factor: int | None = None  # that we have written in mode order
    placement: Annotated[Placement | None, Field(alias="real")] = None  # what Slurm has really allocated
    forecast: Annotated[Forecast | None, _from_row(Forecast), _to_row()] = None  # the first since the job asks so
    service: Annotated[Service, _from_row(Service), _to_row(Service())] = field(default_factory=Service)
    requeued_run: Annotated[RequeuedRun | None, Field(alias="over")] = None  # its last run that was preempted
    interruption: Annotated[Interruption | None, _from_row(Interruption), _to_row()] = None


_MODEL = TypeAdapter(SavedJob)
SAVED = tuple(each.name for each in fields(SavedJob))
of_job: Callable[[SavedJob], tuple[Any, ...]] = attrgetter(*SAVED)
"""The saved values of a job, in the order of SAVED."""
FROM_SLURM = frozenset({"submit_time", "restarts", "tag"})
"""What a restarted daemon takes from Slurm's record, not from the file."""


def to_json(job: SavedJob) -> str:
    return _MODEL.dump_json(job, by_alias=True, warnings=False).decode()


def from_raw(raw: Any, now: float) -> SavedJob:
    """A dump read back. Raises ValueError where it is none.

    If the clock has stepped back, times that should lie in the past become ``now``, and pauses end soon. Nobody knows
    whether a preempted job still waits for what was to follow the signal: the signal is sent again.
    """
    saved = _MODEL.validate_python(raw)
    if saved.pin is not None:
        saved.pin = replace(saved.pin, at=min(saved.pin.at, now))
    if saved.interruption is not None:
        saved.interruption = Interruption(saved.interruption.at, saved.interruption.head)
    saved.retry_at = min(saved.retry_at, now + LONGEST_BACKOFF_S)
    return saved
