"""Recurrence groups: what counts as "the same job again". The twin of the first half of job_submit_asrpt.lua.

A group id is 16 hex digits over user id, job name, ``dataset=`` hint, script arguments and script, after the rules of
``[group]`` (``predict.words``). slurmctld computes it in Lua, the tools here: both must agree on every byte, which
``tests/property/test_group_twins.py`` checks. It is no cryptographic hash: who builds a collision with somebody
else's group still gets keys of the own user only (``predict.keys``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.hook.features import MAX_BYTES, render_features
from slurm_asrpt.hook.wordrules import make_rules
from slurm_asrpt.hook.words import Reader, fold_dates, read_script
from slurm_asrpt.profile.sizes import NO_SIZES, Sizes, sizes_in

ARGUMENT_BYTES = 4096
"""What counts of longer arguments."""

_LANES = ((1, 1000003, 4294967291), (2, 786433, 4294967279))
_STEP, _BLOCK = 6, 12
_DIGITS = re.compile(rb"[0-9]+")
_HINTS = re.compile(rb"(?:\A|[ \t\n;])asrpt:([^ \t\n;]*)")
_HINT = re.compile(rb"([a-z]+)=(.*)", re.DOTALL)
_SIGNAL = re.compile(rb"(?:B:)?USR[12]")
_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


@dataclass(frozen=True)
class Hints:
    """What a user tells us in ``--comment``; complaints are the parts that were not understood.

    interrupt: the signal at which the job writes a checkpoint, ``B:`` before it if its batch shell gets it.
    """

    profile: str = ""
    dataset: str = ""
    off: bool = False
    complaints: tuple[bytes, ...] = field(default=())
    interrupt: str = ""


@dataclass(frozen=True)
class Identity:
    """What a job is known by. program: key of the user's jobs of the same program, "" for none. features: numbers.

    sizes: how GPUs share its model.
    """

    group: str
    program: str = ""
    features: dict[str, float] = field(default_factory=dict)
    sizes: Sizes = NO_SIZES


def digest(data: bytes) -> str:
    """16 hex digits of ``data``: two polynomials modulo primes below 2^32, six bytes a step (see the Lua twin)."""
    whole = len(data) - len(data) % _BLOCK
    values = [int.from_bytes(data[at : at + _STEP], "little") for at in range(0, whole, _STEP)]
    values += data[whole:]
    values.append(len(data))
    return "".join(f"{_lane(values, *lane):08x}" for lane in _LANES)


def _lane(values: Sequence[int], start: int, factor: int, prime: int) -> int:
    state = start
    for value in values:
        state = (state * factor + value) % prime
    return state


def describe(
    uid: int, name: bytes, script: bytes, args: Sequence[bytes], dataset: bytes, settings: GroupSettings
) -> Identity:
    """What a job is made into. name: Slurm's job name; args: the script's arguments without its own path."""
    reader = Reader(make_rules(settings))
    for _ in read_script(script, reader):
        pass
    return identity(uid, name, reader, args, dataset)


def identity(uid: int, name: bytes, reader: Reader, args: Sequence[bytes], dataset: bytes) -> Identity:
    """Like describe, of a script that ``reader`` has read; it reads the arguments too."""
    settings = reader.rules.settings
    fold = fold_dates if settings.fold_dates else bytes
    name = counted_name(name, settings)
    text = fold(b" ".join(reader.out))
    counted = map(fold, read_arguments(args, reader)) if settings.arguments else ()
    arguments = b"".join(b"%d:%s" % (len(word), word) for word in counted)
    head = b"asrpt-group 2\n%d\n%d:%d:%d:" % (uid, len(name), len(dataset), len(arguments))
    group = digest(head + name + dataset + arguments + text)
    features = fitting(reader.features, reader.rules.order)
    return Identity(group, program_key(uid, reader.programs), features, sizes_in(reader.features))


def counted_name(name: bytes, settings: GroupSettings) -> bytes:
    """What counts of a job name."""
    return _DIGITS.sub(b"#", name) if settings.fold_digits else name


def read_arguments(args: Sequence[bytes], reader: Reader) -> list[bytes]:
    """What counts of the script's arguments, of which it reads the first ARGUMENT_BYTES, one more for each word."""
    before, sizes = len(reader.out), accumulate(len(word) + 1 for word in args)
    reader.arguments([word for word, size in zip(args, sizes, strict=True) if size <= ARGUMENT_BYTES])
    return reader.out[before:]


def program_key(uid: int, programs: Sequence[bytes]) -> str:
    """The key of a user's jobs of these programs, "" for none."""
    return digest(b"asrpt-program 1\n%d\n" % uid + b"\n".join(programs)) if programs else ""


def fitting(features: Mapping[str, float], order: Sequence[str]) -> dict[str, float]:
    """As many of the features, in order, as the tag has room for."""
    kept: dict[str, float] = {}
    for name in order:
        if name in features and len(render_features(more := kept | {name: features[name]})) <= MAX_BYTES:
            kept = more
    return kept


def parse_comment(comment: bytes) -> Hints:
    """``asrpt:profile=NAME,dataset=NAME,interrupt=SIGNAL`` or ``asrpt:off`` in a ``--comment``; the first counts."""
    found = _HINTS.search(comment)
    names = {b"profile": "", b"dataset": ""}
    off, interrupt, complaints = False, "", []
    for item in found[1].split(b",") if found else []:
        parts = _HINT.fullmatch(item)
        if item == b"off":
            off = True
        elif parts and parts[1] in names and _NAME.fullmatch(parts[2]):
            names[parts[1]] = parts[2].decode("ascii")
        elif parts and parts[1] == b"interrupt" and _SIGNAL.fullmatch(parts[2]):
            interrupt = parts[2].decode("ascii")
        elif item:
            complaints.append(item)
    return Hints(names[b"profile"], names[b"dataset"], off, tuple(complaints), interrupt)
