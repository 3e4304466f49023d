"""Writes a lab's files: config files, hook and prologs, programs for jobs, device files, home directories."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurm_asrpt import shipped
from slurm_asrpt.errors import InputError, MachineError
from slurm_asrpt.install import job_submit
from slurm_asrpt.install.slurm_conf import SCRIPTS
from slurm_asrpt.lab import machine, topology
from slurm_asrpt.lab.machine import identity
from slurm_asrpt.lab.spec import LabNode, LabPaths, LabSpec

CGROUPS = Path("/sys/fs/cgroup")
MANY_NODES = 32
LONGEST_TIMEOUT_S = 65533
ANSWER_S = 30.0
"""asrptd's timeout of a Slurm command, in the machine's time."""
INTER = 1.25e9
"""B_inter of a lab, bytes/s."""

Sections = Mapping[str, Mapping[str, Any]]

DEFAULT_SPOOL, DEFAULT_HOOK = "/var/spool/asrpt", "/var/lib/asrpt-hook"

_PROGRAM = """\
#!/usr/bin/python3 -sEP
import os, sys
sys.path.insert(0, {library!r})
os.environ.setdefault("ASRPT_CONFIG", {settings!r})
from {module} import main
sys.exit(main())
"""
PROGRAMS = {"asrpt-train": "slurm_asrpt.lab.train", "asrpt-report": "slurm_asrpt_cli.report"}


def write(spec: LabSpec, paths: LabPaths) -> None:
    """Write all files that the daemons need. Raises InputError and MachineError."""
    paths.state_file.write_text(spec.to_json(), encoding="utf-8")
    for folder in paths.of_slurm_user:
        os.chown(folder, *identity(spec.slurm_user))
    for name in ("root", spec.slurm_user, *spec.user_names):
        _make_home(paths.home / name, identity(name))
    _make_gpus(paths.gpus, max(node.gpus for node in spec.node_list))
    install_programs(paths)
    scripts = install(spec, paths)
    host = socket.gethostname().partition(".")[0]
    files = {
        "slurm.conf": slurm_conf(spec, paths, host, scripts, lua=spec.hook),
        "gres.conf": gres_conf(spec, paths),
        "asrpt.toml": toml(lab_settings(spec, paths)),
    }
    files["cgroup.conf"] = _cgroup_conf(_slurm_release(), CGROUPS)
    if spec.topology:
        _check_topology(spec)
        files["topology.conf"] = topology.topology_conf(spec.topology, len(spec.node_list))
    for name, text in files.items():
        (paths.etc / name).write_text(text, encoding="utf-8")
        (paths.etc / name).chmod(0o644)  # all users' commands read them, regardless of root's umask


def _cgroup_conf(release: tuple[int, ...], cgroups: Path) -> str:
    """cgroup.conf: no cgroups. Older releases cannot do without those of version 2. Where no systemd runs, they make
    what they need in its slice, which must be there."""
    if release >= (23, 11):
        return "CgroupPlugin=disabled\n"
    if (cgroups / "cgroup.controllers").exists():
        with suppress(OSError):  # slurmd says what it lacks
            (cgroups / "system.slice").mkdir(exist_ok=True)
    return "IgnoreSystemdOnFailure=yes\n"


def _check_topology(spec: LabSpec) -> None:
    """Raises InputError if this Slurm does not have the topology's plugin."""
    if topology.plugin(spec.topology) == "topology/block" and _slurm_release() < (24, 5):
        raise InputError(f"--topology {spec.topology}: requires Slurm 24.05 or newer; see asrpt-lab debian")


def _make_home(folder: Path, owner: tuple[int, int]) -> None:
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    os.chown(folder, *owner)


def _make_gpus(folder: Path, count: int) -> None:
    """Create device files that represent GPUs: copies of /dev/null. Raises MachineError."""
    try:
        for index in range(count):
            os.mknod(folder / f"gpu{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except OSError as error:
        raise MachineError(
            f"{folder}: cannot create device files ({error.strerror}); a lab needs the right to mknod"
        ) from error


def _slurm_release() -> tuple[int, ...]:
    """(22, 5) for 22.05.8. Raises MachineError."""
    output = subprocess.run([machine.program("slurmctld"), "-V"], capture_output=True, text=True, check=False).stdout
    words = output.split()
    try:
        return tuple(int(part) for part in words[-1].split(".")[:2])
    except (IndexError, ValueError):
        raise MachineError(f"slurmctld -V printed {output!r}; Slurm 22.05 or newer is required") from None


def hooks_folder(spec: LabSpec) -> Path:
    """The directory of the hook's files: ``hooks_dir``, the checkout's or the installed one. Raises InputError."""
    candidates = [spec.hooks_dir] if spec.hooks_dir else shipped.folders(shipped.HOOKS)
    for folder in candidates:
        if (folder / job_submit.MODULE).is_file():
            return folder
    raise InputError(
        f"{candidates[0] / job_submit.MODULE}: not found; specify its directory with --hooks-dir, or use --no-hook"
    )


def install(spec: LabSpec, paths: LabPaths) -> dict[str, Path]:
    """Copy the hook's files into the lab. Returns slurm.conf keys and paths of the scripts. Raises InputError."""
    if not spec.hook:
        return {}
    folder = hooks_folder(spec)
    shutil.copyfile(folder / job_submit.MODULE, paths.etc / job_submit.MODULE)
    (paths.etc / "job_submit.lua").write_text(lua_conf(paths), encoding="utf-8")
    return {key: _copy_script(folder / name, paths) for key, name in SCRIPTS.items() if (folder / name).is_file()}


def _copy_script(source: Path, paths: LabPaths) -> Path:
    """Copy a prolog or epilog, with the lab's directories instead of the default ones."""
    target, text = paths.etc / source.name, source.read_text(encoding="utf-8")
    text = text.replace(DEFAULT_SPOOL, str(paths.spool)).replace(DEFAULT_HOOK, str(paths.hook))
    target.write_text(text, encoding="utf-8")
    target.chmod(0o755)
    return target


def install_programs(paths: LabPaths) -> None:
    """Copy the package and the programs for jobs into the lab: test users may not be able to read the checkout."""
    target = paths.library / "slurm_asrpt"
    shutil.copytree(shipped.PACKAGE, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    commands = paths.library / "slurm_asrpt_cli"
    commands.mkdir(exist_ok=True)
    shutil.copyfile(_commands_folder() / "report.py", commands / "report.py")
    for path in [target, *target.rglob("*"), commands, *commands.iterdir()]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    for name, module in PROGRAMS.items():
        script = paths.bin / name
        text = _PROGRAM.format(library=str(paths.library), settings=str(paths.settings), module=module)
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)


def _commands_folder() -> Path:
    """The directory of the commands' modules: ``cli`` in a checkout."""
    checkout = shipped.PACKAGE.parent / "cli"
    return checkout if checkout.is_dir() else shipped.PACKAGE.parent / "slurm_asrpt_cli"


def slurm_conf(spec: LabSpec, paths: LabPaths, host: str, scripts: Mapping[str, Path], lua: bool) -> str:
    """slurm.conf. host: this machine's short name. scripts: paths of Prolog, TaskProlog and Epilog, if installed."""
    lines = _base(spec, paths, host) + _scheduling(spec) + _accounting(spec, paths)
    lines += ["JobSubmitPlugins=lua"] if lua else []
    lines += [f"{key}={path}" for key, path in scripts.items()]
    lines += [f"TopologyPlugin={topology.plugin(spec.topology)}"] if spec.topology else []
    lines += _nodes(spec, host) + _partitions(spec)
    return "\n".join([*lines, spec.slurm_conf_extra]).rstrip() + "\n"


def _base(spec: LabSpec, paths: LabPaths, host: str) -> list[str]:
    return [
        "# Generated by asrpt-lab up, which overwrites changes.",
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
        "CommunicationParameters=NoCtldInAddrAny",  # listen on this machine only
        "SlurmdParameters=config_overrides",  # nodes have the resources of this file, not the machine's
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
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        *_timeouts(spec.speed),
    ]


def _timeouts(speed: float) -> list[str]:
    """Slurm's timeouts. The machine answers no faster if the lab's clock goes faster, so those shrink less."""
    timeouts = {"MessageTimeout": max(30, 10 * speed)}
    if speed > 1:
        longer = {"TcpTimeout": 5, "BatchStartTimeout": 10, "UnkillableStepTimeout": 60, "SlurmdTimeout": 60}
        timeouts |= {name: real_s * speed for name, real_s in longer.items()}
    return [f"{name}={min(round(value), LONGEST_TIMEOUT_S)}" for name, value in timeouts.items()]


def _scheduling(spec: LabSpec) -> list[str]:
    lines = [
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=64",  # small, so that memory does not limit jobs that do not request it
        "GresTypes=gpu",
        f"SchedulerType=sched/{spec.scheduler}",
        f"SchedulerParameters={spec.scheduler_parameters}",
    ]
    if not spec.multifactor:
        return [*lines, "PriorityType=priority/basic"]
    lines += ["PriorityType=priority/multifactor", "PriorityWeightAge=1000", "PriorityWeightJobSize=100"]
    # fair-share needs associations, which are in the accounting database
    return [*lines, "PriorityWeightFairshare=1000"] if spec.accounting else lines


def _accounting(spec: LabSpec, paths: LabPaths) -> list[str]:
    if not spec.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageTRES=gres/gpu",  # without slurmdbd, slurmctld would not start with this line
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={spec.ports['slurmdbd']}",
        f"AccountingStoragePass={paths.munge_socket}",  # not a password: with munge, the path of the socket
        "AccountingStoreFlags=job_comment",
    ]


def _nodes(spec: LabSpec, host: str) -> list[str]:
    """One line per node, which is easy to edit. In large labs, one line per group of equal nodes.

    Every Slurm command reads slurm.conf, and 250 lines take 20 ms.
    """
    few = len(spec.node_list) < MANY_NODES
    rows = [(node.types, [node]) for node in spec.node_list] if few else _rows(spec)
    lines = []
    for types, nodes in rows:
        gres = ",".join(f"gpu:{kind}:{count}" if kind else f"gpu:{count}" for kind, count in types)
        ports = str(nodes[0].port) if len(nodes) == 1 else f"[{nodes[0].port}-{nodes[-1].port}]"
        lines.append(
            f"NodeName={_span(nodes)} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} Sockets=1"
            f" CoresPerSocket={spec.cpus // spec.threads} ThreadsPerCore={spec.threads} RealMemory={spec.memory_mb}"
            f" Gres={gres} State=UNKNOWN"
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
    """gres.conf. All nodes use the same device files as GPUs; nothing opens them."""
    lines = []
    for types, nodes in _rows(spec):
        first = 0
        for name, count in types:
            kind = f" Type={name}" if name else ""
            lines.append(f"NodeName={_span(nodes)} Name=gpu{kind} File={paths.gpus}/gpu{_index(first, count)}")
            first += count
    return "\n".join(lines) + "\n"


def _rows(spec: LabSpec) -> list[tuple[tuple[tuple[str, int], ...], list[LabNode]]]:
    """Groups of consecutive nodes with equal GPUs."""
    groups = itertools.groupby(spec.node_list, key=lambda node: node.types)
    return [(types, list(nodes)) for types, nodes in groups]


def _span(nodes: list[LabNode]) -> str:
    return nodes[0].name if len(nodes) == 1 else f"n[{nodes[0].name[1:]}-{nodes[-1].name[1:]}]"


def _index(first: int, count: int) -> str:
    return str(first) if count == 1 else f"[{first}-{first + count - 1}]"


def slurmdbd_conf(spec: LabSpec, paths: LabPaths, password: str) -> str:
    """slurmdbd.conf. It contains a password, so the file needs mode 0600."""
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
    """The lab's job_submit.lua, which only calls asrpt's module."""
    return (
        f"local asrpt = dofile({_quoted(paths.etc / 'job_submit_asrpt.lua')}).open({_quoted(paths.hook)})\n"
        "function slurm_job_submit(d, p, u) return asrpt.job_submit(d, p, u) end\n"
        "function slurm_job_modify(d, r, p, u) return asrpt.job_modify(d, r, p, u) end\n"
    )


def lab_settings(spec: LabSpec, paths: LabPaths) -> dict[str, dict[str, Any]]:
    """The tables of the lab's asrpt.toml: mode enforce, paths in the lab, then ``spec.settings``.

    Short cycles, unless the lab has its own clock: a cycle and an answer of Slurm take the machine's time.
    """
    folders = {name: str(paths.asrpt / name) for name in ("state", "run", "hook", "scripts", "spool")}
    admins = {"profiles": [str(paths.etc / "profiles")], "attachments": str(paths.etc / "attachments.toml")}
    tables: dict[str, dict[str, Any]] = {
        "slurm": {"partitions": [spec.partitions[0]], "conf": str(paths.slurm_conf)},
        "daemon": {"mode": "enforce", "interval_s": 30.0 if spec.accelerated else 1.0},
        "paths": folders | admins,
        "fabric": {"inter_bytes_per_s": INTER, "intra_bytes_per_s": 300e9},
    }
    if spec.topology:
        above = range(1, topology.levels(spec.topology, len(spec.node_list)))
        tables["fabric"]["beyond_bytes_per_s"] = [INTER * topology.SHARE**level for level in above]
    if spec.accelerated:
        tables["slurm"]["timeout_s"] = ANSWER_S * spec.speed
    for name, values in spec.settings.items():
        tables.setdefault(name, {}).update(values)
    return tables


def toml(tables: Sections) -> str:
    """Tables of plain values as TOML, which the standard library can only read."""
    return "\n".join(itertools.chain.from_iterable(_table(name, values) for name, values in tables.items())) + "\n"


def _table(name: str, values: Mapping[str, Any]) -> Iterable[str]:
    return [f"[{name}]", *(f"{key} = {_value(value)}" for key, value in values.items()), ""]


def _value(value: object) -> str:
    """Except for tables, JSON values are TOML values."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(part)}" for key, part in value.items()) + " }"
    return json.dumps(value, default=str)


def _quoted(path: Path) -> str:
    return json.dumps(str(path))  # JSON and Lua quote the characters of a lab's path in the same way
