"""The header of every profile file: model, device, date, software, and provenance.

Standard library only.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_asrpt.errors import Collected, short
from slurm_asrpt.profile.toml_table import Table, quote

VERSION = 1
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
HEAD_KEYS = ("version", "name", "model", "batch", "device", "date", "software", "provenance")
MEASURED = "measured"

_PROVENANCE_KEYS = ("kind", "origin", "formula")
_KINDS = ("analytic", MEASURED)


@dataclass(frozen=True)
class Provenance:
    """Where a profile's figures come from. kind: ``analytic`` or ``measured``."""

    kind: str
    origin: str
    formula: str


@dataclass(frozen=True)
class Head:
    """batch: samples per iteration of the whole job. date, software (versions by name): of a measurement."""

    name: str
    model: str
    batch: int
    device: str
    provenance: Provenance
    date: datetime.date | None = None
    software: Mapping[str, str] = field(default_factory=dict)


def check_version(table: Table) -> None:
    """Raises InputError for a file of another release. It has other keys, so do not report them as errors."""
    if "version" in table and table.whole("version") != VERSION:
        raise table.error("version", f"this release reads version {VERSION}; create the profile again")


def read_head(table: Table) -> Head:
    """Raises InputError; also for a measurement without date or software."""
    errors = Collected()
    with errors:
        table.whole("version")
    with errors:
        name = _name(table)
    with errors:
        model = table.text("model")
    with errors:
        batch = table.whole("batch")
    with errors:
        device = table.text("device")
    with errors:
        provenance = _provenance(table.child("provenance"))
    with errors:
        date = table.date("date") if "date" in table else None
    with errors:
        software = table.child("software").texts() if "software" in table else {}
    for key in ("date", "software"):
        with errors:
            _check_measured(table, key)
    errors.check()
    return Head(name, model, batch, device, provenance, date, software)


def _name(table: Table) -> str:
    name = table.text("name")
    if not NAME_PATTERN.fullmatch(name):
        raise table.error("name", f"must match {NAME_PATTERN.pattern}, found {short(name)}")
    return name


def _check_measured(table: Table, key: str) -> None:
    """Raises InputError if a measured profile lacks the key."""
    provenance = table.values.get("provenance")
    if isinstance(provenance, dict) and provenance.get("kind") == MEASURED and key not in table:
        raise table.error(key, "missing; a measured profile says when it was made and with which software")


def _provenance(table: Table) -> Provenance:
    errors = Collected()
    with errors:
        table.only(_PROVENANCE_KEYS)
    with errors:
        kind = table.text("kind")
        if kind not in _KINDS:
            raise table.error("kind", f"must be one of {', '.join(_KINDS)}, found {short(kind)}")
    with errors:
        origin = table.text("origin")
    with errors:
        formula = table.text("formula")
    errors.check()
    return Provenance(kind, origin, formula)


def format_head(head: Head, options: list[str], comment: str = "") -> list[str]:
    """The lines of a file before its stages or blocks. options: lines of the kind's own keys."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    lines += [f"version = {VERSION}", f"name = {quote(head.name)}", f"model = {quote(head.model)}"]
    lines += [f"batch = {head.batch}", *options, f"device = {quote(head.device)}"]
    lines += [f"date = {head.date.isoformat()}"] if head.date else []
    lines += ["", "[provenance]"]
    lines += [f"{key} = {quote(getattr(head.provenance, key))}" for key in _PROVENANCE_KEYS]
    if head.software:
        lines += ["", "[software]", *(f"{quote(name)} = {quote(text)}" for name, text in head.software.items())]
    return lines
