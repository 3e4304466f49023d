"""The state of a job that survives a restart of asrptd: one model, one object per job in state.json.

To add a field, add a line to ``SavedJob``, with a default, because state.json of an earlier release lacks it. The file
may be from another release, or damaged.
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
    """asrptd's state of a job, in addition to Slurm's."""

    INELIGIBLE = "apart"  # pending, but not in the policy's queue yet: dependency, --begin, hold, limit, backoff
    QUEUED = "queued"  # in the policy's queue
    PINNED = "pinned"  # start decided, and in mode enforce written to Slurm
    RUNNING = "running"
    LEFT_TO_SLURM = "left"


@dataclass(frozen=True)
class Pin:
    """A decided start: where, when (``at``), and what it overwrites.

    grace_s: so long Slurm may take to preempt jobs for it.
    """

    gpus: dict[str, int]
    ranks: list[str]
    alpha: float
    at: float
    original: Original
    grace_s: float = 0.0


@dataclass(frozen=True)
class Forecast:
    """The start time of a pending job, forecast at ``made``. Seconds since the epoch.

    The job starts by ``earliest`` with a probability of 5%, by ``median`` with 50%, by ``latest`` with 90%; None is
    beyond the horizon. simulated: the three before the conformal adjustment, which learns from them; empty in forecasts
    of earlier releases. open_end: why ``latest`` is None, as in ``forecast.conformal``; empty if that is not known.
    """

    made: float
    earliest: float
    median: float | None
    latest: float | None
    simulated: tuple[float | None, ...] = ()
    open_end: str = ""


@dataclass(frozen=True)
class Interruption:
    """A preemption in progress. at: time of the decision. head: the job that gets the GPUs; "" before maintenance.

    sent: when the signal was sent, 0 if it was not or that is unknown. mark: identifies the last checkpoint reported
    before that. asked: Slurm has accepted the requeue.
    """

    at: float
    head: str
    sent: float = 0.0
    mark: str = ""
    asked: bool = False


@dataclass(frozen=True)
class Service:
    """The attained service of a job. past: GPU-seconds of the reference type in its ended runs.

    began: start of the current run, 0 for none. rate: GPU-seconds per second in it. interruptions: number of
    preemptions. head: the job for which it was last preempted, until it runs again. silent_s: how long asrptd has
    waited for a checkpoint in vain, 0 if it did not. told: the job's owner has been told so. expected: GPU-seconds that
    it will attain in all, as last predicted from its losses; 0 for none. predicted_until: from so many attained
    GPU-seconds on, it is predicted again.
    """

    past: float = 0.0
    began: float = 0.0
    rate: float = 0.0
    interruptions: int = 0
    head: str = ""
    silent_s: float = 0.0
    told: bool = False
    expected: float = 0.0
    predicted_until: float = 0.0

    def at(self, now: float) -> float:
        """GPU-seconds attained at that time."""
        return self.past + (self.rate * max(0.0, now - self.began) if self.began else 0.0)

    def cut(self, until: float, under_way: Interruption | None) -> Service:
        """The service after a requeue has ended the run."""
        head = under_way.head if under_way else self.head
        return replace(self, past=self.at(until), began=0.0, rate=0.0, head=head)


@dataclass(frozen=True)
class RequeuedRun:
    """A run that asrptd has requeued, or was about to: its start time, and the job's restart count.

    original: what the pin had overwritten. If slurmctld forgets the requeue, the pin is back too.
    """

    began: float
    restarts: int
    original: Original | None

    def is_of(self, record: JobRecord) -> bool:
        """Whether Slurm shows this run. A run that started in the same second has another restart count."""
        return (record.start_time, record.restarts) == (self.began, self.restarts)


def _from_row(kind: type[Any]) -> BeforeValidator:
    """Parses a list into this dataclass. Extra elements, from another release, are dropped."""
    names = [each.name for each in fields(kind)]
    return BeforeValidator(lambda row: dict(zip(names, row, strict=False)) if isinstance(row, list | tuple) else row)


def _to_row(empty: object = None) -> PlainSerializer:
    """Serializes a value as a list. empty: the value that is saved as an empty list."""
    return PlainSerializer(lambda value: None if value is None else () if value == empty else astuple(value))


UNKNOWN_FACTOR = 1_000_000_000
"""The site factor of a job while an update is under way. No written factor has this value."""

SavedTag = Annotated[
    Tag | None,
    PlainValidator(lambda text: parse_tag(text) if isinstance(text, str) else None),
    PlainSerializer(lambda tag: tag.format() if tag else ""),
]


@model(kw_only=True, config=ConfigDict(extra="ignore", ser_json_inf_nan="constants"))
class SavedJob:
    """One job in state.json. Aliases are the keys in the file."""

    submit_time: float
    restarts: int | None = None  # None: saved by an earlier release
    tag: SavedTag = None
    state: Annotated[JobState, Field(alias="place")] = JobState.INELIGIBLE
    pin: Pin | None = None
    original: Original | None = None  # set when a pin is written, kept while Slurm may still have it
    unbounded: int = 0  # the maximum of nodes that was written in place of none, which Slurm cannot restore
    confined: bool = False  # of a pin, only the number of nodes is written: Slurm may start it on any one node
    lease_until: float = 0.0  # end of the last lease that was written or seen; 0: unknown
    lease_before: float = 0.0  # end of the previous one, if a lost answer leaves open which is in effect
    lease_spread: float = 0.0  # Slurm may show an end that much later, because it counts from when it reads the update
    begin_time: Annotated[float | None, Field(alias="begin")] = None
    """Set by the owner after submission, or by Slurm at a requeue; None: the tag's."""
    retry_at: float = 0.0
    failures: int = 0
    mapped: bool = False  # it has a rank map
    handed_over: bool = False
    by_slurm: str = ""  # why Slurm must choose its nodes, "" if asrptd chooses them
    site_factor: int | None = None  # written in mode order, or where Slurm may start it as soon as there is room
    first_priority: int = 0  # when it was first seen, or released after a hold
    placement: Annotated[Placement | None, Field(alias="real")] = None  # in Slurm's real allocation
    forecast: Annotated[Forecast | None, _from_row(Forecast), _to_row()] = None  # the first one for its current request
    service: Annotated[Service, _from_row(Service), _to_row(Service())] = field(default_factory=Service)
    requeued_run: Annotated[RequeuedRun | None, Field(alias="over")] = None  # its last preempted run
    interruption: Annotated[Interruption | None, _from_row(Interruption), _to_row()] = None
    reference_alpha: float = 0.0  # seconds per iteration in its best placement on reference GPUs; 0: unknown


_MODEL = TypeAdapter(SavedJob)
SAVED = tuple(each.name for each in fields(SavedJob))
of_job: Callable[[SavedJob], tuple[Any, ...]] = attrgetter(*SAVED)
"""The saved values of a job, in the order of SAVED."""
FROM_SLURM = frozenset({"submit_time", "restarts", "tag"})
"""Fields that are restored from Slurm's record, not from the file."""


def to_json(job: SavedJob) -> str:
    return _MODEL.dump_json(job, by_alias=True, warnings=False).decode()


def from_raw(raw: Any, now: float) -> SavedJob:
    """Parse a saved job. Raises ValueError if it is not valid.

    If the clock has stepped back, past times become at most ``now``, and pauses end soon. A preemption starts over: the
    signal is sent again.
    """
    saved = _MODEL.validate_python(raw)
    if saved.pin is not None:
        saved.pin = replace(saved.pin, at=min(saved.pin.at, now))
    if saved.interruption is not None:
        saved.interruption = Interruption(saved.interruption.at, saved.interruption.head)
    saved.retry_at = min(saved.retry_at, now + LONGEST_BACKOFF_S)
    return saved
