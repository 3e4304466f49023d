"""What the daemon knows of each job beyond Slurm's own record, and keeps over a restart."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any

from slurm_asrpt.core.cluster import Placement
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.policies.base import Reason
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.slurm.parse import fold
from slurm_asrpt.slurm.records import PENDING, JobRecord, Reservation
from slurm_asrpt.slurm.writeback import Original

LONGEST_BACKOFF_S = 300.0
KILLED = "FAILED"
"""What Slurm makes of a job whose script was killed, by a requeue that it has forgotten or by anybody else."""


class Place(StrEnum):
    """Where a job stands with us."""

    APART = "apart"  # pending, but not for the policy yet: dependency, --begin, held, a limit, backing off
    QUEUED = "queued"  # in the policy
    PINNED = "pinned"  # start decided; in mode enforce also written
    RUNNING = "running"
    LEFT = "left"  # Slurm's


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
    """When a waiting job will start: with 10, 50 and 90% by then, None beyond the horizon; made: when. Seconds.

    simulated: the three before the margins, by which these learn; empty where a former release made it.
    """

    made: float
    earliest: float
    median: float | None
    latest: float | None
    simulated: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Service:
    """GPU time that a job has had. past: GPU-seconds of the reference type, in the runs that are over.

    began: of the present run, 0 for none; rate: GPU-seconds a second in it. interruptions: by asrptd, so far.
    head: the job for which it was interrupted last, until it runs again.
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
        """After the end of its run by a requeue."""
        head = under_way.head if under_way else self.head
        return Service(self.at(until), interruptions=self.interruptions, head=head)


@dataclass(frozen=True)
class Over:
    """A run that asrptd has had requeued, or was about to: its start, and how often Slurm had restarted the job.

    original: what our pin had overwritten, as a slurmctld that forgets the requeue comes back with the pin, too.
    """

    began: float
    restarts: int
    original: Original | None

    def is_of(self, record: JobRecord) -> bool:
        """Whether this is the run that Slurm shows. One that began in that second is a restart more."""
        return (record.start_time, record.restarts) == (self.began, self.restarts)


@dataclass(frozen=True)
class Interruption:
    """One under way. at: decided; head: for whom. sent: when the signal was, 0: not yet, as far as is known.

    mark: of the checkpoint that the job had reported by then. asked: Slurm has taken the requeue.
    """

    at: float
    head: str
    sent: float = 0.0
    mark: str = ""
    asked: bool = False


@dataclass
class Tracked:
    record: JobRecord
    tag: Tag | None = None
    job: Job | None = None
    one_to_one: bool = False  # one task a GPU, so that its ranks are GPUs
    admitted: Any = None  # what these two were made from
    ahead: tuple[Reservation, ...] = ()  # what it would reach into if it began now
    open: Job | None = None  # the job with those nodes, too; None where nothing is ahead
    place: Place = Place.APART
    why: Reason | None = None
    seen: float = 0.0  # since when, by this daemon; of a job that was requeued as it is now
    decided: float = 0.0  # when its start was first decided, by this daemon
    written: float = 0.0  # when it wrote the last one: a slurmctld that answers slowly makes that much later
    pin: Pin | None = None
    original: Original | None = None  # set once a pin was written, kept while Slurm may still hold it
    lease_until: float = 0.0  # of the last lease that we wrote or first saw; 0: none known
    lease_before: float = 0.0  # the one before it, where a lost answer leaves open which of them holds
    lease_spread: float = 0.0  # Slurm may show it so much later: its clock started when it read our line
    begin: float | None = None  # set by the owner after submission, or by Slurm at a requeue; None: the tag's
    retry_at: float = 0.0
    failures: int = 0
    avoid: dict[str, float] = field(default_factory=dict)  # nodes where it did not start, and until when
    mapped: bool = False
    real: Placement | None = None
    read: Mapping[str, int] | None = None  # the allocation that real was made from
    site_factor: int | None = None  # that we have written in mode order
    handed_over: bool = False
    forecast: Forecast | None = None  # the first one since the job asks as it does
    service: Service = Service()
    interruption: Interruption | None = None
    over: Over | None = None  # its last run that was interrupted
    _dumped: tuple[Any, str] = ((), "")

    @property
    def not_before(self) -> float:
        """The owner's own begin time; 0 for none."""
        return self.begin if self.begin is not None else float(self.tag.begin if self.tag else 0)

    @property
    def forgotten(self) -> bool:
        """Slurm, killed before it wrote the requeue down, shows a run as going on, or failed, that this has ended."""
        return self.record.state in ("RUNNING", KILLED) and self.was_over(self.record)

    def was_over(self, record: JobRecord) -> bool:
        return self.over is not None and self.over.is_of(record)

    def to_be_requeued(self) -> None:
        """Its run is over, as soon as Slurm is asked."""
        if self.service.began:
            self.over = Over(self.service.began, self.record.restarts, self.original)

    def ends(self, until: float) -> None:
        """A requeue has ended its run."""
        if self.interruption is not None:
            self.to_be_requeued()
        self.service = self.service.cut(until, self.interruption)
        self.interruption = None

    def begins(self, rate: float) -> None:
        """A run begins, in which it attains so many GPU-seconds of the reference type a second."""
        self.service = replace(self.service, began=self.record.start_time, rate=rate, head="")

    def dump(self) -> str:
        """What a restart must not lose, as JSON text; of most jobs it is the same from cycle to cycle."""
        facts = _saved_of(self)
        if facts != self._dumped[0]:
            self._dumped = (facts, json.dumps(self._facts()))
        return self._dumped[1]

    def _facts(self) -> dict[str, Any]:
        return {
            "submit_time": self.record.submit_time,
            "tag": self.tag.format() if self.tag else "",
            "place": str(self.place),
            "pin": asdict(self.pin) if self.pin else None,
            "original": asdict(self.original) if self.original else None,
            "lease_until": self.lease_until,
            "lease_before": self.lease_before,
            "lease_spread": self.lease_spread,
            "begin": self.begin,
            "retry_at": self.retry_at,
            "failures": self.failures,
            "mapped": self.mapped,
            "handed_over": self.handed_over,
            "site_factor": self.site_factor,
            "real": asdict(self.real) if self.real else None,
            "forecast": astuple(self.forecast) if self.forecast else None,
            "restarts": self.record.restarts,
            "service": astuple(self.service) if self.service != Service() else (),
            "over": asdict(self.over) if self.over else None,
            "interruption": astuple(self.interruption) if self.interruption else None,
        }


SAVED = (
    *("tag", "place", "pin", "original", "lease_until", "lease_before", "lease_spread", "begin", "retry_at"),
    *("failures", "mapped", "handed_over", "site_factor", "real", "forecast", "service", "interruption", "over"),
)
"""What of a job is saved, beside its submit time and how often it was restarted."""
_saved_of = attrgetter("record.submit_time", "record.restarts", *SAVED)


@dataclass(frozen=True)
class Saved:
    """A dump read back; what stands in it may be of another release, or damaged."""

    raw: Any

    def restore(self, tracked: Tracked, now: float) -> None:
        """Put the saved facts onto a job that Slurm still has, all or none. Raises ValueError where they are none."""
        try:
            facts = self._facts(now)
            if self.raw["submit_time"] == tracked.record.submit_time:
                vars(tracked).update(facts)
                return
            if _still_pinned(tracked.record, facts["pin"]):  # else only the number is the same
                tracked.original = facts["original"]
            restarts, service, over = self.raw.get("restarts", math.inf), facts["service"], facts["over"]
            if tracked.record.restarts > restarts:  # requeued while we were away
                under_way = facts["interruption"]
                tracked.service = service.cut(tracked.record.submit_time, under_way)
                tracked.over = Over(service.began, restarts, facts["original"]) if under_way else over
            elif over is not None and over.is_of(tracked.record):
                tracked.service, tracked.over = service, over
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not the saved state of a job: {error!r}") from error

    def _facts(self, now: float) -> dict[str, Any]:
        """What was to come later than now ever notes, or has happened after now, is due: the clock has stepped back."""
        raw = self.raw
        pin, original, real, forecast = raw["pin"], raw["original"], raw.get("real"), raw.get("forecast")
        interruption, over = raw.get("interruption"), raw.get("over")
        return {
            "place": Place(raw["place"]),
            "pin": Pin(**{**pin, "at": min(pin["at"], now), "original": _original(pin["original"])}) if pin else None,
            "original": _original(original),
            "begin": None if raw["begin"] is None else float(raw["begin"]),
            "retry_at": min(float(raw["retry_at"]), now + LONGEST_BACKOFF_S),
            "failures": int(raw["failures"]),
            "mapped": bool(raw["mapped"]),
            "handed_over": bool(raw["handed_over"]),
            "lease_until": float(raw["lease_until"]),
            "lease_before": float(raw["lease_before"]),
            "lease_spread": float(raw["lease_spread"]),
            "forecast": _forecast(*forecast) if forecast else None,
            "service": _service(*raw.get("service", ())[:5]),  # former releases noted there which run was over
            "over": Over(float(over["began"]), int(over["restarts"]), _original(over["original"])) if over else None,
            # nobody knows whether the job still waits for what was to follow the signal: it is sent anew
            "interruption": Interruption(float(interruption[0]), str(interruption[1])) if interruption else None,
            "site_factor": None if raw["site_factor"] is None else int(raw["site_factor"]),
            "real": Placement(dict(real["gpus"]), tuple(real["ranks"]), float(real["alpha"])) if real else None,
        }


def _original(raw: Mapping[str, Any] | None) -> Original | None:
    if not raw:
        return None
    required_nodes = str(raw.get("required_nodes", ""))
    return Original(**{k: int(v) for k, v in raw.items() if k != "required_nodes"}, required_nodes=required_nodes)


def _service(past: Any = 0, began: Any = 0, rate: Any = 0, interruptions: Any = 0, head: Any = "") -> Service:
    return Service(float(past), float(began), float(rate), int(interruptions), str(head))


def _forecast(made: float, earliest: float, median: Any, latest: Any, simulated: Sequence[Any] = ()) -> Forecast:
    return Forecast(made, earliest, median, latest, tuple(simulated))


def _still_pinned(record: JobRecord, pin: Pin | None) -> bool:
    """Whether a job of another submit time is the same one, requeued while we were away with our pin on it."""
    return pin is not None and record.restarts > 0 and record.required_nodes == fold(pin.gpus)


def is_another(record: JobRecord, before: JobRecord) -> bool:
    """Whether a slurmctld that was killed has given the number to another job: a requeue is counted as a restart."""
    return record.submit_time > before.submit_time and not record.restarts


def still_its_run(record: JobRecord, before: JobRecord) -> JobRecord:
    """``record``; of a job that a requeue is just ending, with the start of the run that ends.

    Until its processes are gone Slurm shows the requeue's time as start and one restart more, beside the old submit
    time.
    """
    if record.state == PENDING or record.submit_time != before.submit_time or record.restarts <= before.restarts:
        return record
    return replace(record, start_time=before.start_time, restarts=before.restarts)
