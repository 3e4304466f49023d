"""Checks of the predictions: asrptd's heartbeat in hook.conf, the hook's table, the active model, drift."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.doctor.checks import Finding, failure, ok, warning
from slurm_asrpt.errors import AsrptError, one_line, printable
from slurm_asrpt.history.store import FILE_NAME as HISTORY_NAME
from slurm_asrpt.history.store import DamagedError, History, HistoryError
from slurm_asrpt.hook import hook_conf, table
from slurm_asrpt.predict.model_store import ModelError, active_name, load_info, load_model
from slurm_asrpt.predict.predictors import TRAINING_STATES
from slurm_asrpt.predict.retrain import models_folder
from slurm_asrpt.predict.validation import Drift, drift
from slurm_asrpt.text import counted

RECENT_RUNS = 500
"""Runs to measure drift on."""
ROUGH = 0.5
"""A mean absolute error beyond this share of the mean work."""
STALE_TABLE_S = 7 * 86400.0


def _hook(settings: Settings, now: float) -> Iterator[Finding]:
    path = settings.paths.hook / hook_conf.FILE_NAME
    try:
        until = hook_conf.valid_until(path.read_bytes())
    except OSError as error:
        text, remedy = f"{path}: {error.strerror}", "start asrptd, which writes this file every cycle"
        yield failure("hook", text, remedy)
        return
    except ValueError as error:
        yield failure("hook", f"{path}: {error}", "start asrptd, which replaces this file every cycle")
        return
    if until < now:
        text = f"asrptd's heartbeat expired {now - until:.0f} s ago: the hook tags jobs, but writes no leases"
        yield failure("hook", text, "systemctl status asrptd, then systemctl restart asrptd")
    else:
        yield ok("hook", "asrptd's heartbeat is fresh")


def _table(settings: Settings, now: float) -> Iterator[Finding]:
    """The hook's table is complete and not stale."""
    path, remedy = settings.paths.hook / table.FILE_NAME, "asrpt-admin retrain"
    try:
        data, written = path.read_bytes(), path.stat().st_mtime
        entries = len(table.parse_table(table.in_seconds(data)))
    except OSError as error:
        yield warning("table", f"{path}: {error.strerror}: every job counts as unseen", remedy)
        return
    except ValueError as error:
        yield failure("table", f"{path}: {error}: every job counts as unseen", remedy)
        return
    if now - written > STALE_TABLE_S:
        text = f"{path} was written {counted(round((now - written) / 86400), 'day')} ago"
        remedy = (
            "systemctl enable --now asrpt-retrain.timer; if it is active, asrpt-admin models list says why it failed"
        )
        yield warning("table", text, remedy)
    else:
        yield ok("table", counted(entries, "prediction"))


def _model(settings: Settings, now: float) -> Iterator[Finding]:
    try:
        name = active_name(models_folder(settings))
        if not name:
            yield warning("model", "no model is active", "asrpt-admin retrain")
            return
        model = load_model(models_folder(settings), name)
    except ModelError as error:
        yield failure("model", printable(error.trouble), error.remedy)
        return
    except AsrptError as error:
        yield failure("model", one_line(error), "")
        return
    except OSError as error:
        yield failure("model", f"{error.filename}: {error.strerror}", "run this as root or the daemon's user")
        return
    yield ok("model", f"{name}: {model.info.predictor}, {counted(model.info.rows, 'run')}")
    path = settings.paths.hook / table.FILE_NAME
    if path.exists() and path.read_bytes() != model.data:
        text = "the hook's table is not that of the active model"
        yield warning("model", text, f"asrpt-admin models activate {name}")


def _drift(settings: Settings, now: float) -> Iterator[Finding]:
    try:
        found = recent_drift(settings)
    except HistoryError as error:
        remedy = "asrpt-admin history check" if isinstance(error, DamagedError) else ""
        yield warning("drift", one_line(error), remedy)
        return
    except (AsrptError, OSError):  # ``_model`` reports it
        return
    if found.warning:
        yield warning("drift", found.warning, "asrpt-admin evaluate, then asrpt-admin retrain or models rollback")
    elif found.error is None:
        yield ok("drift", f"{counted(found.runs, 'run')} so far, too few to measure the predictions' error")
    else:
        text = f"the last {found.runs} predictions: error {found.error:.0%} of the mean, {found.unseen:.0%} unseen"
        if found.error > ROUGH:
            remedy = "asrpt-admin evaluate compares predictors; see docs/predictions.md for what else helps"
            yield warning("drift", f"predictions are rough: {text}", remedy)
        else:
            yield ok("drift", text)


def recent_drift(settings: Settings) -> Drift:
    """Error of the latest predictions with a completed job, compared to the expected error of the active model.

    Raises HistoryError, ModelError.
    """
    models, path = models_folder(settings), settings.paths.state / HISTORY_NAME
    name = active_name(models)
    expected = load_info(models, name).error if name else None
    if not path.exists():
        return drift([], expected)
    with History(path, read_only=True) as history:
        runs = history.runs(limit=RECENT_RUNS)
    known = [run for run in runs if run.state in TRAINING_STATES and run.iterations > 0 and run.origin == "asrptd"]
    return drift(known, expected)


CHECKS: tuple[Callable[[Settings, float], Iterator[Finding]], ...] = (_hook, _table, _model, _drift)
