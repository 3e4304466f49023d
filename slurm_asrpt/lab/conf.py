"""The configuration files of a lab as text: slurm.conf, gres.conf, slurmdbd.conf, asrpt.toml. Pure functions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slurm_asrpt.lab.paths import LabPaths
from slurm_asrpt.lab.spec import LabNode, LabSpec

MANY_NODES = 32

Sections = Mapping[str, Mapping[str, Any]]


def slurm_conf(spec: LabSpec, paths: LabPaths, host: str, scripts: Mapping[str, Path], lua: bool) -> str:
    """slurm.conf. host: this machine's short name. scripts: Prolog, TaskProlog, Epilog where present."""
    lines = _base(spec, paths, host) + _scheduling(spec) + _accounting(spec, paths)
    lines += ["JobSubmitPlugins=lua"] if lua else []
    lines += [f"{key}={path}" for key, path in scripts.items()]
    lines += _nodes(spec, host) + _partitions(spec)
    return "\n".join([*lines, spec.slurm_conf_extra]).rstrip() + "\n"


def _base(spec: LabSpec, paths: LabPaths, host: str) -> list[str]:
    return [
        "# Written by asrpt-lab; the lab is thrown away, edits are lost.",
        f"ClusterName=lab{spec.base_port}",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={spec.base_port}",
        f"SlurmUser={spec.slurm_user}",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={paths.munge_socket}",
        "CredType=cred/munge",
        f"StateSaveLocation={paths.slurmctld_state}",
        f"SlurmdSpoolDir={paths.slurmd_spool}/%n",
        f"SlurmctldPidFile={paths.pids}/slurmctld.own",
        f"SlurmdPidFile={paths.pids}/slurmd.%n.own",
        f"SlurmctldLogFile={paths.log}/slurmctld.log",
        f"SlurmdLogFile={paths.log}/slurmd.%n.log",
        "CommunicationParameters=NoCtldInAddrAny",  # a lab is for this machine only
        "SlurmdParameters=config_overrides",  # nodes have what is written here, not what the machine has
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "JobCompType=jobcomp/none",
        "MailProg=/bin/true",
        "JobAcctGatherType=jobacct_gather/none",
        "PropagateResourceLimits=NONE",
        "ReturnToService=2",
        "KillWait=2",
        "MinJobAge=300",
        "MaxJobCount=50000",
        "MessageTimeout=30",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
    ]


def _scheduling(spec: LabSpec) -> list[str]:
    lines = [
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=64",  # small, so that memory is in nobody's way who does not ask for it
        "GresTypes=gpu",
        f"SchedulerType=sched/{spec.scheduler}",
        f"SchedulerParameters={spec.scheduler_parameters}",
    ]
    if not spec.multifactor:
        return [*lines, "PriorityType=priority/basic"]
    lines += ["PriorityType=priority/multifactor", "PriorityWeightAge=1000", "PriorityWeightJobSize=100"]
    # fair-share needs associations, and those live in the accounting database
    return [*lines, "PriorityWeightFairshare=1000"] if spec.accounting else lines


def _accounting(spec: LabSpec, paths: LabPaths) -> list[str]:
    if not spec.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageTRES=gres/gpu",  # slurmctld refuses to start with it when there is no slurmdbd
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={spec.ports['slurmdbd']}",
        f"AccountingStoragePass={paths.munge_socket}",  # not a password: under munge it is the socket to use
        "AccountingStoreFlags=job_comment",
    ]


def _nodes(spec: LabSpec, host: str) -> list[str]:
    """A line for each node, which is easy to edit; in a large lab, for each row of equal ones.

    Every Slurm command reads slurm.conf anew, and 250 lines cost it 20 ms.
    """
    few = len(spec.node_list) < MANY_NODES
    rows = [((node.gpus, node.gpu_type), [node]) for node in spec.node_list] if few else _rows(spec)
    lines = []
    for (gpus, gpu_type), nodes in rows:
        ports = str(nodes[0].port) if len(nodes) == 1 else f"[{nodes[0].port}-{nodes[-1].port}]"
        lines.append(
            f"NodeName={_span(nodes)} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} Sockets=1"
            f" CoresPerSocket={spec.cpus} ThreadsPerCore=1 RealMemory={spec.memory_mb}"
            f" Gres=gpu:{gpu_type + ':' if gpu_type else ''}{gpus} State=UNKNOWN"
        )
    return lines


def _partitions(spec: LabSpec) -> list[str]:
    nodes = f"n[1-{len(spec.node_list)}]" if len(spec.node_list) > 1 else "n1"
    return [
        f"PartitionName={name} Nodes={nodes} Default={'YES' if name == spec.partitions[0] else 'NO'}"
        " MaxTime=INFINITE State=UP"
        for name in spec.partitions
    ]


def gres_conf(spec: LabSpec, paths: LabPaths) -> str:
    """gres.conf: node i's GPUs are the first device files of the lab; all nodes share them, nobody opens them."""
    lines = []
    for (gpus, gpu_type), nodes in _rows(spec):
        kind = f" Type={gpu_type}" if gpu_type else ""
        lines.append(f"NodeName={_span(nodes)} Name=gpu{kind} File={paths.gpus}/gpu{_index(gpus)}")
    return "\n".join(lines) + "\n"


def _rows(spec: LabSpec) -> list[tuple[tuple[int, str], list[LabNode]]]:
    """Neighbours with equal GPUs."""
    groups = itertools.groupby(spec.node_list, key=lambda node: (node.gpus, node.gpu_type))
    return [(kind, list(nodes)) for kind, nodes in groups]


def _span(nodes: list[LabNode]) -> str:
    return nodes[0].name if len(nodes) == 1 else f"n[{nodes[0].name[1:]}-{nodes[-1].name[1:]}]"


def _index(gpus: int) -> str:
    return "0" if gpus == 1 else f"[0-{gpus - 1}]"


def slurmdbd_conf(spec: LabSpec, paths: LabPaths, password: str) -> str:
    """slurmdbd.conf; it holds a password, so its file must be 0600."""
    lines = [
        "DbdHost=localhost",
        "DbdAddr=127.0.0.1",
        f"DbdPort={spec.ports['slurmdbd']}",
        f"SlurmUser={spec.slurm_user}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={paths.munge_socket}",
        f"PidFile={paths.pids}/slurmdbd.own",
        f"LogFile={paths.log}/slurmdbd.log",
        "StorageType=accounting_storage/mysql",
        "StorageHost=127.0.0.1",
        f"StoragePort={spec.ports['mariadbd']}",
        "StorageUser=slurm",
        f"StoragePass={password}",
        "StorageLoc=slurm_acct_db",
    ]
    return "\n".join(lines) + "\n"


def lua_conf(paths: LabPaths) -> str:
    """The site's job_submit.lua of this lab: our module, and nothing else."""
    return (
        f"local asrpt = dofile({_quoted(paths.etc / 'job_submit_asrpt.lua')}).open({_quoted(paths.hook)})\n"
        "function slurm_job_submit(d, p, u) return asrpt.job_submit(d, p, u) end\n"
        "function slurm_job_modify(d, r, p, u) return asrpt.job_modify(d, r, p, u) end\n"
    )


def lab_settings(spec: LabSpec, paths: LabPaths) -> dict[str, dict[str, Any]]:
    """The tables of the lab's asrpt.toml: lab speed, mode enforce, every path inside the lab, then the overrides."""
    folders = {name: str(paths.asrpt / name) for name in ("state", "run", "hook", "scripts", "spool")}
    admins = {"profiles": [str(paths.etc / "profiles")], "attachments": str(paths.etc / "attachments.toml")}
    tables: dict[str, dict[str, Any]] = {
        "slurm": {"partitions": [spec.partitions[0]], "conf": str(paths.slurm_conf)},
        "daemon": {"mode": "enforce", "interval_s": 1.0},
        "paths": folders | admins,
        "fabric": {"inter_bytes_per_s": 1.25e9, "intra_bytes_per_s": 300e9},
    }
    for name, values in spec.settings.items():
        tables.setdefault(name, {}).update(values)
    return tables


def toml(tables: Sections) -> str:
    """Tables of plain values as TOML (the standard library only reads it)."""
    return "\n".join(itertools.chain.from_iterable(_table(name, values) for name, values in tables.items())) + "\n"


def _table(name: str, values: Mapping[str, Any]) -> Iterable[str]:
    return [f"[{name}]", *(f"{key} = {_value(value)}" for key, value in values.items()), ""]


def _value(value: object) -> str:
    """JSON is TOML but for tables."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(part)}" for key, part in value.items()) + " }"
    return json.dumps(value, default=str)


def _quoted(path: Path) -> str:
    return json.dumps(str(path))  # lab paths hold no character that JSON and Lua would quote differently
