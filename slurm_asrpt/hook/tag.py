"""The tag that the hook writes into a job's AdminComment.

``asrpt1:g=<16 hex digits>;n=<iterations>`` and what there is of ``;p=<profile>;b=<epoch>;l=<reason>``
``;i=<low>-<high>;m=<iterations>;k=<16 hex digits>;v=<letter>;s=<sizes>;c=<signal>;f=<features>``

g: recurrence group. n: predicted training iterations, 0 for an unseen group. p: the profile that the user
named, or that an admin has attached.
b: the user's own ``--begin`` (seconds since the epoch). l: why the hook left the job to Slurm (no lease was set).
i: the 10-90% interval of n. m: what the order goes by, where that is not n. k: the program.
v: the first letter of the level that answered (``predict.keys.LEVELS``).
s: with a profile, how GPUs share the model (``predict.sizes``).
c: the job may be interrupted: it writes a checkpoint when its batch shell (``B:``) or its steps get this signal.
f: the numeric hyper-parameters, left out where the tag would grow over MAX_BYTES.
Users cannot write AdminComment; what stands there may still be anything (other tools use the field).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from slurm_asrpt.hook.features import parse_features, render_features
from slurm_asrpt.hook.keys import LEVELS
from slurm_asrpt.profile.sizes import NO_SIZES, Sizes, parse_sizes

PREFIX = "asrpt1:"
MAX_BYTES = 255
_FIELD = {
    "g": re.compile(r"[0-9a-f]{16}"),
    "n": re.compile(r"[0-9]{1,15}"),
    "p": re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}"),
    "b": re.compile(r"[0-9]{1,12}"),
    "l": re.compile(r"[a-z-]{1,24}"),
    "i": re.compile(r"[0-9]{1,13}-[0-9]{1,13}"),
    "m": re.compile(r"[0-9]{1,13}"),
    "k": re.compile(r"[0-9a-f]{16}"),
    "v": re.compile(f"[{''.join(level[0] for level in LEVELS)}]"),
    "s": re.compile(r"[gntp0-9]{2,24}"),
    "c": re.compile(r"(B:)?USR[12]"),
    "f": re.compile(r"[a-z0-9_:.,e+-]{1,100}"),
}
_LEVEL = {level[0]: level for level in LEVELS}


@dataclass(frozen=True)
class Tag:
    """low, high: the 10-90% interval, 0 and 0 where there is none. mean: expected iterations, 0 for ``iterations``."""

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

    @property
    def order(self) -> int:
        """Iterations that the job's place in the queue goes by."""
        return self.mean or self.iterations

    def format(self) -> str:
        """The tag's text. Without features it always fits; they go first."""
        fields = [f"g={self.group}", f"n={self.iterations}"]
        interval = f"{self.low}-{self.high}" if self.high else ""
        optional = {"p": self.profile, "b": self.begin, "l": self.left, "i": interval, "m": self.mean}
        optional |= {"k": self.program, "v": self.level[:1], "s": str(self.sizes), "c": self.interrupt}
        fields += [f"{key}={value}" for key, value in optional.items() if value]
        text = PREFIX + ";".join(fields)
        features = f";f={render_features(self.features)}" if self.features else ""
        return text + features if len(text + features) <= MAX_BYTES else text


def parse_tag(text: str) -> Tag | None:
    """The tag in an AdminComment, or None where it holds none of ours (absent, foreign, damaged)."""
    if not text.startswith(PREFIX) or len(text) > MAX_BYTES:
        return None
    values: dict[str, str] = {}
    for part in text[len(PREFIX) :].split(";"):
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
    return Tag(
        group=values["g"],
        iterations=int(values["n"]),
        profile=values.get("p", ""),
        begin=int(values.get("b", "0")),
        left=values.get("l", ""),
        low=low,
        high=high,
        program=values.get("k", ""),
        level=_LEVEL.get(values.get("v", ""), ""),
        features=parse_features(values.get("f", "")),
        sizes=parse_sizes(values.get("s", "")),
        interrupt=values.get("c", ""),
        mean=int(values.get("m", "0")),
    )
