"""A job's unfulfilled dependency (Dependency= of scontrol show job) in words."""

from __future__ import annotations

import re

_TERM = re.compile(r"(?P<kind>[a-z]+):(?P<job>\d+(?:_(?:\*|\d+))?)(?:\+(?P<minutes>\d+))?")
_STATE = re.compile(r"\((?:unfulfilled|failed)\)")
_KINDS = {
    "afterany": "{job} to end",
    "afterok": "{job} to complete with exit code 0",
    "afternotok": "{job} to fail",
    "aftercorr": "the same task of {job} to complete with exit code 0",
    "afterburstbuffer": "{job} to end, with its burst buffer staged out",
}
_NAMED = 3
_SINGLETON = "the owner's earlier jobs of the same name to end"


def awaited(dependency: str) -> str:
    """What the job waits for; as Slurm writes it where that is not known in words."""
    terms = [_awaited(term) for term in re.split("[,?]", _STATE.sub("", dependency))]
    named, more = terms[:_NAMED], len(terms) - _NAMED
    either = "?" in dependency  # Slurm allows one kind of separator only
    return (" or " if either else " and ").join([*named, *([f"{more} more"] if more > 0 else [])])


def _awaited(term: str) -> str:
    if term == "singleton":
        return _SINGLETON
    found = _TERM.fullmatch(term)
    if found is None:
        return term
    job = _job(found["job"])
    if found["kind"] == "after":
        return f"{job} to have run for {found['minutes']} min" if found["minutes"] else f"{job} to start"
    return _KINDS[found["kind"]].format(job=job) if found["kind"] in _KINDS else term


def _job(name: str) -> str:
    return f"array {name.removesuffix('_*')}" if name.endswith("_*") else f"job {name}"
