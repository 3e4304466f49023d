"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """What one check found. remedy: what to do, "" where nothing is."""

    check: str
    state: State
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, State.OK, text)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, State.WARNING, text, remedy)


def failure(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, State.FAILURE, text, remedy)
