"""Parsers of Slurm's output. Text in, values out; SlurmError for anything that cannot be parsed.

Covers plain numbers (22.05) and wrapped ones (23.02 and later:
``{"set": true, "infinite": false, "number": 5}``), and states as one word or as a list of words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from slurm_asrpt.errors import SlurmError, printable
from slurm_asrpt.slurm.gres import SHARED, gpu_count, gpu_indexes, gpu_types, gres_of_node, others_of
from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.notation import or_empty, read_tasks
from slurm_asrpt.slurm.records import PENDING, REQUEUED_STATES, GpuType, JobRecord, NodeRecord, Reservation

# newer releases list these with the state; the first one is the single word of 22.05
_STATE_FLAGS = (
    *("COMPLETING", "STAGE_OUT", "CONFIGURING", "RESIZING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD"),
    *("SPECIAL_EXIT", "STOPPED", "REVOKED", "RESV_DEL_HOLD", "SIGNALING"),
)
_EXCLUSIVE = {"none": "node", "true": "node", "user": "user", "mcs": "mcs", "topo": "topo"}


def number(value: Any, default: float = 0) -> float:
    """A number in any of Slurm's JSON forms; ``default`` if it is unset, infinite or not a number."""
    if isinstance(value, int | float):  # first, because most are
        return default if isinstance(value, bool) else value
    if isinstance(value, Mapping):
        return number(value.get("number"), default) if value.get("set") else default
    return default


def _word(value: Any) -> str:
    """A string, or the first of a list of flags (newer releases list states)."""
    if isinstance(value, list):
        value = value[0] if value else ""
    return value if isinstance(value, str) else ""


_OTHER_TRES = re.compile(r"(cpu|mem|vmem|node|billing|energy|pages)[:=]|(fs|bb|ic|license)/")
"""Starts of the trackable resources in ``--tres-per-task`` that are no generic resources."""


def _asked_gres(value: Any) -> str:
    """The generic resources in a tres_per_* text. Newer releases show the CPUs of ``-c5`` there, too: ``cpu=5``."""
    return ",".join(part for part in _word(value).split(",") if not _OTHER_TRES.match(part))


def _state_word(value: Any) -> str:
    """A job's state as one word, as in 22.05: flags such as COMPLETING precede the base state."""
    words = value if isinstance(value, list) else [value]
    return next((flag for flag in _STATE_FLAGS if flag in words), _word(value))


NO_ORDER: Mapping[str, int] = {}


def parse_jobs(text: str, order: Mapping[str, int] = NO_ORDER) -> list[JobRecord]:
    """``squeue --json --states=all``. order: as for ``job_record``."""
    try:
        answer = json.loads(text)
        if answer.get("errors"):  # slurmctld is away: exit status 0, errors, no jobs
            raise SlurmError(f"squeue --json: {_first_error(answer['errors'])}")
        found = [job_record(raw, order) for raw in answer["jobs"]]
        binds = (22, 5, 0) <= maintenance_release(_release(answer)) < (22, 5, 9)
        return list(map(_bound_to_preferred, found)) if binds else found
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise SlurmError(f"cannot parse the output of squeue --json ({error!r})") from error


def _release(answer: Mapping[str, Any]) -> str:
    """``22.05.8``; empty where the answer does not say."""
    slurm = answer["meta"].get("Slurm") if isinstance(answer.get("meta"), Mapping) else None
    return str(slurm.get("release", "")) if isinstance(slurm, Mapping) else ""


def _bound_to_preferred(job: JobRecord) -> JobRecord:
    """Before 22.05.9, the tasks of an array start only on nodes with the features of ``--prefer``, whatever -C says."""
    is_task = job.array_tasks or "_" in job.job_id
    return replace(job, features=job.prefer, prefer="") if job.prefer and is_task else job


def _first_error(errors: Any) -> str:
    first = errors[0] if isinstance(errors, list) else errors
    words = [first.get(key) for key in ("error", "description")] if isinstance(first, Mapping) else [first]
    return printable(" ".join(str(word) for word in words if word))


def job_record(raw: Mapping[str, Any], order: Mapping[str, int] = NO_ORDER) -> JobRecord:
    """One job of squeue's JSON, of any release. order: the index of each node in Slurm's table, if it is known."""
    job_id, tasks = _array(raw)
    state = _state_word(raw.get("job_state"))
    per_gpu = float(gpu_count(_word(raw.get("memory_per_tres"))))
    min_nodes = _min_nodes(raw, state)
    record = JobRecord(
        job_id=job_id,
        name=_word(raw.get("name")),
        user=_word(raw.get("user_name")) or str(raw.get("user_id", "")),
        uid=int(number(raw.get("user_id"), -1)),
        partition=_word(raw.get("partition")),
        state=PENDING if state in REQUEUED_STATES else state,
        reason=_word(raw.get("state_reason")),
        submit_time=number(raw.get("submit_time")),
        number=int(raw["job_id"]),
        eligible_time=number(raw.get("eligible_time")),
        accrue_time=number(raw.get("accrue_time")),
        start_time=number(raw.get("start_time")),
        end_time=number(raw.get("end_time")),
        time_limit=60 * number(raw.get("time_limit")),
        time_min=60 * number(raw.get("time_minimum")),
        deadline=number(raw.get("deadline")),
        priority=int(number(raw.get("priority"))),
        nice=_nice(raw.get("nice")),
        dependency=_word(raw.get("dependency")),
        exit_code=_exit_code(raw.get("exit_code")),
        signal=_signal(raw.get("exit_code")),
        restarts=int(number(raw.get("restart_cnt"))),
        requeue=raw.get("requeue") is True,
        array_tasks=tasks,
        array_most=int(number(raw.get("array_max_tasks"))),
        het=int(number(raw.get("het_job_id"))) != 0,
        het_id=str(int(number(raw.get("het_job_id"))) or ""),
        min_nodes=min_nodes,
        max_nodes=_max_nodes(raw, min_nodes),
        tasks=_tasks(raw),
        tasks_per_node=int(number(raw.get("tasks_per_node"))),
        tasks_per_socket=int(number(raw.get("tasks_per_socket"))),
        tasks_per_gpu=int(number(raw.get("tasks_per_tres"))),
        cpus_per_task=int(number(raw.get("cpus_per_task"))),
        cpus=int(number(raw.get("cpus"))),
        cpus_per_gpu=gpu_count(_word(raw.get("cpus_per_tres"))),
        min_cpus_per_node=int(number(raw.get("minimum_cpus_per_node"))),
        one_thread=number(raw.get("threads_per_core")) == 1,
        own_cores=number(raw.get("tasks_per_core")) == 1,
        tmp_disk=number(raw.get("minimum_tmp_disk_per_node")),
        memory_per_cpu=number(raw.get("memory_per_cpu")),
        memory_per_node=0.0 if per_gpu else number(raw.get("memory_per_node")),  # 24.11 shows the same in both
        memory_per_gpu=per_gpu,
        tres_per_job=_asked_gres(raw.get("tres_per_job")),
        tres_per_node=_asked_gres(raw.get("tres_per_node")),
        tres_per_task=_asked_gres(raw.get("tres_per_task")),
        tres_per_socket=_asked_gres(raw.get("tres_per_socket")),
        required_nodes=_word(raw.get("required_nodes")),
        excluded_nodes=_word(raw.get("excluded_nodes")),
        features=_word(raw.get("features")),
        prefer=_word(raw.get("prefer")),
        reservation=_word(raw.get("resv_name")),
        account=_word(raw.get("account")),
        qos=_word(raw.get("qos")),
        licenses=_word(raw.get("licenses")),
        tres=_word(raw.get("tres_alloc_str")) or _word(raw.get("tres_req_str")),
        exclusive=_EXCLUSIVE.get(_word(raw.get("shared"))) or _EXCLUSIVE.get(_word(raw.get("exclusive")), ""),
        contiguous=bool(raw.get("contiguous")),
        scrontab="CRON_JOB" in (raw.get("flags") or ()),
        segment=int(number(raw["segment_size"])) if "segment_size" in raw else None,  # from Slurm 25.05 on
        admin_comment=_word(raw.get("admin_comment")),
        nodes=_word(raw.get("nodes")),
    )
    return with_gres(record, _details(record.nodes, raw.get("gres_detail"), order))


def with_gres(record: JobRecord, details: Mapping[str, str]) -> JobRecord:
    """The record with its GPUs. details: the GRES allocated on each node, such as ``gpu:h100:3(IDX:0,4-5)``."""
    if not details:
        return record
    found = {name: gpu_types(detail) for name, detail in details.items()}
    types = {name: counts for name, counts in found.items() if any(counts.values())}
    return replace(
        record,
        gpus_by_node={name: sum(counts.values()) for name, counts in types.items()},
        gpus_by_type=types,
        gpu_indexes={name: indexes for name in types if (indexes := gpu_indexes(details[name]))},
    )


def _nice(raw: Any) -> int:
    """22.05 prints null for 0, and negative values modulo 2^32."""
    value = int(number(raw))
    return value - 2**32 if value >= 2**31 else value


def _min_nodes(raw: Mapping[str, Any], state: str) -> int:
    """Of a pending job, what its TRES say: its node count is an estimate, or of an earlier run (22.05)."""
    waits = state in (PENDING, *REQUEUED_STATES)
    asked = re.findall(r"\bnode=([1-9][0-9]*)", _word(raw.get("tres_req_str"))) if waits else []
    return min([max(1, int(number(raw.get("node_count"), 1))), *map(int, asked)])


def _array(raw: Mapping[str, Any]) -> tuple[str, str]:
    """A job's id, and the pending array tasks in this record, if there are several.

    The last pending task is like any other task, although Slurm has not yet split it off the array's record.
    """
    array_id, task = int(number(raw.get("array_job_id"))), raw.get("array_task_id")
    if isinstance(task, Mapping) and not task.get("set"):
        task = None
    waiting = _word(raw.get("array_task_string")).partition("%")[0] if task is None else ""
    if waiting.isdecimal():
        task, waiting = int(waiting), ""
    return str(int(raw["job_id"])) if not array_id or task is None else f"{array_id}_{int(number(task))}", waiting


def _tasks(raw: Mapping[str, Any]) -> int:
    return max(1, int(number(raw.get("tasks"), 1)))


def _max_nodes(raw: Mapping[str, Any], min_nodes: int) -> int:
    """From 23.02, a job with a task count never gets more nodes than tasks; only 26.05 shows this in max_nodes."""
    shown, tasks = int(number(raw.get("max_nodes"))), _tasks(raw)
    exact = "EXACT_TASK_COUNT_REQUESTED" in (raw.get("flags") or ())
    return tasks if exact and (not shown or tasks < min_nodes) else shown


def _exit_code(raw: Any) -> int:
    if isinstance(raw, Mapping) and "return_code" in raw:  # 23.02 and later
        return int(number(raw["return_code"]))
    return int(number(raw)) >> 8  # a wait status


def _signal(raw: Any) -> int:
    if isinstance(raw, Mapping) and "return_code" in raw:  # signal_id in 23.02, id later
        said = raw.get("signal")
        return int(number(said.get("id", said.get("signal_id")))) if isinstance(said, Mapping) else 0
    return signal_of(int(number(raw)))


def signal_of(wait_status: int) -> int:
    """The signal in a wait status; 0 if it has an exit code."""
    return wait_status & 0x7F


def _details(nodes: str, details: Any, order: Mapping[str, int]) -> dict[str, str]:
    """The GRES by node: ``gres_detail`` has one entry per allocated node, in the order of Slurm's node table.

    That is the order of the node list, which is sorted by name, unless slurm.conf or SwitchAsNodeRank has another one.
    """
    if not nodes or not isinstance(details, list):
        return {}
    names = expand(nodes)
    if len(names) != len(details):
        return {}
    if all(name in order for name in names):
        names.sort(key=order.__getitem__)
    return {name: str(detail) for name, detail in zip(names, details, strict=True)}


def parse_nodes(text: str) -> list[NodeRecord]:
    """``scontrol -d -o show node``: one line per node, in node-table order."""
    lines = [line for line in text.splitlines() if line.startswith("NodeName=")]
    return [_node(pairs_of(line), index) for index, line in enumerate(lines)]


def pairs_of(line: str) -> dict[str, str]:
    """The fields of a line. The first field of a name counts: free text, such as Reason, is at the end."""
    pairs: dict[str, str] = {}
    for word in line.split():
        key, equals, value = word.partition("=")
        if equals:
            pairs.setdefault(key, value)
    return pairs


def _threads(raw: Mapping[str, str]) -> int:
    """CPUs of a core: 1 also where slurm.conf counts cores as CPUs."""
    cores = int(raw.get("Sockets", 1)) * int(raw.get("CoresPerSocket", 0))
    return max(1, min(int(raw.get("ThreadsPerCore", 1)), int(raw["CPUTot"]) // cores if cores else 1))


def _node(raw: Mapping[str, str], index: int) -> NodeRecord:
    try:
        gres, gres_used = (gres_of_node(raw.get(field, "")) for field in ("Gres", "GresUsed"))
        types = {kind: count for (name, kind), count in gres.items() if name == "gpu"}
        used = {kind: count for (name, kind), count in gres_used.items() if name == "gpu"}
        return NodeRecord(
            name=raw["NodeName"],
            index=index,
            gpus=sum(types.values()),
            gpus_used=sum(used.values()),
            gpu_type=next(iter(types)) if len(types) == 1 else "",
            cpus=int(raw.get("CPUEfctv", raw["CPUTot"])),  # without those of CoreSpecCount and CpuSpecList
            cpus_used=int(raw["CPUAlloc"]),
            memory=int(raw["RealMemory"]) - int(raw.get("MemSpecLimit", 0)),
            memory_used=int(raw["AllocMem"]),
            state=raw["State"],
            partitions=frozenset(filter(None, raw.get("Partitions", "").split(","))),
            other_gres=any(name in SHARED for name, _ in gres) or {""} < types.keys(),
            features=frozenset(raw.get("ActiveFeatures", "(null)").split(",")) - {"(null)", ""},
            indexes_used=gpu_indexes(raw.get("GresUsed", "")),
            threads=_threads(raw),
            tmp_disk=int(raw.get("TmpDisk", 0)),
            weight=int(raw.get("Weight", 1)),
            types=tuple(GpuType(kind, types[kind], used.get(kind, 0)) for kind in types) if len(types) > 1 else (),
            gres=others_of(gres),
            gres_used=others_of(gres_used),
        )
    except (KeyError, ValueError) as error:
        raise SlurmError(f"cannot parse the output of scontrol show node ({error!r})") from error


UNPLANNED = ("FLEX", "MAINT", "OVERLAP", "TIME_FLOAT")
"""Flags of reservations whose jobs may run elsewhere, on nodes of others, or never."""


def parse_reservations(text: str, nodes: Iterable[NodeRecord]) -> list[Reservation]:
    """``scontrol -o show reservation`` with times in seconds. Those of licenses, or of GPUs of nodes, are left out."""
    cpus = {node.name: node.cpus for node in nodes}
    lines = [line for line in text.splitlines() if line.startswith("ReservationName=")]
    try:
        found = [_reservation(line, cpus) for line in lines]
    except (KeyError, ValueError) as error:
        raise SlurmError(f"cannot parse the output of scontrol show reservation ({error!r})") from error
    return [reservation for reservation in found if reservation is not None]


def _reservation(line: str, cpus: Mapping[str, int]) -> Reservation | None:
    """cpus: of each node. None for one that has neither whole nodes nor only cores."""
    raw = pairs_of(line)
    nodes, tres = frozenset(expand(or_empty(raw["Nodes"]))), raw.get("TRES", "")
    reserved = re.search(r"\bcpu=([0-9]+)", tres)
    whole = reserved is not None and int(reserved[1]) >= sum(cpus.get(name, 0) for name in nodes)
    cores = () if whole or "gres/" in tres else _reserved_cores(line)
    if not nodes or not (whole or cores):
        return None
    lists = [_listed(raw.get(key, "")) for key in ("Users", "Accounts", "QOS", "AllowedPartitions")]
    users, accounts, qos, partitions = lists  # the last two only in later releases
    known = not any(name.startswith("-") for names in lists for name in names) and not _listed(raw.get("Groups", ""))
    flags = frozenset(raw.get("Flags", "").split(","))
    return Reservation(
        name=raw["ReservationName"],
        start=_within(raw["StartTime"]),
        end=_within(raw["EndTime"]),
        nodes=nodes,
        magnetic="MAGNETIC" in flags and any(lists) and known,
        users=users,
        accounts=accounts,
        plain=flags.isdisjoint(UNPLANNED),
        flex="FLEX" in flags,
        maintenance="MAINT" in flags,
        cores=cores,
        qos=qos,
        partitions=partitions,
    )


def _reserved_cores(line: str) -> tuple[tuple[str, int], ...]:
    """How many cores ``NodeName=n1 CoreIDs=0-3,8`` and the like reserve on each node."""
    found = re.findall(r"NodeName=(\S+) CoreIDs=([0-9,-]+)", line)
    return tuple((name, sum(len(span) for span in read_tasks(cores))) for name, cores in found)


def _listed(names: str) -> frozenset[str]:
    return frozenset(filter(None, or_empty(names).split(",")))


def _within(text: str, most: float = 1e12) -> float:
    """A number from 0 to ``most``. Raises ValueError, also for inf and nan."""
    number = float(text)
    if not 0 <= number <= most:
        raise ValueError(f"{text!r} is not between 0 and {most:g}")
    return number


def parse_shares(text: str) -> dict[tuple[str, str], float]:
    """``sshare -P -n -a -o User,Account,FairShare``: the factor, 0 to 1, by user and account."""
    rows = [[word.strip() for word in line.split("|")] for line in text.splitlines()]
    try:
        return {(row[0], row[1]): _within(row[2], 1.0) for row in rows if row[0] and row[2]}
    except (IndexError, ValueError) as error:
        raise SlurmError(f"cannot parse the output of sshare ({error!r})") from error


def enforces_limits(config: Mapping[str, str]) -> bool:
    """Whether AccountingStorageEnforce holds jobs to limits; "safe" and "qos" alone do not say so in 22.05."""
    return not {"limits", "safe", "all"}.isdisjoint(config.get("AccountingStorageEnforce", "").split(","))


def is_safe(config: Mapping[str, str]) -> bool:
    """Whether AccountingStorageEnforce starts only jobs whose time limit the minutes that are left suffice for."""
    return not {"safe", "all"}.isdisjoint(config.get("AccountingStorageEnforce", "").split(","))


def parse_allocated_gres(text: str) -> dict[str, dict[str, str]]:
    """The GRES of running jobs by job and node, from ``scontrol -d -o show job``.

    Job names and comments are free text, including line breaks, so a line or a part of it may be forged: a job or node
    that appears twice has no entry, and callers must compare an entry with what they know of the job.
    """
    found: dict[str, dict[str, str]] = {}
    twice: set[str] = set()
    seen: set[str] = set()
    for line in text.splitlines():
        match = re.match(r"JobId=(\d+) ", line)
        if match is None:
            continue
        (twice if match[1] in seen else seen).add(match[1])
        gres = _gres_by_node(line)
        if gres and _state(line) == "RUNNING":
            found[match[1]] = gres
    return {job_id: gres for job_id, gres in found.items() if job_id not in twice}


def parse_allocations(text: str) -> dict[str, dict[str, int]]:
    """As ``parse_allocated_gres``, only the number of GPUs; jobs without any have no entry."""
    counts = {
        job_id: {name: gpu_count(gres) for name, gres in by_node.items()}
        for job_id, by_node in parse_allocated_gres(text).items()
    }
    return {
        job_id: {name: count for name, count in gpus.items() if count}
        for job_id, gpus in counts.items()
        if any(gpus.values())
    }


def _state(line: str) -> str:
    """The last JobState: the job's name, which may contain another one, precedes it."""
    states = re.findall(r" JobState=([A-Z_]+) Reason=", line)
    return states[-1] if states else ""


def _gres_by_node(line: str) -> dict[str, str]:
    """Nothing if a node appears twice: the job's name, before the real ones, or its comment, after them, forges one."""
    found: dict[str, str] = {}
    try:
        for nodes, gres in re.findall(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S*)", line):
            gpu_count(gres)  # raises SlurmError for what is no GRES
            names = expand(nodes)
            if not found.keys().isdisjoint(names):
                return {}
            found |= dict.fromkeys(names, gres)
    except SlurmError:
        return {}  # an odd job name must not prevent reading the other jobs
    return found


def release(version: str) -> tuple[int, int]:
    """(24, 11) for ``slurm-wlm 24.11.5``; (0, 0) if there is no version."""
    return maintenance_release(version)[:2]


def maintenance_release(version: str) -> tuple[int, int, int]:
    """(24, 11, 5) for ``slurm-wlm 24.11.5``; zeros for what is missing."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)


def json_option(version: str) -> str:
    """squeue's JSON option. 26.05's default format lacks whether a job is exclusive; the previous one has it."""
    return "--json=v0.0.44" if (26, 5) <= release(version) < (27, 5) else "--json"


def parse_config(text: str) -> dict[str, str]:
    """``scontrol show config`` as a dictionary of its ``Name = value`` lines."""
    pairs = (line.split("=", 1) for line in text.splitlines() if re.match(r"[\w\[\]]+\s+=", line))
    return {key.strip(): value.strip() for key, value in pairs}


def parse_config_time(text: str) -> float:
    """slurmctld's clock when it answered ``scontrol show config``; 0 if unknown."""
    found = re.search(r"^Configuration data as of (\S+)$", text, re.MULTILINE)
    return parse_time(found[1] if found else "")


def parse_time(text: str) -> float:
    """A time in scontrol's output; 0 if it is not one.

    CliClient requests seconds since the epoch; other output has local time.
    """
    if re.fullmatch(r"[0-9]{1,12}", text):
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def uid_in(text: str) -> int:
    """64030 for ``slurm(64030)``; 0, root's, if there is none."""
    found = re.search(r"\(([0-9]{1,10})\)$", text)
    return int(found[1]) if found else 0


def seconds_in(text: str, default: float = 60.0) -> float:
    """600 for ``600 sec``; ``default`` (that of ResumeTimeout) if there is no number."""
    found = re.match(r"[0-9]{1,9}\b", text)
    return float(found[0]) if found else default


def parse_update_errors(transcript: str) -> list[str]:
    """One entry per update of a ``scontrol`` session, "" on success.

    scontrol echoes each input line after its prompt, followed by its errors.
    """
    errors: list[list[str]] = []
    for line in transcript.splitlines():
        if line.startswith("scontrol: update "):
            errors.append([])
        elif errors and line.strip() and line.strip() != "scontrol:":
            errors[-1].append(line.strip())
    return ["; ".join(lines) for lines in errors]
