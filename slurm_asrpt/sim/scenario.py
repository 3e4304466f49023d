"""The description of one simulation, as text and JSON: a trace, a policy with settings, a cluster, options."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

from slurm_asrpt.core.placement.splitter import Split
from slurm_asrpt.core.policies.registry import OptionError, check_options, policy_names, policy_settings
from slurm_asrpt.errors import Collected, InputError, as_one
from slurm_asrpt.sim.description import FEWEST, NODES, SLURM_FEWEST, Cluster, Options
from slurm_asrpt.sim.engine import PERFECT, SPLIT
from slurm_asrpt.sim.workload import Workload, build
from slurm_asrpt.slurm.notation import UNITS
from slurm_asrpt.traces import AUTO, check_format
from slurm_asrpt.traces.sources import column_titles, fingerprint, generated_size, load_trace, no_jobs, path_of


@dataclass(frozen=True)
class PolicySpec:
    """A policy with settings, written ``asrpt:delay=aside,tau=0``.

    ``NAME-perfect`` predicts exactly; with ``NAME:nodes=fewest``, jobs request their fewest nodes; ``NAME:split=paper``
    and ``NAME:split=slurm`` say how GPUs are split over servers.
    """

    name: str
    settings: Mapping[str, Any]

    @property
    def text(self) -> str:
        pairs = ",".join(f"{key}={value}" for key, value in sorted(self.settings.items()))
        return f"{self.name}:{pairs}" if pairs else self.name


def parse_policy(text: str, more: Sequence[str] = ()) -> PolicySpec:
    """Parse a policy. more: further settings as ``key=value``. Raises InputError that lists the valid names."""
    name, _, tail = text.strip().partition(":")
    known = name.removesuffix(PERFECT)
    if known not in policy_names():
        raise InputError(f"no policy is called {name!r}; known: {', '.join(policy_names())}, and NAME{PERFECT} of each")
    errors, settings = Collected(), dict[str, Any]()
    for pair in [*(tail.split(",") if tail else ()), *more]:
        with errors:
            key, value = _setting(name, known, pair)
            settings[key] = value
    with errors:
        _check_options(text, known, {key: value for key, value in settings.items() if key not in (NODES, SPLIT)})
    errors.check()
    return PolicySpec(name, settings)


def _setting(name: str, known: str, pair: str) -> tuple[str, Any]:
    """Key and value of ``key=value``. known: the policy's name in the registry."""
    key, equals, value = pair.strip().partition("=")
    allowed = sorted({*policy_settings(known), NODES, SPLIT})
    if not equals or key not in allowed:
        raise InputError(f"policy {name} has no setting {pair!r}; it has: {', '.join(allowed)}")
    if key == NODES and value != FEWEST:
        raise InputError(f"policy {name}: {pair}: the only value is {NODES}={FEWEST}")
    if key == SPLIT and value not in set(Split):
        raise InputError(f"policy {name}: {pair}: the values are {', '.join(Split)}")
    return key, _value(value)


def _check_options(text: str, known: str, options: Mapping[str, Any]) -> None:
    try:
        check_options(known, options)
    except OptionError as error:
        raise as_one(InputError(f"policy {text}: {problem}") for problem in error.problems) from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_policies(text: str) -> list[PolicySpec]:
    """Parse policies separated by commas, or ``all``; ``a:x=1,y=2,b`` is ``a:x=1,y=2`` and ``b``. Raises InputError.

    all: every policy, and what Slurm does if jobs request their fewest nodes.
    """
    words: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if words and "=" in part and ":" not in part:
            words[-1] += f",{part}" if ":" in words[-1] else f":{part}"
        else:
            words.extend([*policy_names(), SLURM_FEWEST] if part == "all" else [part])
    errors, specs = Collected(), dict[str, PolicySpec]()
    for word in words:
        with errors:
            spec = parse_policy(word)
            specs[spec.text] = spec
    errors.check()
    if not specs:
        raise InputError(f"no policy is named; known: {', '.join(policy_names())}")
    return list(specs.values())


_NEWER = ("max_gpus_per_user", "consent", "checkpoint_s", "requeue_s", "restart_s", "communication")


@dataclass(frozen=True)
class Scenario:
    """One simulation. source: fingerprint of the trace file, so that a changed file is another scenario.

    format, processors_as_gpus, columns (``NAME=TITLE`` each): how the file is read.
    """

    trace: str
    policy: str
    cluster: Cluster = field(default_factory=Cluster)
    options: Options = field(default_factory=Options)
    format: str = AUTO
    source: str = ""
    processors_as_gpus: bool = False
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))  # JSON has lists

    @property
    def spec(self) -> PolicySpec:
        return parse_policy(self.policy)

    @property
    def name(self) -> str:
        """A directory name: readable, safe, and unique to the scenario."""
        return f"{slug(self.policy)}-{self.digest}"

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.document(), sort_keys=True).encode()).hexdigest()[:12]

    def with_policy(self, spec: PolicySpec) -> Scenario:
        return replace(self, policy=spec.text)

    def document(self) -> dict[str, Any]:
        """JSON values from which ``scenario_of`` restores the scenario."""
        found = asdict(self)
        for name in _NEWER:  # digests and results of earlier releases stay valid
            if getattr(self.options, name) == getattr(Options, name):
                del found["options"][name]
        if not self.cluster.domain:
            del found["cluster"]["domain"], found["cluster"]["across_gbyte"]
        return found

    def workload(self) -> Workload:
        """The jobs; cached for one workload, so that policies can be compared on it. Raises InputError."""
        return _workload(replace(self, policy=""))


def make_scenario(
    trace: str,
    policy: PolicySpec | None = None,
    cluster: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    fmt: str = AUTO,
    processors_as_gpus: bool = False,
    columns: Sequence[str] = (),
) -> Scenario:
    """A scenario from user input. Raises InputError for invalid values and unknown traces."""
    try:
        made, opts = Cluster(**(cluster or {})), Options(**(options or {}))
        _ = made.fabric
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from error
    if made.servers < 1 or made.gpus < 1:
        raise InputError(f"a cluster needs at least one server with one GPU, not {made.servers} x {made.gpus}")
    speeds = (made.nic_gbit, made.intra_gbyte, *made.beyond_gbit, made.across_gbyte)
    if not all(map(math.isfinite, speeds)):
        raise InputError(f"bandwidths must be finite, not {', '.join([f'{speed:g}' for speed in speeds])}")
    if opts.jobs is not None and opts.jobs < 1:
        raise InputError(f"the number of jobs must be at least 1, not {opts.jobs}")
    check_format(fmt, column_titles(columns))
    generated = generated_size(trace)
    name = trace if generated else str(path_of(trace).resolve())
    text = policy.text if policy else ""
    source = "" if generated else fingerprint(path_of(trace))
    return Scenario(name, text, made, opts, fmt, source, processors_as_gpus, tuple(columns))


def default_models(trace: str) -> str:
    """The models that the jobs of a trace train: Table I's for a generated trace, none for a log, which names none."""
    return Options.models if generated_size(trace) else "none"


T = TypeVar("T", int, float)


def parse_numbers(option: str, text: str, kind: type[T]) -> tuple[T, ...]:
    """Numbers separated by commas. Raises InputError."""
    try:
        return tuple([kind(part) for part in text.split(",")]) if text else ()
    except ValueError:
        raise InputError(f"{option} {text!r}: write numbers separated by commas") from None


_TYPE = re.compile(r"([0-9]{1,6}):([A-Za-z][A-Za-z0-9_.-]{0,31}):([0-9]+(?:\.[0-9]*)?)")


def parse_types(text: str) -> tuple[tuple[int, str, float], ...]:
    """Servers by GPU type from ``125:h100:2.3,125:a100:1``: count, type, speed. Raises InputError."""
    found = [_TYPE.fullmatch(part.strip()) for part in text.split(",") if part.strip()]
    if not found or None in found:
        raise InputError(f"--gpu-types {text!r}: write SERVERS:TYPE:SPEED,..., for example 125:h100:2.3,125:a100:1")
    return tuple((int(match[1]), match[2], float(match[3])) for match in found if match)


def seconds(text: str) -> float:
    """``90``, ``30min``, ``1h``, ``1d`` ... in seconds. Raises ValueError."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?)\s*([a-z]*)", text.strip())
    length = float(found[1]) * UNITS.get(found[2] or "s", math.inf) if found else math.inf
    if not length <= 1e9:  # 0 of an unknown unit is nan
        raise ValueError(f"{text!r} is not a time: write seconds, or a number with min, h or d, e.g. 1h")
    return length


def scenario_of(document: Mapping[str, Any]) -> Scenario:
    """The scenario of a document. Raises InputError if it is invalid."""
    try:
        parts = dict(document)
        return Scenario(**{**parts, "cluster": Cluster(**parts["cluster"]), "options": Options(**parts["options"])})
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not the description of a simulation ({error})") from error


def slug(text: str) -> str:
    """A file name derived from ``text``."""
    return re.sub(r"[^A-Za-z0-9._=,+-]", "_", text.replace(":", ","))[:80].lstrip(".-") or "x"


@lru_cache(maxsize=1)
def _workload(scenario: Scenario) -> Workload:
    trace = load_trace(
        scenario.trace,
        scenario.options.seed,
        scenario.format,
        processors_as_gpus=scenario.processors_as_gpus,
        columns=column_titles(scenario.columns),
    )
    if not len(trace):
        raise InputError(no_jobs(scenario.trace, trace))
    try:
        return build(trace, scenario.cluster, scenario.options)
    except ValueError as error:
        raise InputError(str(error)) from error
