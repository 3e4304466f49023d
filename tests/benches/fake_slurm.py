"""A small Slurm in memory: enough of its rules to drive the daemon's Scheduler, faithful where the daemon could err.

What is modelled after the real one (shared facts, measured on 22.05): a begin time in the future keeps a job waiting;
StartTime is refused for a job that does not wait; NumNodes and ReqNodeList written to a *running* job shrink it, even
when another field of the same update is refused; Priority is refused while held; an unpinned job is started anywhere.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ClusterShell.RangeSet import RangeSet

from slurm_asrpt.core.placement.splitter import slurm_split
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.slurm.client import SlurmConfig
from slurm_asrpt.slurm.notation import read_tasks
from slurm_asrpt.slurm.parse import expand
from slurm_asrpt.slurm.records import PENDING, RUNNING_STATES, JobRecord, NodeRecord, Reservation, Update

GROUP = "0123456789abcdef"


def node(name: str, index: int, gpus: int) -> NodeRecord:
    return NodeRecord(name, index, gpus, 0, "", 64, 0, 512_000, 0, "IDLE", frozenset({"gpu"}))


def in_array(tasks: str) -> list[int]:
    return list(chain.from_iterable(read_tasks(tasks)))


@dataclass
class FakeSlurm:
    """Slurm with these GPUs per node. ``now`` is its clock. errors: what to answer to the next updates of a job."""

    sizes: Sequence[int] = (4, 4, 4)
    now: float = 1_000_000.0
    lease: float = 600.0
    multifactor: bool = False
    ahead: list[Reservation] = field(default_factory=list)
    shares: dict[tuple[str, str], float] = field(default_factory=dict)
    accounting: bool = True
    preempt_by: str = ""
    preemptors: frozenset[str] = frozenset()
    records: dict[str, JobRecord] = field(default_factory=dict)
    writes: list[Update] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    answers: bool = True
    starts_jobs: bool = True
    states: dict[str, str] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)
    resized: list[str] = field(default_factory=list)
    signals: list[tuple[str, str, bool]] = field(default_factory=list)
    site_factors: dict[str, int] = field(default_factory=dict)
    _last: int = 0

    def __post_init__(self) -> None:
        self.table = [node(f"n{i}", i, gpus) for i, gpus in enumerate(self.sizes, start=1)]

    # what users and admins do

    def submit(self, gpus: int, iterations: int = 0, profile: str = "", leased: bool = True, **fields: object) -> str:
        """``sbatch -n GPUS --gpus-per-task=1`` as the hook leaves it: tagged, leased."""
        self._last += 1
        job_id = str(self._last)
        record = JobRecord(
            job_id=job_id,
            name="train",
            user="asrpt1",
            uid=1001,
            partition="gpu",
            state=PENDING,
            reason="BeginTime" if leased else "None",
            submit_time=self.now,
            number=self._last,
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
        """As asrptd asks for it: Slurm may be away, or refuse."""
        self._answer()
        self._refuse(job_id)
        if self.records[job_id].has_ended and not failed:
            raise SlurmError("Job/step already completing or completed")
        self.requeued(job_id)

    def requeued(self, job_id: str) -> None:
        """Back to waiting under the same id; Slurm keeps node list and counts, and gives a new submit time."""
        self.change(
            job_id, state=PENDING, reason="BeginTime", submit_time=self.now, eligible_time=self.now + 120, nodes="",
            gpus_by_node={}, start_time=0.0, end_time=0.0, restarts=self.records[job_id].restarts + 1,
        )  # fmt: skip
        self.starts.pop(job_id, None)

    def forget(self, job_id: str) -> None:
        del self.records[job_id]

    def hold(self, job_id: str) -> None:
        self.change(job_id, reason="JobHeldUser", priority=0)

    def release(self, job_id: str) -> None:
        late = self.records[job_id].eligible_time > self.now
        self.change(job_id, reason="BeginTime" if late else "None", priority=100)

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
        self._answer()
        return SlurmConfig("22.05.8", "fake", self.multifactor, False, self.shares != {}, self.preempt_by)

    def jobs(self) -> list[JobRecord]:
        self._answer()
        return list(self.records.values())

    def catch_up(self) -> None:
        self._answer()

    def nodes(self) -> list[NodeRecord]:
        self._answer()
        used = self.used()
        return [
            dataclasses.replace(
                n, gpus_used=used[n.name], cpus_used=used[n.name], state=self.states.get(n.name, "IDLE")
            )
            for n in self.table
        ]

    def reservations(self, nodes: Sequence[NodeRecord]) -> list[Reservation]:
        return self.ahead

    def fair_shares(self) -> Mapping[tuple[str, str], float]:
        self._answer_about_accounts()
        return self.shares

    def preempting(self, by: str) -> frozenset[str]:
        self._answer_about_accounts()
        return self.preemptors

    def allocations(self, job_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        self._answer()
        running = (r for r in self.records.values() if r.state == "RUNNING" and str(r.number) in job_ids)
        return {str(r.number): r.gpus_by_node for r in running}

    def update(self, updates: Sequence[Update]) -> list[str]:
        if updates:
            self._answer()
        self.writes.extend(updates)
        answers = [self._update(update) for update in updates]
        self._schedule()
        return answers

    def signal(self, job_id: str, name: str, batch: bool) -> None:
        self._answer()
        self._refuse(job_id)
        self.signals.append((job_id, name, batch))

    # inside

    def _refuse(self, job_id: str) -> None:
        if job_id in self.errors:
            raise SlurmError(self.errors[job_id])

    def _answer(self) -> None:
        if not self.answers:
            raise SlurmError("squeue failed: slurmctld is away")

    def _answer_about_accounts(self) -> None:
        if not self.accounting:
            raise SlurmError("slurmdbd is away")

    def used(self) -> Counter[str]:
        used: Counter[str] = Counter()
        for record in self.records.values():
            if record.state in RUNNING_STATES:
                used.update(record.gpus_by_node)
        return used

    def _update(self, update: Update) -> str:
        array, _, tasks = update.job_id.partition("_")
        rest = self.records.get(array)
        if not tasks or rest is None or not rest.array_tasks:
            return self._update_job(update)
        named, waiting = set(in_array(tasks.strip("[]"))), set(in_array(rest.array_tasks))
        if named >= waiting:  # all of the record: it stays one
            others = [self._update_job(Update(f"{array}_{task}", update.fields)) for task in sorted(named - waiting)]
            return "; ".join(filter(None, [self._update_job(Update(array, update.fields)), *others]))
        for task in sorted(named & waiting):
            self._part(rest, task)
        said = [self._update_job(Update(f"{array}_{task}", update.fields)) for task in sorted(named)]
        return "; ".join(filter(None, said))

    def _part(self, rest: JobRecord, task: int) -> JobRecord:
        """A task gets a record of its own; the last one that waits has the array's number."""
        left = [other for other in in_array(self.records[rest.job_id].array_tasks) if other != task]
        self._last += 1
        parted = dataclasses.replace(rest, job_id=f"{rest.job_id}_{task}", number=self._last, array_tasks="")
        self.records[parted.job_id] = parted
        del self.records[rest.job_id]
        if len(left) == 1:
            last = dataclasses.replace(rest, job_id=f"{rest.job_id}_{left[0]}", array_tasks="")
            self.records[last.job_id] = last
        else:
            self.records[rest.job_id] = dataclasses.replace(rest, array_tasks=str(RangeSet.fromlist(map(str, left))))
        return parted

    def _update_job(self, update: Update) -> str:
        job = self.records.get(update.job_id)
        if job is None:
            return f"Invalid job id specified for job {update.job_id}"
        if update.job_id in self.errors:
            return self.errors[update.job_id]
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
        if "ReqNodeList" in fields:
            changes["required_nodes"] = fields["ReqNodeList"]
        changes |= {"tasks": int(fields["NumTasks"])} if "NumTasks" in fields else {}
        changes |= {"priority": int(fields["Priority"])} if "Priority" in fields else {}
        if "SiteFactor" in fields:
            self.site_factors[job.job_id] = int(fields["SiteFactor"])
        self.records[job.job_id] = dataclasses.replace(job, **changes)  # type: ignore[arg-type]

    def _schedule(self) -> None:
        for job in sorted(self.records.values(), key=lambda j: (-j.priority, j.number)):
            if job.state != PENDING or job.priority == 0 or job.eligible_time > self.now or not self.starts_jobs:
                continue
            if not job.reason.startswith("Dependency"):
                self._try(job)

    def _throttled(self, job: JobRecord) -> bool:
        running = [r for r in self.records.values() if r.state in RUNNING_STATES and r.array_id == job.array_id]
        return 0 < job.array_most <= len(running)

    def _try(self, job: JobRecord) -> None:
        if self._throttled(job):
            self.records[job.job_id] = dataclasses.replace(job, reason="JobArrayTaskLimit")
            return
        free = self._free_for(job)
        names = expand(job.required_nodes) if job.required_nodes else self._some(free, job.tasks)
        counts = slurm_split([free.get(name, 0) for name in sorted(names)], job.tasks) if names else None
        if counts is not None and job.exclusive == "node":  # all GPUs of each node are its own
            counts = tuple(free[name] for name in sorted(names))
        if counts is None:
            self.records[job.job_id] = dataclasses.replace(job, reason="Resources")
            return
        if job.array_tasks:
            self._try(self._part(job, in_array(job.array_tasks)[0]))
            self._schedule()
            return
        self.starts[job.job_id] += 1
        up = all(self.state_of(name) != "IDLE+POWERED_DOWN" for name in names)
        self.records[job.job_id] = dataclasses.replace(
            job, state="RUNNING" if up else "CONFIGURING", reason="None", nodes=",".join(sorted(names)),
            start_time=self.now, gpus_by_node=dict(zip(sorted(names), counts, strict=True)),
        )  # fmt: skip

    def _free_for(self, job: JobRecord) -> dict[str, int]:
        """GPUs that are free on the nodes that may serve it."""
        used, excluded = self.used(), expand(job.excluded_nodes) if job.excluded_nodes else []
        able = [n for n in self.table if n.name not in excluded and (not job.features or job.features in n.features)]
        ready = ("IDLE", "IDLE+POWERED_DOWN", "IDLE+RESERVED")
        able = [n for n in able if self.state_of(n.name) in ready and not (job.exclusive and used[n.name])]
        return {n.name: n.gpus - used[n.name] for n in able}

    def _some(self, free: Mapping[str, int], gpus: int) -> list[str]:
        names: list[str] = []
        for name in sorted(free, key=lambda n: (-free[n], n)):
            if free[name] and sum(free[n] for n in names) < gpus:
                names.append(name)
        return names
