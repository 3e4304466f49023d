"""Many simulations in one directory: sweep.json lists them, cells/NAME has each result, cells/NAME.error the reason of
a failure.

A cell is a scenario, and its name contains a digest of it. So finished cells are not run again, and the results do not
depend on the backend: this process, joblib, a Dask worker or a task of a Slurm job array.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import AsrptError, InputError, one_line
from slurm_asrpt.files import replace_file
from slurm_asrpt.sim.engine import Progress
from slurm_asrpt.sim.results import RESULT, read_meta, run_scenario, save
from slurm_asrpt.sim.scenario import PolicySpec, Scenario, make_scenario, scenario_of, seconds

INDEX, CELLS = "sweep.json", "cells"
KIND, SCHEMA = "asrpt-sim sweep", 1
MOST_CELLS = 100_000
_CLUSTER = {
    "servers": ("servers", int),
    "gpus-per-server": ("gpus", int),
    "nic": ("nic_gbit", float),
    "intra": ("intra_gbyte", float),
    "contention": ("contention", float),
}
_OPTIONS = {
    "load": ("load", float),
    "single-gpu": ("single_gpu", float),
    "jobs": ("jobs", int),
    "history": ("history", float),
    "predictor": ("predictor", str),
    "retrain": ("retrain_s", seconds),
    "models": ("models", str),
    "seed": ("seed", int),
    "max-gpus-per-user": ("max_gpus_per_user", int),
    "consent": ("consent", float),
}
GRID_KEYS = (*_CLUSTER, *_OPTIONS)
_MAY_BE_NONE = ("load", "single-gpu", "jobs", "contention", "max-gpus-per-user")

Grid = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Sweep:
    """The cells of one sweep. keys: the keys of the grid that vary, and always "policy"."""

    cells: tuple[Scenario, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Collected:
    """rows: a dictionary per finished cell (keys, then figures); failed: reasons by cell; missing: not run yet."""

    rows: list[dict[str, Any]]
    failed: dict[str, str]
    missing: list[str]
    versions: frozenset[str]


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Parse ``load=0.8,1.1`` and ``seed=0..4`` into values by key. Raises InputError that names the key or value."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or key not in GRID_KEYS:
            raise InputError(f"--grid {text}: write KEY=VALUE,VALUE...; keys: {', '.join(GRID_KEYS)}")
        if key in grid:
            raise InputError(f"--grid {text}: {key} is given twice")
        found = [value for word in values.split(",") for value in _values(key, word.strip(), text)]
        grid[key] = list(dict.fromkeys(found))
    return grid


def _values(key: str, word: str, text: str) -> list[Any]:
    kind: Any = (_CLUSTER.get(key) or _OPTIONS[key])[1]
    try:
        if kind is int and ".." in word:
            first, last = (int(end) for end in word.split("..", 1))
            if not 0 <= last - first < MOST_CELLS:
                raise ValueError
            return list(range(first, last + 1))
        if word == "none" and key in _MAY_BE_NONE:
            return [None]
        if not word:
            raise ValueError
        return [kind(word)]
    except ValueError:
        raise InputError(f"--grid {text}: {word!r} is not a value of {key}") from None


def make_sweep(base: Scenario, policies: Sequence[PolicySpec], grid: Grid) -> Sweep:
    """All combinations, policies innermost, because a process caches its last workload. Raises InputError."""
    count = len(policies)
    for values in grid.values():
        count *= len(values)
    if count > MOST_CELLS:
        raise InputError(f"the sweep has {count} cells; the maximum is {MOST_CELLS}")
    cells = [
        _changed(base, dict(zip(grid, values, strict=True))).with_policy(policy)
        for values in itertools.product(*grid.values())
        for policy in policies
    ]
    keys = ("policy", *(key for key, values in grid.items() if len(values) > 1))
    return Sweep(tuple(cells), keys)


def _changed(base: Scenario, values: Mapping[str, Any]) -> Scenario:
    cluster = {_CLUSTER[key][0]: value for key, value in values.items() if key in _CLUSTER}
    options = {_OPTIONS[key][0]: value for key, value in values.items() if key in _OPTIONS}
    checked = make_scenario("pai-like", None, {**asdict(base.cluster), **cluster}, {**asdict(base.options), **options})
    return replace(base, cluster=checked.cluster, options=checked.options)


def value_of(scenario: Scenario, key: str) -> Any:
    """The value of a scenario for a key of a grid, or for ``policy``."""
    if key == "policy":
        return scenario.policy
    part, name = (scenario.cluster, _CLUSTER[key][0]) if key in _CLUSTER else (scenario.options, _OPTIONS[key][0])
    return getattr(part, name)


def varying(scenarios: Sequence[Scenario]) -> list[str]:
    """The keys of a grid in which the scenarios differ."""
    return [key for key in GRID_KEYS if len({value_of(scenario, key) for scenario in scenarios}) > 1]


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Prepare the directory; existing results are kept. Raises InputError if it is not that of a sweep."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / INDEX).exists())):
        raise InputError(f"{folder}: contains files that are not from a sweep; choose another directory with -o")
    if (folder / INDEX).exists():
        read_sweep(folder)
    (folder / CELLS).mkdir(parents=True, exist_ok=True)
    document = {"kind": KIND, "schema": SCHEMA, "keys": sweep.keys, "cells": [cell.document() for cell in sweep.cells]}
    replace_file(folder / INDEX, (json.dumps(document, indent=1) + "\n").encode(), mode=None)


def read_sweep(folder: Path) -> Sweep:
    """Read sweep.json. Raises InputError if the directory is not that of a sweep."""
    path = folder / INDEX
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{folder}: no sweep there ({error.strerror}: {INDEX})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON") from error
    if not isinstance(document, dict) or document.get("kind") != KIND or document.get("schema") != SCHEMA:
        raise InputError(f"{path}: not a sweep of this release of asrpt-sim")
    return Sweep(tuple(scenario_of(cell) for cell in document["cells"]), tuple(document["keys"]))


def finished(folder: Path, cell: Scenario) -> bool:
    """Whether the cell has a complete result of exactly this scenario."""
    place = folder / CELLS / cell.name
    if not (place / RESULT).exists():
        return False
    try:
        meta = read_meta(place)
        return scenario_of(meta["scenario"]) == cell and not meta["interrupted"]
    except (InputError, KeyError):
        return False


def to_run(folder: Path, sweep: Sweep) -> list[Scenario]:
    """The cells without a complete result: new, failed or interrupted."""
    return [cell for cell in sweep.cells if not finished(folder, cell)]


def run_cell(folder: Path, cell: Scenario, launcher: int | None = None, progress: Progress | None = None) -> str:
    """Run one cell and write its result. Returns "", or the reason for its failure in one line (also in NAME.error).

    launcher: the process that started the sweep. Only this process handles Ctrl-C. Raises KeyboardInterrupt.
    """
    if launcher not in (None, os.getpid()) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    note = folder / CELLS / f"{cell.name}.error"
    try:
        record = run_scenario(cell, progress)
        if record.interrupted:
            raise KeyboardInterrupt
        save(record, folder / CELLS / cell.name)
        note.unlink(missing_ok=True)
    except Exception as error:  # other cells continue; failures are reported at the end
        text = one_line(error) if isinstance(error, AsrptError) else f"{type(error).__name__}: {one_line(error)}"
        where = "" if isinstance(error, AsrptError) else traceback.format_exc()
        with contextlib.suppress(OSError):
            replace_file(note, f"{text}\n{where}".encode(errors="backslashreplace"), mode=None)
        return text
    return ""


def collect(folder: Path, sweep: Sweep) -> Collected:
    """The results of all cells."""
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    missing: list[str] = []
    versions: set[str] = set()
    for cell in sweep.cells:
        note = folder / CELLS / f"{cell.name}.error"
        if finished(folder, cell):
            meta = read_meta(folder / CELLS / cell.name)
            rows.append({"cell": cell.name, **{key: value_of(cell, key) for key in sweep.keys}, **meta["summary"]})
            versions.add(str(meta["versions"].get("slurm-asrpt")))
        elif note.exists():
            failed[cell.name] = note.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        else:
            missing.append(cell.name)
    return Collected(rows, failed, missing, frozenset(versions))


def describe(cell: Scenario, keys: Sequence[str]) -> str:
    """A cell's name in reports: ``asrpt:tau=0 load=1.1``."""
    return " ".join([cell.policy, *(f"{key}={_short(value_of(cell, key))}" for key in keys if key != "policy")])


def _short(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str]) -> int:
    """A task of a Slurm job array: FOLDER LIST NUMBER runs the cell of that number. Returns 1 if it fails, else 0.

    Run as ``python -m slurm_asrpt.sim.sweep``.
    """
    folder, listed, number = Path(arguments[0]), Path(arguments[1]), int(arguments[2])
    name = json.loads(listed.read_text(encoding="utf-8"))[number]
    cell = next(cell for cell in read_sweep(folder).cells if cell.name == name)
    error = "" if finished(folder, cell) else run_cell(folder, cell)
    print(error or f"{name}: done", file=sys.stderr)
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
