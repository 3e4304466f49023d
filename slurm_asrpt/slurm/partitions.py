"""The rows of ``scontrol show partition``, and what each partition lets start.

Slurm tries all partitions that a job names, asrptd must choose nodes of one that starts it.

A job of a single partition that would refuse it is pinned all the same: Slurm's reason tells what is wrong. While
none of its partitions starts any job, it waits.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.notation import parse_limit
from slurm_asrpt.slurm.parse import pairs_of
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.text import slurm_time

_START_JOBS = ("UP", "DRAIN")
"""A partition of state DRAIN takes no new jobs, but starts those that wait."""
_TAKE_JOBS = ("UP", "DOWN")

Rows = Mapping[str, Mapping[str, str]]
"""The fields of each partition, by its name."""


def rows_of(text: str) -> Rows:
    """``scontrol -o show partition``, among other output."""
    rows = (pairs_of(line) for line in text.splitlines() if line.startswith("PartitionName="))
    return {row["PartitionName"]: row for row in rows}


@dataclass(frozen=True)
class Names:
    """AllowAccounts, AllowQos and their opposites. allowed: None for all."""

    allowed: frozenset[str] | None = None
    denied: frozenset[str] = frozenset()

    def admit(self, name: str) -> bool:
        return name not in self.denied and (self.allowed is None or name in self.allowed)

    @property
    def admit_all(self) -> bool:
        return self.allowed is None and not self.denied

    def setting(self, what: str) -> str:
        """As it is in slurm.conf, e.g. ``AllowAccounts=lab``. what: Accounts or Qos."""
        if self.allowed is not None:
            return f"Allow{what}={','.join(sorted(self.allowed))}"
        return f"Deny{what}={','.join(sorted(self.denied))}"


@dataclass(frozen=True)
class Partition:
    """A partition's own limits.

    up: whether it starts jobs. takes: whether it takes new ones. groups: of AllowGroups, None for all. max_time:
    seconds. max_cpus: MaxCPUsPerNode, of all its jobs together. has_qos: whether a QOS adds others.
    """

    up: bool = True
    takes: bool = True
    groups: frozenset[str] | None = None
    max_time: float = math.inf
    min_nodes: int = 0
    max_nodes: float = math.inf
    max_cpus: float = math.inf
    accounts: Names = Names()
    qos: Names = Names()
    has_qos: bool = False

    def admits(self, job: JobRecord) -> bool:
        """Whether it would start the job at all, now."""
        in_time, admitted = (job.time_limit or math.inf) <= self.max_time, self.accounts.admit(job.account)
        return self.up and in_time and self._in_size(job) and admitted and self.qos.admit(job.qos)

    def refuses(self, job: JobRecord) -> tuple[str, str] | None:
        """Slurm's reason and the limit for which a job that is to be submitted would never start; None if it may.

        Its account and QOS count if they are known. A QOS may lift the other limits. Without a time limit, the job gets
        the partition's.
        """
        if job.account and not self.accounts.admit(job.account):
            return "AccountNotAllowed", self.accounts.setting("Accounts")
        if job.qos and not self.qos.admit(job.qos):
            return "QOSNotAllowed", self.qos.setting("Qos")
        if job.qos or self.has_qos:
            return None
        if job.time_limit > self.max_time:
            return "PartitionTimeLimit", f"MaxTime={slurm_time(self.max_time)}"
        if job.min_nodes > self.max_nodes:
            return "PartitionNodeLimit", f"MaxNodes={self.max_nodes:.0f}"
        return None if self._in_size(job) else ("PartitionNodeLimit", f"MinNodes={self.min_nodes}")

    def without_unnamed(self, job: JobRecord) -> Partition:
        """Its limits, without those on accounts or QOS if the job names none."""
        accounts, qos = self.accounts if job.account else Names(), self.qos if job.qos else Names()
        return replace(self, accounts=accounts, qos=qos)

    def _in_size(self, job: JobRecord) -> bool:
        return job.min_nodes <= self.max_nodes and (not job.max_nodes or job.max_nodes >= self.min_nodes)


def partitions_of(rows: Rows) -> dict[str, Partition]:
    """By name. Raises SlurmError."""
    return {name: _partition(row) for name, row in rows.items()}


def _partition(values: Mapping[str, str]) -> Partition:
    try:
        return Partition(
            up=values.get("State", "UP") in _START_JOBS,
            takes=values.get("State", "UP") in _TAKE_JOBS,
            groups=None if (groups := values.get("AllowGroups", "ALL")) == "ALL" else frozenset(groups.split(",")),
            max_time=parse_limit(values.get("MaxTime", "")),
            min_nodes=int(values.get("MinNodes") or 0),
            max_nodes=_most(values, "MaxNodes"),
            max_cpus=_most(values, "MaxCPUsPerNode"),
            accounts=_names(values, "Accounts"),
            qos=_names(values, "Qos"),
            has_qos=values.get("QoS", "N/A") != "N/A",
        )
    except ValueError as error:
        raise SlurmError(f"cannot parse scontrol show partition ({error})") from error


def _most(values: Mapping[str, str], name: str) -> float:
    text = values.get(name, "")
    return float(text) if text.isdecimal() else math.inf


def _names(values: Mapping[str, str], what: str) -> Names:
    allowed, denied = values.get(f"Allow{what}", "ALL"), values.get(f"Deny{what}")
    some = None if allowed == "ALL" else frozenset(allowed.split(","))
    return Names(some, frozenset(denied.split(",")) if denied else frozenset())


def is_closed(job: JobRecord, known: Mapping[str, Partition]) -> bool:
    """Whether none of its partitions starts jobs now (DOWN, INACTIVE), as far as they are known."""
    return all(name in known and not known[name].up for name in job.partition.split(","))


def refused_by(job: JobRecord, known: Mapping[str, Partition]) -> str:
    """Why none of its partitions would ever start a job that is to be submitted; "" if one may, or is not known."""
    names = job.partition.split(",")
    found = [(name, why) for name in names if name in known and (why := known[name].refuses(job)) is not None]
    if len(found) < len(names):
        return ""
    return ", ".join(f"{reason} ({limit} of partition {name})" for name, (reason, limit) in found)


def rejected_by(job: JobRecord, known: Mapping[str, Partition], groups: Container[str] | None) -> str:
    """Why none of its partitions takes a job that is to be submitted; "" if one does, or is not known.

    groups: those of its user; None if AllowGroups does not hold for it, as for root.
    """
    names = job.partition.split(",")
    if any(name not in known for name in names):
        return ""
    closed = [name for name in names if not known[name].takes]
    if len(closed) == len(names):
        return f"partition {', '.join(closed)} takes no jobs now (its state is DRAIN or INACTIVE)"
    for name in names:
        allowed = known[name].groups
        if known[name].takes and (groups is None or allowed is None or any(group in groups for group in allowed)):
            return ""
    return f"partition {job.partition} takes jobs of other groups only (AllowGroups)"


def before_submission(job: JobRecord, known: Mapping[str, Partition]) -> JobRecord:
    """As ``within_partitions``, for a job whose account and QOS are not known yet unless it names them."""
    of_job = [name for name in job.partition.split(",") if name in known]
    return within_partitions(job, [(name, known[name].without_unnamed(job)) for name in of_job])


def within_partitions(job: JobRecord, known: Iterable[tuple[str, Partition]]) -> JobRecord:
    """The job in those of its partitions that would start it, first those without a QOS of their own.

    On as many nodes as they ask for. known: its partitions. The job as it is if none would start it.
    """
    able = [(name, each) for name, each in known if each.admits(job)]
    if not able:
        return job
    able.sort(key=lambda one: one[1].has_qos)
    least = min(each.min_nodes for _, each in able)
    return replace(job, partition=",".join([name for name, _ in able]), min_nodes=max(job.min_nodes, least))
