"""What a job has been given, seen from inside: its GPUs on each node, their switches, the node of each rank.

Standard library only, as ``lab.train``.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.topology import Blocks, blocks_of
from slurm_asrpt.errors import InputError, SlurmError
from slurm_asrpt.slurm.gres import gpu_indexes
from slurm_asrpt.slurm.topology import parse_topology

SCONTROL_TIMEOUT_S = 30.0
PATIENCE_S = 120.0
"""Seconds for which scontrol is retried while slurmctld is away or busy: real training would not notice that."""

_NODES_LINE = re.compile(r"(?<!\S)Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_NODE = re.compile(r"(?<!\S)NodeName=(\S+)(?: .*?)? Gres=(\S+)")
_BRACKET = re.compile(r"([^\[\],]*)\[([^\]]+)\]([^\[\],]*)")


@dataclass(frozen=True)
class Allocation:
    """The job's GPUs. counts: its GPUs on each node. totals: all GPUs of each node, g in the timing formulas.

    indexes: which GPUs of each node it has, as masks; () if Slurm does not show them.
    """

    nodes: tuple[str, ...]
    counts: tuple[int, ...]
    totals: tuple[int, ...]
    indexes: tuple[int, ...] = ()

    def block_ranks(self) -> tuple[int, ...]:
        """The node of each rank in ``srun``'s default block order."""
        return tuple(index for index, count in enumerate(self.counts) for _ in range(count))

    def hostfile_ranks(self, text: str, source: str) -> tuple[int, ...]:
        """The node of each rank from a host file, one node name per line. Raises InputError if it does not match."""
        index = {node: i for i, node in enumerate(self.nodes)}
        hosts = text.split()
        strange = next((host for host in hosts if host not in index), None)
        if strange is not None:
            raise InputError(f"{source}: {strange} is not a node of this job ({','.join(self.nodes)})")
        ranks = tuple(index[host] for host in hosts)
        given = tuple(ranks.count(i) for i in range(len(self.nodes)))
        if given != self.counts:
            raise InputError(f"{source}: {given} ranks on {','.join(self.nodes)}, but the job has {self.counts} GPUs")
        return ranks


def read_allocation(environment: Mapping[str, str]) -> Allocation:
    """The allocation of this process's job. Raises InputError outside of a job, SlurmError."""
    job = environment.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        raise InputError("not in a Slurm job (no SLURM_JOB_ID); run this with sbatch or srun")
    shown = _scontrol("-d", "-o", "show", "job", job)
    given = parse_job(shown)
    if not given:
        raise InputError(f"job {job} has no GPUs; request them, e.g. with -n4 --gpus-per-task=1")
    totals = parse_nodes(_scontrol("-o", "show", "node", ",".join(given)))
    counts = tuple(given.values())
    all_gpus = tuple(max(totals.get(n, 0), given[n]) for n in given)
    return Allocation(tuple(given), counts, all_gpus, parse_indexes(shown, given))


def read_blocks(allocation: Allocation, beyond: Sequence[float]) -> Blocks:
    """The switches of the job's nodes. () without bandwidths beyond level 1, or for one node. Raises SlurmError."""
    if not beyond or len(allocation.nodes) < 2:
        return ()
    switches = parse_topology(_scontrol("show", "topology"), expand).switches
    pairs = zip(allocation.nodes, allocation.totals, strict=True)
    return blocks_of([Node(name, gpus, switches=switches.get(name, ())) for name, gpus in pairs])


def read_ranks(allocation: Allocation, environment: Mapping[str, str]) -> tuple[int, ...]:
    """The node of each rank: from $SLURM_HOSTFILE if readable, else in Slurm's block order.

    Does not compute Heavy-Edge's mapping: under plain Slurm, jobs do not have it.
    """
    hostfile = environment.get("SLURM_HOSTFILE", "")
    try:
        text = Path(hostfile).read_text(encoding="utf-8") if hostfile else ""
    except (OSError, UnicodeDecodeError):
        text = ""
    return allocation.hostfile_ranks(text, hostfile) if text.strip() else allocation.block_ranks()


def parse_job(text: str) -> dict[str, int]:
    """GPUs per node from ``scontrol -d -o show job``, in Slurm's order; nodes without GPUs are left out."""
    counts = {}
    for nodes, gres in _NODES_LINE.findall(text):
        gpus = gpus_in(gres)
        if gpus:
            counts.update(dict.fromkeys(expand(nodes), gpus))
    return counts


def parse_indexes(text: str, given: Mapping[str, int]) -> tuple[int, ...]:
    """Which GPUs of each node, as masks; () if not all are shown. given: GPUs per node."""
    lines = _NODES_LINE.findall(text)
    found = {name: gpu_indexes(gres) for nodes, gres in lines for name in expand(nodes) if name in given}
    return tuple(found.values()) if [each.bit_count() for each in found.values()] == list(given.values()) else ()


def parse_nodes(text: str) -> dict[str, int]:
    """All GPUs of each node from ``scontrol -o show node``."""
    return {name: gpus_in(gres) for line in text.splitlines() for name, gres in _NODE.findall(line)}


def gpus_in(gres: str) -> int:
    """GPUs in ``gpu:h100:4(IDX:0-1,3),gpu:t4:2(S:0)``; 0 in ``(null)``."""
    parts = re.sub(r"\([^)]*\)", "", gres).split(",")
    return sum(int(part.rpartition(":")[2]) for part in parts if re.fullmatch(r"gpu(:[^:]+)?:[0-9]+", part))


def expand(hostlist: str) -> list[str]:
    """Node names in ``n[1-3,07],m2``."""
    return [name for part in re.findall(r"(?:[^\[,]|\[[^\]]*\])+", hostlist) for name in _expand_one(part)]


def _expand_one(part: str) -> Iterator[str]:
    match = _BRACKET.search(part)
    if match is None:
        yield part
        return
    for item in match[2].split(","):
        first, _, last = item.partition("-")
        for number in range(int(first), int(last or first) + 1):
            middle = f"{match[1]}{number:0{len(first)}d}{match[3]}"
            yield from _expand_one(part[: match.start()] + middle + part[match.end() :])


def _scontrol(*arguments: str) -> str:
    """Output of scontrol, retried while slurmctld is away. Raises SlurmError."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        trouble = ""
        try:
            done = _call(["scontrol", *arguments])
            if done.returncode == 0:
                return done.stdout
            trouble = done.stderr
        except subprocess.TimeoutExpired:
            trouble = f"no answer within {SCONTROL_TIMEOUT_S:g} s"
        except OSError as error:
            raise SlurmError(f"scontrol: cannot be started ({error.strerror})") from error
        if "nvalid" in trouble or time.monotonic() > deadline:  # Invalid job id, Invalid node name
            raise SlurmError(f"scontrol {' '.join(arguments)}: {trouble}")
        time.sleep(1.0)


def _call(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, LC_ALL="C")
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=environment,
        timeout=SCONTROL_TIMEOUT_S,
    )
