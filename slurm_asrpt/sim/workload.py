"""Turns a trace into a workload: models for its groups, a cluster, a load, predictions (paper, section V-A.1-b)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.cluster import Fabric, Node, capacity, spread, with_reference_gpus
from slurm_asrpt.core.job import UNPROFILED, JobProfile, unprofiled
from slurm_asrpt.core.limits import Charges
from slurm_asrpt.core.preemption_costs import PreemptionCosts
from slurm_asrpt.errors import InputError
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.profile.documents import load_uncut
from slurm_asrpt.profile.library_tools import table1
from slurm_asrpt.profile.schema import library_names, load_profile
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.predictors import (
    PERFECT,
    PREDICTORS,
    RETRAIN_S,
    Learning,
    chains_of,
    keys_of_jobs,
    predictions,
    trained,
)
from slurm_asrpt.sim.unnamed import Measured, without_profiles
from slurm_asrpt.traces.trace import Trace, recurrence_key

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
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


@dataclass(frozen=True)
class Workload:
    """Jobs to simulate on a cluster. notes: facts about them for reports, JSON values.

    consenting: rows of the jobs that a policy may preempt; costs: what that costs.
    real: the same jobs with their profiles, if policies are not told these. measured: what is learned from their runs;
    None for nothing.
    """

    table: JobTable
    cluster: Cluster
    notes: Mapping[str, Any] = field(default_factory=dict)
    consenting: Sequence[int] = ()
    costs: PreemptionCosts = field(default_factory=PreemptionCosts)
    real: JobTable | None = None
    measured: Measured | None = None


def build(trace: Trace, cluster: Cluster = Cluster(), options: Options = Options()) -> Workload:
    """The jobs after the history, with models, load and predictions. Raises ValueError if there are none."""
    rng = np.random.default_rng(options.seed)
    jobs = trace.jobs
    key = recurrence_key(jobs)
    gpus = _sizes(jobs, key, options.single_gpu, rng)
    profiles, profile, moved = _models(key, gpus, options, rng)
    draft = JobTable(profiles, jobs["submit_s"].to_numpy(), profile, np.ones(len(jobs)), np.zeros(len(jobs)))
    # durations in traces are for reference GPUs
    alpha = draft.best_alphas(with_reference_gpus(cluster.nodes), cluster.fabric)
    # jobs that do not fit the cluster stay in the table: policies must report "capacity" and continue
    known_alpha = np.where(np.isnan(alpha), 1.0, alpha)
    iterations = jobs["duration_s"].to_numpy() / known_alpha
    first = int(len(jobs) * options.history)
    last = len(jobs) if options.jobs is None else min(len(jobs), first + options.jobs)
    if first >= last:
        raise ValueError(f"none of the {len(jobs)} jobs of {trace.name} is left to simulate")
    names, users = key.tolist(), jobs["user"].tolist()
    predicted, learning = iterations[first:last], None
    if options.predictor != PERFECT:
        models = np.array(["" if each.name == UNPROFILED else each.name for each in profiles])[profile]
        models[np.isnan(alpha)] = ""  # their iterations are not known
        keys = keys_of_jobs(chains_of(names, users, gpus.tolist()), models.tolist(), known_alpha.tolist())
        known = trained(options.predictor, (keys[row].example(iterations[row]) for row in _past(jobs, first)))
        predicted = predictions(known, keys[first:last])
        learning = Learning(keys[first:last], known, options.retrain_s) if options.retrain_s > 0 else None
    table = JobTable(
        profiles,
        jobs["submit_s"].to_numpy()[first:last] - jobs["submit_s"].iloc[first],
        profile[first:last],
        iterations[first:last],
        predicted,
        jobs["time_limit_s"].to_numpy()[first:last],
        users[first:last],
        names[first:last],
        learning,
    )
    own_load = offered_load(table, cluster)
    if options.load is not None:
        if not np.isfinite(own_load):
            raise InputError("all jobs of the simulation are submitted at the same time, so that no load can be set")
        table = replace(table, submit=table.submit * (own_load / options.load))
    if options.max_gpus_per_user is not None:
        table = _limited(table, options.max_gpus_per_user)
    notes = _notes(trace, table, cluster, own_load, first, moved)
    consenting = np.flatnonzero(np.random.default_rng(options.seed).random(len(table)) < options.consent).tolist()
    costs = PreemptionCosts(options.checkpoint_s, options.requeue_s, options.restart_s)
    made = Workload(table, cluster, notes, consenting, costs)
    return made if options.communication == KNOWN else _hidden(made, options)


def _hidden(made: Workload, options: Options) -> Workload:
    """The same jobs, whose profiles policies do not know. Without retraining, nothing is learned."""
    learns = options.communication != UNKNOWN and options.retrain_s > 0
    measured = Measured(options.communication == REPORTS, retrain_s=options.retrain_s, seed=options.seed)
    table = without_profiles(made.table, made.cluster.nodes, made.cluster.fabric)
    return replace(made, table=table, real=made.table, measured=measured if learns else None)


def _limited(table: JobTable, most: int) -> JobTable:
    """The same jobs under a limit on the GPUs of each user. Raises ValueError if the trace does not name the users."""
    users = sorted({user for user in table.users if user})
    if not users:
        raise ValueError("a limit per user requires a trace that names the users")
    caps = {f"{most} GPUs of user {user}": float(most) for user in users}
    limit_of = dict(zip(users, caps, strict=True))
    charges: list[Charges] = [
        ((limit_of[user], float(gpus)),) if user else () for user, gpus in zip(table.users, table.gpus, strict=True)
    ]
    return replace(table, charges=charges, caps=caps)


def offered_load(table: JobTable, cluster: Cluster) -> float:
    """GPU-seconds of all jobs in their best placements, over the number of GPUs times the span of the submissions.

    Both are in terms of reference GPUs: a GPU that is twice as fast counts twice.
    """
    alphas = table.best_alphas(with_reference_gpus(cluster.nodes), cluster.fabric)
    work = table.gpus * table.iterations * np.nan_to_num(alphas)
    span = float(table.submit[-1] - table.submit[0]) if len(table) else 0.0
    available = capacity(cluster.nodes) * span
    return float(work.sum() / available) if available > 0 else float("inf")


def _past(jobs: pd.DataFrame, first: int) -> Ints:
    """Rows of the jobs that had ended when the first simulated job arrived, in the order of their ends."""
    columns = jobs.iloc[:first]
    end = (columns["submit_s"] + columns["wait_s"].fillna(0.0) + columns["duration_s"]).to_numpy()
    order = np.argsort(end, kind="stable")
    return np.asarray(order[end[order] <= jobs["submit_s"].iloc[first]], dtype=np.int64)


def _sizes(jobs: pd.DataFrame, key: pd.Series, single: float | None, rng: np.random.Generator) -> Ints:
    """GPUs of each job. With a share of single-GPU jobs, random groups become single-GPU or distributed as a whole."""
    gpus = jobs["gpus"].to_numpy(dtype=np.int64)
    if single is None:
        return gpus
    codes, names = pd.factorize(key)
    runs = np.bincount(codes)
    order = rng.permutation(len(names))
    is_single = np.zeros(len(names), dtype=bool)
    is_single[order[np.cumsum(runs[order]) <= single * len(jobs)]] = True
    several = gpus[gpus > 1]
    drawn = rng.choice(several if len(several) else np.array([2, 4, 8]), len(names))
    return np.asarray(np.where(is_single[codes], 1, np.where(gpus > 1, gpus, drawn[codes])), dtype=np.int64)


@cache
def _library(models: str) -> Mapping[int, Mapping[str, tuple[JobProfile, ...]]]:
    """Table I's configurations by GPUs, then by model."""
    found: dict[int, dict[str, tuple[JobProfile, ...]]] = {}
    for name in library_names():
        model = name.rsplit("-", 1)[0]
        profile = _on_h100(model, name) if models == H100 else load_profile(name, ())
        by_model = found.setdefault(profile.gpus, {})
        by_model[model] = (*by_model.get(model, ()), profile)
    return found


def _on_h100(model: str, name: str) -> JobProfile:
    """A configuration of the library by the measured profile of its model."""
    plan = next(plan for plan in table1.PLANS[model] if f"{model}-{plan.suffix}" == name)
    return table1.measured(plan, load_uncut(f"{model}-{H100}", ()))


def _models(
    key: pd.Series, gpus: Ints, options: Options, rng: np.random.Generator
) -> tuple[tuple[JobProfile, ...], Ints, int]:
    """Profiles, the profile of each job, and the number of jobs whose number of GPUs changed.

    For each group and size, a model is drawn, then one of its configurations of that size. A size without a
    configuration takes the nearest one by ratio (of two equally near, the larger).
    """
    codes, kinds = pd.factorize(pd.MultiIndex.from_arrays([key, gpus]))
    library = {} if options.models == "none" else _library(options.models)
    profiles: list[JobProfile] = []
    number: dict[JobProfile, int] = {}
    chosen = np.empty(len(kinds), dtype=np.int64)
    for kind, (_, size) in enumerate(kinds):
        profile = unprofiled(int(size)) if options.models == "none" else _draw(library, int(size), rng)
        chosen[kind] = number.setdefault(profile, len(number))
        if len(number) > len(profiles):
            profiles.append(profile)
    sizes = np.array([profile.gpus for profile in profiles])[chosen[codes]]
    return tuple(profiles), chosen[codes], int((sizes != gpus).sum())


def _draw(library: Mapping[int, Mapping[str, Sequence[JobProfile]]], size: int, rng: np.random.Generator) -> JobProfile:
    near = min(library, key=lambda k: (max(k / size, size / k), -k))
    models = library[near]
    configurations = models[sorted(models)[int(rng.integers(len(models)))]]
    return configurations[int(rng.integers(len(configurations)))]


def _notes(
    trace: Trace, table: JobTable, cluster: Cluster, own_load: float, history: int, moved: int
) -> dict[str, Any]:
    return {
        "trace": trace.name,
        "jobs": len(table),
        "history_jobs": history,
        "load": offered_load(table, cluster),
        "load_of_trace": own_load,
        "single_gpu": float((table.gpus == 1).mean()),
        "unseen": float((table.predicted == 0).mean()),
        "other_size": moved,
    }
