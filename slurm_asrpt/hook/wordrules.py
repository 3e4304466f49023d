"""The rules of ``[group]`` made ready for the words of job scripts (hook/words.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.profile.sizes import SIZE

IGNORED = ""
"""What a set-aside name stands for that is no feature."""


@dataclass(frozen=True)
class Launcher:
    """skip: words before the command. values: words that follow an option as its value."""

    skip: int = 0
    values: Mapping[bytes, int] = field(default_factory=dict)


START = Launcher()
"""Where a command is to come."""

SETUP, SILENT, FIRST = "setup", "ignored", "first"
"""Commands that are no program, that do not count, and first words of launchers of two words."""


@dataclass(frozen=True)
class Rules:
    """``GroupSettings`` made ready. keys: from an option's name to a feature, a size or IGNORED. order: of features.

    sizes: from a launcher's option to a size.
    """

    settings: GroupSettings
    keys: Mapping[bytes, str]
    commands: Mapping[bytes, Launcher | str]
    order: tuple[str, ...]
    ignore_lines: tuple[bytes, ...]
    sizes: Mapping[bytes, str]


def option_key(text: bytes) -> bytes:
    return text.lower().replace(b"-", b"_")


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def make_rules(settings: GroupSettings) -> Rules:
    """Later lists win: what is ignored is no feature, what launches is no program."""
    features = [as_bytes(line).split() for line in settings.features]
    keys = {option_key(name): option_key(names[0]).decode("ascii") for names in features for name in names}
    spelt = [line.split() for line in settings.sizes if line.strip()]
    sizes = {option_key(as_bytes(option)): SIZE + name for name, *options in spelt for option in options}
    keys |= sizes | {option_key(as_bytes(name)): IGNORED for name in settings.ignore_options}
    commands: dict[bytes, Launcher | str] = {as_bytes(name): SILENT for name in settings.ignore_commands}
    commands |= {as_bytes(name): SETUP for name in settings.setup_commands}
    for name, launcher in map(read_launcher, settings.launchers):
        commands[name] = launcher
        if b" " in name:
            commands.setdefault(name.split()[0], FIRST)
    order = tuple(option_key(names[0]).decode("ascii") for names in features)
    return Rules(settings, keys, commands, order, tuple(map(as_bytes, settings.ignore_lines)), sizes)


def read_launcher(line: str) -> tuple[bytes, Launcher]:
    """A line of ``group.launchers``: NAME[*N] [OPTION[=N]...]; NAME may be two words joined by a slash."""
    name, *options = as_bytes(line).split()
    name, _, skip = name.partition(b"*")
    values: dict[bytes, int] = {}
    for option in options:
        key, _, words = option.partition(b"=")
        values[option_key(key)] = int(words or 1)
    return name.replace(b"/", b" "), Launcher(int(skip or 0), values)
