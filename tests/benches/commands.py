"""The subcommands of a tool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def commands(root: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(name, command) of all subcommands, such as "history import"."""
    subs = getattr(root, "commands", None)
    if subs is None:
        yield name, root
        return
    for word, sub in subs.items():
        yield from commands(sub, f"{name} {word}".strip())
