"""Snapshot files: the inputs and the outcome of one decision. A replay must give the same outcome.

JSON, never code; ``VERSION`` goes up with each change of ``Document``. A snapshot holds the policy's settings only, no
paths and no scripts. It has user names, because fair-share bands and reports need them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import unified_diff
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from slurm_asrpt.audit.inputs import canonical, decide, digest, from_document
from slurm_asrpt.errors import AsrptError, InputError, one_line
from slurm_asrpt.files import give_to_folder_owner, replace_file

KIND, VERSION = "asrpt snapshot", 1
FILE_NAME, WANTED = "snapshot.json", "snapshot.wanted"
"""In the state directory: asrptd writes the first in its next cycle if the second exists."""
MAX_BYTES = 256 << 20
_POLL_S = 0.1


@dataclass(frozen=True)
class Snapshot:
    """inputs: as in ``audit.inputs.Document``. decisions: the outcome."""

    inputs: Mapping[str, Any]
    decisions: list[Any]
    release: str = ""

    @property
    def digest(self) -> str:
        return digest(self.inputs)


def to_bytes(inputs: Mapping[str, Any], decisions: list[Any]) -> bytes:
    try:
        release = version("slurm-asrpt")
    except PackageNotFoundError:  # run from a checkout
        release = ""
    head = {"kind": KIND, "version": VERSION, "release": release, "digest": digest(inputs)}
    return (canonical({**head, "inputs": inputs, "decisions": decisions}) + "\n").encode("ascii")


def from_bytes(data: bytes, source: str) -> Snapshot:
    """Parse a snapshot. Raises InputError if it is not valid."""
    try:
        raw = json.loads(data)
        if not isinstance(raw, dict) or raw.get("kind") != KIND:
            raise InputError(f"{source} is not a snapshot; asrpt-admin snapshot makes one")
        if raw.get("version") != VERSION:
            raise InputError(f"{source} has version {raw.get('version')!r}; this release reads version {VERSION}")
        if not isinstance(raw.get("inputs"), dict) or not isinstance(raw.get("decisions"), list):
            raise InputError(f"{source} is a damaged snapshot; make a new one")
        found = Snapshot(raw["inputs"], raw["decisions"], str(raw.get("release", "")))
        if found.digest != raw.get("digest"):
            raise InputError(f"{source} was changed after asrptd wrote it: its digest does not match")
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not a snapshot ({one_line(error)[:200]})") from None
    return found


def read(path: Path) -> Snapshot:
    """Read a snapshot file. Raises InputError."""
    try:
        if not path.is_file():
            raise InputError(f"{path} is not a file; asrpt-admin snapshot makes one")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path} is larger than {MAX_BYTES >> 20} MiB, which is too large for a snapshot")
    return from_bytes(data, str(path))


def replay(snapshot: Snapshot, source: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The decisions made from it now, and why the other jobs wait. Raises InputError if the inputs are not valid."""
    try:
        return decide(from_document(snapshot.inputs))
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        # a forged state can make a policy fail in any way; a genuine one makes this line a bug report
        raise InputError(f"{source} cannot be replayed ({type(error).__name__}: {one_line(error)[:200]})") from error


def difference(before: list[Any], after: list[Any]) -> list[str]:
    """Lines for the decisions that differ: ``-`` before, ``+`` after. Empty if they are equal."""
    then, now = ([canonical(_whole(each)) for each in decisions] for decisions in (before, after))
    return [] if then == now else list(unified_diff(then, now, lineterm="", n=0))[2:]


def _whole(decision: Any) -> Any:
    """With whole numbers as such: 1.0 and 1 are equal. Slurm's times are whole, and floats once they have been read."""

    def number(text: str) -> float:
        return int(text[:-2]) if text.endswith(".0") else float(text)

    return json.loads(json.dumps(decision), parse_float=number)


def ask_for(state: Path, timeout_s: float, ended: Callable[[], bool]) -> bytes:
    """The snapshot that asrptd writes in its next cycle. ended: whether asrptd has ended.

    Raises AsrptError, OSError.
    """
    path, before = state / FILE_NAME, time.monotonic()
    had = _identity(path)
    replace_file(state / WANTED, b"asrptd removes this file\n", mode=0o600)
    with suppress(FileNotFoundError):  # asrptd has already removed it
        give_to_folder_owner(state / WANTED)
    while _identity(path) == had:
        if ended() or time.monotonic() > before + timeout_s:
            (state / WANTED).unlink(missing_ok=True)
            raise AsrptError("asrptd has not completed a cycle; its log says why (journalctl -u asrptd)")
        time.sleep(_POLL_S)
    return path.read_bytes()


def _identity(path: Path) -> tuple[int, int] | None:
    """Differs for each file that replaces it."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
