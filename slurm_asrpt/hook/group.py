"""Recurrence groups: which submissions count as the same job, and the keys under which iterations are looked up.

The submit hook's Lua computes all of it, here as in slurmctld (``hook.lua``); docs/decisions/0008 has the rules.
A group id is 16 hex digits over user id, job name, ``dataset=`` hint, script arguments and script. Its hash is not
cryptographic: a user who builds a collision with the group of another user still gets only their own keys.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.hook.attachments import Attachments
from slurm_asrpt.hook.hook_conf import render_rules
from slurm_asrpt.hook.lua import call
from slurm_asrpt.hook.tag import LEVEL_OF, parse_features, render_features
from slurm_asrpt.profile.sizes import NO_SIZES, Sizes, parse_sizes

Watch = Callable[..., None]


@dataclass(frozen=True)
class Hints:
    """What a user tells us in ``--comment``; complaints are the parts that were not understood.

    interrupt: the signal at which the job writes a checkpoint, ``B:`` before it if its batch shell gets it; ``off`` if
    the job must not be interrupted.
    """

    profile: str = ""
    dataset: str = ""
    off: bool = False
    complaints: tuple[bytes, ...] = field(default=())
    interrupt: str = ""


@dataclass(frozen=True)
class Identity:
    """What identifies a job. program: key of the user's jobs of the same program, "" for none. features: numbers.

    sizes: how GPUs share its model.
    """

    group: str
    program: str = ""
    features: dict[str, float] = field(default_factory=dict)
    sizes: Sizes = NO_SIZES


@dataclass(frozen=True)
class Line:
    """A line of a script: the words that count, and those that do not, as (rule, words)."""

    text: str
    counts: str
    set_aside: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Dissected:
    """A submission with the reasons for its group. keys: from narrow to wide, in the order of the lookup."""

    group: str
    program: str
    programs: list[str]
    features: dict[str, float]
    sizes: str
    keys: dict[str, str]
    job_name: str
    uid: int
    dataset: str
    lines: list[Line]

    @property
    def counted(self) -> list[str]:
        return [line.counts for line in self.lines if line.counts]


def describe(
    uid: int, name: bytes, script: bytes, args: Sequence[bytes], dataset: bytes, settings: GroupSettings
) -> Identity:
    """Group, program, features and sizes of a submission.

    name: Slurm's job name; args: the script's arguments without its own path.
    Raises InputError for settings that hook.conf cannot hold.
    """
    return _identity(_described(uid, name, script, args, dataset, settings))


def dissect(uid: int, name: bytes, script: bytes, dataset: bytes, gpus: int, settings: GroupSettings) -> Dissected:
    """Describe a submission without arguments, and say of each line which words count. Raises InputError."""
    starts, notes = list[tuple[bytes, int, int]](), list[tuple[str, str]]()

    def watch(what: bytes, text: bytes, words: int = 0) -> None:
        if what == b"line":
            starts.append((text, words, len(notes)))
        else:
            notes.append((what.decode(), os.fsdecode(text)))

    found = _described(uid, name, script, (), dataset, settings, watch)
    job, words = _identity(found), list(found[b"words"].values())
    ends = [*((at, noted) for _, at, noted in starts[1:]), (len(words), len(notes))]
    lines = [
        Line(os.fsdecode(text), _counted(words[at:end], settings), tuple(notes[noted:until]))
        for (text, at, noted), (end, until) in zip(starts, ends, strict=bool(starts))
    ]
    return Dissected(
        group=job.group,
        program=job.program,
        programs=[os.fsdecode(program) for program in found[b"programs"].values()],
        features=job.features,
        sizes=str(job.sizes),
        keys=dict(keys_of(job.group, job.program, uid, gpus, job.features)),
        job_name=os.fsdecode(found[b"name"]),
        uid=uid,
        dataset=os.fsdecode(dataset),
        lines=lines,
    )


def _counted(words: Sequence[bytes], settings: GroupSettings) -> str:
    text = b" ".join(words).strip()
    return os.fsdecode(call("fold_dates", text) if settings.fold_dates else text)


def _described(
    uid: int,
    name: bytes,
    script: bytes,
    args: Sequence[bytes],
    dataset: bytes,
    settings: GroupSettings,
    watch: Watch | None = None,
) -> Any:
    return call("describe", uid, name, script, list(args), dataset, _rules_of(settings), watch)


def _identity(found: Any) -> Identity:
    group, program, features, sizes = (
        found[name].decode("ascii") for name in (b"group", b"program", b"features_text", b"sizes")
    )
    return Identity(group, program, parse_features(features), parse_sizes(sizes))


def _rules_of(settings: GroupSettings) -> Any:
    """The rules as the hook reads them; most callers describe many jobs by the same settings."""
    if not _last or _last[0][0] is not settings:
        _last[:] = [(settings, call("parse_rules", render_rules(settings)))]
    return _last[0][1]


_last: list[tuple[GroupSettings, Any]] = []


def keys_of(
    group: str, program: str, uid: int, gpus: int, features: Mapping[str, float]
) -> tuple[tuple[str, str], ...]:
    """(level, key) of a submission, in the order of the lookup. Without a program ("") there is no such level.

    Under these keys work is counted in seconds, since jobs with different profiles, and with none, share them.
    A key belongs to one user: for each uid the lower half of a key allows one upper half and no other.
    Raises ValueError for a group or program that is not 16 hex digits.
    """
    return _keys(group, program, uid, gpus, features, "")


def profiled_keys_of(
    group: str, uid: int, gpus: int, features: Mapping[str, float], profile: str
) -> tuple[tuple[str, str], ...]:
    """The keys that a submission with a profile looks up before those of ``keys_of``; none without a profile.

    Only the group's runs with the same profile share them, so they count iterations. Raises ValueError as ``keys_of``.
    """
    return _keys(group, "", uid, gpus, features, profile)[:2] if profile else ()


def _keys(
    group: str, program: str, uid: int, gpus: int, features: Mapping[str, float], profile: str
) -> tuple[tuple[str, str], ...]:
    job = {b"group": group.encode(), b"program": program.encode(), b"features_text": render_features(features).encode()}
    chain = call("keys_of", job, uid, gpus, profile.encode())
    return tuple((LEVEL_OF[pair[1].decode()], pair[2].decode()) for pair in chain.values())


def owned(uid: int, key: str) -> str:
    """The key of user ``uid`` that is made from these 16 hex digits."""
    return str(call("owned", uid, key.encode()).decode())


def parse_comment(comment: bytes) -> Hints:
    """``asrpt:profile=NAME,dataset=NAME,interrupt=SIGNAL`` or ``asrpt:off`` in a ``--comment``; the first counts."""
    found = call("parse_comment", comment)
    return Hints(
        found[b"profile"].decode(),
        found[b"dataset"].decode(),
        found[b"off"],
        tuple(found[b"complaints"].values()),
        found[b"interrupt"].decode(),
    )


def attached(attachments: Attachments, group: str, name: bytes) -> str:
    """The profile that an admin has attached to a job, by its group id or its name; "" for none."""
    rules = call("parse_rules", render_rules(GroupSettings(), attachments))
    return str(call("attached", rules, group.encode(), name).decode())


def differences(one: Dissected, two: Dissected) -> list[tuple[str, str]]:
    """Why two submissions are in two groups: (what, as in a diff) for each difference; none if they are in one."""
    named = [("job name", one.job_name, two.job_name), ("dataset hint", one.dataset, two.dataset)]
    named += [("user", str(one.uid), str(two.uid))]
    found = [(what, f"{a or '(none)'} / {b or '(none)'}") for what, a, b in named if a != b]
    return found + [("line", text) for text in _diff(one.counted, two.counted)]


def _diff(one: Sequence[str], two: Sequence[str]) -> list[str]:
    return [line for line in difflib.ndiff(one, two) if line.startswith(("- ", "+ "))]
