"""The tag that the hook writes into a job's AdminComment, and the features in it.

``asrpt1:g=<16 hex digits>;n=<iterations>`` and what there is of ``;p=<profile>;b=<epoch>;l=<reason>``
``;i=<low>-<high>;m=<iterations>;k=<16 hex digits>;v=<letter>;s=<sizes>;c=<signal>;f=<features>``

g: recurrence group. n: predicted training iterations, 0 for an unseen group.
p: the profile that the user named, or that an admin has attached.
b: the user's own ``--begin`` (seconds since the epoch). l: why the hook left the job to Slurm (no lease was set), or
why Slurm must choose its nodes (LEASED: with a lease).
i: the 10-90% interval of n. m: the iterations that order the queue, if not n. k: the program.
v: the first letter of the level that answered (LEVELS). In upper case if n, i and m are seconds of work, not iterations
of the profile: ``Tag.in_iterations`` converts them. Without a profile both are the same.
s: with a profile, how GPUs share the model (``profile.sizes``).
c: the job may be interrupted: it writes a checkpoint when its batch shell (``B:``) or its steps get this signal; or
REFUSED.
f: the numeric hyper-parameters, ``epochs:90,lr:0.1``; left out where the tag would grow over MAX_BYTES.

Users cannot write AdminComment. The field may still hold anything, because other tools use it, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slurm_asrpt.core.units import Unit, whole_iterations
from slurm_asrpt.profile.sizes import NO_SIZES, Sizes, parse_sizes

PREFIX = "asrpt1:"
MAX_BYTES = 255

LEVELS = ("exact", "group", "program", "user", "cluster")
"""The keys of a submission, from narrow to wide (``hook.group.keys_of``). exact: group, GPUs and features are the same.
program: the user's other jobs of the same program."""

LEVEL_OF = {level[0]: level for level in LEVELS}
"""The level that a letter stands for, in the tag and in the hook."""

LEASED = ("exclusive", "features", "contiguous", "switches", "socket")
"""Values of ``l`` of jobs in the queue. Their nodes are Slurm's choice."""

REFUSED = "off"
"""The value of ``c`` of a job that must not be interrupted, although its partition would allow it."""

BOUND = 1e15
"""Hyper-parameters are smaller than this, positive or negative."""

_FIELD = {
    "g": re.compile(r"[0-9a-f]{16}"),
    "n": re.compile(r"[0-9]{1,15}"),
    "p": re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}"),
    "b": re.compile(r"[0-9]{1,12}"),
    "l": re.compile(r"[a-z-]{1,24}"),
    "i": re.compile(r"[0-9]{1,13}-[0-9]{1,13}"),
    "m": re.compile(r"[0-9]{1,13}"),
    "k": re.compile(r"[0-9a-f]{16}"),
    "v": re.compile(f"[{''.join(LEVEL_OF)}]", re.IGNORECASE | re.ASCII),
    "s": re.compile(r"[gntp0-9]{2,24}"),
    "c": re.compile(r"(B:)?USR[12]|off"),
    "f": re.compile(r"[a-z0-9_:.,e+-]{1,100}"),
}
_FEATURE_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_FEATURE_VALUE = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,24})?(e[-+][0-9]{2,3})?")


@dataclass(frozen=True)
class Tag:
    """A tag. low, high: the 10-90% interval, 0 and 0 for none. mean: expected iterations, 0 for ``iterations``.

    unit: of these four figures.
    """

    group: str
    iterations: int = 0
    profile: str = ""
    begin: int = 0
    left: str = ""
    low: int = 0
    high: int = 0
    program: str = ""
    level: str = ""
    features: dict[str, float] = field(default_factory=dict)
    sizes: Sizes = NO_SIZES
    interrupt: str = ""
    mean: int = 0
    unit: Unit = Unit.ITERATIONS

    @property
    def unleased(self) -> bool:
        """Whether the hook set no lease, even in mode enforce."""
        return bool(self.left) and self.left not in LEASED

    @property
    def order(self) -> int:
        """Iterations that order the queue."""
        return self.mean or self.iterations

    def in_iterations(self, alpha: float) -> Tag:
        """The tag with its figures in iterations of the job. alpha: seconds per iteration in its best placement on
        reference GPUs; 0 if unknown, which gives no prediction."""
        if self.unit is Unit.ITERATIONS:
            return self
        n, low, high, mean = (whole_iterations(v, alpha) for v in (self.iterations, self.low, self.high, self.mean))
        return replace(self, iterations=n, low=low, high=high, mean=mean, unit=Unit.ITERATIONS)

    @property
    def without_prediction(self) -> Tag:
        return replace(self, iterations=0, low=0, high=0, mean=0, level="", unit=Unit.ITERATIONS)

    def format(self) -> str:
        """The text of the tag. It always fits without the features, so these are dropped first."""
        fields = [f"g={self.group}", f"n={self.iterations}"]
        interval = f"{self.low}-{self.high}" if self.high else ""
        optional = {"p": self.profile, "b": self.begin, "l": self.left, "i": interval, "m": self.mean}
        level = self.level[:1].upper() if self.unit is Unit.SECONDS else self.level[:1]
        optional |= {"k": self.program, "v": level, "s": str(self.sizes), "c": self.interrupt}
        fields += [f"{key}={value}" for key, value in optional.items() if value]
        text = PREFIX + ";".join(fields)
        features = f";f={render_features(self.features)}" if self.features else ""
        return text + features if len(text + features) <= MAX_BYTES else text


def parse_tag(text: str) -> Tag | None:
    """The tag in an AdminComment, at its end if the site's own hook has set one; None if it has no valid tag."""
    own, prefix, tag = text.rpartition(PREFIX)
    if not prefix or PREFIX in own or (own and not own.endswith(" ")) or len(text) > MAX_BYTES:
        return None
    values: dict[str, str] = {}
    for part in tag.split(";"):
        key, _, value = part.partition("=")
        if key not in _FIELD or key in values or not _FIELD[key].fullmatch(value):
            return None
        values[key] = value
    if "g" not in values or "n" not in values:
        return None
    try:
        return _tag(values)
    except ValueError:
        return None


def _tag(values: dict[str, str]) -> Tag:
    low, high = (int(value) for value in values.get("i", "0-0").split("-"))
    level = values.get("v", "")
    return Tag(
        group=values["g"],
        iterations=int(values["n"]),
        profile=values.get("p", ""),
        begin=int(values.get("b", "0")),
        left=values.get("l", ""),
        low=low,
        high=high,
        program=values.get("k", ""),
        level=LEVEL_OF.get(level.lower(), ""),
        features=parse_features(values.get("f", "")),
        sizes=parse_sizes(values.get("s", "")),
        interrupt=values.get("c", ""),
        mean=int(values.get("m", "0")),
        unit=Unit.SECONDS if level.isupper() else Unit.ITERATIONS,
    )


def render_features(features: Mapping[str, float]) -> str:
    """``epochs:90,lr:0.1``: names in order, ten significant digits.

    Tag, history and keys use this one format, so a job has the same key wherever its features come from.
    """
    return ",".join(f"{name}:{features[name]:.10g}" for name in sorted(features))


def parse_features(text: str) -> dict[str, float]:
    """The features in a text. Raises ValueError for anything that render_features does not write."""
    features: dict[str, float] = {}
    for item in text.split(",") if text else []:
        name, _, number = item.partition(":")
        if name in features or not _FEATURE_NAME.fullmatch(name) or not _FEATURE_VALUE.fullmatch(number):
            raise ValueError(f"{item!r} is not a feature")
        features[name] = float(number)
    if render_features(features) != text or any(abs(value) >= BOUND for value in features.values()):
        raise ValueError(f"{text!r} is not a sorted list of features")
    return features
