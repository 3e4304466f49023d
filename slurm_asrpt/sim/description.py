"""What is simulated: a cluster, and how a workload is made from a trace. Imports nothing slow: --help shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from slurm_asrpt.core.cluster import Fabric, Node, spread
from slurm_asrpt.core.preemption_costs import PreemptionCosts

PERFECT = "perfect"
PREDICTORS = (PERFECT, "expected", "forest", "forest-sklearn", "last", "mean", "median", "typical")
"""Exact predictions, and the predictors of ``predict.predictors``."""
NODES, FEWEST = "nodes", "fewest"
"""A setting of every simulated policy, ``NAME:nodes=fewest``, and its value."""
SLURM_FEWEST = f"slurm-backfill:{NODES}={FEWEST}"
"""Slurm, if users say on how many nodes their jobs should run (``sbatch -N``)."""
RETRAIN_S = 3600.0
"""Seconds between retrainings in a simulation; the paper retrains hourly or daily (section IV-C.3)."""
H100 = "h100"
MODELS = ("table1", H100, "none")
KNOWN, UNKNOWN, REPORTS, RUNTIMES = COMMUNICATION = ("known", "unknown", "reports", "runtimes")
"""What policies know about the communication of jobs: their profiles, nothing, or what runs have taught."""


@dataclass(frozen=True)
class Cluster:
    """``servers`` servers of ``gpus`` GPUs. nic_gbit: a server's NIC, Gbit/s; intra_gbyte: between its GPUs, GB/s.

    node_gpus: GPUs of each server if they differ (``Cluster.of``), else empty; ``gpus`` is then the largest number.
    contention: a, if each of k jobs that use the NIC of a server gets 1/(k + a (k-1)) of it; None if each gets the
    share of its GPUs.
    types: if GPUs differ, the number of servers, name, and speed relative to the reference GPU, for each type.
    switches: the servers under each switch of level 1, the switches of level 1 under each of level 2, and so on; one
    more switch connects those of the last level. Empty: one switch connects all servers.
    beyond_gbit: bandwidth of a server through a switch of level 2, 3 ..., Gbit/s (``Fabric.beyond``).
    domain: GPUs of an NVLink domain, 0 for the whole server. across_gbyte: between GPUs of two domains, GB/s.
    Raises ValueError for lists that do not match ``servers`` and ``gpus``, invalid speeds, or contention below 0.
    """

    servers: int = 250
    gpus: int = 8
    nic_gbit: float = 10.0
    intra_gbyte: float = 300.0
    node_gpus: tuple[int, ...] = ()
    contention: float | None = None
    types: tuple[tuple[int, str, float], ...] = ()
    switches: tuple[int, ...] = ()
    beyond_gbit: tuple[float, ...] = ()
    domain: int = 0
    across_gbyte: float = 25.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_gpus", tuple(self.node_gpus))  # JSON has lists
        object.__setattr__(self, "types", tuple((int(n), str(name), float(v)) for n, name, v in self.types))
        object.__setattr__(self, "switches", tuple(self.switches))
        object.__setattr__(self, "beyond_gbit", tuple(self.beyond_gbit))
        if not all(each >= 1 for each in self.switches):
            raise ValueError(f"a switch connects at least 1 server or switch, not {min(self.switches)}")
        if self.beyond_gbit and not self.switches:
            raise ValueError("bandwidths beyond the first switches need the number of servers under each of these")
        counts = [count for count, _, _ in self.types]
        if counts and (sum(counts) != self.servers or min(counts) < 1):
            raise ValueError(f"{sum(counts)} servers have a type of GPU, not {self.servers}")
        if not all(0 < speed < float("inf") for _, _, speed in self.types):
            raise ValueError(f"the speed of a GPU must be a finite number above 0, not {self.types}")
        if self.domain < 0:
            raise ValueError(f"an NVLink domain has at least one GPU, not {self.domain}")
        if self.contention is not None and not 0 <= self.contention < float("inf"):
            raise ValueError(f"contention must be a finite number of at least 0, not {self.contention:g}")
        sizes = self.node_gpus
        if sizes and (len(sizes) != self.servers or max(sizes) != self.gpus or min(sizes) < 1):
            raise ValueError(f"{len(sizes)} servers are listed, not {self.servers} of up to {self.gpus} GPUs")

    @classmethod
    def of(cls, node_gpus: Sequence[int], nic_gbit: float = 10.0, intra_gbyte: float = 300.0) -> Cluster:
        """A cluster of these servers. Raises ValueError for no servers, or a server without GPUs."""
        if not node_gpus or min(node_gpus) < 1:
            raise ValueError("a cluster needs at least one server, and a server at least one GPU")
        listed = () if len(set(node_gpus)) == 1 else tuple(node_gpus)
        return cls(len(node_gpus), max(node_gpus), nic_gbit, intra_gbyte, listed)

    @property
    def nodes(self) -> tuple[Node, ...]:
        sizes = self.node_gpus or (self.gpus,) * self.servers
        kinds = [self.types[number][1:] for number in spread([count for count, _, _ in self.types])]
        kinds = kinds or [("", 1.0)] * self.servers
        return tuple(
            Node(f"n{i:04}", gpus, i, kind, speed, self._above(i))
            for i, (gpus, (kind, speed)) in enumerate(zip(sizes, kinds, strict=True))
        )

    def _above(self, server: int) -> tuple[str, ...]:
        """The names of the switches above a server."""
        numbers = list(accumulate(self.switches, lambda number, below: number // below, initial=server))[1:]
        return tuple(f"s{level}-{number}" for level, number in enumerate(numbers, start=1))

    @property
    def total_gpus(self) -> int:
        return sum(self.node_gpus) or self.servers * self.gpus

    @property
    def text(self) -> str:
        """``10 x 8 + 4 x 4 GPUs``, ``5 x 8 h100 + 5 x 8 a100 GPUs``."""
        if self.types and not self.node_gpus:
            return " + ".join(f"{count} x {self.gpus} {name}" for count, name, _ in self.types) + " GPUs"
        sizes = Counter(self.node_gpus) or {self.gpus: self.servers}
        return " + ".join(f"{count} x {gpus}" for gpus, count in sorted(sizes.items(), reverse=True)) + " GPUs"

    @property
    def fabric(self) -> Fabric:
        beyond = tuple([gbit * 1e9 / 8 for gbit in self.beyond_gbit])
        across = self.across_gbyte * 1e9 if self.domain else 0.0
        return Fabric(self.nic_gbit * 1e9 / 8, self.intra_gbyte * 1e9, beyond, min(self.domain, self.gpus), across)


@dataclass(frozen=True)
class Options:
    """How to create a workload from a trace.

    models: "table1" gives each group a model of Table I; "h100" the same as measured on that GPU; "none" leaves all
    jobs without a profile.
    single_gpu: share of jobs with one GPU; None keeps the share of the trace.
    load: GPU-seconds that arrive (in the best placement) over those available; None keeps the trace's arrival times.
    jobs: number of consecutive jobs to simulate, after the history; None for all.
    history: share of the trace, from its beginning, that the predictor is trained on before the simulation.
    predictor: one of PREDICTORS. retrain_s: seconds between retrainings on jobs that have ended; 0 for never.
    max_gpus_per_user: GPUs that the jobs of one user may hold at a time (Slurm's MaxTRESPU); None for no limit.
    consent: share of the jobs, drawn by ``seed``, that a policy may preempt. checkpoint_s, requeue_s, restart_s: what a
    preemption costs (``core/preemption_costs``).
    communication: one of COMMUNICATION. Unless known, policies get jobs without profiles (``sim.unnamed``).
    """

    models: str = "table1"
    single_gpu: float | None = None
    load: float | None = None
    jobs: int | None = None
    history: float = 0.5
    predictor: str = "forest"
    retrain_s: float = RETRAIN_S
    seed: int = 0
    max_gpus_per_user: int | None = None
    consent: float = 0.0
    checkpoint_s: float = PreemptionCosts.checkpoint_s
    requeue_s: float = PreemptionCosts.requeue_s
    restart_s: float = PreemptionCosts.restart_s
    communication: str = KNOWN

    def __post_init__(self) -> None:
        if self.models not in MODELS:
            raise ValueError(f"models must be one of {', '.join(MODELS)}, not {self.models!r}")
        if self.predictor not in PREDICTORS:
            raise ValueError(f"predictor must be one of {', '.join(PREDICTORS)}, not {self.predictor!r}")
        if self.communication not in COMMUNICATION:
            raise ValueError(f"communication must be one of {', '.join(COMMUNICATION)}, not {self.communication!r}")
        if self.communication != KNOWN and self.models == "none":
            raise ValueError("without models, jobs do not communicate, so nothing about it can be learned")
        if self.single_gpu is not None and not 0 <= self.single_gpu <= 1:
            raise ValueError(f"the share of single-GPU jobs must be between 0 and 1, not {self.single_gpu:g}")
        if not 0 <= self.history < 1:
            raise ValueError(f"history is a share of the trace: at least 0 and below 1, not {self.history:g}")
        if self.load is not None and not 0 < self.load < 1000:
            raise ValueError(f"load must be above 0, not {self.load:g}")
        if self.max_gpus_per_user is not None and self.max_gpus_per_user < 1:
            raise ValueError(f"the limit per user must be at least 1 GPU, not {self.max_gpus_per_user}")
        if not 0 <= self.consent <= 1:
            raise ValueError(f"the share of jobs that may be preempted must be between 0 and 1, not {self.consent:g}")
        costs = (self.checkpoint_s, self.requeue_s, self.restart_s)
        if not all(0 <= each < 1e9 for each in costs):
            raise ValueError(f"what a preemption costs must be seconds, at least 0, not {costs}")
