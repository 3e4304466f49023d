"""The history of runs in SQLite: one row per run. asrptd writes it; predictors and tools read it."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from slurm_asrpt.core.units import Seconds
from slurm_asrpt.errors import EXIT_BAD_INPUT, AsrptError
from slurm_asrpt.files import check_trusted_file, trusted_owners
from slurm_asrpt.history.schema import latest_schema, migrate, schema_version
from slurm_asrpt.hook.tag import Tag

FILE_NAME = "history.sqlite"
COMPLETED = "COMPLETED"
TRAINING_STATES = frozenset({COMPLETED, "FAILED", "OUT_OF_MEMORY", "TIMEOUT"})
"""States of runs that ended by themselves: the next run is likely to end likewise (docs/decisions/0009)."""

Key = tuple[str, int]
"""Job ID and start time of a run."""


class HistoryError(AsrptError):
    """The history cannot be opened, read or written."""


class DamagedError(HistoryError):
    """The file is not a database, or it is damaged."""


class ReadOnlyError(HistoryError):
    """The file was opened read-only, because it was not writable then."""


class NewerSchemaError(HistoryError):
    """The file was written by a later release: starting again would not help."""

    exit_code = EXIT_BAD_INPUT


class Source(StrEnum):
    """Where a run's iterations come from."""

    REPORTED = "reported"
    ELAPSED = "elapsed"
    NONE = "none"


class Origin(StrEnum):
    """Where a run was recorded."""

    ASRPTD = "asrptd"
    SACCT = "sacct"
    CSV = "csv"
    TRACE = "trace"


_FROM_SLURM = (Origin.ASRPTD.value, Origin.SACCT.value)


@dataclass(frozen=True)
class Run:
    """One run of a job. Times are seconds since the epoch, 0 if unknown.

    job_id, start_time: the key; a requeued job runs again under its ID, and a reinstalled Slurm restarts its IDs.
    nodes: GPUs by node. alpha: seconds per iteration in the run's real placement.
    program: key of scripts that run the same program. features: numeric hyper-parameters by name.
    predicted_low, predicted_high: the 10-90% interval of predicted_iterations, which predicted_by (a level)
    answered.
    predicted_mean: what the order was based on, 0 for predicted_iterations.
    reported_total: total iterations that the job reported. origin: where the run was recorded.
    forecast_made: when its start was first forecast, 0 for never; forecast_low, _median, _high: the 5, 50 and 90%
    quantiles of the start, 0 if beyond the horizon.
    tres: what the run was given, as Slurm counts it for limits.
    work_s: seconds that the run would have taken in the job's best placement on reference GPUs; 0 if it was recorded by
    a release that did not know it. iterations_of: the profile that ``iterations`` count, as the tag names it; "" if
    they are seconds. time_limit_s: 0 without one, or if unknown. min_nodes, max_nodes: the owner's ``-N``; 0 if
    unknown, max_nodes also without an upper bound.
    link_s, switches: how far apart its GPUs were (``core.sensitivity.Spread``). iteration_s: seconds per reported
    iteration. speed: of its slowest GPU, relative to the reference GPU. 0 if unknown.
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
    account: str = ""
    qos: str = ""
    tres: str = ""
    work_s: int = 0
    iterations_of: str = ""
    time_limit_s: int = 0
    min_nodes: int = 0
    max_nodes: int = 0
    link_s: float = 0.0
    iteration_s: float = 0.0
    speed: float = 0.0
    switches: int = 0

    @property
    def key(self) -> Key:
        return self.job_id, self.start_time


def with_tag(run: Run, tag: Tag) -> Run:
    """``run`` with the values of the hook's tag."""
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
    """A run with known group and iterations, for predictors to learn from. Fields as in ``Run``.

    from_slurm: reported by Slurm, to asrptd or through sacct; else imported from a file.
    work_s, profile: as ``work_s`` and ``iterations_of``; without a profile the iterations are the work.
    """

    group: str
    user: int
    iterations: int
    program: str = ""
    gpus: int = 0
    features: Mapping[str, float] = field(default_factory=dict)
    end_time: int = 0
    state: str = COMPLETED
    from_slurm: bool = True
    work_s: int = 0
    profile: str = ""

    @property
    def work(self) -> Seconds:
        """The work of the run."""
        return Seconds(self.work_s if self.profile else self.iterations)

    @property
    def alpha(self) -> float:
        """Seconds of work per iteration."""
        return self.work / self.iterations


def sample_of(run: Run) -> Sample:
    """What a run with known group and iterations teaches."""
    work_s, profile = _measured(
        run.work_s, run.iterations_of, run.profile, run.iterations_source, run.alpha, run.end_time - run.start_time
    )
    return Sample(
        run.group_id,
        run.uid,
        run.iterations,
        run.program,
        run.gpus,
        run.features,
        run.end_time,
        run.state,
        run.origin in _FROM_SLURM,
        work_s,
        profile,
    )


def _measured(
    work_s: int, iterations_of: str, profile: str, source: str, alpha: float, elapsed: int
) -> tuple[int, str]:
    """The work of a run, and the profile that its iterations count ("": they are seconds).

    Earlier releases recorded neither. Their runs count the iterations of the profile unless it could not be used: then
    they are seconds, and alpha is 1 or unknown. The best placement is not known, so the work is the elapsed time; also
    of a run from a file that has the profile only.
    """
    counted = iterations_of or profile
    if work_s or not counted or (not iterations_of and source == Source.ELAPSED and alpha in (0.0, 1.0)):
        return work_s, iterations_of
    return max(1, elapsed), counted


_COLUMNS = tuple(f.name for f in fields(Run))
_UPSERT = (
    f"INSERT INTO runs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "  # noqa: S608 constants
    "ON CONFLICT (job_id, start_time) DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[2:])
)
_ADD = _UPSERT + f" WHERE runs.origin <> '{Origin.ASRPTD}'"
PARTS = ("", "-wal", "-shm")  # suffixes of the file and its logs
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM runs "  # noqa: S608 constants
LARGEST_WAL_BYTES = 16 << 20
"""The write-ahead log is truncated to this size after a checkpoint; a long-running reader may let it grow beyond."""


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours, with the file's name and a remedy."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        kind = ReadOnlyError if getattr(error, "sqlite_errorname", "").startswith("SQLITE_READONLY") else HistoryError
        raise kind(f"{path}: {why}; check the directory's owner, its free space, and which process locks it") from error
    except sqlite3.DatabaseError as error:
        raise DamagedError(
            f"{path}: not a usable history ({error}); move the file aside: a new one is created, and learning "
            "starts over"
        ) from error


def _refuse_later_schema(connection: sqlite3.Connection) -> None:
    version, latest = schema_version(connection), latest_schema()
    if version > latest:
        raise NewerSchemaError(f"the history has schema {version}, this release knows {latest}; update it")


def _refuse_other_schema(connection: sqlite3.Connection) -> None:
    version, latest = schema_version(connection), latest_schema()
    if version != latest:
        remedy = "start asrptd of this release" if version < latest else "update this release"
        raise HistoryError(f"the history has schema {version}, this release reads {latest}; {remedy}")


def _make(path: Path) -> None:
    """Create an empty file, readable by its owner only. Root creates it for the owner of the directory, the daemon's
    user."""
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
    """Raises HistoryError if another user could have written the file or its logs."""
    with _named(path):
        owners = trusted_owners(path.parent)
        for part in PARTS:
            with suppress(FileNotFoundError):  # SQLite removes its logs when the last writer closes
                check_trusted_file(path.with_name(path.name + part), owners)


class History:
    """The runs in one file. Use as a context manager."""

    def __init__(self, path: Path, *, read_only: bool = False, wait_s: float = 10.0) -> None:
        """Open the file; create or migrate it unless ``read_only``. wait_s: timeout for locks, seconds. Raises
        HistoryError."""
        self.path = path
        _refuse_others(path)
        uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        with _named(path):
            if not read_only:
                _make(path)
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=wait_s)
            try:
                self._prepare(read_only, wait_s)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, read_only: bool, wait_s: float) -> None:
        if read_only:
            self._db.execute("SELECT 1 FROM runs LIMIT 1")
            _refuse_other_schema(self._db)
            return
        self._use_wal(time.monotonic() + wait_s)
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(f"PRAGMA journal_size_limit = {LARGEST_WAL_BYTES}")
        _refuse_later_schema(self._db)
        migrate(self._db)

    def _use_wal(self, deadline: float) -> None:
        """Set the journal mode. SQLite does not wait for locks meanwhile, so that a second process may be refused."""
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction."""
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
        """Store ``runs``, all or none. A run recorded before is overwritten, so this is safe to repeat."""
        rows = [row_of(run) for run in runs]
        with self._writing():
            self._db.executemany(_UPSERT, rows)

    def add(self, runs: Iterable[Run]) -> None:
        """As ``record``, for imported runs: a run that asrptd recorded itself is kept, since it has more detail."""
        rows = [row_of(run) for run in runs]
        with self._writing():
            self._db.executemany(_ADD, rows)

    def known(self, job_id: str, start_time: int) -> bool:
        """Whether asrptd has recorded this run."""
        return self.count("job_id = ? AND start_time = ? AND origin = ?", (job_id, start_time, Origin.ASRPTD.value)) > 0

    def find(self, keys: Iterable[Key]) -> dict[Key, Run]:
        """The runs with these keys, as far as they exist."""
        query = _SELECT + "WHERE job_id = ? AND start_time = ?"
        with _named(self.path):
            rows = (self._db.execute(query, key).fetchone() for key in keys)
            return {run.key: run for run in (_run(row) for row in rows if row is not None)}

    def all_runs(self) -> Iterator[Run]:
        """Every run, earliest end first; the order is deterministic."""
        with _named(self.path):
            for row in self._db.execute(_SELECT + "ORDER BY end_time, job_id, start_time"):
                yield _run(row)

    def select(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The result of a query. query: a constant of this program."""
        with _named(self.path):
            return self._db.execute(query, values).fetchall()

    def count(self, condition: str, values: Sequence[Any]) -> int:
        """The number of runs for which a condition holds. condition: a constant of this program."""
        return int(self.select(f"SELECT count(*) FROM runs WHERE {condition}", values)[0][0])  # noqa: S608 ours

    def remove(self, condition: str, values: Sequence[Any]) -> int:
        """Delete the runs for which a condition holds. Returns the number deleted. condition: a constant of
        this program."""
        with self._writing():
            return self._db.execute(f"DELETE FROM runs WHERE {condition}", values).rowcount  # noqa: S608 ours

    def mark(self, name: str) -> int:
        """The time stored under a name, 0 for none."""
        rows = self.select("SELECT time FROM marks WHERE name = ?", (name,))
        return int(rows[0][0]) if rows else 0

    def set_mark(self, name: str, time: int) -> None:
        """Store a time, unless a later one is stored."""
        query = "INSERT INTO marks VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET time = max(time, excluded.time)"
        with self._writing():
            self._db.execute(query, (name, time))

    def problems(self) -> list[str]:
        """The findings of SQLite's quick check; empty for a sound file."""
        with _named(self.path):
            found = [str(row[0]) for row in self._db.execute("PRAGMA quick_check(20)")]
        return [] if found == ["ok"] else found

    def checkpoint(self) -> bool:
        """Move the write-ahead log into the file and empty it; False while another process reads from it."""
        with _named(self.path):
            return bool(self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)

    def compact(self) -> bool:
        """Rewrite the file without deleted data, also in the log; returns as ``checkpoint``."""
        with _named(self.path):
            self._db.execute("VACUUM")
        return self.checkpoint()

    def runs(self, since: int = 0, limit: int = -1) -> list[Run]:
        """Runs that ended at or after ``since``, latest first."""
        return self.runs_where("end_time >= ?", (since,), limit)

    def runs_where(self, condition: str, values: Sequence[Any], limit: int = -1) -> list[Run]:
        """The runs for which a condition holds, latest first. condition: a constant of this program."""
        query = f"{_SELECT}WHERE {condition} ORDER BY end_time DESC, job_id LIMIT ?"
        with _named(self.path):
            return [_run(row) for row in self._db.execute(query, (*values, limit))]

    def samples(self) -> list[Sample]:
        """Runs with known group and iterations, in a deterministic order."""
        query = (
            "SELECT group_id, uid, iterations, program, gpus, features, end_time, state, origin IN (?, ?), "
            "work_s, iterations_of, profile, iterations_source, alpha, end_time - start_time FROM runs "
            "WHERE iterations > 0 AND length(group_id) = 16 "
            "ORDER BY end_time, job_id, start_time"
        )
        with _named(self.path):
            return [_sample(*row) for row in self._db.execute(query, _FROM_SLURM)]


def _sample(
    group: str, user: int, iterations: int, program: str, gpus: int, features: str, end: int, state: str, *rest: Any
) -> Sample:
    told, *measures = rest
    parsed, measured = json.loads(features), _measured(*measures)
    return Sample(group, user, iterations, program, gpus, parsed, end, state, bool(told), *measured)


def features_text(features: Mapping[str, float]) -> str:
    """Hyper-parameters as they are stored."""
    return json.dumps(dict(features), sort_keys=True)


def row_of(run: Run) -> tuple[Any, ...]:
    """The values of a run as they are stored. Characters that UTF-8 cannot encode become question marks."""
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
