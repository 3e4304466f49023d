"""Recurrence groups: what counts as "the same job again". The twin of the first half of job_submit_asrpt.lua.

A group id is 16 hex digits over user id, job name, ``dataset=`` hint, script arguments and script, after the rules of
``[group]``. slurmctld computes it in Lua, the tools here: both must agree on every byte, which
``tests/property/test_group_twins.py`` checks. It is no cryptographic hash: who builds a collision spoils only the
prediction of that job's iterations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_asrpt.config import GroupSettings

CLIP_BYTES = 12288
"""What counts of a longer script: its first and last half of this, and its length. The hook runs under slurmctld's
locks, and hashing costs about 30 ns a byte there."""

_LANES = ((1, 1000003, 4294967291), (2, 786433, 4294967279))
_BLOCK = 12
_WEIGHTS = np.array([256**i for i in range(6)], dtype=np.uint64)
_BLANK = b" \t\r\v\f"
_DIGITS = re.compile(rb"[0-9]+")
_HINTS = re.compile(rb"(?:\A|[ \t\n;])asrpt:([^ \t\n;]*)")
_HINT = re.compile(rb"([a-z]+)=(.*)", re.DOTALL)
_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


@dataclass(frozen=True)
class Hints:
    """What a user tells us in ``--comment``; complaints are the parts that were not understood."""

    profile: str = ""
    dataset: str = ""
    off: bool = False
    complaints: tuple[bytes, ...] = field(default=())


@dataclass(frozen=True)
class Submission:
    """What a job is known by. program: key of the user's jobs of the same program, "" for none. features: numbers."""

    group: str
    program: str = ""
    features: dict[str, float] = field(default_factory=dict)


def digest(data: bytes) -> str:
    """16 hex digits of ``data``: two polynomials modulo primes below 2^32, six bytes a step (see the Lua twin)."""
    whole = len(data) - len(data) % _BLOCK
    sixes = np.frombuffer(data, dtype=np.uint8, count=whole).reshape(-1, 6).astype(np.uint64)
    values = (sixes @ _WEIGHTS).tolist()
    values += data[whole:]
    values.append(len(data))
    return "".join(f"{_lane(values, *lane):08x}" for lane in _LANES)


def _lane(values: Sequence[int], start: int, factor: int, prime: int) -> int:
    state = start
    for value in values:
        state = (state * factor + value) % prime
    return state


def _clip(data: bytes) -> bytes:
    if len(data) <= CLIP_BYTES:
        return data
    half = CLIP_BYTES // 2
    return data[:half] + b"\n[%d bytes]\n" % len(data) + data[-half:]


def normal_script(script: bytes, rules: GroupSettings) -> bytes:
    """The lines of ``script`` that count, trimmed, without a newline at the end."""
    ignore = [text.encode("utf-8", "surrogateescape") for text in rules.ignore_lines]
    lines = (line.strip(_BLANK) for line in script.split(b"\n"))
    return b"\n".join(
        line
        for line in lines
        if line and not (rules.strip_comments and line.startswith(b"#")) and not any(text in line for text in ignore)
    )


def describe(
    uid: int, name: bytes, script: bytes, args: Sequence[bytes], dataset: bytes, rules: GroupSettings
) -> Submission:
    """What a job is made into. name: Slurm's job name; args: the script's arguments without its own path."""
    if rules.fold_digits:
        name = _DIGITS.sub(b"#", name)
    arguments = _clip(b"".join(b"%d:%s" % (len(a), a) for a in args)) if rules.arguments else b""
    head = b"asrpt-group 1\n%d\n%d:%d:%d:" % (uid, len(name), len(dataset), len(arguments))
    return Submission(digest(head + name + dataset + arguments + normal_script(_clip(script), rules)))


def group_id(uid: int, name: bytes, script: bytes, args: Sequence[bytes], dataset: bytes, rules: GroupSettings) -> str:
    return describe(uid, name, script, args, dataset, rules).group


def parse_comment(comment: bytes) -> Hints:
    """``asrpt:profile=NAME,dataset=NAME`` or ``asrpt:off`` in a ``--comment``; the first such word counts."""
    found = _HINTS.search(comment)
    names = {b"profile": "", b"dataset": ""}
    off, complaints = False, []
    for item in found[1].split(b",") if found else []:
        parts = _HINT.fullmatch(item)
        if item == b"off":
            off = True
        elif parts and parts[1] in names and _NAME.fullmatch(parts[2]):
            names[parts[1]] = parts[2].decode("ascii")
        elif item:
            complaints.append(item)
    return Hints(names[b"profile"], names[b"dataset"], off, tuple(complaints))
