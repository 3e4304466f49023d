"""Profile files of either kind, cut into stages or as blocks, as TOML or JSON."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import InputError
from slurm_asrpt.profile.blocks import UncutFile, format_uncut, read_uncut
from slurm_asrpt.profile.schema import ProfileFile, find_profile, format_profile, read_stages, read_text
from slurm_asrpt.profile.tomltable import Table, read_toml

Document = ProfileFile | UncutFile


def load_document(name_or_path: str, folders: Sequence[Path]) -> Document:
    """By path (it has a ``/`` or ends as a file does) or by name. Raises InputError."""
    given = Path(name_or_path)
    path = given if "/" in name_or_path or given.suffix in (".toml", ".json") else find_profile(name_or_path, folders)
    return parse_document(read_text(path, path.read_bytes), str(path))


def load_uncut(name_or_path: str, folders: Sequence[Path]) -> UncutFile:
    """As ``load_document``. Raises InputError, also for one that is cut already."""
    document = load_document(name_or_path, folders)
    if isinstance(document, ProfileFile):
        raise InputError(f"{name_or_path}: is cut into stages already; name a model as blocks, see asrpt-profile list")
    return document


def parse_document(text: str, source: str) -> Document:
    """TOML, or JSON where it begins with a brace. Raises InputError."""
    table = _read_json(text, source) if text.lstrip().startswith("{") else read_toml(text, source)
    return read_uncut(table) if "block" in table and "stage" not in table else read_stages(table)


def _read_json(text: str, source: str) -> Table:
    try:
        return Table(json.loads(text), source, "", {})
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: not valid JSON ({error}); mend that line") from error


def format_document(document: Document, comment: str = "") -> str:
    """As TOML."""
    return format_uncut(document, comment) if isinstance(document, UncutFile) else format_profile(document, comment)


def to_values(document: Document) -> dict[str, Any]:
    """As JSON has it: the keys of the TOML file."""
    values: dict[str, Any] = tomllib.loads(format_document(document))
    return {key: value.isoformat() if key == "date" else value for key, value in values.items()}


def to_json(document: Document) -> str:
    return json.dumps(to_values(document), indent=1, ensure_ascii=False) + "\n"


def differences(one: Document, two: Document) -> list[tuple[str, Any, Any]]:
    """(key such as ``block 3.forward_s``, its value in one, in two; None where it is not there) of all that differs."""
    before, after = dict(_flat(to_values(one))), dict(_flat(to_values(two)))
    keys = [*before, *(key for key in after if key not in before)]
    return [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def _flat(values: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{place}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, entry in enumerate(value, 1):
                yield from _flat(entry, f"{place}{key} {number}.")
        else:
            yield place + key, value
