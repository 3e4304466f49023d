"""What ran, in SQLite: one row a run, so that iterations can be learnt from it. asrptd writes, the tools read."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from slurm_asrpt.errors import EXIT_BAD_INPUT, AsrptError
from slurm_asrpt.files import check_trusted_file, trusted_owners
from slurm_asrpt.history.schema import latest_schema, migrate, schema_version
from slurm_asrpt.hook.tag import Tag

FILE_NAME = "history.sqlite"
COMPLETED = "COMPLETED"
TEACHING = frozenset({COMPLETED, "FAILED", "OUT_OF_MEMORY", "TIMEOUT"})
"""Runs that came to an end of their own: the next one is likely to end so as well (docs/decisions/0009)."""

Key = tuple[str, int]
"""Job id and start time of a run."""


class HistoryError(AsrptError):
    """The history cannot be opened, read or written."""


class DamagedError(HistoryError):
    """The file is no database, or a damaged one."""


class ReadOnlyError(HistoryError):
    """The file was opened for reading only, because it could not be written then."""


class LaterError(HistoryError):
    """The file is of a later release: to start again would not help."""

    exit_code = EXIT_BAD_INPUT


class Source(StrEnum):
    """Where a run's iterations come from."""

    REPORTED = "reported"
    ELAPSED = "elapsed"
    NONE = "none"


class Origin(StrEnum):
    """Who told of a run."""

    ASRPTD = "asrptd"
    SACCT = "sacct"
    CSV = "csv"
    TRACE = "trace"


@dataclass(frozen=True)
class Run:
    """One run of a job. Times are seconds since the epoch, 0 where unknown.

    job_id, start_time: the key; a requeued job runs again under its id, a reinstalled Slurm counts ids afresh.
    nodes: GPUs by node. alpha: seconds per iteration in the placement that the run really had.
    program: key of scripts that run the same program. features: numeric hyper-parameters by name.
    predicted_low, predicted_high: the 10-90% interval of predicted_iterations, which predicted_by (a level) answered.
    predicted_mean: what the order went by, 0 for predicted_iterations.
    reported_total: iterations that the job said it would do. origin: who told of the run.
    forecast_made: when its start was first foretold, 0: never; forecast_low, _median, _high: with 10, 50 and 90% it
    would have started by then, 0: later than could be foreseen.
    """

    job_id: str
    start_time: int
    submit_time: int = 0
    end_time: int = 0
    state: str = ""
    exit_code: int = 0
    user: str = ""
    uid: int = -1
    group_id: str = ""
    job_name: str = ""
    partition: str = ""
    gpus: int = 0
    nodes: dict[str, int] = field(default_factory=dict)
    profile: str = ""
    predicted_iterations: int = 0
    iterations: int = 0
    iterations_source: Source = Source.NONE
    alpha: float = 0.0
    program: str = ""
    features: dict[str, float] = field(default_factory=dict)
    predicted_low: int = 0
    predicted_high: int = 0
    predicted_by: str = ""
    reported_total: int = 0
    origin: Origin = Origin.ASRPTD
    forecast_made: int = 0
    forecast_low: int = 0
    forecast_median: int = 0
    forecast_high: int = 0
    predicted_mean: int = 0

    @property
    def key(self) -> Key:
        return self.job_id, self.start_time


def tagged(run: Run, tag: Tag) -> Run:
    """``run`` with what the hook said of its job."""
    return replace(
        run,
        group_id=tag.group,
        profile=tag.profile,
        program=tag.program,
        features=tag.features,
        predicted_iterations=tag.iterations,
        predicted_low=tag.low,
        predicted_high=tag.high,
        predicted_by=tag.level,
        predicted_mean=tag.mean,
    )


@dataclass(frozen=True)
class Sample:
    """What predictors learn from: one run whose group and iterations are known. Fields as in ``Run``.

    told: by Slurm, to asrptd or to sacct; else the run is from somebody's file.
    """

    group: str
    user: int
    iterations: int
    program: str = ""
    gpus: int = 0
    features: Mapping[str, float] = field(default_factory=dict)
    end_time: int = 0
    state: str = COMPLETED
    told: bool = True


_COLUMNS = tuple(f.name for f in fields(Run))
_UPSERT = (
    f"INSERT INTO runs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "  # noqa: S608 constants
    "ON CONFLICT (job_id, start_time) DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[2:])
)
_ADD = _UPSERT + f" WHERE runs.origin <> '{Origin.ASRPTD}'"
PARTS = ("", "-wal", "-shm")  # what the names of the file and its logs end with
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM runs "  # noqa: S608 constants
LARGEST_WAL_BYTES = 16 << 20
"""To which the write-ahead log is cut after a checkpoint; a long reader may let it grow beyond."""


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """SQLite's errors as ours, naming the file and the way out."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        kind = ReadOnlyError if getattr(error, "sqlite_errorname", "").startswith("SQLITE_READONLY") else HistoryError
        raise kind(f"{path}: {why}; check the folder's owner, its free space and who holds it") from error
    except sqlite3.DatabaseError as error:
        raise DamagedError(
            f"{path}: no usable history ({error}); move the file aside, a new one is made, and learning starts afresh"
        ) from error


def _refuse_later_schema(connection: sqlite3.Connection) -> None:
    version, latest = schema_version(connection), latest_schema()
    if version > latest:
        raise LaterError(f"the history has schema {version}, this release knows {latest}; update it")


def _refuse_other_schema(connection: sqlite3.Connection) -> None:
    version, latest = schema_version(connection), latest_schema()
    if version != latest:
        remedy = "start asrptd of this release" if version < latest else "update this release"
        raise HistoryError(f"the history has schema {version}, this release reads {latest}; {remedy}")


def _make(path: Path) -> None:
    """An empty file for the owner alone; root makes it in the name of the folder's owner, the daemon's."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    try:
        if os.geteuid() == 0:
            folder = path.parent.stat()
            os.fchown(descriptor, folder.st_uid, folder.st_gid)
    finally:
        os.close(descriptor)


def _refuse_others(path: Path) -> None:
    """Raises HistoryError for a file, or a log of it, that other users could have written or put there."""
    with _named(path):
        owners = trusted_owners(path.parent)
        for part in PARTS:
            file = path.with_name(path.name + part)
            if os.path.lexists(file):
                check_trusted_file(file, owners)


class History:
    """The runs in one file. Use as a context manager."""

    def __init__(self, path: Path, *, read_only: bool = False, wait_s: float = 10.0) -> None:
        """Open, and make or migrate unless ``read_only``. wait_s: for others' locks, seconds. Raises HistoryError."""
        self.path = path
        _refuse_others(path)
        uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        with _named(path):
            if not read_only:
                _make(path)
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=wait_s)
            try:
                self._prepare(read_only)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, read_only: bool) -> None:
        if read_only:
            self._db.execute("SELECT 1 FROM runs LIMIT 1")
            _refuse_other_schema(self._db)
            return
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(f"PRAGMA journal_size_limit = {LARGEST_WAL_BYTES}")
        _refuse_later_schema(self._db)
        migrate(self._db)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """All or nothing."""
        with _named(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def record(self, runs: Iterable[Run]) -> None:
        """Keep ``runs``, all or none; a run recorded before is overwritten, so repeats do no harm."""
        rows = [row_of(run) for run in runs]
        with self._writing():
            self._db.executemany(_UPSERT, rows)

    def add(self, runs: Iterable[Run]) -> None:
        """As ``record``, for runs that others tell of: what asrptd has recorded itself stays, it knows more."""
        rows = [row_of(run) for run in runs]
        with self._writing():
            self._db.executemany(_ADD, rows)

    def known(self, job_id: str, start_time: int) -> bool:
        """Whether asrptd has recorded this run."""
        query = "SELECT 1 FROM runs WHERE job_id = ? AND start_time = ? AND origin = ?"
        with _named(self.path):
            return self._db.execute(query, (job_id, start_time, Origin.ASRPTD.value)).fetchone() is not None

    def find(self, keys: Iterable[Key]) -> dict[Key, Run]:
        """The runs of these keys, as far as there are any."""
        query = _SELECT + "WHERE job_id = ? AND start_time = ?"
        with _named(self.path):
            rows = (self._db.execute(query, key).fetchone() for key in keys)
            return {run.key: run for run in (_run(row) for row in rows if row is not None)}

    def all_runs(self) -> Iterator[Run]:
        """Every run, the earliest end first; the same rows always come in the same order."""
        with _named(self.path):
            for row in self._db.execute(_SELECT + "ORDER BY end_time, job_id, start_time"):
                yield _run(row)

    def select(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The answer to a query of the house over the table ``runs``."""
        with _named(self.path):
            return self._db.execute(query, values).fetchall()

    def count(self, condition: str, values: Sequence[Any]) -> int:
        """How many runs there are for which a condition of the house holds."""
        return int(self.select(f"SELECT count(*) FROM runs WHERE {condition}", values)[0][0])  # noqa: S608 ours

    def remove(self, condition: str, values: Sequence[Any]) -> int:
        """Delete the runs for which a condition of the house holds; how many that were."""
        with self._writing():
            return self._db.execute(f"DELETE FROM runs WHERE {condition}", values).rowcount  # noqa: S608 ours

    def mark(self, name: str) -> int:
        """The time noted under a name, 0 for none."""
        with _named(self.path):
            row = self._db.execute("SELECT time FROM marks WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def set_mark(self, name: str, time: int) -> None:
        """Note a time, unless a later one stands there."""
        query = "INSERT INTO marks VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET time = max(time, excluded.time)"
        with self._writing():
            self._db.execute(query, (name, time))

    def problems(self) -> list[str]:
        """What SQLite's quick check finds wrong; nothing for a sound file."""
        with _named(self.path):
            found = [str(row[0]) for row in self._db.execute("PRAGMA quick_check(20)")]
        return [] if found == ["ok"] else found

    def checkpoint(self) -> bool:
        """Move the write-ahead log into the file and empty it; False while somebody still reads from it."""
        with _named(self.path):
            return bool(self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)

    def compact(self) -> bool:
        """Write the file anew without what was deleted, in the log neither; as ``checkpoint``."""
        with _named(self.path):
            self._db.execute("VACUUM")
        return self.checkpoint()

    def runs(self, since: int = 0, limit: int = -1) -> list[Run]:
        """Runs that ended at or after ``since``, the latest first."""
        query = _SELECT + "WHERE end_time >= ? ORDER BY end_time DESC, job_id LIMIT ?"
        with _named(self.path):
            return [_run(row) for row in self._db.execute(query, (since, limit))]

    def runs_where(self, condition: str, values: Sequence[Any], limit: int = -1) -> list[Run]:
        """The runs for which a condition of the house holds, the latest first."""
        query = f"{_SELECT}WHERE {condition} ORDER BY end_time DESC, job_id LIMIT ?"
        return [_run(row) for row in self.select(query, (*values, limit))]

    def samples(self, *, completed: bool = True) -> list[Sample]:
        """Runs whose group and iterations are known, in a fixed order; unless ``completed``, however they ended."""
        query = (
            "SELECT group_id, uid, iterations, program, gpus, features, end_time, state, origin IN (?, ?) FROM runs "
            "WHERE iterations > 0 AND length(group_id) = 16 AND (state = ? OR NOT ?) "
            "ORDER BY end_time, job_id, start_time"
        )
        with _named(self.path):
            rows = self._db.execute(query, (Origin.ASRPTD.value, Origin.SACCT.value, COMPLETED, completed))
            return [_sample(*row) for row in rows]


def _sample(
    group: str, user: int, iterations: int, program: str, gpus: int, features: str, end: int, state: str, told: int
) -> Sample:
    return Sample(group, user, iterations, program, gpus, json.loads(features), end, state, bool(told))


def features_text(features: Mapping[str, float]) -> str:
    """Hyper-parameters as they are kept."""
    return json.dumps(dict(features), sort_keys=True)


def row_of(run: Run) -> tuple[Any, ...]:
    """The values of a run as they are kept. What cannot be written as UTF-8 becomes a question mark."""
    values = {name: getattr(run, name) for name in _COLUMNS}
    values["nodes"] = json.dumps(run.nodes, sort_keys=True)
    values["features"] = features_text(run.features)
    values["iterations_source"], values["origin"] = run.iterations_source.value, run.origin.value
    return tuple(
        value.encode(errors="replace").decode() if isinstance(value, str) else value for value in values.values()
    )


def _run(row: Sequence[Any]) -> Run:
    values = dict(zip(_COLUMNS, row, strict=True))
    values["nodes"], values["features"] = json.loads(values["nodes"]), json.loads(values["features"])
    values["iterations_source"], values["origin"] = Source(values["iterations_source"]), Origin(values["origin"])
    return Run(**values)
