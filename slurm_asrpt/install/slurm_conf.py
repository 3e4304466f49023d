"""The lines that slurm.conf needs, compared with ``scontrol show config``. Values in, values out.

slurm.conf belongs to the site. It is never written; the lines are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

SCRIPTS = {
    "Prolog": "asrpt-prolog",
    "Epilog": "asrpt-epilog",
    "TaskProlog": "asrpt-task-prolog",
    "EpilogSlurmctld": "asrpt-epilog-slurmctld",
}
ON_CONTROLLER = frozenset({"EpilogSlurmctld"})
"""Those that run on the controller; the others run on the nodes, and Slurm drains nodes without them."""
_NONE = frozenset({"", "(null)", "none"})


class State(StrEnum):
    """The state of a part or line. KEPT: --remove has left it."""

    PRESENT = "present"
    MISSING = "missing"
    DIFFERS = "differs"
    KEPT = "kept"


@dataclass(frozen=True)
class Line:
    """A line of slurm.conf. needed: asrptd cannot work without it. why: what it is for."""

    text: str
    state: State
    why: str
    needed: bool = False


def wanted_lines(config: Mapping[str, str], scripts: Path) -> list[Line]:
    """The lines that slurm.conf needs. config: from scontrol show config; scripts: the directory of our scripts."""
    return [_plugins(config), *_scripts(config, scripts), *_resources(config), *_accounting(config)]


def words(config: Mapping[str, str], key: str) -> list[str]:
    """The comma-separated words of a setting; none if it is not set."""
    value = config.get(key, "")
    return [] if value in _NONE else [word.strip() for word in value.split(",") if word.strip()]


def scripts_of(config: Mapping[str, str], key: str) -> list[str]:
    """The paths of a prolog or epilog; later releases of Slurm number them: ``Prolog[0]``."""
    values = (value for name, value in config.items() if name.partition("[")[0] == key)
    return [value for value in values if value not in _NONE]


def _plugins(config: Mapping[str, str]) -> Line:
    plugins = words(config, "JobSubmitPlugins")
    state = State.PRESENT if "lua" in plugins else State.DIFFERS if plugins else State.MISSING
    text = "JobSubmitPlugins=" + ",".join(plugins if "lua" in plugins else [*plugins, "lua"])
    return Line(text, state, "loads job_submit.lua, which tags and leases jobs", needed=True)


_WHY = {
    "Prolog": "creates the directory in which a job reports its progress",
    "Epilog": "lets asrptd read and delete that directory",
    "TaskProlog": "starts each rank on its planned GPU",
    "EpilogSlurmctld": "wakes asrptd when a job ends, so that it need not wait for its next cycle",
}


def _scripts(config: Mapping[str, str], scripts: Path) -> Iterator[Line]:
    for key, name in SCRIPTS.items():
        ours, there = str(scripts / name), scripts_of(config, key)
        if ours in there or any(_calls(path, name) for path in there):
            yield Line(f"{key}={ours}", State.PRESENT, _WHY[key])
        elif there:
            yield Line(f"{key}={there[0]}", State.DIFFERS, f"call {ours} in it: {_WHY[key]}")
        else:
            yield Line(f"{key}={ours}", State.MISSING, _WHY[key])


def _calls(path: str, name: str) -> bool:
    """Whether the site's script calls ours."""
    try:
        return Path(path).name == name or name.encode() in Path(path).read_bytes()
    except OSError:
        return False


def _resources(config: Mapping[str, str]) -> Iterator[Line]:
    types = words(config, "GresTypes")
    state = State.PRESENT if "gpu" in types else State.DIFFERS if types else State.MISSING
    text = "GresTypes=" + ",".join(types if "gpu" in types else [*types, "gpu"])
    yield Line(text, state, "lets jobs request GPUs", needed=True)
    kind = config.get("SelectType", "")
    good = kind in ("select/cons_tres", "select/cray_aries")
    why = "allocates GPUs, not whole nodes"
    yield Line("SelectType=select/cons_tres", State.PRESENT if good else State.DIFFERS, why, needed=True)


def _accounting(config: Mapping[str, str]) -> Iterator[Line]:
    """Only with slurmdbd."""
    if config.get("AccountingStorageType") != "accounting_storage/slurmdbd":
        return
    wishes = {"AccountingStorageTRES": "gres/gpu", "AccountingStoreFlags": "job_comment"}
    why = "lets asrpt-admin history import read GPUs", "keeps the tags, so history import knows the groups"
    for (key, word), reason in zip(wishes.items(), why, strict=True):
        there = words(config, key)
        text = f"{key}=" + ",".join(there if word in there else [*there, word])
        yield Line(text, State.PRESENT if word in there else State.MISSING, reason)
