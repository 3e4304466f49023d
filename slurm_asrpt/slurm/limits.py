"""The limits of QOS, associations and licenses, as slurmctld has them, and what one job counts against them.

``scontrol show assoc_mgr`` prints them with their usage in brackets, ``N`` for no limit. The order of precedence is
Slurm's (man sacctmgr, "resource limits"): the QOS of the partition, the QOS of the job (the other way round if that one
has the flag OverPartQOS), the association, then the accounts above it. What is set at one level is not looked at
further up; limits of a group hold at every account.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from slurm_asrpt.core.limits import Charge, Charges
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.gres import parse_gres
from slurm_asrpt.slurm.partitions import Rows
from slurm_asrpt.slurm.records import PENDING, JobRecord, NodeRecord

Caps = Mapping[str, float]
"""How much is allowed, by limit: Slurm's word, with the resource if it has one (``GrpTRES=gres/gpu``, ``MaxJobs``)."""

_TRES_LIMITS = (
    *("GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "MaxTRESPA", "MaxTRESPU", "MaxTRESRunMinsPA", "MaxTRESRunMinsPU"),
    *("MaxTRESPJ", "MaxTRESPN", "MaxTRESMinsPJ", "MinTRESPJ"),
)
_MINIMUM, _LEAST_GPUS = "MinTRESPJ=", "MinTRESPJ=gres/gpu"
"""Of other minima, Slurm alone knows what a job counts: it may get more CPUs and memory than it asks for."""
_COUNTS = ("GrpJobs", "GrpWall", "MaxJobs", "MaxJobsPA", "MaxJobsPU", "MaxWallPJ")
_RUN_MINUTES = ("GrpTRESRunMins", "MaxTRESRunMinsPA", "MaxTRESRunMinsPU")
"""Minutes that running jobs may still use. 22.05 shows those of groups only."""
_SPENT = ("GrpTRESMins", "GrpWall")
"""Minutes that are used up: what is left of them is the cap."""
_NOTHING_LEFT = 0.001
"""Slurm starts nothing once all minutes are used up."""
_QOS_KIND = {"MaxJobs": "MaxJobsPU"}
"""Where an association's limit has another name in a QOS that takes precedence."""
_OF_THE_PARENT = 0x7FFFFFFF
"""Shares that stand for Fairshare=parent."""
_UNITS = {"": 1.0, **{unit: 1024.0**power for power, unit in enumerate("KMGTP", 1)}}
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:\(([0-9]+(?:\.[0-9]+)?)\))?")


@dataclass(frozen=True)
class Qos:
    """A QOS. group, job: limits of all its jobs together and of each; user, account: of the jobs of each user, account.

    priority: of its jobs, before it is divided by that of the highest QOS.
    """

    name: str
    priority: float = 0.0
    group: Caps = field(default_factory=dict)
    job: Caps = field(default_factory=dict)
    user: Caps = field(default_factory=dict)
    account: Caps = field(default_factory=dict)


@dataclass(frozen=True)
class Association:
    """A user's association, or an account (user: ""). parent: the account above, "" for none.

    share: the fair-share factor, 0 to 1, where a user has one. shares: sacctmgr's Fairshare, None for ``parent``.
    priority: of its jobs, as that of a QOS. usage: what sshare calls RawUsage: billing units times seconds, decayed.
    """

    account: str
    user: str
    partition: str = ""
    parent: str = ""
    share: float = 0.0
    priority: float = 0.0
    group: Caps = field(default_factory=dict)
    job: Caps = field(default_factory=dict)
    shares: float | None = 1.0
    usage: float = 0.0


@dataclass(frozen=True)
class SiteLimits:
    """All limits. associations: by account, user and partition. partition_qos: by partition. licenses: how many.

    first_qos: the QOS that take precedence over those of partitions. safe: a job starts only if the minutes that are
    left suffice for its time limit. period_s: once in this time, slurmctld takes what a job has run off the minutes
    that it counts for; infinite if it does so only when the job ends.
    """

    qos: Mapping[str, Qos] = field(default_factory=dict)
    associations: Mapping[tuple[str, str, str], Association] = field(default_factory=dict)
    partition_qos: Mapping[str, str] = field(default_factory=dict)
    licenses: Mapping[str, float] = field(default_factory=dict)
    first_qos: frozenset[str] = frozenset()
    safe: bool = False
    period_s: float = math.inf

    @property
    def any(self) -> bool:
        """Whether there is any limit."""
        return bool(self.licenses) or any(self._levels)

    @property
    def of_nodes(self) -> bool:
        """Whether there is any limit for which a node counts once, however many jobs share it."""
        return any(is_of_nodes(name) for caps in self._levels for name in caps)

    @property
    def of_minutes(self) -> bool:
        """Whether jobs count less against any limit the longer they have run."""
        kinds = {*_RUN_MINUTES, *(_SPENT if self.safe else ())}
        return self.period_s < math.inf and any(
            name.partition("=")[0] in kinds for caps in self._levels for name in caps
        )

    @property
    def _levels(self) -> Iterator[Caps]:
        for qos in self.qos.values():
            yield from (qos.group, qos.job, qos.user, qos.account)
        for each in self.associations.values():
            yield from (each.group, each.job)


@dataclass(frozen=True)
class Use:
    """What a job uses, as limits count it. tres: by Slurm's names. minutes: its time limit, 0 for none.

    whole_nodes: it gets all that its nodes have, whatever it asks for.
    """

    user: str
    account: str
    qos: str
    partition: str
    tres: Mapping[str, float]
    minutes: float = 0.0
    licenses: Mapping[str, float] = field(default_factory=dict)
    whole_nodes: bool = False


# reading


def parse_assoc_mgr(text: str) -> tuple[dict[str, Qos], dict[tuple[str, str, str], Association]]:
    """``scontrol -o show assoc_mgr flags=qos,assoc``: QOS by name; associations. Raises SlurmError."""
    qos: dict[str, Qos] = {}
    associations: dict[tuple[str, str, str], Association] = {}
    try:
        for line in text.splitlines():
            if line.startswith("QOS="):
                one = _qos(line)
                qos[one.name] = one
            elif line.startswith("ClusterName="):
                found = _association(line)
                associations[found.account, found.user, found.partition] = found
    except (KeyError, ValueError, IndexError) as error:
        raise SlurmError(f"cannot parse the output of scontrol show assoc_mgr ({error!r})") from error
    return qos, associations


def default_account(text: str, user: str) -> str:
    """A user's default account in ``scontrol -o show assoc_mgr flags=users``; "" if it has none."""
    for line in text.splitlines():
        raw = _fields(line)
        if re.sub(r"\([0-9]+\)$", "", raw.get("UserName", "")) == user and raw.get("DefAccount"):
            return raw["DefAccount"]
    return ""


def _fields(line: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in line.split(" "))
    return {key: value for key, _, value in pairs if key}


def _qos(line: str) -> Qos:
    head, _, rest = line.partition(" Account Limits=")
    accounts, _, users = rest.partition(" User Limits=")
    raw = _fields(head)
    caps = _caps(raw)
    group = {name: cap for name, cap in caps.items() if name.startswith("Grp")}
    return Qos(
        name=re.sub(r"\([0-9]+\)$", "", raw["QOS"]),
        priority=float(raw.get("Priority") or 0),
        group=group,
        job={name: cap for name, cap in caps.items() if name not in group},
        user=_of_anyone(users),
        account=_of_anyone(accounts),
    )


def _of_anyone(text: str) -> dict[str, float]:
    """The limits in ``995={MaxJobsPU=5(1) ...},996={...}``: each user and account of a QOS has the same."""
    found = re.search(r"=\{([^}]*)\}", text)
    return _caps(_fields(found[1])) if found else {}


def _association(line: str) -> Association:
    raw = _fields(line.partition(" Comment=")[0])  # free text, in later releases
    caps = _caps(raw)
    group = {name: cap for name, cap in caps.items() if name.startswith("Grp")}
    shares = raw.get("SharesRaw/Norm/Level/Factor", "1/0/0/0").split("/")
    return Association(
        account=raw["Account"],
        user=re.sub(r"\([0-9]+\)$", "", raw["UserName"]),
        partition=raw.get("Partition", ""),
        parent=re.sub(r"\([0-9]+\)$", "", raw.get("ParentAccount", "")),
        share=float(shares[3]),
        priority=float(raw.get("Priority") or 0),
        group=group,
        job={name: cap for name, cap in caps.items() if name not in group},
        shares=_raw_shares(shares[0]),
        usage=float(raw.get("UsageRaw/Norm/Efctv", "0").split("/")[0]),
    )


def _raw_shares(text: str) -> float | None:
    return None if text == "parent" or float(text) >= _OF_THE_PARENT else float(text)


def _caps(raw: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in _COUNTS:
        _add(found, name, name, raw.get(name, ""))
    for name in _TRES_LIMITS:
        for part in filter(None, raw.get(name, "").split(",")):
            resource, _, amount = part.partition("=")
            _add(found, f"{name}={resource}", name, amount)
    return found


def _add(found: dict[str, float], key: str, name: str, amount: str) -> None:
    """``8(2)`` allows 8, of which 2 are in use; ``N(2)`` and nothing are no limit."""
    if not amount or amount.startswith("N"):
        return
    match = _AMOUNT.fullmatch(amount)
    if match is None:
        raise ValueError(f"{name}: {amount!r}")
    found[key] = float(match[1]) - (float(match[2] or 0) + _NOTHING_LEFT if name in _SPENT else 0.0)


def qos_of_partitions(rows: Rows) -> dict[str, str]:
    """The QOS of each partition that has one."""
    return {name: row["QoS"] for name, row in rows.items() if row.get("QoS", "N/A") != "N/A"}


def qos_before_partitions(text: str) -> frozenset[str]:
    """Those with the flag OverPartQOS in ``sacctmgr -n -P show qos format=Name,Flags``; other lines do not count."""
    found = re.findall(r"(?m)^([^|\s]+)\|([A-Za-z,]*)$", text)
    return frozenset(name for name, flags in found if "OverPartQOS" in flags.split(","))


def parse_licenses(text: str) -> dict[str, float]:
    """``scontrol -o show license``: how many there are, by name, without those that slurmdbd has reserved or lost."""
    found = re.findall(r"LicenseName=(\S+)\s+Total=(\d+)", text)
    return {name: float(total) for name, total in found}


# what a job uses


def use_of(record: JobRecord, gpus: int, ran_s: float = 0.0, nodes: Iterable[NodeRecord] = ()) -> Use:
    """What a record counts for: what it was given if it runs, what it asks for if it waits. gpus: its GPUs.

    ran_s: seconds that no longer count. nodes: those of all partitions, for a waiting job that gets whole ones; one of
    several that are alike is enough.
    """
    count = max(record.min_nodes, len(record.hosts))
    cpus = record.cpus_for(gpus)
    memory = record.memory_per_node * count or record.memory_per_cpu * cpus or record.memory_per_gpu * gpus
    tres = {"cpu": float(cpus), "node": float(count), "mem": memory, "gres/gpu": float(gpus)}
    tres |= parse_tres(record.tres)
    if record.cpus_per_gpu and record.state == PENDING:  # Slurm counts these only once it starts the job
        tres |= {"cpu": max(tres["cpu"], float(cpus)), "mem": max(tres["mem"], memory)}
    licenses = {name: float(count) for (name, _), count in _licenses(record.licenses).items()}
    partition, minutes = record.partition.partition(",")[0], max(0.0, record.time_limit - ran_s) / 60
    whole_nodes = record.exclusive == "node"
    if whole_nodes and record.state == PENDING:
        tres |= _of_whole_nodes(record, tres, nodes)
    return Use(record.user, record.account, record.qos, partition, tres, minutes, licenses, whole_nodes)


def _of_whole_nodes(record: JobRecord, asked: Mapping[str, float], nodes: Iterable[NodeRecord]) -> dict[str, float]:
    """What Slurm will count of a waiting job with ``--exclusive``: all CPUs and GPUs of its nodes.

    Where the nodes of its partitions differ, what the smallest have: Slurm may still find that it is more.
    """
    partitions, gpus = record.partition.split(","), asked["gres/gpu"]
    able = [node for node in nodes if not node.partitions.isdisjoint(partitions) and (node.gpus or not gpus)]
    if not able:
        return {}
    count = max(asked["node"], math.ceil(gpus / max(1, *(node.gpus for node in able))))
    each = [_tres_of(node, record.one_thread) for node in able]
    return {name: max(asked.get(name, 0.0), count * min(one.get(name, 0.0) for one in each)) for name in each[0]}


def _tres_of(node: NodeRecord, one_thread: bool) -> dict[str, float]:
    """one_thread: of each core, all threads or one may count."""
    kinds = {f"gres/gpu:{part.gpu_type}": float(part.gpus) for part in node.parts if part.gpu_type}
    cpus = node.cpus // node.threads if one_thread else node.cpus
    return {"cpu": float(cpus), "gres/gpu": float(node.gpus), **kinds}


def parse_tres(text: str) -> dict[str, float]:
    """``cpu=1,mem=64M,node=1,billing=1,gres/gpu=2``, Slurm's own count; memory in MiB. Other parts are left out."""
    found = {}
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"([A-Za-z0-9_/:.-]+)=([0-9.]+)([KMGTP]?)", part)
        if match:
            in_bytes = match[1] == "mem" and match[3]
            found[match[1]] = float(match[2]) * _UNITS[match[3]] / (_UNITS["M"] if in_bytes else 1.0)
    return found


def _licenses(text: str) -> Mapping[tuple[str, str], int]:
    """``matlab:2,ansys``; none for what cannot be parsed, such as ``a|b``: Slurm decides then."""
    try:
        return parse_gres(text) if "|" not in text else {}
    except SlurmError:
        return {}


def is_of_nodes(limit: str) -> bool:
    """Whether it limits the nodes of several jobs, each of which counts once. limit: also as users see its name."""
    return limit.partition(" of ")[0] in ("GrpTRES=node", "MaxTRESPA=node", "MaxTRESPU=node")


_NAMED = re.compile(
    r"(?P<kind>\S+) of (?:QOS (?P<qos>[^, ]+)(?:, (?:user (?P<of_user>\S+)|account (?P<of_account>\S+)))?"
    r"|user (?P<user>\S+) in account (?P<account>\S+)|account (?P<group>\S+))"
)
"""The names of limits, as ``LimitBook`` makes them."""


def charges_by_name(use: Use, limits: Iterable[str]) -> Charges:
    """What a job that is to be submitted counts for, of these limits. use: account and QOS are "" if not named.

    Slurm then gives it a default that is not known here: the user's limits count where they are of one QOS and account.
    """
    book, found = LimitBook(SiteLimits()), list[tuple[str, str, Charge]]()
    for limit in limits:
        match = _NAMED.fullmatch(limit)
        if match is None:
            continue
        user, account = match["of_user"] or match["user"], match["of_account"] or match["account"] or match["group"]
        of_user = user == use.user
        of_qos = match["qos"] in (None, use.qos) or (of_user and not use.qos)
        of_account = account in (None, use.account) or (of_user and not use.account)
        if (of_user or user is None) and of_qos and of_account:
            found.append((match["qos"] or "", account or "", (limit, book.amount_of(limit, use))))
    several = [len({one[at] for one in found if one[at]}) > 1 for at in (0, 1)]
    return tuple(charge for qos, account, charge in found if not (several[0] and qos) and not (several[1] and account))


def is_minimum(limit: str) -> bool:
    """Whether a job must ask for as much at least. limit: also as users see its name."""
    return limit.startswith(_MINIMUM)


class LimitBook:
    """What jobs count against which limits. caps: by limit, of those that a job has been found to count against.

    The names of limits are what users see: ``MaxTRESPU=gres/gpu of QOS normal, user ann``.
    """

    def __init__(self, limits: SiteLimits) -> None:
        self.limits = limits
        self.caps: dict[str, float] = {}

    def charges(self, use: Use) -> Charges:
        """What a job counts for. An infinite amount: no such job may start as long as the limit holds."""
        found: list[Charge] = []
        held: set[str] = set()  # set at a level that takes precedence
        names = [self.limits.partition_qos.get(use.partition, ""), use.qos]
        if use.qos in self.limits.first_qos:
            names.reverse()
        for name in dict.fromkeys(names):
            qos = self.limits.qos.get(name)
            if qos is not None:
                found += self._of_qos(qos, use, held)
                held |= qos.group.keys() | qos.job.keys() | qos.user.keys()
        found += self._of_associations(use, held)
        known = self.limits.licenses
        found += [self._charge(f"license {n}", known[n], a) for n, a in use.licenses.items() if n in known]
        return tuple(found)

    def _of_qos(self, qos: Qos, use: Use, held: set[str]) -> Iterator[Charge]:
        where = f"of QOS {qos.name}"
        yield from self._sums(qos.group, use, where, held)
        yield from self._sums(qos.user, use, f"{where}, user {use.user}", held)
        yield from self._sums(qos.account, use, f"{where}, account {use.account}", held)
        yield from self._singles(qos.job, use, where, held)

    def _of_associations(self, use: Use, held: set[str]) -> Iterator[Charge]:
        """Limits of groups hold all the way up. Slurm itself passes those of single jobs down to the users."""
        at = self._association(use)
        if at is None:
            return
        own = f"of user {use.user} in account {use.account}"
        counts = {name: cap for name, cap in at.job.items() if name == "MaxJobs"}
        if _QOS_KIND["MaxJobs"] not in held:
            yield from self._sums(counts, use, own, held)
        yield from self._singles({name: cap for name, cap in at.job.items() if name not in counts}, use, own, held)
        where, seen = own, set[str]()
        while at is not None:
            yield from self._sums(at.group, use, where, held)
            above = at.parent if not at.user else at.account
            seen.add(where)
            where = f"of account {above}"
            at = self.limits.associations.get((above, "", "")) if where not in seen else None

    def _association(self, use: Use) -> Association | None:
        known = self.limits.associations
        return known.get((use.account, use.user, use.partition)) or known.get((use.account, use.user, ""))

    def _sums(self, caps: Caps, use: Use, where: str, held: set[str]) -> Iterator[Charge]:
        """Limits on what all jobs of somebody use together."""
        for name, cap in caps.items():
            amount = self._amount(name, use)
            if name not in held and amount is not None:
                yield self._charge(f"{name} {where}", cap, amount)

    def _singles(self, caps: Caps, use: Use, where: str, held: set[str]) -> Iterator[Charge]:
        """Limits on each job: only those that this one does not keep."""
        for name, cap in caps.items():
            if name not in held and self._breaks(name, cap, use):
                yield self._charge(f"{name} {where}", cap, math.inf)

    def _breaks(self, name: str, cap: float, use: Use) -> bool:
        amount = self._amount(name, use)
        if is_minimum(name):
            return name == _LEAST_GPUS and not use.whole_nodes and (amount or 0.0) < cap
        return amount is not None and amount > cap

    def _charge(self, limit: str, cap: float, amount: float) -> Charge:
        self.caps[limit] = cap
        return limit, amount

    def amount_of(self, limit: str, use: Use) -> float:
        """How much of a limit a job uses. limit: by its name for users."""
        return self._amount(limit.partition(" of ")[0], use) or 0.0

    def _amount(self, name: str, use: Use) -> float | None:
        """How much of this limit a job uses; None where it uses nothing that it counts, or Slurm alone knows."""
        kind, _, resource = name.partition("=")
        if kind in ("GrpJobs", "MaxJobs", "MaxJobsPA", "MaxJobsPU"):
            return 1.0
        if kind == "MaxWallPJ":
            return use.minutes or None
        used = use.tres.get(resource) if resource else 1.0
        if not used:
            return None
        if kind in _SPENT and not self.limits.safe:
            return 0.0  # Slurm asks only whether any are left
        if kind in ("MaxTRESMinsPJ", *_RUN_MINUTES, *_SPENT):
            return used * use.minutes if use.minutes else None
        return used / use.tres["node"] if kind == "MaxTRESPN" else used
