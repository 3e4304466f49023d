"""What a running job was given: GPUs per node, and the node of each rank. Standard library only."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_asrpt.errors import InputError, SlurmError

SCONTROL_TIMEOUT_S = 30.0
PATIENCE_S = 120.0
"""A controller that is restarted or busy is asked again for so long: real training would not notice it either."""

_NODES_LINE = re.compile(r"(?<!\S)Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_NODE = re.compile(r"(?<!\S)NodeName=(\S+)(?: .*?)? Gres=(\S+)")
_BRACKET = re.compile(r"([^\[\],]*)\[([^\]]+)\]([^\[\],]*)")


@dataclass(frozen=True)
class Allocation:
    """counts: this job's GPUs on each node. totals: all GPUs of each node, g in the timing formulas."""

    nodes: tuple[str, ...]
    counts: tuple[int, ...]
    totals: tuple[int, ...]

    def block_ranks(self) -> tuple[int, ...]:
        """The node of each rank as a plain ``srun`` lays them out: node after node."""
        return tuple(index for index, count in enumerate(self.counts) for _ in range(count))

    def hostfile_ranks(self, text: str, source: str) -> tuple[int, ...]:
        """The node of each rank from a host file, one node name a line. Raises InputError if it does not fit."""
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
    """The allocation of the job that this process runs in. Raises InputError outside a job, SlurmError."""
    job = environment.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        raise InputError("not in a Slurm job (no SLURM_JOB_ID); submit it with sbatch or srun")
    given = parse_job(_scontrol("-d", "-o", "show", "job", job))
    if not given:
        raise InputError(f"job {job} has no GPUs; ask for them, e.g. with -n4 --gpus-per-task=1")
    totals = parse_nodes(_scontrol("-o", "show", "node", ",".join(given)))
    counts = tuple(given.values())
    return Allocation(tuple(given), counts, tuple(max(totals.get(n, 0), given[n]) for n in given))


def read_ranks(allocation: Allocation, environment: Mapping[str, str]) -> tuple[int, ...]:
    """The node of each rank: from $SLURM_HOSTFILE if it can be read, else Slurm's own block order.

    Heavy-Edge's mapping is not computed here: a job under plain Slurm must not get it for free.
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
    """The answer of one scontrol call, asked again while the controller is away. Raises SlurmError."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        trouble = ""
        try:
            done = _call(["scontrol", *arguments])
            if done.returncode == 0:
                return done.stdout
            trouble = done.stderr
        except subprocess.TimeoutExpired:
            trouble = f"no answer in {SCONTROL_TIMEOUT_S:g} s"
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
