"""The tables of the history, and migrations from earlier releases."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(
        """CREATE TABLE runs (
            job_id TEXT NOT NULL, start_time INTEGER NOT NULL, submit_time INTEGER NOT NULL,
            end_time INTEGER NOT NULL, state TEXT NOT NULL, exit_code INTEGER NOT NULL, user TEXT NOT NULL,
            uid INTEGER NOT NULL, group_id TEXT NOT NULL, job_name TEXT NOT NULL, partition TEXT NOT NULL,
            gpus INTEGER NOT NULL, nodes TEXT NOT NULL, profile TEXT NOT NULL, predicted_iterations INTEGER NOT NULL,
            iterations INTEGER NOT NULL, iterations_source TEXT NOT NULL, alpha REAL NOT NULL,
            PRIMARY KEY (job_id, start_time)) WITHOUT ROWID"""
    )
    connection.execute("CREATE INDEX runs_by_end ON runs (end_time)")


def _add_features(connection: sqlite3.Connection) -> None:
    for column in (
        *("program TEXT NOT NULL DEFAULT ''", "features TEXT NOT NULL DEFAULT '{}'"),
        *("predicted_low INTEGER NOT NULL DEFAULT 0", "predicted_high INTEGER NOT NULL DEFAULT 0"),
        *("predicted_by TEXT NOT NULL DEFAULT ''", "reported_total INTEGER NOT NULL DEFAULT 0"),
        "origin TEXT NOT NULL DEFAULT 'asrptd'",
    ):
        connection.execute(f"ALTER TABLE runs ADD COLUMN {column}")


def _add_marks(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE marks (name TEXT PRIMARY KEY, time INTEGER NOT NULL) WITHOUT ROWID")


def _add_forecasts(connection: sqlite3.Connection) -> None:
    for column in ("forecast_made", "forecast_low", "forecast_median", "forecast_high"):
        connection.execute(f"ALTER TABLE runs ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")


def _add_mean(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE runs ADD COLUMN predicted_mean INTEGER NOT NULL DEFAULT 0")


def _add_what_limits_count(connection: sqlite3.Connection) -> None:
    for column in ("account", "qos", "tres"):
        connection.execute(f"ALTER TABLE runs ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")


def _add_work(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE runs ADD COLUMN work_s INTEGER NOT NULL DEFAULT 0")
    connection.execute("ALTER TABLE runs ADD COLUMN iterations_of TEXT NOT NULL DEFAULT ''")


def _add_what_slurm_plans_by(connection: sqlite3.Connection) -> None:
    for column in ("time_limit_s", "min_nodes", "max_nodes"):
        connection.execute(f"ALTER TABLE runs ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")


def _add_spread(connection: sqlite3.Connection) -> None:
    for column in ("link_s", "iteration_s", "speed"):
        connection.execute(f"ALTER TABLE runs ADD COLUMN {column} REAL NOT NULL DEFAULT 0")
    connection.execute("ALTER TABLE runs ADD COLUMN switches INTEGER NOT NULL DEFAULT 0")


_STEPS = (
    *(_create, _add_features, _add_marks, _add_forecasts, _add_mean, _add_what_limits_count, _add_work),
    *(_add_what_slurm_plans_by, _add_spread),
)
MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = _STEPS
"""Step i migrates schema version i to i + 1; a released step is never changed."""


def latest_schema() -> int:
    """The version that this release reads and writes."""
    return len(MIGRATIONS)


def schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate to the latest schema, step by step, each in its own transaction; a later schema is left alone."""
    for step in range(schema_version(connection), latest_schema()):
        connection.execute("BEGIN IMMEDIATE")
        try:
            # another process may have done this step while we waited for the lock
            if schema_version(connection) == step:
                MIGRATIONS[step](connection)
                connection.execute(f"PRAGMA user_version = {step + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite rolls back by itself when the disk is full
                connection.execute("ROLLBACK")
            raise
