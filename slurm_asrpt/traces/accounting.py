"""Query a cluster's past from a login node: jobs from sacct and nodes from sinfo, live or from files."""

from __future__ import annotations

import gzip
import re
import shlex
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.errors import InputError, SlurmError
from slurm_asrpt.slurm.commands import environment_of, run_slurm
from slurm_asrpt.slurm.gres import gpu_count
from slurm_asrpt.slurm.limits import (
    SiteLimits,
    parse_assoc_mgr,
    parse_licenses,
    qos_before_partitions,
    qos_of_partitions,
)
from slurm_asrpt.slurm.notation import read_past
from slurm_asrpt.slurm.parse import parse_config
from slurm_asrpt.slurm.partitions import rows_of
from slurm_asrpt.slurm.site import Site, site_of
from slurm_asrpt.traces import Trace
from slurm_asrpt.traces.sacct import SACCT_FIELDS, parse_sacct

LIMITS = (
    ("scontrol", "-o", "show", "assoc_mgr", "flags=qos,assoc"),
    ("scontrol", "-o", "show", "partition"),
    ("scontrol", "-o", "show", "license"),
    ("sacctmgr", "-n", "-P", "show", "qos", "format=Name,Flags"),
)
CONFIG = ("scontrol", "show", "config")
SINFO = ("sinfo", "--Node", "--noheader", "--format=%N|%G|%T")
TIMEOUT_S = 600.0
_PARTITION = re.compile(r"[A-Za-z0-9_.,-]+")


@dataclass(frozen=True)
class GpuNode:
    """A server in ``sinfo``. state: Slurm's current state, without flags."""

    name: str
    gpus: int
    state: str


def since_argument(text: str, now: float) -> str:
    """A time in the past, as ``read_past`` reads it, for ``ask_sacct``. Raises InputError."""
    return as_argument(read_past(text, now))


def as_argument(instant: float) -> str:
    """A time as sacct reads it: local, without a zone."""
    return datetime.fromtimestamp(instant).strftime("%Y-%m-%dT%H:%M:%S")


def partition_argument(text: str) -> str:
    """Partitions separated by commas. Raises InputError for invalid names."""
    if not _PARTITION.fullmatch(text):
        raise InputError(f"--partition {text}: specify partitions separated by commas")
    return text


def ask_sacct(
    settings: SlurmSettings,
    fields: Sequence[str],
    since: str,
    partition: str = "",
    separator: str = "|",
    until: str = "now",
    every_run: bool = False,
) -> str:
    """Query sacct for the jobs of all users; header line included. since: of ``as_argument``. Raises SlurmError.

    separator: job names may contain any character, also line breaks; an unguessable separator keeps them from
    forging rows.
    until: as since, or "now". every_run: include the runs before a requeue.
    """
    arguments = [
        *("--allusers", "--allocations", "--parsable2", f"--format={','.join(fields)}"),
        *(f"--delimiter={separator}", f"--starttime={since}", f"--endtime={until}"),
        *([f"--partition={partition}"] if partition else []),
        *(["--duplicates"] if every_run else []),
    ]
    hint = "ask for less with --since, or read the jobs from a file with --dump"
    return _ask(settings, hint, "sacct", *arguments)


def ask_sinfo(settings: SlurmSettings, partition: str = "") -> str:
    """Query sinfo: one line per node and partition. Raises SlurmError."""
    hint = "specify the nodes with --nodes or --servers instead"
    return _ask(settings, hint, *SINFO, *([f"--partition={partition}"] if partition else []))


def parse_site(text: str, source: str) -> Site:
    """What ``CONFIG`` and ``LIMITS`` print, one after the other; the latter may be missing. Raises InputError."""
    config = parse_config(text)
    if "SchedulerType" not in config:
        wanted = "; ".join(map(shlex.join, (CONFIG, *LIMITS)))
        raise InputError(f"{source}: no configuration of Slurm; write the file with: ({wanted}) > FILE")
    try:
        return site_of(config, text, text, text, text)
    except SlurmError as error:
        raise InputError(f"{source}: {error}") from error


def parse_limits(text: str, source: str) -> SiteLimits:
    """The limits in what ``LIMITS`` print, one after the other. Raises InputError."""
    try:
        qos, associations = parse_assoc_mgr(text)
    except SlurmError as error:
        raise InputError(f"{source}: {error}") from error
    if not qos and not associations:
        wanted = "; ".join(map(shlex.join, LIMITS))
        raise InputError(f"{source}: no QOS and no association; write the file with: ({wanted}) > FILE")
    rows, licenses = rows_of(text), parse_licenses(text)
    return SiteLimits(qos, associations, qos_of_partitions(rows), licenses, qos_before_partitions(text))


def _ask(settings: SlurmSettings, hint: str, command: str, *arguments: str) -> str:
    """The answer, times in seconds since the epoch; those in the arguments are local. Raises SlurmError with the
    hint."""
    environment = {**environment_of(settings), "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
    try:
        answer = run_slurm(settings, command, *arguments, environment=environment, timeout_s=TIMEOUT_S)
    except SlurmError as error:
        raise SlurmError(f"{error}; {hint}") from error
    return answer.decode(errors="replace")


def read_text(path: Path) -> str:
    """The text of a dump, compressed or not. Raises InputError."""
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", errors="replace")
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error  # a damaged archive is an OSError, too, but has no strerror
        raise InputError(f"{path}: cannot be read ({why})") from error


def parse_sinfo(text: str, source: str = "sinfo") -> list[GpuNode]:
    """The nodes with GPUs, each once, in the order of the lines ``NAME|GRES|STATE``. Raises InputError."""
    nodes: dict[str, GpuNode] = {}
    for number, line in enumerate(filter(str.strip, text.splitlines()), start=1):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 3 or not cells[0]:
            wanted = " ".join(SINFO)
            raise InputError(f"{source}, line {number}: not NAME|GRES|STATE; write the file with: {wanted}")
        try:
            gpus = gpu_count(cells[1])
        except SlurmError as error:
            raise InputError(f"{source}, line {number}: {error}") from error
        if gpus and "[" in cells[0]:
            wanted = " ".join(SINFO)
            raise InputError(f"{source}, line {number}: several nodes in one; write the file with: {wanted}")
        if gpus:
            nodes.setdefault(cells[0], GpuNode(cells[0], gpus, re.sub(r"[^a-z]+$", "", cells[2].lower())))
    if not nodes:
        raise InputError(f"{source}: no node with GPUs; specify the servers with --servers and --gpus-per-server")
    return list(nodes.values())


def parse_jobs(text: str, source: str, separator: str = "|") -> Trace:
    """The output of sacct as a trace. Raises InputError."""
    try:
        # not splitlines: job names may contain other line separators
        trace = parse_sacct(text.rstrip("\n").split("\n"), Path(source).name, separator)
    except (ValueError, InputError) as error:
        raise InputError(f"{source}: {error}") from error
    if not len(trace):
        left = ", ".join(f"{count} {why}" for why, count in trace.left_out.items()) or "no rows"
        hint = "; Slurm counts GPUs only with AccountingStorageTRES=gres/gpu" if "no GPUs" in trace.left_out else ""
        raise InputError(f"{source}: no job that used GPUs and has ended ({left}){hint}")
    return trace


def only_user(trace: Trace, user: str) -> str:
    """``user`` if all jobs are theirs; for other users than root a sign that Slurm hides other jobs (PrivateData)."""
    return user if user != "root" and set(trace.jobs["user"]) == {user} else ""


def sacct_fields() -> tuple[str, ...]:
    """The fields of sacct that ``parse_jobs`` needs."""
    return tuple(SACCT_FIELDS)
