"""The record of a simulation, and its directory: result.json, jobs.csv.gz and placements.npz.

``jobs.csv.gz`` has one row per job (JOB_COLUMNS). ``placements.npz`` has the GPUs of each job: entries
first[i]:first[i+1] of ``node`` and ``gpus`` belong to job i. If the policy preempts jobs, these are the GPUs of the
last run, and ``every_node``, ``every_gpus``, ``every_begin`` and ``every_end`` have those of all runs.
"""

from __future__ import annotations

import json
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.errors import InputError
from slurm_asrpt.files import umask
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.sim.engine import Progress, Result
from slurm_asrpt.sim.metrics import bounds, over_bounds, summary
from slurm_asrpt.sim.recorder import Placements, Recorder, simulate_recorded
from slurm_asrpt.sim.scenario import Scenario, scenario_of
from slurm_asrpt.sim.workload import Workload

KIND, SCHEMA = "asrpt-sim result", 1
RESULT, JOBS, PLACEMENTS = "result.json", "jobs.csv.gz", "placements.npz"
FILES = frozenset({RESULT, JOBS, PLACEMENTS})

JOB_COLUMNS: Mapping[str, str] = {
    "job": "row in the simulated workload, from 0, in the order of submission",
    "submit_s": "submission, seconds since the first simulated job",
    "start_s": "start, empty for a job that never started",
    "end_s": "end, empty for a job that has not ended",
    "alpha_s": "seconds per iteration in its placement",
    "best_alpha_s": "seconds per iteration in its best placement, empty if it does not fit the cluster",
    "iterations": "iterations that it really runs",
    "predicted": "predicted iterations; 0 for an unseen group",
    "gpus": "GPUs",
    "nodes": "servers used, 0 if never started",
    "profile": "model",
    "user": "user, as in the trace",
    "group": "recurrence group",
    "why": "the last reason for its wait, empty if the policy gave none",
}
_TEXT = ("profile", "user", "group", "why")
_WHOLE = ("job", "gpus", "nodes")


@dataclass(frozen=True)
class Record:
    """The results of each job, for tables and plots. meta: the content of result.json."""

    meta: Mapping[str, Any]
    jobs: pd.DataFrame
    placements: Placements

    @property
    def scenario(self) -> Scenario:
        return scenario_of(self.meta["scenario"])

    @property
    def interrupted(self) -> bool:
        return bool(self.meta["interrupted"])


def run_scenario(scenario: Scenario, progress: Progress | None = None) -> Record:
    """Simulate. Ctrl-C returns a record of the part that is done. Raises InputError."""
    workload = scenario.workload()
    recorder = Recorder(workload.cluster.nodes)
    began = time.perf_counter()
    result = simulate_recorded(scenario.spec, workload, recorder, progress)
    return record_of(scenario, workload, result, recorder, time.perf_counter() - began)


def record_of(
    scenario: Scenario, workload: Workload, result: Result, recorder: Recorder, seconds: float = 0.0
) -> Record:
    """The record of a simulation. seconds: how long it took."""
    figures, lower = summary(result, workload.cluster), bounds(result.table, workload.cluster)
    meta = {
        "kind": KIND,
        "schema": SCHEMA,
        "scenario": scenario.document(),
        "versions": _versions(),
        "notes": dict(workload.notes),
        "summary": {**figures, **over_bounds(result, lower, workload.cluster)},
        "bounds": lower,
        "clock_s": result.clock,
        "events": result.events,
        "interrupted": result.interrupted,
        "seconds": round(seconds, 3),
    }
    nodes = workload.cluster.nodes
    alphas = result.table.best_alphas(nodes, workload.cluster.fabric)
    jobs = _jobs(result, alphas, recorder.reasons(len(result.table)))
    return Record(_plain(meta), jobs, recorder.placements(len(result.table)))


def _jobs(result: Result, best: NDArray[np.float64], why: Sequence[str]) -> pd.DataFrame:
    table = result.table
    return pd.DataFrame(
        {
            "job": np.arange(len(table)),
            "submit_s": table.submit,
            "start_s": result.start,
            "end_s": np.where(result.end <= result.clock, result.end, np.nan),
            "alpha_s": result.alpha,
            "best_alpha_s": best,
            "iterations": table.iterations,
            "predicted": table.predicted,
            "gpus": table.gpus,
            "nodes": result.nodes,
            "profile": _labels([profile.name for profile in table.profiles], table.profile),
            "user": list(table.users) or "",
            "group": list(table.groups) or "",
            "why": _labels(*_coded(why)),
        }
    )


def _labels(names: Sequence[str], codes: NDArray[np.int64]) -> Any:
    """names[codes] without one string per row. Several profiles may share a name (all jobs without a profile do)."""
    unique = list(dict.fromkeys(names))
    place = np.array([unique.index(name) for name in names], dtype=np.int64)
    return pd.Categorical.from_codes(place[codes], dtype=pd.CategoricalDtype(unique))


def _coded(words: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    number = {word: place for place, word in enumerate(dict.fromkeys(words))}
    return list(number), np.array([number[word] for word in words], dtype=np.int64)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "numpy": np.__version__, "pandas": pd.__version__}
    try:
        return {"slurm-asrpt": version("slurm-asrpt"), **found}
    except PackageNotFoundError:
        return found


def _plain(value: Any) -> Any:
    """JSON values; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


def check_target(folder: Path) -> None:
    """Raises InputError unless the directory is missing, empty, or has a result that may be replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: not a directory; choose another with -o")
    inside = {path.name for path in folder.iterdir()}
    if inside and (RESULT not in inside or not inside <= FILES):
        strange = sorted(inside - FILES) or sorted(inside)
        raise InputError(f"{folder}: contains other files ({strange[0]}); choose another directory with -o")
    if inside:
        read_meta(folder)


def save(record: Record, folder: Path) -> None:
    """Write a result directory, all or nothing, and replace an earlier result there. Raises InputError, OSError."""
    check_target(folder)
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = _beside(folder, "")
    try:
        draft.chmod(0o777 & ~umask())
        _write_jobs(record.jobs, draft / JOBS)
        np.savez_compressed(draft / PLACEMENTS, allow_pickle=False, **record.placements.columns)
        (draft / RESULT).write_text(json.dumps(record.meta, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        _replace(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _beside(folder: Path, kind: str) -> Path:
    """A temporary directory there. Raises OSError with the name of ``folder``, because nobody knows the other."""
    try:
        return Path(tempfile.mkdtemp(prefix=f".{folder.name}.{kind}", dir=folder.parent))
    except OSError as error:
        error.filename = str(folder)
        raise


def _write_jobs(jobs: pd.DataFrame, path: Path) -> None:
    how = {"method": "gzip", "compresslevel": 3, "mtime": 0}  # the same jobs give the same file
    jobs.to_csv(path, index=False, compression=how, encoding="utf-8", errors="backslashreplace", lineterminator="\n")


def _replace(draft: Path, folder: Path) -> None:
    """Move ``draft`` to ``folder``. Not atomic if a result is there: rename cannot replace a non-empty directory."""
    if not folder.exists() or not any(folder.iterdir()):
        draft.rename(folder)
        return
    old = _beside(folder, "old.")
    try:
        folder.rename(old / folder.name)
        draft.rename(folder)
    except OSError:
        if not folder.exists():
            (old / folder.name).rename(folder)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def read_meta(folder: Path) -> dict[str, Any]:
    """The content of result.json. Raises InputError if the directory is not a result."""
    path = folder / RESULT
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{folder}: no result there ({error.strerror}: {RESULT})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON") from error
    if not isinstance(meta, dict) or meta.get("kind") != KIND:
        raise InputError(f"{path}: not a result of asrpt-sim")
    if meta.get("schema") != SCHEMA:
        raise InputError(f"{path}: written by another release (schema {meta.get('schema')}); run the simulation again")
    return meta


def load(folder: Path) -> Record:
    """Read a result directory. Raises InputError if it is not a result, or damaged."""
    meta = read_meta(folder)
    return Record(
        meta,
        _guarded(folder / JOBS, _read_jobs),
        _guarded(folder / PLACEMENTS, lambda path: _read_placements(path)),
    )


def _guarded(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except (OSError, EOFError, ValueError, KeyError, LookupError) as error:
        raise InputError(f"{path}: cannot be read; run the simulation again") from error


def _read_jobs(path: Path) -> pd.DataFrame:
    kinds = {name: "str" if name in _TEXT else "int64" if name in _WHOLE else "float64" for name in JOB_COLUMNS}
    kinds.update(profile="category", why="category")
    # a user may be named "NA": only numbers can be missing
    missing = {name: [""] for name, kind in kinds.items() if kind == "float64"}
    jobs = pd.read_csv(path, dtype=kinds, keep_default_na=False, na_values=missing, lineterminator="\n")
    if list(jobs) != list(JOB_COLUMNS):
        raise ValueError("unexpected columns")
    return jobs


def _read_placements(path: Path) -> Placements:
    with np.load(path, allow_pickle=False) as columns:
        return Placements.of_columns(columns)


def find_results(folder: Path) -> list[Path]:
    """The result directories at a path: itself, or one or two levels below (compare, sweep). Raises InputError."""
    if (folder / RESULT).exists():
        return [folder]
    found = sorted(path.parent for depth in ("*", "cells/*") for path in folder.glob(f"{depth}/{RESULT}"))
    found = [place for place in found if not place.name.startswith(".")]  # drafts of killed simulations
    if not found:
        raise InputError(f"{folder}: no results there; specify directories written by asrpt-sim run, compare or sweep")
    return found
