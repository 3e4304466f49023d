"""Limits that asrptd learns from what Slurm refuses.

Slurm knows limits that asrptd does not. If it refuses a start for one, the scope is learned (this user in this QOS,
say): as many jobs of the scope as ran then, and no more, until one of them ends. From time to time one more is tried.
If it runs, twice as many are tried next, and when these run, too, the scope is forgotten.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_asrpt.core.limits import Charges
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.text import slurm_time

FIRST_PROBE_S, LAST_PROBE_S = 15.0, 300.0
"""After so long one more job of a refused scope is tried, if none ends before; twice as long after each refusal."""
MOST_TRIED = 4
"""After as many more jobs have run at once, the scope is forgotten."""
Fields = tuple[str, ...]
Values = tuple[str, ...]
_FIELDS: Sequence[tuple[str, Fields]] = (
    ("^Invalid(Account|QOS)$", ("user", "account", "qos")),  # which the user may not use (any more)
    ("^PartitionTimeLimit$", ("partition", "qos", "time_limit")),
    ("^PartitionNodeLimit$", ("partition", "qos", "min_nodes", "max_nodes")),
    (r"^AccountNotAllowed|\baccount not permitted", ("partition", "account")),
    (r"^QOSNotAllowed|\bQOS not permitted", ("partition", "qos")),
    ("PerJob|PerNode|WallDuration|Minimum|BillingMin|Submit", ()),  # of each job
    ("Licenses", ("licenses",)),
    ("PerUser", ("user", "qos")),
    ("PerAcc", ("account", "qos")),
    ("^QOS(Grp|JobLimit|ResourceLimit)", ("qos",)),
    ("^Assoc(Grp|MaxJobs)|^Association(Job|Resource)Limit", ("user", "account")),
)
"""What jobs share that a refusal is about, by Slurm's reason; the first that matches counts."""
_OF_QOS = (("user", "qos"), ("account", "qos"), ("qos",))
"""Limits of a QOS: the reason does not say whether of the job's own or of its partition's."""
_IN_WORDS: Mapping[str, str] = {
    "user": "of user {}",
    "account": "of account {}",
    "partition": "in partition {}",
    "qos": "in QOS {}",
    "time_limit": "with a time limit of {}",
    "min_nodes": "on at least {} nodes",
    "max_nodes": "on at most {} nodes",
    "licenses": "with licenses {}",
}
"""Jobs with such a value, in the order in which users read it."""


@dataclass(frozen=True)
class Scope:
    """The jobs that a refusal is about, by the fields of their records that decide it. why: in Slurm's words."""

    why: str
    values: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """As users see it, beside the names of known limits."""
        known = {field: _shown(field, value) for field, value in self.values}
        words = [text.format(known[field]) for field, text in _IN_WORDS.items() if known.get(field)]
        return f"{self.why} ({' '.join(['jobs', *words])})"


def _shown(field: str, value: str) -> str:
    """A value as users write it; empty if the job has none."""
    if field == "time_limit":
        return slurm_time(float(value)) if float(value) else "UNLIMITED"
    return "" if field == "max_nodes" and value == "0" else value


def scope_of(why: str, record: JobRecord, partition_has_qos: bool = False) -> Scope | None:
    """The scope of a refusal; None where it concerns this job alone.

    Such are QOSMinGRES and JobArrayTaskLimit: others of its QOS may start. partition_has_qos: jobs of the same QOS in
    other partitions may not have the limit.
    """
    fields = next((fields for reason, fields in _FIELDS if re.search(reason, why)), ())
    if partition_has_qos and fields in _OF_QOS:
        fields += ("partition",)
    return Scope(why, tuple(zip(fields, _values(record, fields), strict=True))) if fields else None


def _values(record: JobRecord, fields: Fields) -> Values:
    return tuple([str(getattr(record, each)) for each in fields])


@dataclass
class _Refusal:
    """What is known about a scope.

    most: how many of its jobs have run at a time since the refusal. at: when it was refused or last probed. probe_s:
    seconds from then to the next probe. tried: how many more may run now.
    """

    most: int
    at: float
    probe_s: float = FIRST_PROBE_S
    tried: int = 0

    def follow(self, running: int, now: float) -> bool:
        """Take in how many of its jobs run. Returns whether they are so many that the limit is none any more."""
        if running > self.most:
            self.most, self.tried = running, 2 * max(1, self.tried)
        elif now >= self.at + self.probe_s:
            self.most, self.tried, self.at = running, max(1, self.tried), now
        return self.tried > MOST_TRIED


class Refusals:
    """The scopes that Slurm has refused, by the fields that decide them and the values of these."""

    def __init__(self) -> None:
        self._known: dict[Fields, dict[Values, dict[Scope, _Refusal]]] = {}

    def follow(self, present: Sequence[JobRecord], running: Sequence[JobRecord], now: float) -> None:
        """Take in the jobs that wait or run, and those that run. A scope without jobs is forgotten."""
        for fields, by_values in self._known.items():
            exist = {_values(record, fields) for record in present}
            run = Counter([_values(record, fields) for record in running])
            for values, scopes in list(by_values.items()):
                over = [scope for scope, refusal in scopes.items() if refusal.follow(run[values], now)]
                for scope in over:
                    del scopes[scope]
                if not scopes or values not in exist:
                    del by_values[values]
        self._known = {fields: by_values for fields, by_values in self._known.items() if by_values}

    def refused(
        self, record: JobRecord, why: str, running: Iterable[JobRecord], now: float, partition_has_qos: bool = False
    ) -> bool:
        """Slurm did not start a job for a limit; whether others of its scope wait with it."""
        scope = scope_of(why, record, partition_has_qos)
        if scope is None:
            return False
        fields, values = zip(*scope.values, strict=True)
        scopes = self._known.setdefault(fields, {}).setdefault(values, {})
        before, probe_s = scopes.get(scope), FIRST_PROBE_S
        if before is not None:  # several refusals of one cycle count once
            again = before.at == now and not before.tried
            probe_s = before.probe_s if again else min(LAST_PROBE_S, 2 * before.probe_s)
        scopes[scope] = _Refusal(sum(_values(each, fields) == values for each in running), now, probe_s)
        return True

    def partitions_changed(self) -> None:
        """Forget what partitions refused: they may not any more."""
        self._known = {fields: values for fields, values in self._known.items() if "partition" not in fields}

    @property
    def by_partitions(self) -> bool:
        """Whether jobs wait because partitions refuse them."""
        return any(fields[0] == "partition" for fields in self._known)

    def charges(self, record: JobRecord) -> Charges:
        """What a job counts for in the scopes that hold it; this does not take longer the more there are."""
        if not self._known:
            return ()
        found = [known.get(_values(record, fields), ()) for fields, known in self._known.items()]
        return tuple([(scope.name, 1.0) for scopes in found for scope in scopes])

    @property
    def caps(self) -> dict[str, float]:
        """How many jobs of each scope may run."""
        every = [scopes for by_values in self._known.values() for scopes in by_values.values()]
        return {scope.name: float(each.most + each.tried) for scopes in every for scope, each in scopes.items()}
