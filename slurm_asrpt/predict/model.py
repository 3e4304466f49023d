"""Models on disk: ``<state>/models/<time>/`` with model.json and predictions.txt, and ``current`` pointing at one.

A model is data, not code: nothing here is unpickled. The finite table is the forest's whole output, so it is the model.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import AsrptError
from slurm_asrpt.files import replace_file, sync_folder
from slurm_asrpt.predict.table import Entry, read_table, render_table

FORMAT = 2
_META, _DATA, _CURRENT = "model.json", "predictions.txt", "current"


class ModelError(AsrptError):
    """A stored model is missing or damaged."""


@dataclass(frozen=True)
class ModelInfo:
    """Where a model comes from."""

    created: str
    seed: int
    trees: int
    rows: int
    groups: int
    sha256: str = ""
    format: int = FORMAT


def save_model(models: Path, predictions: Mapping[str, Entry], seed: int, trees: int, rows: int, now: float) -> Path:
    """Store a model and make it current, in that order. Returns its folder. Raises OSError."""
    models.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = render_table(predictions)
    created = datetime.fromtimestamp(now, UTC)
    info = ModelInfo(created.isoformat(), seed, trees, rows, len(predictions), hashlib.sha256(data).hexdigest())
    folder = models / created.strftime("%Y%m%dT%H%M%S.%fZ")
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=models))
    try:
        replace_file(draft / _DATA, data, 0o600)
        replace_file(draft / _META, json.dumps(asdict(info), indent=2).encode(), 0o600)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    _point(models, folder.name)
    return folder


def _point(models: Path, name: str) -> None:
    """Switch ``current``: a new link beside it, renamed over it."""
    link = models / f".{_CURRENT}-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    link.replace(models / _CURRENT)
    sync_folder(models)


def load_model(folder: Path) -> tuple[ModelInfo, dict[str, Entry]]:
    """A stored model (``models/current`` or a folder of a certain time), verified. Raises ModelError."""
    try:
        raw: dict[str, Any] = json.loads((folder / _META).read_bytes())
        info = ModelInfo(**raw)
        data = (folder / _DATA).read_bytes()
        if info.format != FORMAT or hashlib.sha256(data).hexdigest() != info.sha256:
            raise ModelError(f"{folder}: its check sum does not fit; run asrpt-admin retrain")
        return info, read_table(folder / _DATA)
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{folder}: no usable model ({error}); run asrpt-admin retrain") from error


def prune_models(models: Path, keep: int) -> None:
    """Remove all but the ``keep`` latest models, never the current one, and what a crash left half-made."""
    for draft in models.glob(".draft-*"):
        shutil.rmtree(draft)
    current = os.readlink(models / _CURRENT) if (models / _CURRENT).is_symlink() else ""
    folders = sorted(p for p in models.iterdir() if p.is_dir() and not p.is_symlink() and not p.name.startswith("."))
    for folder in folders[:-keep]:
        if folder.name != current:
            shutil.rmtree(folder)
