"""The specification of a lab (nodes, ports, users, options), and the paths in its directory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import InputError
from slurm_asrpt.lab import topology

DEFAULT_DIRECTORY = Path("/tmp/asrpt-lab")  # noqa: S108  (disposable; test users must be able to enter it)
DEFAULT_PORT = 16800
FIRST_NODE_PORT = 10
"""Offset of the first node's port. The ports below are for slurmctld, slurmdbd and MariaDB."""
SPARE_PORTS = 10
"""Between the ports of two labs."""
MAX_NODES = 1000
MAX_GPUS_PER_NODE = 64
MAX_DIRECTORY_LENGTH = 60
"""Paths of Unix sockets are limited to 107 bytes, and slurmstepd's takes up to 45 beyond the lab's directory."""

# As fast as Slurm allows, so that comparisons with Slurm's backfill are fair.
DEFAULT_SCHEDULER_PARAMETERS = (
    "batch_sched_delay=0,sched_min_interval=1000,sched_interval=5,"
    "bf_interval=1,bf_continue,bf_max_job_test=5000,default_queue_depth=1000"
)
# Of a site that tuned them, for labs with a clock of their own. A backfill cycle may take as long as it needs: it costs
# the machine's time.
SITE_SCHEDULER_PARAMETERS = (
    "bf_interval=30,bf_continue,bf_window=10080,bf_resolution=300,bf_max_job_test=1000,bf_max_time=3600,"
    "default_queue_depth=1000,sched_interval=60"
)
MAX_SPEED = 1000.0

_COUNT = re.compile(r"([0-9]{1,6})x(.*)")
_GPUS = re.compile(r"([0-9]{1,4})(?::([a-z0-9][a-z0-9_.]{0,31}))?")
_NODES_EXAMPLE = "example: --nodes 4x8 or --nodes 4x8:h100,2x2:a100+4:1g.10gb (count x GPUs, optionally their types)"

STATE_FILE = "lab.json"


@dataclass(frozen=True)
class LabNode:
    """One simulated server. types: its GPU types with their numbers of GPUs; one without a name if they have none."""

    name: str
    types: tuple[tuple[str, int], ...]
    port: int

    @property
    def gpus(self) -> int:
        return sum(count for _, count in self.types)


def ports(nodes: int) -> int:
    """How far apart the first ports of labs with so many nodes must be."""
    return FIRST_NODE_PORT + nodes + SPARE_PORTS


def parse_nodes(text: str, base_port: int = DEFAULT_PORT) -> tuple[LabNode, ...]:
    """Nodes ``n1``, ``n2`` ... from ``4x8:h100,2x2:a100+4:1g.10gb``. Raises InputError with an example."""
    nodes: list[LabNode] = []
    for part in text.split(","):
        count, types = _parse_group(part)
        for _ in range(count):
            index = len(nodes) + 1
            nodes.append(LabNode(f"n{index}", types, base_port + FIRST_NODE_PORT + index - 1))
            if index > MAX_NODES:
                raise InputError(f"--nodes {text}: more than {MAX_NODES} nodes")
    if len({bool(kind) for node in nodes for kind, _ in node.types}) > 1:
        raise InputError(f"--nodes {text}: give all GPUs a type, or none; {_NODES_EXAMPLE}")
    return tuple(nodes)


def _parse_group(part: str) -> tuple[int, tuple[tuple[str, int], ...]]:
    group = _COUNT.fullmatch(part)
    found = [_GPUS.fullmatch(each) for each in group[2].split("+")] if group else []
    types = tuple((match[2] or "", int(match[1])) for match in found if match)
    if group is None or len(types) < len(found):
        raise InputError(f"--nodes: cannot read {part!r}; {_NODES_EXAMPLE}")
    if int(group[1]) < 1:
        raise InputError(f"--nodes: {part!r} has no nodes; {_NODES_EXAMPLE}")
    if len(dict(types)) < len(types):
        raise InputError(f"--nodes: {part!r} has a GPU type twice; {_NODES_EXAMPLE}")
    gpus = sum(count for _, count in types)
    if min(count for _, count in types) < 1 or gpus > MAX_GPUS_PER_NODE:
        raise InputError(f"--nodes: {part!r}: {gpus} GPUs per node, valid: 1 to {MAX_GPUS_PER_NODE}; {_NODES_EXAMPLE}")
    return int(group[1]), types


@dataclass(frozen=True)
class LabSpec:
    """The specification of a lab.

    nodes: ``count x GPUs [: type] [+ GPUs : type ...]``, comma-separated. cpus, memory_mb: of every node.
    base_port: port of slurmctld; slurmdbd and MariaDB use the next two, node i uses base_port + 9 + i.
    users: number of test users asrpt1 .. asrptN, created if missing.
    partitions: each has all nodes; the first is the default, and the only one that asrptd manages.
    hook: install asrpt's job_submit module, prologs and epilog from ``hooks_dir`` (None: the project's plugin_hooks).
    settings: overrides for asrpt.toml, e.g. {"daemon": {"mode": "shadow"}, "policy": {"name": "asrpt-gated"}}.
    slurm_user: SlurmUser, the user of slurmctld and the owner of asrptd's directories.
    slurm_conf_extra: lines appended to slurm.conf.
    speed: how fast the lab's clock goes (``lab.clock``). Above 1, Slurm's timeouts are longer, and asrptd's interval
    and Slurm's scheduler parameters are as on a site.
    topology: the switches above the nodes (``lab.topology``), "" for none. threads: of ``cpus``, in each core.

    Raises InputError.
    """

    directory: Path = DEFAULT_DIRECTORY
    nodes: str = "2x4"
    base_port: int = DEFAULT_PORT
    users: int = 2
    partitions: tuple[str, ...] = ("gpu", "other")
    cpus: int = 64
    memory_mb: int = 512_000
    accounting: bool = False
    multifactor: bool = False
    scheduler: str = "backfill"
    scheduler_parameters: str = ""
    hook: bool = True
    hooks_dir: Path | None = None
    slurm_user: str = "root"
    slurm_conf_extra: str = ""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    speed: float = 1.0
    topology: str = ""
    threads: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", Path(self.directory).absolute())
        self._check_directory()
        last = self.base_port + FIRST_NODE_PORT + len(self.node_list)
        if self.base_port < 1024 or last > 65535:
            raise InputError(
                f"--base-port {self.base_port}: valid ports are 1024 to 65535, the last one would be {last}"
            )
        if not 0 <= self.users <= 99:
            raise InputError(f"--users {self.users}: valid: 0 to 99")
        if self.cpus < 1 or self.memory_mb < 1:
            raise InputError("a node needs at least one CPU and 1 MB of memory; change --cpus or --memory")
        if self.scheduler not in ("backfill", "builtin"):
            raise InputError(f"--scheduler {self.scheduler}: valid: backfill, builtin")
        if not 1 <= self.speed <= MAX_SPEED:
            raise InputError(f"--speed {self.speed:g}: valid: 1 to {MAX_SPEED:g}")
        if self.topology:
            topology.check(self.topology, len(self.node_list))
        if not self.scheduler_parameters:
            parameters = SITE_SCHEDULER_PARAMETERS if self.accelerated else DEFAULT_SCHEDULER_PARAMETERS
            object.__setattr__(self, "scheduler_parameters", parameters)
        if not self.partitions:
            raise InputError("a lab needs at least one partition")

    def _check_directory(self) -> None:
        text = str(self.directory)
        if len(text.encode()) > MAX_DIRECTORY_LENGTH:
            raise InputError(f"{text}: path too long for the Unix sockets in it; at most {MAX_DIRECTORY_LENGTH} bytes")
        if not re.fullmatch(r"[A-Za-z0-9._/+-]+", text):
            raise InputError(
                f"{text}: only letters, digits and . _ / + - are allowed in a lab's path (it goes into slurm.conf)"
            )

    @property
    def accelerated(self) -> bool:
        """Whether the lab has a clock of its own."""
        return self.speed > 1

    @property
    def node_list(self) -> tuple[LabNode, ...]:
        return parse_nodes(self.nodes, self.base_port)

    @property
    def user_names(self) -> tuple[str, ...]:
        return tuple(f"asrpt{i}" for i in range(1, self.users + 1))

    @property
    def ports(self) -> dict[str, int]:
        """The lab's ports by daemon."""
        ports = {"slurmctld": self.base_port}
        if self.accounting:
            ports |= {"slurmdbd": self.base_port + 1, "mariadbd": self.base_port + 2}
        return ports | {f"slurmd.{node.name}": node.port for node in self.node_list}

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str, indent=1)

    @classmethod
    def from_json(cls, text: str) -> LabSpec:
        """The spec that ``to_json`` wrote. Raises ValueError, TypeError or KeyError on anything else."""
        raw = json.loads(text)
        raw["directory"] = Path(raw["directory"])
        raw["partitions"] = tuple(raw["partitions"])
        raw["hooks_dir"] = Path(raw["hooks_dir"]) if raw["hooks_dir"] else None
        return cls(**raw)


@dataclass(frozen=True)
class LabPaths:
    """The directories and files of the lab in ``root``."""

    root: Path

    @property
    def state_file(self) -> Path:
        return self.root / STATE_FILE

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def settings(self) -> Path:
        return self.etc / "asrpt.toml"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def pids(self) -> Path:
        return self.root / "pids"

    @property
    def clock(self) -> Path:
        return self.etc / "clock.json"

    @property
    def munge(self) -> Path:
        return self.root / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge / "s"

    @property
    def gpus(self) -> Path:
        return self.root / "dev"

    @property
    def slurmctld_state(self) -> Path:
        return self.root / "ctld"

    @property
    def slurmd_spool(self) -> Path:
        return self.root / "d"

    @property
    def database(self) -> Path:
        return self.root / "db"

    @property
    def asrpt(self) -> Path:
        return self.root / "asrpt"

    @property
    def hook(self) -> Path:
        return self.asrpt / "hook"

    @property
    def spool(self) -> Path:
        return self.asrpt / "spool"

    @property
    def library(self) -> Path:
        return self.root / "lib"

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def create(self) -> None:
        """Create the lab's directories with their modes, regardless of the umask."""
        for folder, mode in self._folders():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)

    def _folders(self) -> list[tuple[Path, int]]:
        private = [self.slurmctld_state, self.asrpt / "state", self.pids]
        shared = [self.etc, self.log, self.munge, self.gpus, self.slurmd_spool, self.database, self.asrpt, self.hook]
        shared += [self.asrpt / "run", self.spool, self.spool / "hosts", self.spool / "progress"]
        shared += [self.library, self.bin, self.home]
        return [(self.root, 0o755)] + [(f, 0o755) for f in shared] + [(f, 0o700) for f in private]

    @property
    def of_slurm_user(self) -> list[Path]:
        """Directories of SlurmUser's daemons, slurmctld and asrptd."""
        asrpt = [self.asrpt / "state", self.asrpt / "run", self.hook, self.spool]
        return [self.slurmctld_state, self.log, *asrpt, self.spool / "hosts", self.spool / "progress"]

    def top_level(self) -> list[Path]:
        """The entries that a lab creates in its directory, which may be deleted."""
        below = [folder.relative_to(self.root) for folder, _ in self._folders() if folder != self.root]
        return [self.root / name for name in sorted({folder.parts[0] for folder in below})]
