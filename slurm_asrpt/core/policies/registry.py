"""The policies by name: those of this package, and those that other packages register as entry points.

A policy is imported on first use, so that commands that only need the names start fast. Another package registers a
policy, a subclass of ``base.Policy``, in its pyproject.toml::

    [project.entry-points."slurm_asrpt.policies"]
    my-policy = "my_package.my_module:MyPolicy"
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import ErrorDetails

    from slurm_asrpt.core.cluster import Fabric
    from slurm_asrpt.core.policies.base import Policy
    from slurm_asrpt.core.policies.options import PolicyOptions

GROUP = "slurm_asrpt.policies"
"""The group of entry points."""
BUILT_IN: Mapping[str, str] = {
    "asrpt": "slurm_asrpt.core.policies.asrpt.policy:ASrpt",
    "asrpt-gated": "slurm_asrpt.core.policies.gated.policy:Gated",
    "easy-backfill": "slurm_asrpt.core.policies.easy_backfill:EasyBackfill",
    "fifo": "slurm_asrpt.core.policies.priority_queue:Fifo",
    "hlas": "slurm_asrpt.core.policies.hlas.policy:Hlas",
    "sjf-bco-online": "slurm_asrpt.core.policies.sjf_bco.policy:SjfBcoOnline",
    "slurm-backfill": "slurm_asrpt.core.policies.slurm_backfill.policy:SlurmBackfill",
    "spjf": "slurm_asrpt.core.policies.priority_queue:Spjf",
    "spwf": "slurm_asrpt.core.policies.priority_queue:Spwf",
    "wcs-duration": "slurm_asrpt.core.policies.priority_queue:WcsDuration",
    "wcs-subtime": "slurm_asrpt.core.policies.priority_queue:WcsSubtime",
    "wcs-workload": "slurm_asrpt.core.policies.priority_queue:WcsWorkload",
}
"""The policies of this package: module and class by name. They take precedence over a plugin of the same name."""
RESERVED = frozenset({"name", "fabric", "fairshare_bands"})
"""Keys that a policy cannot define: [policy] already has them, or they come from other settings."""


class OptionError(ValueError):
    """Invalid options of a policy. problems: a text ``key=value: problem`` for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class PluginError:
    """A policy of another package that cannot be loaded. source: the package and its entry point."""

    name: str
    source: str
    why: str


@dataclass(frozen=True)
class Plugins:
    """The policies of other packages: those that can be made, and why the others cannot."""

    classes: Mapping[str, type[Policy]]
    errors: tuple[PluginError, ...]


def policy_names() -> tuple[str, ...]:
    """All available policies, including those of other packages."""
    return tuple(sorted({*BUILT_IN, *installed_plugins().classes}))


def plugin_errors() -> tuple[PluginError, ...]:
    """The policies of other packages that cannot be loaded, for callers that log or print them."""
    return installed_plugins().errors


def policy_class(name: str) -> type[Policy]:
    """A policy by name. Raises ValueError for an unknown name and lists the known ones."""
    if name in BUILT_IN:
        return _built_in(name)
    plugins = installed_plugins()
    if name in plugins.classes:
        return plugins.classes[name]
    broken = "".join(f" ({each.source} registers it, but: {each.why})" for each in plugins.errors if each.name == name)
    raise ValueError(f"no policy is called {name!r}{broken}; known: {', '.join(policy_names())}")


def make_policy(name: str, fabric: Fabric, **options: Any) -> Policy:
    """A new policy. Raises ValueError for an unknown name or invalid options."""
    kind = policy_class(name)
    return kind(fabric, check_options(name, options))


def check_options(name: str, options: Mapping[str, Any]) -> PolicyOptions:
    """The validated options of a policy. Raises OptionError, or ValueError for an unknown policy."""
    try:
        return policy_class(name).Options(**options)
    except ValidationError as error:
        raise OptionError([_problem(found) for found in error.errors(include_url=False)]) from None


def _problem(found: ErrorDetails) -> str:
    return f"{'.'.join(map(str, found['loc']))}={str(found['input'])[:60]}: {found['msg']}"


def policy_settings(name: str) -> frozenset[str]:
    """The option keys of a policy; empty for an unknown policy."""
    try:
        return frozenset(policy_class(name).Options.model_fields)
    except ValueError:
        return frozenset()


def policies_with(key: str) -> list[str]:
    """The names of the policies of this package that have an option."""
    return [name for name in sorted(BUILT_IN) if key in policy_settings(name)]


def plugin_options() -> Mapping[str, type[PolicyOptions]]:
    """The option models of the policies of other packages, by policy name."""
    return {name: each.Options for name, each in installed_plugins().classes.items()}


def key_names(name: str) -> tuple[str, ...]:
    """The names of the parts of a policy's ``Start.key``; further parts only break ties."""
    try:
        return policy_class(name).start_key
    except ValueError:
        return ()


def banded_policies() -> list[str]:
    """The names of the policies that use ``Job.band``."""
    return [name for name in policy_names() if policy_class(name).bands]


@cache
def _built_in(name: str) -> type[Policy]:
    module, _, attribute = BUILT_IN[name].partition(":")
    found: type[Policy] = getattr(import_module(module), attribute)
    return found


@cache
def installed_plugins() -> Plugins:
    """The policies of other installed packages, and those that cannot be loaded."""
    from importlib.metadata import entry_points

    classes: dict[str, type[Policy]] = {}
    errors: list[PluginError] = []
    for point in entry_points(group=GROUP):
        source = f"{point.dist.name if point.dist else 'a package'} ({point.value})"
        if point.name in BUILT_IN or point.name in classes:
            errors.append(PluginError(point.name, source, "there is another policy of that name, which is used"))
            continue
        try:
            classes[point.name] = _checked(point.load())
        except (Exception, SystemExit) as error:  # a module may do anything on import
            errors.append(PluginError(point.name, source, f"{type(error).__name__}: {error}"))
    return Plugins(classes, tuple(errors))


def _checked(found: Any) -> type[Policy]:
    """Raises TypeError if it is not a policy, and ValueError for reserved option names."""
    from slurm_asrpt.core.policies.base import Policy
    from slurm_asrpt.core.policies.options import PolicyOptions

    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise TypeError(f"{found!r} is no subclass of slurm_asrpt.core.policies.base.Policy")
    if not (isinstance(found.Options, type) and issubclass(found.Options, PolicyOptions)):
        raise TypeError("its Options are no subclass of slurm_asrpt.core.policies.options.PolicyOptions")
    taken = sorted(RESERVED & found.Options.model_fields.keys())
    if taken:
        raise ValueError(f"its options cannot be called {', '.join(taken)}")
    found.Options()  # raises if an option has no default
    return found
