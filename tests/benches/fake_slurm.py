"""A small Slurm in memory that keeps the rules which the daemon could break.

Its behavior was measured on Slurm 22.05: a begin time in the future keeps a job pending; StartTime is refused for a job
that is not pending; NumNodes and ReqNodeList written to a *running* job shrink it, even if another field of the same
update is refused; Priority is refused for a held job; a job without a pin starts on any nodes.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

from slurm_asrpt.core.placement.splitter import fill
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.slurm.client import SlurmConfig
from slurm_asrpt.slurm.gpu_defaults import GpuDefaults
from slurm_asrpt.slurm.limits import SiteLimits
from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.notation import read_tasks
from slurm_asrpt.slurm.partitions import Partition
from slurm_asrpt.slurm.preemption import PreemptionDefaults, PreemptionRules
from slurm_asrpt.slurm.priorities import SitePriorities
from slurm_asrpt.slurm.records import PENDING, RUNNING_STATES, GpuType, JobRecord, NodeRecord, Reservation, Update
from slurm_asrpt.slurm.request import gres_per_node, type_of
from slurm_asrpt.slurm.site import Site
from slurm_asrpt.slurm.topology import Topology

GROUP = "0123456789abcdef"
READY = ("IDLE", "IDLE+POWERED_DOWN", "IDLE+RESERVED")
"""States of nodes that start jobs."""


def node(name: str, index: int, gpus: int) -> NodeRecord:
    return NodeRecord(name, index, gpus, 0, "", 64, 0, 512_000, 0, "IDLE", frozenset({"gpu"}))


def typed_node(name: str, index: int, types: Mapping[str, int]) -> NodeRecord:
    """A node with several GPU types, in Slurm's order of their GPUs."""
    kinds = tuple(GpuType(kind, gpus, 0) for kind, gpus in types.items())
    return dataclasses.replace(node(name, index, sum(types.values())), types=kinds)


def task_numbers(tasks: str) -> list[int]:
    return list(chain.from_iterable(read_tasks(tasks)))


def _folded(tasks: Iterable[int]) -> str:
    """``0-3,7``, of numbers in order; ClusterShell takes ten times as long for long arrays."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(tasks), lambda at: at[1] - at[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


@dataclass
class FakeSlurm:
    """Slurm with ``sizes`` GPUs per node and the clock ``now``. errors: the answers to updates of a job, by job."""

    sizes: Sequence[int] = (4, 4, 4)
    now: float = 1_000_000.0
    lease: float = 600.0
    multifactor: bool = False
    reserved: list[Reservation] = field(default_factory=list)
    version: str = "22.05.8"
    shares: dict[tuple[str, str], float] = field(default_factory=dict)
    accounting: bool = True
    preempt: PreemptionRules = field(default_factory=PreemptionRules)
    site_limits: SiteLimits = field(default_factory=SiteLimits)
    site_priorities: SitePriorities = field(default_factory=SitePriorities)
    partition_rules: Mapping[str, Partition] = field(default_factory=dict)
    gpu_defaults: Mapping[str, GpuDefaults] = field(default_factory=dict)
    records: dict[str, JobRecord] = field(default_factory=dict)
    writes: list[Update] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    over_limit: set[str] = field(default_factory=set)  # that their partition would not start, as with MaxMemPerNode
    limited_lists: set[str] = field(default_factory=set)  # that are over such a limit once they have a list of nodes
    fixed_nodes: set[str] = field(default_factory=set)  # -m arbitrary: from 23.11 on, Slurm refuses a node list
    refused_lists: dict[str, str] = field(default_factory=dict)  # of jobs that start only without: Slurm's reason
    answers: bool = True
    starts_jobs: bool = True
    states: dict[str, str] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)
    preempted: list[tuple[str, str]] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    signals: list[tuple[str, str, bool]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    site_factors: dict[str, int] = field(default_factory=dict)
    switches: dict[str, tuple[str, ...]] = field(default_factory=dict)
    blocks: bool = False
    last_number: int = 0
    start_delay_s: float = 3.0

    def __post_init__(self) -> None:
        self.table = [node(f"n{i}", i, gpus) for i, gpus in enumerate(self.sizes, start=1)]

    # what users and admins do

    def submit(self, gpus: int, iterations: int = 0, profile: str = "", leased: bool = True, **fields: object) -> str:
        """``sbatch -n GPUS --gpus-per-task=1``, tagged and leased by the hook."""
        self.last_number += 1
        job_id = str(self.last_number)
        record = JobRecord(
            job_id=job_id,
            name="train",
            user="asrpt1",
            uid=1001,
            partition="gpu",
            state=PENDING,
            reason="BeginTime" if leased else "None",
            submit_time=self.now,
            number=self.last_number,
            eligible_time=self.now + self.lease if leased else self.now,
            priority=100,
            tasks=gpus,
            cpus=gpus,
            tres_per_task="gres:gpu:1",
            admin_comment=Tag(GROUP, iterations, profile).format(),
        )
        self.records[job_id] = dataclasses.replace(record, **fields)  # type: ignore[arg-type]
        self._schedule()
        return job_id

    def change(self, job_id: str, **fields: object) -> None:
        self.records[job_id] = dataclasses.replace(self.records[job_id], **fields)  # type: ignore[arg-type]
        self._schedule()

    def end(self, job_id: str, state: str = "COMPLETED") -> None:
        self.change(job_id, state=state, end_time=self.now)

    def requeue(self, job_id: str, failed: bool = False) -> None:
        """A requeue that asrptd requests: Slurm may not answer, or refuse."""
        self.check_available()
        self._check_refused(job_id)
        if self.records[job_id].has_ended and not failed:
            raise SlurmError("Job/step already completing or completed")
        self.requeued(job_id)

    def requeued(self, job_id: str) -> None:
        """Pending again under the same id; Slurm keeps node list and counts, and sets a new submit time."""
        self._requeued(job_id)
        self._schedule()

    def _requeued(self, job_id: str) -> None:
        self.records[job_id] = dataclasses.replace(
            self.records[job_id], state=PENDING, reason="BeginTime", submit_time=self.now, nodes="",
            eligible_time=self.now + 120, gpus_by_node={}, start_time=0.0, end_time=0.0,
            restarts=self.records[job_id].restarts + 1,
        )  # fmt: skip
        self.starts.pop(job_id, None)

    def forget(self, job_id: str) -> None:
        del self.records[job_id]

    def hold(self, job_id: str) -> None:
        self.change(job_id, reason="JobHeldUser", priority=0)

    def release(self, job_id: str) -> None:
        late = self.records[job_id].eligible_time > self.now
        self.change(job_id, reason="BeginTime" if late else "None", priority=100 + self.site_factors.get(job_id, 0))

    def node_state(self, name: str, state: str) -> None:
        self.states[name] = state
        self._schedule()

    def powered_up(self, name: str) -> None:
        """The node has come up: jobs that wait for it begin, now."""
        self.states.pop(name)
        for job in [j for j in self.records.values() if j.state == "CONFIGURING"]:
            if all(self.state_of(each) == "IDLE" for each in job.gpus_by_node):
                self.change(job.job_id, state="RUNNING", start_time=self.now)

    def state_of(self, name: str) -> str:
        return self.states.get(name, "IDLE")

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self._schedule()

    # SlurmClient

    def config(self) -> SlurmConfig:
        self.check_available()
        config = SlurmConfig(self.version, "fake", self.multifactor, False, self.shares != {}, self.preempt.defaults)
        return dataclasses.replace(config, start_delay_s=self.start_delay_s)

    def jobs(self) -> list[JobRecord]:
        self.check_available()
        return list(self.records.values())

    def catch_up(self) -> None:
        self.check_available()

    def nodes(self) -> list[NodeRecord]:
        self.check_available()
        used, cpus, by_type = self.used(), self.used_cpus(), self.used_by_type()
        return [
            dataclasses.replace(
                n,
                gpus_used=used[n.name],
                cpus_used=cpus[n.name],
                state=self.states.get(n.name, "IDLE"),
                indexes_used=self.used_indexes(n.name),
                types=tuple(kind._replace(used=by_type[n.name, kind.name]) for kind in n.types),
                gres_used=self.used_gres(n.name) if n.gres else {},
            )
            for n in self.table
        ]

    def reservations(self, nodes: Sequence[NodeRecord]) -> list[Reservation]:
        return self.reserved

    def fair_shares(self) -> Mapping[tuple[str, str], float]:
        self._check_accounting()
        return self.shares

    def preemption(self, defaults: PreemptionDefaults) -> PreemptionRules:
        self._check_accounting()
        return self.preempt

    def topology(self, partitions: Sequence[str]) -> Topology:
        self.check_available()
        return Topology(dict(self.switches), self.blocks)

    def site(self) -> Site:
        found = Site(self.site_limits, self.site_priorities, partitions=self.partition_rules)
        return dataclasses.replace(found, gpu_defaults=self.gpu_defaults)

    def allocations(self, job_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        self.check_available()
        running = (r for r in self.records.values() if r.state == "RUNNING" and str(r.number) in job_ids)
        return {str(r.number): r.gpus_by_node for r in running}

    def update(self, updates: Sequence[Update]) -> list[str]:
        if updates:
            self.check_available()
        self.writes.extend(updates)
        answers = [self._update(update) for update in updates]
        for at, update in enumerate(updates):
            if update.then and not answers[at]:
                answers[at] = self._update(Update(update.job_id, update.then))
        self._schedule()
        return answers

    def signal(self, job_id: str, name: str, batch: bool) -> None:
        self.check_available()
        self._check_refused(job_id)
        self.signals.append((job_id, name, batch))

    def notify(self, job_id: str, text: str) -> None:
        self.check_available()
        self._check_refused(job_id)
        self.notes.append((job_id, text))

    # rules of Slurm

    def _check_refused(self, job_id: str) -> None:
        if job_id in self.errors:
            raise SlurmError(self.errors[job_id])

    def check_available(self) -> None:
        if not self.answers:
            raise SlurmError("squeue failed: slurmctld is away")

    def _check_accounting(self) -> None:
        if not self.accounting:
            raise SlurmError("slurmdbd is away")

    def used(self) -> Counter[str]:
        used: Counter[str] = Counter()
        for record in self.records.values():
            if record.state in RUNNING_STATES:
                used.update(record.gpus_by_node)
        return used

    def used_by_type(self) -> Counter[tuple[str, str]]:
        """GPUs in use by node and type, of nodes with several types."""
        used: Counter[tuple[str, str]] = Counter()
        for record in self.records.values():
            if record.state in RUNNING_STATES:
                for name, types in record.gpus_by_type.items():
                    used.update({(name, kind): count for kind, count in types.items()})
        return used

    def used_gres(self, name: str) -> Counter[str]:
        """Other generic resources in use on a node."""
        used: Counter[str] = Counter()
        for record in self.records.values():
            if record.state in RUNNING_STATES and name in record.gpus_by_node:
                used.update(dict(gres_per_node(record)))
        return used

    def used_cpus(self) -> Counter[str]:
        used: Counter[str] = Counter()
        for record in self.records.values():
            if record.state in RUNNING_STATES:
                gpus = sum(record.gpus_by_node.values())
                nodes = expand(record.nodes)
                shares = {n: record.gpus_by_node.get(n, 0) / gpus if gpus else 1 / len(nodes) for n in nodes}
                used.update({name: round(record.cpus * share) for name, share in shares.items()})
        return used

    def _update(self, update: Update) -> str:
        array, _, tasks = update.job_id.partition("_")
        rest = self.records.get(array)
        if not tasks or rest is None or not rest.array_tasks:
            return self._update_job(update)
        named, waiting = set(task_numbers(tasks.strip("[]"))), set(task_numbers(rest.array_tasks))
        if named >= waiting:  # all tasks of the record: it is not split
            others = [self._update_job(Update(f"{array}_{task}", update.fields)) for task in sorted(named - waiting)]
            return "; ".join(filter(None, [self._update_job(Update(array, update.fields)), *others]))
        for task in sorted(named & waiting):
            self._split_off(rest, task)
        said = [self._update_job(Update(f"{array}_{task}", update.fields)) for task in sorted(named)]
        return "; ".join(filter(None, said))

    def _split_off(self, rest: JobRecord, task: int) -> JobRecord:
        """Give a task its own record; the last pending task keeps the array's number."""
        left = [other for other in task_numbers(self.records[rest.job_id].array_tasks) if other != task]
        self.last_number += 1
        parted = dataclasses.replace(rest, job_id=f"{rest.job_id}_{task}", number=self.last_number, array_tasks="")
        self.records[parted.job_id] = parted
        del self.records[rest.job_id]
        if len(left) == 1:
            last = dataclasses.replace(rest, job_id=f"{rest.job_id}_{left[0]}", array_tasks="")
            self.records[last.job_id] = last
        else:
            self.records[rest.job_id] = dataclasses.replace(rest, array_tasks=_folded(left))
        return parted

    def _update_job(self, update: Update) -> str:
        job = self.records.get(update.job_id)
        if job is None:
            return f"Invalid job id specified for job {update.job_id}"
        if update.job_id in self.errors:
            return self.errors[update.job_id]
        if job.state == PENDING and update.job_id in self.over_limit:
            self._update_pending(job, {name: text for name, text in update.fields.items() if name == "StartTime"})
            return f"Requested partition configuration not available now for job {update.job_id}"
        if job.state == PENDING and update.job_id in self.limited_lists:
            first = ("StartTime", "NumNodes", "ReqNodeList")
            self._update_pending(job, {name: text for name, text in update.fields.items() if name in first})
            if self.records[update.job_id].required_nodes:
                return f"Requested partition configuration not available now for job {update.job_id}"
        if update.job_id in self.fixed_nodes and not update.fields.keys().isdisjoint(("ReqNodeList", "NumNodes")):
            return f"Requested operation not supported on this system for job {update.job_id}"
        if job.state in RUNNING_STATES:
            return self._update_running(job, update.fields)
        if job.state != PENDING:
            return f"Job has already finished for job {update.job_id}"
        if update.fields.get("Priority") and job.priority == 0:
            return f"Job is in held state, pending scheduler release for job {update.job_id}"
        self._update_pending(job, update.fields)
        return ""

    def _update_running(self, job: JobRecord, fields: Mapping[str, str]) -> str:
        if "NumNodes" in fields or fields.get("ReqNodeList"):
            self.resized.append(job.job_id)
        return f"Job is no longer pending execution for job {job.job_id}" if "StartTime" in fields else ""

    def _update_pending(self, job: JobRecord, fields: Mapping[str, str]) -> None:
        changes: dict[str, object] = {}
        if "StartTime" in fields:
            begin = self.now + float(fields["StartTime"].removeprefix("now").removeprefix("+") or 0)
            late = begin > self.now
            held = job.reason.startswith(("JobHeld", "Dependency"))
            changes |= {"eligible_time": begin, "reason": job.reason if held else "BeginTime" if late else "None"}
        if "NumNodes" in fields:
            low, high = fields["NumNodes"].split("-")
            changes |= {"min_nodes": int(low), "max_nodes": int(high)}
            changes["cpus"] = max(job.cpus, job.min_cpus_per_node * int(low))
        if "ReqNodeList" in fields:
            changes["required_nodes"] = fields["ReqNodeList"]
        changes |= {"tasks": int(fields["NumTasks"])} if "NumTasks" in fields else {}
        if "NumCPUs" in fields:
            changes["cpus"] = max(int(fields["NumCPUs"]), int(str(changes.get("cpus", 0))))
        changes |= {"priority": int(fields["Priority"])} if "Priority" in fields else {}
        if "SiteFactor" in fields:
            before, after = self.site_factors.get(job.job_id, 0), int(fields["SiteFactor"])
            changes["priority"] = job.priority - before + after if job.priority else 0
            self.site_factors[job.job_id] = after
        self.records[job.job_id] = dataclasses.replace(job, **changes)  # type: ignore[arg-type]

    def _schedule(self) -> None:
        for job in sorted(self.records.values(), key=lambda j: (-j.priority, j.number)):
            if job.state != PENDING or job.priority == 0 or job.eligible_time > self.now or not self.starts_jobs:
                continue
            if not job.reason.startswith("Dependency"):
                self._try_to_start(job)

    def _throttled(self, job: JobRecord) -> bool:
        states = RUNNING_STATES - {"COMPLETING"}
        running = [r for r in self.records.values() if r.state in states and r.array_id == job.array_id]
        return 0 < job.array_most <= len(running)

    def _try_to_start(self, job: JobRecord) -> None:
        if job.job_id in self.over_limit or (job.required_nodes and job.job_id in self.limited_lists):
            self.records[job.job_id] = dataclasses.replace(job, reason="MaxMemPerLimit")
            return
        if self._throttled(job):
            self.records[job.job_id] = dataclasses.replace(job, reason="JobArrayTaskLimit")
            return
        if job.required_nodes and job.job_id in self.refused_lists:
            self.records[job.job_id] = dataclasses.replace(job, reason=self.refused_lists[job.job_id])
            return
        if job.min_cpus_per_node and job.cpus > job.tasks:
            self.records[job.job_id] = dataclasses.replace(job, reason="BadConstraints", priority=0)
            return
        if not (job.tres_per_task or job.tres_per_job or job.tres_per_node):
            self._try_to_start_without_gpus(job)
            return
        free = self._free_for(job)
        names = expand(job.required_nodes) if job.required_nodes else self._most_free(free, job.tasks)
        names = names[:1] if job.max_nodes == 1 else names
        counts = fill([free.get(name, 0) for name in sorted(names)], job.tasks) if names else None
        if counts is not None and job.exclusive == "node":  # it gets all GPUs of each node
            counts = tuple(free[name] for name in sorted(names))
        if counts is None and self._preempt_for(job):
            return
        if counts is None:
            self.records[job.job_id] = dataclasses.replace(job, reason="Resources")
            return
        if job.array_tasks:
            self._try_to_start(self._split_off(job, task_numbers(job.array_tasks)[0]))
            self._schedule()
            return
        gpus = dict(zip(sorted(names), counts, strict=True))
        self.starts[job.job_id] += 1
        up = all(self.state_of(name) != "IDLE+POWERED_DOWN" for name in names)
        counted = self.gpu_defaults.get(job.partition, GpuDefaults()).applied(job)
        self.records[job.job_id] = dataclasses.replace(
            job, state="RUNNING" if up else "CONFIGURING", reason="None", nodes=",".join(sorted(names)),
            start_time=self.now, gpus_by_node=gpus, gpus_by_type=self._types_of(job, gpus),
            gpu_indexes={name: self._lowest(name, count) for name, count in gpus.items() if count},
            cpus=counted.cpus_for(sum(gpus.values())),
        )  # fmt: skip

    def used_indexes(self, name: str) -> int:
        """The GPUs of a node that jobs hold, as a mask."""
        held = [r.gpu_indexes.get(name, 0) for r in self.records.values() if r.state in RUNNING_STATES]
        return sum(held)

    def _lowest(self, name: str, count: int) -> int:
        """The lowest GPUs of a node that are free, as a mask."""
        used = self.used_indexes(name)
        free = [index for index in range(used.bit_length() + count) if not used >> index & 1]
        return sum(1 << index for index in free[:count])

    def _types_of(self, job: JobRecord, gpus: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """GPUs by type on nodes with several types: of the job's type, else the first ones that are free."""
        used, found = self.used_by_type(), dict[str, dict[str, int]]()
        for n in self.table:
            left = gpus.get(n.name, 0) if n.types else 0
            for kind in n.types:
                able = type_of(job) in ("", kind.name)
                count = min(left, kind.gpus - used[n.name, kind.name]) if able else 0
                left -= count
                found.setdefault(n.name, {})[kind.name] = count
        return found

    def _preempt_for(self, job: JobRecord) -> bool:
        """Requeue the first jobs that make room for a pinned job. Returns whether there were enough of them."""
        names = set(expand(job.required_nodes)) if job.required_nodes else set()
        if not self.preempt.kinds or not names:
            return False
        may, running = self.preempt.preempts(job), self.preempt.victims(self.records.values(), self.now)
        here = [r for r in running if self.preempt.kind_of(r) in may and r.gpus_by_node.keys() & names]
        free = sum(self._free_for(job).get(name, 0) for name in names)
        for count in range(1, len(here) + 1):
            if free + sum(r.gpus_by_node.get(name, 0) for r in here[:count] for name in names) >= job.tasks:
                for victim in here[:count]:
                    self.preempted.append((victim.job_id, job.job_id))
                    self._requeued(victim.job_id)
                return True
        return False

    def _try_to_start_without_gpus(self, job: JobRecord) -> None:
        used = self.used_cpus()
        free = {n.name: n.cpus - used[n.name] for n in self.table if self.state_of(n.name) in READY}
        names = sorted(free, key=lambda name: (-free[name], name))[: job.min_nodes]
        names = expand(job.required_nodes) if job.required_nodes else names
        if min(free.get(name, 0) for name in names) < job.cpus / len(names):
            self.records[job.job_id] = dataclasses.replace(job, reason="Resources")
            return
        self.starts[job.job_id] += 1
        nodes = ",".join(sorted(names))
        self.records[job.job_id] = dataclasses.replace(
            job, state="RUNNING", reason="None", nodes=nodes, start_time=self.now
        )

    def _free_for(self, job: JobRecord) -> dict[str, int]:
        """Free GPUs of the nodes that the job may use."""
        used, excluded = self.used(), expand(job.excluded_nodes) if job.excluded_nodes else []
        able = [n for n in self.table if n.name not in excluded and (not job.features or job.features in n.features)]
        able = [n for n in able if self.state_of(n.name) in READY and not self._shut_to(job, n.name)]
        return {n.name: self._free_of(n, type_of(job), used) for n in able}

    def _shut_to(self, job: JobRecord, name: str) -> bool:
        """Whether jobs on this node do not share it with the job."""
        there = [one for one in self.records.values() if one.state in RUNNING_STATES and name in one.gpus_by_node]
        others = [one for one in there if one.uid != job.uid]
        by_users = bool(others) and (job.exclusive == "user" or any(one.exclusive == "user" for one in others))
        return by_users or (bool(there) and job.exclusive not in ("", "user"))

    def _free_of(self, n: NodeRecord, kind: str, used: Mapping[str, int]) -> int:
        """Free GPUs of a type ("": any)."""
        if not kind or not n.types:
            return n.gpus - used[n.name] if kind in ("", n.gpu_type) else 0
        by_type = self.used_by_type()
        return sum(each.gpus - by_type[n.name, each.name] for each in n.types if each.name == kind)

    def _most_free(self, free: Mapping[str, int], gpus: int) -> list[str]:
        names: list[str] = []
        for name in sorted(free, key=lambda n: (-free[n], n)):
            if free[name] and sum(free[n] for n in names) < gpus:
                names.append(name)
        return names
