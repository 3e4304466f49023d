"""The header of every profile file: model, device, date, software, and provenance.

Standard library only.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_asrpt.profile.toml_table import Table, quote, short

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


def read_head(table: Table) -> Head:
    """Raises InputError; also for a measurement without date or software."""
    if table.whole("version") != VERSION:
        raise table.error("version", f"this release reads version {VERSION}; create the profile again")
    name = table.text("name")
    if not NAME_PATTERN.fullmatch(name):
        raise table.error("name", f"must match {NAME_PATTERN.pattern}, found {short(name)}")
    provenance = _provenance(table.child("provenance"))
    for key in ("date", "software"):
        if provenance.kind == MEASURED and key not in table:
            raise table.error(key, "missing; a measured profile says when it was made and with which software")
    return Head(
        name=name,
        model=table.text("model"),
        batch=table.whole("batch"),
        device=table.text("device"),
        provenance=provenance,
        date=table.date("date") if "date" in table else None,
        software=table.child("software").texts() if "software" in table else {},
    )


def _provenance(table: Table) -> Provenance:
    table.only(_PROVENANCE_KEYS)
    kind = table.text("kind")
    if kind not in _KINDS:
        raise table.error("kind", f"must be one of {', '.join(_KINDS)}, found {short(kind)}")
    return Provenance(kind, table.text("origin"), table.text("formula"))


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
