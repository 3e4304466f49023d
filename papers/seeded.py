"""Runs simulations over several seeds, keeps their results in a directory, and computes statistics over the seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Protocol, TypeVar

from slurm_asrpt.files import replace_file

_SIMULATED = ("core", "sim", "predict", "profile", "traces")
"""The packages of slurm_asrpt that simulations run."""
_SHOWS = ("__init__", "__main__", "claims", "command", "evidence", "introduction", "page", "plots", "report", "seeded")
"""The modules of this package that only show results."""
_PLAYS = ("fig5_lab",)
"""Those that play jobs on labs; their results are kept apart."""
OnProgress = Callable[[int, int, str], None]
"""Called with the simulations done, all simulations, and the name of the last one."""


@dataclass(frozen=True)
class Kept:
    """JSON documents by name. folder: keeps them between runs; None: they are not kept."""

    folder: Path | None = None

    def load(self, name: str) -> Any:
        """A document as it was stored; None if there is none, or it cannot be read."""
        if self.folder is None:
            return None
        try:
            return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def put(self, name: str, document: object) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / f"{name}.json", json.dumps(document, indent=1).encode(), mode=None)


def digest(what: str) -> str:
    """The name of the document about ``what``."""
    return hashlib.sha256(what.encode()).hexdigest()[:16]


@cache
def code_version() -> str:
    """A digest of the code that simulations run: results of other code are not to be mixed with those of this."""
    papers = Path(__file__).parent
    sources = [path for part in _SIMULATED for path in sorted((papers.parent / "slurm_asrpt" / part).rglob("*.[pt]*"))]
    sources += [path for path in sorted(papers.rglob("*.py")) if path.stem not in (*_SHOWS, *_PLAYS)]
    return digest("".join(path.read_text(encoding="utf-8") for path in sources if path.suffix in (".py", ".toml")))


class Simulated(Hashable, Protocol):
    """One simulation without its seed; its ``repr`` identifies it."""

    @property
    def label(self) -> str:
        """Its name in the progress bar."""

    def measure(self, seed: int) -> Any:
        """Run it: the results, as JSON values."""


Cell = TypeVar("Cell", bound=Simulated)


@dataclass(frozen=True)
class Seeds:
    """The seeds, the number of processes, and where results are kept: kept results are not computed again."""

    first: int
    number: int
    processes: int = 1
    kept: Kept = Kept()
    on_progress: OnProgress | None = None

    @property
    def text(self) -> str:
        """The options that ask for these seeds."""
        return f"--seed {self.first} --seeds {self.number}"

    def run(self, cells: Iterable[Cell]) -> Mapping[Cell, list[Any]]:
        """The results of each cell, in the order of the seeds. Ctrl-C raises KeyboardInterrupt.

        Seed by seed, so that cells that follow each other can share what they make from a seed.
        """
        from joblib import Parallel, delayed  # slow to import, and only this needs it

        unique = list(dict.fromkeys(cells))
        tasks = [(cell, seed) for seed in range(self.first, self.first + self.number) for cell in unique]
        rows = {task: self.kept.load(_name(*task)) for task in tasks}
        todo = [task for task in tasks if rows[task] is None]
        ran = Parallel(n_jobs=self.processes, return_as="generator", pre_dispatch="2*n_jobs")(
            delayed(cell.measure)(seed) for cell, seed in todo
        )
        for done, (task, row) in enumerate(zip(todo, ran, strict=True), start=len(tasks) - len(todo) + 1):
            rows[task] = row
            self.kept.put(_name(*task), row)
            if self.on_progress:
                self.on_progress(done, len(tasks), task[0].label)
        found: dict[Cell, list[Any]] = {}
        for (cell, _), row in rows.items():
            found.setdefault(cell, []).append(row)
        return found


def _name(cell: Simulated, seed: int) -> str:
    return digest(f"{cell!r} {seed}")


def spread(values: Sequence[float]) -> str:
    """``mean ± standard deviation``; of one value, only the value."""
    digits = 0 if fmean(values) >= 100 else 1
    return f"{fmean(values):,.{digits}f}{plus_minus(values, digits)}"


def deviation(values: Sequence[float]) -> float:
    """Standard deviation; 0 for one value."""
    return stdev(values) if len(values) > 1 else 0.0


def plus_minus(values: Sequence[float], digits: int, sign: str = " ± ") -> str:
    """`` ± standard deviation``; empty for one value, which has none."""
    return f"{sign}{stdev(values):,.{digits}f}" if len(values) > 1 else ""


def ratios(ours: Iterable[float], theirs: Iterable[float]) -> list[float]:
    """Ours over theirs, for each seed."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def direction(before: Sequence[float], after: Sequence[float]) -> int:
    """-1 if it falls, 1 if it rises, 0 if the mean change over the seeds is within two standard errors."""
    changes = [b - a for a, b in zip(before, after, strict=True)]
    error = deviation(changes) / len(changes) ** 0.5
    change = fmean(changes)
    return 0 if abs(change) <= 2 * error or change == 0 else 1 if change > 0 else -1
