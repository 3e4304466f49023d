"""Slurm's rules on preemption: which jobs may preempt which, how, and when not.

Recorded with 22.05: ``sacctmgr -n -P show qos format=Name,Priority,Preempt,...`` and
``scontrol -o show partition``. With preempt/qos, the QOS of a job names those that it may preempt; with
preempt/partition_prio, a job may preempt those in partitions of a lower PriorityTier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from slurm_asrpt.core.job import NOTHING
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.notation import parse_duration
from slurm_asrpt.slurm.parse import seconds_in
from slurm_asrpt.slurm.partitions import Rows
from slurm_asrpt.slurm.records import JobRecord

MANAGED_MODES = frozenset({"REQUEUE", "CANCEL"})
"""A preempted job ends and its GPUs are free. In the other modes (SUSPEND, WITHIN) GPUs are shared in time."""

GRACE_CHECKED_S = 30.0
"""slurmctld looks so often whether a time of grace is over, as with time limits."""


@dataclass(frozen=True)
class PreemptionDefaults:
    """What slurm.conf says. by: "qos", "partition_prio", or "" for no preemption. mode: PreemptMode.

    exempt_s: PreemptExemptTime. kill_s: KillWait. youngest_first: whether SchedulerParameters
    (from 23.11: PreemptParameters) says so.
    """

    by: str = ""
    mode: str = "OFF"
    exempt_s: float = 0.0
    kill_s: float = 0.0
    youngest_first: bool = False


NO_PREEMPTION = PreemptionDefaults()


@dataclass(frozen=True)
class PreemptionKind:
    """A QOS or partition. may: those whose jobs its jobs may preempt. mode: how its own jobs are preempted.

    priority: of the QOS, or the PriorityTier; jobs of the lowest are preempted first.
    grace_s: a preempted job may run so much longer. exempt_s: a job is not preempted so long after its start.
    """

    may: frozenset[str]
    mode: str
    priority: int = 0
    grace_s: float = 0.0
    exempt_s: float = 0.0


@dataclass(frozen=True)
class PreemptionRules:
    """The rules of a site. kinds: by QOS or partition; empty if no job may preempt another."""

    kinds: Mapping[str, PreemptionKind] = field(default_factory=dict)
    defaults: PreemptionDefaults = NO_PREEMPTION

    def kind_of(self, record: JobRecord) -> str:
        """The QOS or partition as whose job others may preempt it."""
        return self._names(record)[0]

    def _names(self, record: JobRecord) -> list[str]:
        """Its QOS, or its partitions: of a running job, the one that it runs in."""
        return [record.qos] if self.defaults.by == "qos" else record.partition.split(",")

    def _may(self, record: JobRecord) -> list[frozenset[str]]:
        return [self.kinds[name].may if name in self.kinds else NOTHING for name in self._names(record)]

    def preempts(self, record: JobRecord) -> frozenset[str]:
        """The kinds of jobs that it may preempt; in each of its partitions."""
        return frozenset.intersection(*self._may(record))

    def is_manageable(self, record: JobRecord) -> bool:
        """Whether it may preempt the same jobs in all its partitions, and none of them is suspended."""
        each = self._may(record)
        return len(set(each)) == 1 and all(self.kinds[kind].mode in MANAGED_MODES for kind in each[0])

    @property
    def preempted(self) -> frozenset[str]:
        """The kinds of jobs that others may preempt."""
        return frozenset().union(*(kind.may for kind in self.kinds.values()))

    def victims(self, records: Iterable[JobRecord], now: float) -> list[JobRecord]:
        """The running jobs that others may preempt now, in Slurm's order."""
        names = self.preempted
        found = [record for record in records if record.state == "RUNNING" and self.kind_of(record) in names]
        return sorted((each for each in found if self._is_preemptable(each, now)), key=self._order)

    def _is_preemptable(self, record: JobRecord, now: float) -> bool:
        kind = self.kinds[self.kind_of(record)]
        return kind.mode in MANAGED_MODES and now >= record.start_time + kind.exempt_s

    def _order(self, record: JobRecord) -> tuple[float, ...]:
        if self.defaults.youngest_first:
            return (-record.start_time, record.number)
        return (self.kinds[self.kind_of(record)].priority, len(record.hosts), record.number)

    def end_s(self, kinds: frozenset[str]) -> float:
        """How long preempted jobs of these kinds may take to end."""
        grace_s = max((self.kinds[kind].grace_s for kind in kinds), default=0.0)
        return self.defaults.kill_s + (grace_s + GRACE_CHECKED_S if grace_s else 0.0)


QOS_FORMAT = "format=Name,Priority,Preempt,PreemptMode,GraceTime,PreemptExemptTime"


def defaults_of(config: Mapping[str, str]) -> PreemptionDefaults:
    """From ``scontrol show config``."""
    kind, mode = config.get("PreemptType", "").removeprefix("preempt/"), _mode(config.get("PreemptMode", "OFF"))
    exempt = config.get("PreemptExemptTime", "")
    return PreemptionDefaults(
        kind if kind in ("qos", "partition_prio") and mode != "OFF" else "",
        mode,
        parse_duration(exempt) if ":" in exempt else 0.0,
        seconds_in(config.get("KillWait", ""), default=0.0),
        "preempt_youngest_first" in config.get("SchedulerParameters", "").split(",")
        or "youngest_first" in config.get("PreemptParameters", "").split(","),
    )


def parse_qos(text: str, defaults: PreemptionDefaults) -> PreemptionRules:
    """``sacctmgr -n -P show qos format=Name,Priority,Preempt,...``. Raises SlurmError."""
    kinds = {}
    for line in text.splitlines():
        try:
            name, priority, may, mode, grace, exempt = line.split("|")
            exempt_s = _seconds(exempt) if exempt else defaults.exempt_s
            how = defaults.mode if mode in ("", "cluster") else mode
            own = PreemptionKind(_names(may), _mode(how), int(priority or 0), _seconds(grace), exempt_s)
        except ValueError as error:
            raise SlurmError(f"cannot parse the output of sacctmgr show qos ({error!r})") from error
        kinds[name] = own
    return _rules(kinds, defaults)


def rules_of_partitions(rows: Rows, defaults: PreemptionDefaults) -> PreemptionRules:
    """Raises SlurmError."""
    try:
        tiers = {name: int(row["PriorityTier"]) for name, row in rows.items()}
        modes = {name: _mode(row["PreemptMode"]) for name, row in rows.items()}
        graces = {name: float(row.get("GraceTime", 0)) for name, row in rows.items()}
    except (KeyError, ValueError) as error:
        raise SlurmError(f"cannot parse the output of scontrol show partition ({error!r})") from error
    kinds = {
        name: PreemptionKind(
            frozenset(other for other, lower in tiers.items() if lower < tier and modes[other] != "OFF"),
            modes[name],
            tier,
            graces[name],
            defaults.exempt_s,
        )
        for name, tier in tiers.items()
    }
    return _rules(kinds, defaults)


def _rules(kinds: Mapping[str, PreemptionKind], defaults: PreemptionDefaults) -> PreemptionRules:
    known = {name: replace(kind, may=kind.may & kinds.keys() - {name}) for name, kind in kinds.items()}
    return PreemptionRules(known if any(kind.may for kind in known.values()) else {}, defaults)


def _seconds(text: str) -> float:
    """0 for nothing. Raises ValueError."""
    return parse_duration(text) if text else 0.0


def _names(text: str) -> frozenset[str]:
    return frozenset(name for name in text.split(",") if name)


def _mode(text: str) -> str:
    """``GANG,SUSPEND`` is SUSPEND: time slicing does not change who preempts whom."""
    modes = [mode for mode in text.upper().split(",") if mode != "GANG"]
    return ",".join(sorted(modes)) or "OFF"
