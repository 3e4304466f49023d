"""Profile files of either kind, cut into stages or as blocks, in TOML or JSON."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.errors import InputError
from slurm_asrpt.files import read_config
from slurm_asrpt.profile.blocks import UncutFile, format_uncut, read_uncut
from slurm_asrpt.profile.cut import cut_file
from slurm_asrpt.profile.schema import (
    LIBRARY,
    UNCUT,
    ProfileFile,
    find_profile,
    format_profile,
    read_stages,
    read_text,
)
from slurm_asrpt.profile.shape import cut_named, split_name
from slurm_asrpt.profile.toml_table import Table, read_toml

Document = ProfileFile | UncutFile


def load_document(name_or_path: str, folders: Sequence[Path]) -> Document:
    """Load by path (it has a ``/`` or a file suffix) or by name. Raises InputError."""
    given = Path(name_or_path)
    if "/" in name_or_path or given.suffix in (".toml", ".json"):
        return parse_document(_text(given), str(given))
    return _named(name_or_path, folders, _text)


def _text(path: Path) -> str:
    return read_text(path, path.read_bytes)


def load_named(name: str, folders: Sequence[Path]) -> JobProfile | UncutFile:
    """Load by name only, for a daemon that passes on names from users: see ``find_profile``. The result has that
    name.

    Raises InputError, also for a site's file that other users could have written: it affects everybody's jobs.
    """

    def read(path: Path) -> str:
        return read_text(path, lambda: read_config(path))

    found = _named(name, folders, read)
    return found if isinstance(found, UncutFile) else dataclasses.replace(found.profile, name=name)


def _named(name: str, folders: Sequence[Path], read: Callable[[Path], str]) -> Document:
    """The profile of that name; or, for a name such as llama-3-8b-tp4dp2, the model before the shape, cut into that
    shape."""
    try:
        path = find_profile(name, folders)
    except InputError as unknown:
        model, shape = split_name(name)
        if not shape:
            raise
        return _cut_named(name, model, shape, folders, read, unknown)
    return _parsed(path, read)


def _parsed(path: Path, read: Callable[[Path], str]) -> Document:
    return _shipped(path) if path.parent in (LIBRARY, UNCUT) else parse_document(read(path), str(path))


@cache
def _shipped(path: Path) -> Document:
    """Of a file that does not change while a process runs."""
    return parse_document(_text(path), str(path))


def _cut_named(
    name: str, model: str, shape: str, folders: Sequence[Path], read: Callable[[Path], str], unknown: InputError
) -> ProfileFile:
    try:
        path = find_profile(model, folders)
    except InputError:
        raise unknown from None
    document = _parsed(path, read)
    if isinstance(document, ProfileFile):
        raise unknown
    try:
        return cut_file(document, cut_named(document, shape), name)
    except ValueError as error:
        raise InputError(f"{name}: {error}; choose another shape") from None


def load_uncut(name_or_path: str, folders: Sequence[Path]) -> UncutFile:
    """As ``load_document``. Raises InputError, also for a profile that is already cut."""
    document = load_document(name_or_path, folders)
    if isinstance(document, ProfileFile):
        raise InputError(
            f"{name_or_path}: is already cut into stages; specify a model as blocks, see asrpt-profile list"
        )
    return document


def parse_document(text: str, source: str) -> Document:
    """Parse TOML, or JSON if the text begins with a brace. Raises InputError."""
    table = _read_json(text, source) if text.lstrip().startswith("{") else read_toml(text, source)
    return read_uncut(table) if "block" in table and "stage" not in table else read_stages(table)


def _read_json(text: str, source: str) -> Table:
    try:
        return Table(json.loads(text), source, "", {})
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: invalid JSON: {error}; fix that line") from error


def format_document(document: Document) -> str:
    """As TOML."""
    return format_uncut(document) if isinstance(document, UncutFile) else format_profile(document)


def to_values(document: Document) -> dict[str, Any]:
    """As JSON values, with the keys of the TOML file."""
    values: dict[str, Any] = tomllib.loads(format_document(document))
    return {key: value.isoformat() if key == "date" else value for key, value in values.items()}


def to_json(document: Document) -> str:
    return json.dumps(to_values(document), indent=1, ensure_ascii=False) + "\n"


def differences(one: Document, two: Document) -> list[tuple[str, Any, Any]]:
    """(key such as ``block 3.forward_s``, value in one, value in two; None if missing) of all that differs."""
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
