"""``-C`` (--constraint) of a job: which nodes' features satisfy it, read as Slurm reads it."""

from __future__ import annotations

import re
from functools import lru_cache

_PART = r"[&,|()]|[^&,|()\[\]*\s]+"
"""Not among them: counts (``a*2``) and sets of which all nodes must have the same one."""
_ONE_FOR_ALL = re.compile(r"\[([^&,|()\[\]*\s]+(?:\|[^&,|()\[\]*\s]+)*)\]")
LONGEST = 1024
"""Bytes that Slurm lets a job have there."""


def alternatives(constraint: str) -> tuple[str, ...]:
    """The constraints of which one must hold on all nodes of the job: a, b and c of ``[a|b|c]``; else it itself.

    Brackets around anything but features and ``|`` stay, which ``satisfies`` cannot read.
    """
    found = _ONE_FOR_ALL.fullmatch(constraint)
    return tuple(found[1].split("|")) if found else (constraint,)


@lru_cache(maxsize=4096)
def satisfies(features: frozenset[str], constraint: str) -> bool:
    """Whether a node with these features may serve a job with this constraint.

    From left to right, no operator before another: ``a|b&c`` is ``(a|b)&c`` (measured). A comma is an ampersand.
    Raises ValueError for what a node by itself cannot tell, and for what is no constraint.
    """
    parts = re.findall(_PART, constraint)
    if "".join(parts) != constraint or len(constraint) > LONGEST:
        raise ValueError(f"cannot read the constraint {constraint!r}")
    open_so_far = [(True, "&")]  # of each parenthesis that is open: what holds so far, and the operator after it
    for part in parts:
        held, operator = open_so_far[-1]
        if part == "(":
            open_so_far.append((True, "&"))
        elif part in ("&", ",", "|"):
            open_so_far[-1] = (held, part)
        else:
            value = part in features
            if part == ")":
                value, _ = open_so_far.pop()
                if not open_so_far:
                    raise ValueError(f"a parenthesis of {constraint!r} was never opened")
                held, operator = open_so_far[-1]
            open_so_far[-1] = (held or value if operator == "|" else held and value, operator)
    if len(open_so_far) > 1:
        raise ValueError(f"a parenthesis of {constraint!r} is not closed")
    return open_so_far[0][0]
