"""The tag that the hook writes into a job's AdminComment.

``asrpt1:g=<16 hex digits>;n=<iterations>[;p=<profile>][;b=<epoch>][;l=<reason>]``

g: recurrence group. n: predicted training iterations, 0 for an unseen group. p: the profile that the user named.
b: the user's own ``--begin`` (seconds since the epoch). l: why the hook left the job to Slurm (no lease was set).
Users cannot write AdminComment; what stands there may still be anything (other tools use the field).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "asrpt1:"
MAX_BYTES = 255
_FIELD = {
    "g": re.compile(r"[0-9a-f]{16}"),
    "n": re.compile(r"[0-9]{1,15}"),
    "p": re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}"),
    "b": re.compile(r"[0-9]{1,12}"),
    "l": re.compile(r"[a-z-]{1,24}"),
}


@dataclass(frozen=True)
class Tag:
    group: str
    iterations: int = 0
    profile: str = ""
    begin: int = 0
    left: str = ""

    def format(self) -> str:
        fields = [f"g={self.group}", f"n={self.iterations}"]
        fields += [f"{k}={v}" for k, v in (("p", self.profile), ("b", self.begin), ("l", self.left)) if v]
        return PREFIX + ";".join(fields)


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
    return Tag(values["g"], int(values["n"]), values.get("p", ""), int(values.get("b", "0")), values.get("l", ""))
