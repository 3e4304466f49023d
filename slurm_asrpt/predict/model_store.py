"""Models on disk: ``<state>/models/<time>/`` with model.json, predictions.txt and communication.txt; the link
``current`` names the active one.

A model is data, not code: nothing here is unpickled. A predictor's whole output is a table, so the table is the model.
A model that another user could have written, or whose checksum does not match, is refused and changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import AsrptError, InputError, printable
from slurm_asrpt.files import (
    check_trusted_folder,
    give_to_folder_owner,
    read_trusted,
    replace_file,
    sync_folder,
    trusted_owners,
)
from slurm_asrpt.hook.table import renewed

FORMAT, FORMER, OLDEST = 6, 5, 4
"""FORMER: with a table in the previous format, which the hook still reads, so that an upgrade has a model to compare
with, and to go back to. OLDEST: the format before; it is converted to FORMER's."""
KEPT_OTHERS = 3
"""Number of refused or damaged models that are kept for inspection."""
_META, _DATA, _BELIEFS, _CURRENT = "model.json", "predictions.txt", "communication.txt", "current"


class ModelError(AsrptError):
    """A stored model is missing, damaged, or could have been written by others.

    trouble and remedy: the two halves of the message.
    """

    def __init__(self, trouble: str, remedy: str) -> None:
        super().__init__(f"{trouble}; {remedy}")
        self.trouble, self.remedy = trouble, remedy


@dataclass(frozen=True)
class ModelInfo:
    """Where a model comes from.

    created: UTC. rows, groups: number of runs and groups it was trained on. trained_until: end of the latest of
    those runs, seconds since the epoch. error: mean absolute error over mean iterations on held-out runs, None if
    not evaluated. refused: why it was not activated; empty if it was good enough. sha256: of all other fields, and
    of the predictions.
    """

    created: str
    predictor: str
    seed: int
    trees: int
    rows: int
    groups: int
    trained_until: int
    error: float | None = None
    refused: str = ""
    sha256: str = ""
    format: int = FORMAT


@dataclass(frozen=True)
class Model:
    """A verified model. data: the bytes of its table, in a format that the hook reads."""

    name: str
    info: ModelInfo
    data: bytes


@dataclass(frozen=True)
class ListedModel:
    """A model folder as found. trouble: why it cannot be used; empty if it can."""

    name: str
    active: bool
    info: ModelInfo | None
    trouble: str


def save_model(models: Path, data: bytes, info: ModelInfo, now: float, beliefs: bytes = b"") -> Model:
    """Store a model beside the others; the active one does not change. Raises OSError.

    beliefs: what it knows about the communication of jobs (``predict.sensitivity``), with a checksum of its own, since
    earlier releases have no such file.
    """
    models.mkdir(mode=0o700, parents=True, exist_ok=True)
    give_to_folder_owner(models)
    created = datetime.fromtimestamp(now, UTC)
    info = replace(info, created=created.isoformat())
    info = replace(info, sha256=check_sum(info, data))
    folder = models / created.strftime("%Y%m%dT%H%M%S.%fZ")
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=models))
    try:
        replace_file(draft / _DATA, data, 0o600)
        replace_file(draft / _META, json.dumps(asdict(info), indent=2).encode(), 0o600)
        replace_file(draft / _BELIEFS, beliefs, 0o600)
        for path in (draft, *draft.iterdir()):
            give_to_folder_owner(path)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return Model(folder.name, info, data)


def load_model(models: Path, name: str) -> Model:
    """A stored model, verified. Raises ModelError, and InputError if there is no such model."""
    info = load_info(models, name)
    with _readable(models / name):
        data = read_trusted(models / name / _DATA, _owners(models))
        if check_sum(info, data) != info.sha256:
            raise ModelError(f"{models / name}: its checksum does not match", _REMEDY)
        return Model(name, info, _table_of(info, data))


def load_info(models: Path, name: str) -> ModelInfo:
    """The description of a stored model, without its table. Raises as ``load_model``; the checksum is not checked."""
    if not _is_name(name) or not (models / name).is_dir():
        raise InputError(f"{printable(name)}: no such model; asrpt-admin models list shows them")
    with _readable(models / name):
        owners = _owners(models)
        check_trusted_folder(models / name, owners)
        raw: dict[str, Any] = json.loads(read_trusted(models / name / _META, owners))
        return ModelInfo(**raw)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """The errors of the block, which reads a model's folder, as ModelError."""
    try:
        yield
    except OSError as error:
        remedy = "fix its owner and mode" if isinstance(error, PermissionError) else _REMEDY
        raise ModelError(f"{folder}: refused: {error.strerror} ({error.filename})", remedy) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(f"{folder}: its description cannot be read ({error})", _REMEDY) from error


def load_beliefs(models: Path, name: str) -> bytes:
    """What a model knows about the communication of jobs; nothing if an earlier release made it. Raises ModelError."""
    try:
        owners = _owners(models)
        check_trusted_folder(models / name, owners)
        return read_trusted(models / name / _BELIEFS, owners)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ModelError(f"{models / name}: refused: {error.strerror} ({error.filename})", "fix its owner") from error


def _table_of(info: ModelInfo, data: bytes) -> bytes:
    """Raises ValueError for a model of another release that this one cannot read."""
    if not OLDEST <= info.format <= FORMAT:
        raise ValueError(f"format {info.format}, this release reads {OLDEST} to {FORMAT}")
    return renewed(data) if info.format == OLDEST else data


def check_sum(info: ModelInfo, data: bytes) -> str:
    """SHA-256 of the predictions and their metadata."""
    said = json.dumps(asdict(replace(info, sha256="")), sort_keys=True).encode()
    return hashlib.sha256(said + b"\n" + data).hexdigest()


_REMEDY = "asrpt-admin retrain makes a new one, models rollback takes the last good one"


def _owners(models: Path) -> set[int]:
    """The users who may write models. Raises OSError if others can."""
    owners = trusted_owners(models.parent)
    check_trusted_folder(models, owners)
    return owners


def list_models(models: Path) -> list[ListedModel]:
    """All models, oldest first. Raises OSError if the folder cannot be read."""
    active = active_name(models)
    return [_listed(models, name, name == active) for name in _names(models)]


def _listed(models: Path, name: str, active: bool) -> ListedModel:
    try:
        return ListedModel(name, active, load_model(models, name).info, "")
    except ModelError as error:
        return ListedModel(
            name, active, None, str(error).removeprefix(f"{models / name}: ").removesuffix(f"; {_REMEDY}")
        )


def usable(models: Path, name: str) -> list[str]:
    """A list of the name, if that model can be used; else an empty list."""
    return [m.name for m in list_models(models) if m.name == name and m.info]


def active_name(models: Path) -> str:
    """The name of the active model; "" if there is none."""
    link = models / _CURRENT
    return os.readlink(link) if link.is_symlink() and _is_name(os.readlink(link)) else ""


def point_at(models: Path, name: str) -> None:
    """Make a model the active one: create a new link and rename it over ``current``. Raises OSError."""
    link = models / f".{_CURRENT}-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    link.replace(models / _CURRENT)
    sync_folder(models)


def prune_models(models: Path, keep: int) -> None:
    """Remove all models except the ``keep`` latest good ones and a few of the others, and leftovers of a crash.

    The active model is always kept.
    """
    for draft in models.glob(".draft-*"):
        shutil.rmtree(draft)
    found = list_models(models)
    good = [m for m in found if m.info and not m.info.refused]
    kept = {m.name for m in (*good[-keep:], *[m for m in found if m not in good][-KEPT_OTHERS:])}
    for listed in found:
        if listed.name not in kept and not listed.active:
            shutil.rmtree(models / listed.name)


def _names(models: Path) -> list[str]:
    if not models.is_dir():
        return []
    return sorted(p.name for p in models.iterdir() if p.is_dir() and not p.is_symlink() and _is_name(p.name))


def _is_name(name: str) -> bool:
    return name not in ("", _CURRENT) and "/" not in name and not name.startswith(".")
