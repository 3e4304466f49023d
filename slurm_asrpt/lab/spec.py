"""What a lab shall be: nodes, ports, users, options. Values only; nothing here touches the machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import InputError

DEFAULT_DIRECTORY = Path("/tmp/asrpt-lab")  # noqa: S108  (a lab is thrown away; other users must be able to enter it)
DEFAULT_PORT = 16800
FIRST_NODE_PORT = 10
"""Offset of the first node's port; the ports below it are for slurmctld, slurmdbd and MariaDB."""
MAX_NODES = 1000
MAX_GPUS_PER_NODE = 64
MAX_DIRECTORY_LENGTH = 60
"""Unix socket paths end at 107 bytes, and slurmstepd's is the lab's directory plus up to 45 more."""

# As quick as Slurm allows: nothing that is measured against Slurm's own backfill in a lab may have handicapped it.
DEFAULT_SCHEDULER_PARAMETERS = (
    "batch_sched_delay=0,sched_min_interval=1000,sched_interval=5,"
    "bf_interval=1,bf_continue,bf_max_job_test=5000,default_queue_depth=1000"
)

_GROUP = re.compile(r"(?P<count>[0-9]{1,6})x(?P<gpus>[0-9]{1,4})(?::(?P<type>[a-z][a-z0-9_]{0,31}))?")
_NODES_EXAMPLE = "example: --nodes 4x8 or --nodes 4x8:h100,2x4:t4 (count x GPUs, optionally a GPU type)"

STATE_FILE = "lab.json"


@dataclass(frozen=True)
class LabNode:
    """One simulated server."""

    name: str
    gpus: int
    gpu_type: str
    port: int


def parse_nodes(text: str, base_port: int = DEFAULT_PORT) -> tuple[LabNode, ...]:
    """Nodes ``n1``, ``n2`` ... from ``4x8:h100,2x4:t4``. Raises InputError saying what is wrong, with an example."""
    nodes: list[LabNode] = []
    for part in text.split(","):
        count, gpus, gpu_type = _parse_group(part)
        for _ in range(count):
            index = len(nodes) + 1
            nodes.append(LabNode(f"n{index}", gpus, gpu_type, base_port + FIRST_NODE_PORT + index - 1))
            if index > MAX_NODES:
                raise InputError(f"--nodes {text}: more than {MAX_NODES} nodes; a lab is one machine")
    if len({bool(node.gpu_type) for node in nodes}) > 1:
        raise InputError(f"--nodes {text}: give every part a GPU type, or none; {_NODES_EXAMPLE}")
    return tuple(nodes)


def _parse_group(part: str) -> tuple[int, int, str]:
    match = _GROUP.fullmatch(part)
    if match is None:
        raise InputError(f"--nodes: cannot read {part!r}; {_NODES_EXAMPLE}")
    count, gpus = int(match["count"]), int(match["gpus"])
    if count < 1:
        raise InputError(f"--nodes: {part!r} has no node; {_NODES_EXAMPLE}")
    if not 1 <= gpus <= MAX_GPUS_PER_NODE:
        raise InputError(f"--nodes: {part!r}: 1 to {MAX_GPUS_PER_NODE} GPUs per node, not {gpus}; {_NODES_EXAMPLE}")
    return count, gpus, match["type"] or ""


@dataclass(frozen=True)
class LabSpec:
    """A lab to be brought up.

    nodes: ``count x GPUs [: type]``, comma-separated. cpus, memory_mb: of every node.
    base_port: slurmctld listens there, slurmdbd and MariaDB on the next two, node i on base_port + 9 + i.
    users: test users asrpt1 .. asrptN, made where missing.
    partitions: all over all nodes; the first is the default and the only one given to asrptd.
    hook: load our job_submit module, prologs and epilog from ``hooks_dir`` (None: the project's plugin_hooks).
    settings: overrides for asrpt.toml, e.g. {"daemon": {"mode": "shadow"}, "policy": {"name": "asrpt-gated"}}.
    slurm_user: SlurmUser, as whom slurmctld runs; asrptd's folders are that user's, too.
    slurm_conf_extra: lines appended to slurm.conf.

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
    scheduler_parameters: str = DEFAULT_SCHEDULER_PARAMETERS
    hook: bool = True
    hooks_dir: Path | None = None
    slurm_user: str = "root"
    slurm_conf_extra: str = ""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", Path(self.directory).absolute())
        self._check_directory()
        last = self.base_port + FIRST_NODE_PORT + len(self.node_list)
        if self.base_port < 1024 or last > 65535:
            raise InputError(f"--base-port {self.base_port}: ports 1024 to 65535 are usable, the last would be {last}")
        if not 0 <= self.users <= 99:
            raise InputError(f"--users {self.users}: 0 to 99 test users")
        if self.cpus < 1 or self.memory_mb < 1:
            raise InputError("a node needs at least one CPU and 1 MB of memory; mend --cpus or --memory")
        if self.scheduler not in ("backfill", "builtin"):
            raise InputError(f"--scheduler {self.scheduler}: Slurm has backfill and builtin")
        if not self.partitions:
            raise InputError("a lab needs at least one partition")

    def _check_directory(self) -> None:
        text = str(self.directory)
        if len(text.encode()) > MAX_DIRECTORY_LENGTH:
            raise InputError(
                f"{text}: too long for a lab (unix sockets below it); at most {MAX_DIRECTORY_LENGTH} bytes"
            )
        if not re.fullmatch(r"[A-Za-z0-9._/+-]+", text):
            raise InputError(
                f"{text}: a lab's path may hold letters, digits and . _ / + - only (it goes to slurm.conf)"
            )

    @property
    def node_list(self) -> tuple[LabNode, ...]:
        return parse_nodes(self.nodes, self.base_port)

    @property
    def user_names(self) -> tuple[str, ...]:
        return tuple(f"asrpt{i}" for i in range(1, self.users + 1))

    @property
    def ports(self) -> dict[str, int]:
        """Every port that this lab listens on, by the daemon's name."""
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
    """The folders and files of the lab in ``root``."""

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
        """Make every folder of the lab with its mode, whatever the umask."""
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
        """Folders that SlurmUser's daemons write: slurmctld and asrptd."""
        asrpt = [self.asrpt / "state", self.asrpt / "run", self.hook, self.spool]
        return [self.slurmctld_state, self.log, *asrpt, self.spool / "hosts", self.spool / "progress"]

    def top_level(self) -> list[Path]:
        """What a lab puts directly into its directory, and so what may be deleted there."""
        below = [folder.relative_to(self.root) for folder, _ in self._folders() if folder != self.root]
        return [self.root / name for name in sorted({folder.parts[0] for folder in below})]
