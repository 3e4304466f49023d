"""What one simulation is made of, as text and JSON: a trace, a policy with its settings, a cluster, options."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from slurm_asrpt.config import PolicySettings
from slurm_asrpt.core.policies import policy_names, policy_settings
from slurm_asrpt.errors import InputError
from slurm_asrpt.sim.engine import PERFECT
from slurm_asrpt.sim.generate import DAYS, pai_like
from slurm_asrpt.sim.traces import Trace
from slurm_asrpt.sim.workload import Cluster, Options, Workload, build

GENERATED = "pai-like"
GENERATED_JOBS = 100_000
_NOT_SETTABLE = frozenset({"fabric", "time_limit"})  # the workload gives these


@dataclass(frozen=True)
class PolicySpec:
    """A policy by name with settings, written ``asrpt:delay=aside,tau=0``; ``NAME-perfect`` knows true iterations."""

    name: str
    settings: Mapping[str, Any]

    @property
    def text(self) -> str:
        pairs = ",".join(f"{key}={value}" for key, value in sorted(self.settings.items()))
        return f"{self.name}:{pairs}" if pairs else self.name


def parse_policy(text: str, more: Sequence[str] = ()) -> PolicySpec:
    """A policy from its text; more: further settings as ``key=value``. Raises InputError that lists what is known."""
    name, _, tail = text.strip().partition(":")
    known = name.removesuffix(PERFECT)
    if known not in policy_names():
        raise InputError(f"no policy is called {name!r}; known: {', '.join(policy_names())}, and NAME{PERFECT} of each")
    settings: dict[str, Any] = {}
    for pair in [*(tail.split(",") if tail else ()), *more]:
        key, equals, value = pair.strip().partition("=")
        allowed = sorted(policy_settings(known) - _NOT_SETTABLE)
        if not equals or key not in allowed:
            raise InputError(f"policy {name} has no setting {pair!r}; it has: {', '.join(allowed) or 'none'}")
        settings[key] = _value(value)
    _check({key: value for key, value in settings.items() if key in PolicySettings.model_fields}, text)
    return PolicySpec(name, settings)


def _check(settings: Mapping[str, Any], text: str) -> None:
    """Types and bounds of those settings that asrptd has too: they are written once, in the configuration."""
    try:
        PolicySettings.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"policy {text}: {first['loc'][0]}={first['input']}: {first['msg']}") from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_policies(text: str) -> list[PolicySpec]:
    """Policies separated by commas, or ``all``; ``a:x=1,y=2,b`` is ``a:x=1,y=2`` and ``b``. Raises InputError."""
    words: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if words and "=" in part and ":" not in part:
            words[-1] += f",{part}" if ":" in words[-1] else f":{part}"
        else:
            words.extend(policy_names() if part == "all" else [part])
    specs = {spec.text: spec for spec in map(parse_policy, words)}
    if not specs:
        raise InputError(f"no policy is named; known: {', '.join(policy_names())}")
    return list(specs.values())


@dataclass(frozen=True)
class Scenario:
    """One simulation. source: what the trace file holds, so that a changed file is another scenario."""

    trace: str
    policy: str
    cluster: Cluster = field(default_factory=Cluster)
    options: Options = field(default_factory=Options)
    format: str = ""
    source: str = ""

    @property
    def spec(self) -> PolicySpec:
        return parse_policy(self.policy)

    @property
    def name(self) -> str:
        """A folder's name: readable, safe, and different for each scenario."""
        return f"{slug(self.policy)}-{self.digest}"

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.document(), sort_keys=True).encode()).hexdigest()[:12]

    def with_policy(self, spec: PolicySpec) -> Scenario:
        return replace(self, policy=spec.text)

    def document(self) -> dict[str, Any]:
        """JSON values, from which ``scenario_of`` makes the same scenario."""
        return asdict(self)

    def workload(self) -> Workload:
        """The jobs; the last ones made are kept, for policies that are compared on the same. Raises InputError."""
        return _workload(replace(self, policy=""))


def make_scenario(
    trace: str,
    policy: PolicySpec | None = None,
    cluster: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    form: str = "",
) -> Scenario:
    """A scenario of values that users gave. Raises InputError for those that make no sense, and for no such trace."""
    try:
        made, opts = Cluster(**(cluster or {})), Options(**(options or {}))
        _ = made.fabric
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from error
    if made.servers < 1 or made.gpus < 1:
        raise InputError(f"a cluster has at least one server and one GPU in each, not {made.servers} x {made.gpus}")
    if opts.jobs is not None and opts.jobs < 1:
        raise InputError(f"at least one job is simulated, not {opts.jobs}")
    generated = generated_size(trace)
    name = trace if generated else str(Path(trace).resolve())
    text = policy.text if policy else ""
    return Scenario(name, text, made, opts, form, "" if generated else fingerprint(Path(name)))


def scenario_of(document: Mapping[str, Any]) -> Scenario:
    """The scenario of a document. Raises InputError if it is none."""
    try:
        parts = dict(document)
        return Scenario(**{**parts, "cluster": Cluster(**parts["cluster"]), "options": Options(**parts["options"])})
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not a simulation's description ({error})") from error


def generated_size(spec: str) -> tuple[int, float] | None:
    """Jobs and days of ``pai-like[:jobs[:days]]``; None for a file's name. Raises InputError for a wrong number."""
    name, *numbers = spec.split(":")
    if name != GENERATED:
        return None
    try:
        jobs = int(numbers[0]) if numbers else GENERATED_JOBS
        days = float(numbers[1]) if len(numbers) > 1 else DAYS
        if len(numbers) > 2 or not 1 <= jobs <= 100_000_000 or not 0 < days <= 36500:
            raise ValueError
    except ValueError:
        raise InputError(f"cannot read {spec!r}: write {GENERATED}[:jobs[:days]], e.g. {GENERATED}:20000:30") from None
    return jobs, days


def load_trace(spec: str, seed: int = 0, form: str = "") -> Trace:
    """``pai-like[:jobs[:days]]`` is generated, anything else is a path to read. Raises InputError."""
    size = generated_size(spec)
    if size:
        return pai_like(*size, seed=seed)
    try:
        from slurm_asrpt.sim.traces import read_trace  # type: ignore[attr-defined,unused-ignore]
    except ImportError as error:
        raise InputError(f"{spec}: traces cannot be read yet; use {GENERATED}") from error
    trace: Trace = read_trace(Path(spec), form) if form else read_trace(Path(spec))
    return trace


def fingerprint(path: Path) -> str:
    """SHA-256 of a file; of the names and sizes below a folder. Raises InputError if it is not there."""
    try:
        if path.is_dir():
            listing = sorted((str(p.relative_to(path)), p.stat().st_size) for p in path.rglob("*") if p.is_file())
            return hashlib.sha256(json.dumps(listing).encode()).hexdigest()
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: no trace there ({error.strerror}); name a file or {GENERATED}[:jobs]") from None


def slug(text: str) -> str:
    """A name for a file or folder made of ``text``."""
    return re.sub(r"[^A-Za-z0-9._=,+-]", "_", text.replace(":", ","))[:80].lstrip(".-") or "x"


@lru_cache(maxsize=1)
def _workload(scenario: Scenario) -> Workload:
    trace = load_trace(scenario.trace, scenario.options.seed, scenario.format)
    try:
        return build(trace, scenario.cluster, scenario.options)
    except ValueError as error:
        raise InputError(str(error)) from error
