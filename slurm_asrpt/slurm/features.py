"""Constraints on the features of nodes (-C, --prefer)."""

from __future__ import annotations

import re
from functools import lru_cache

_PART = r"[&,|()]|[^&,|()\[\]*\s]+"
"""Excluded: counts (``a*2``), and sets where all nodes must have the same feature."""
_ONE_FOR_ALL = re.compile(r"\[([^&,|()\[\]*\s]+(?:\|[^&,|()\[\]*\s]+)*)\]")
LONGEST = 1024
"""Maximum length in bytes that Slurm accepts."""


def alternatives(constraint: str) -> tuple[str, ...]:
    """The constraints, one of which must hold on all nodes of the job: a, b and c for ``[a|b|c]``; else the constraint.

    Other brackets are kept, and ``satisfies`` raises an error for them.
    """
    found = _ONE_FOR_ALL.fullmatch(constraint)
    return tuple(found[1].split("|")) if found else (constraint,)


@lru_cache(maxsize=4096)
def satisfies(features: frozenset[str], constraint: str) -> bool:
    """Whether a node with these features may run a job with this constraint.

    Operators have the same precedence and associate to the left: ``a|b&c`` is ``(a|b)&c`` (measured). A comma means
    ``&``. Raises ValueError for an invalid constraint, and one that a single node cannot decide.
    """
    parts = re.findall(_PART, constraint)
    if "".join(parts) != constraint or len(constraint) > LONGEST:
        raise ValueError(f"cannot read the constraint {constraint!r}")
    open_so_far = [(True, "&")]  # for each open parenthesis: the result so far, and the next operator
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
