"""Retraining: from history to samples, predictor, model and the hook's table; each step is complete before the next
begins.

The table is replaced last. After a crash before that, the hook still has the former, valid table. After a crash between
model and table, or an upgrade that changes the table's format, the next retraining makes both consistent again.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurm_asrpt.config.settings import PredictSettings, Settings
from slurm_asrpt.errors import AsrptError
from slurm_asrpt.files import give_to_folder_owner, make_folder, replace_file
from slurm_asrpt.history.maintenance import prune
from slurm_asrpt.history.store import FILE_NAME as HISTORY_NAME
from slurm_asrpt.history.store import History, Sample
from slurm_asrpt.hook import table
from slurm_asrpt.hook.table import in_seconds, parse_table, render_table
from slurm_asrpt.predict.communication import learn, to_bytes
from slurm_asrpt.predict.model_store import (
    Model,
    ModelInfo,
    active_name,
    list_models,
    load_model,
    point_at,
    prune_models,
    save_model,
    usable,
)
from slurm_asrpt.predict.predictors import examples_of, fit, training_samples
from slurm_asrpt.predict.predictors.fitting import Progress, silent
from slurm_asrpt.predict.validation import Comparison, Entries, compare, compare_without_imports
from slurm_asrpt.text import counted


class RetrainError(AsrptError):
    """Retraining, or a change of models, failed."""


@dataclass(frozen=True)
class RetrainReport:
    """refused: why the new model was stored but not activated; "" if it is active.

    unjudged: why it was not compared with the active model. The field names are keys of ``--json``.
    """

    rows: int
    groups: int
    seconds: float
    model: Path
    table: Path
    verdict: Comparison
    refused: str
    unjudged: str


def retrain(settings: Settings, now: float, progress: Progress = silent, force: bool = False) -> RetrainReport:
    """Train on the history. Replace model and table, unless the new model is worse than the active one.

    progress: called with the steps done, of ``predict.trees``; starts from 0 for the second fit. force: activate it
    anyway. Raises HistoryError, RetrainError.
    """
    started = time.monotonic()
    with _alone(settings):
        models = models_folder(settings)
        with History(settings.paths.state / HISTORY_NAME) as history:
            prune(history, settings.predict.keep_days, now)
            samples = training_samples(history.samples())
            beliefs = to_bytes(learn(history, settings.fabric.to_core())) if settings.predict.communication else b""
        fit = _fitter(settings.predict, progress)
        entries = fit(samples)
        verdict = _compared(models, samples, fit)
        unjudged = "" if verdict.reference else _unjudged(models)
        refused = "" if force else verdict.refusal or _nothing_learned(models, samples)
        info = _info(settings.predict, samples, verdict, refused)
        model = save_model(models, render_table(entries), info, now, beliefs)
        if not refused:
            _switch(settings, model)
        elif usable(models, active_name(models)):
            _switch(settings, load_model(models, active_name(models)))
        prune_models(models, settings.predict.keep_models)
    target = settings.paths.hook / table.FILE_NAME
    seconds = time.monotonic() - started
    return RetrainReport(
        len(samples), model.info.groups, seconds, models / model.name, target, verdict, refused, unjudged
    )


def activate(settings: Settings, name: str) -> Model:
    """Make a stored model the active one.

    Raises ModelError, InputError, RetrainError; then nothing changes.
    """
    with _alone(settings):
        model = load_model(models_folder(settings), name)
        _switch(settings, model)
    return model


def rollback(settings: Settings) -> Model:
    """Activate the latest good model that is older than the active one. Raises RetrainError if there is none."""
    with _alone(settings):
        models = models_folder(settings)
        older = [name for name in _good(models) if name < active_name(models)]
        if not older:
            raise RetrainError("no older good model is kept; see asrpt-admin models list")
        model = load_model(models, older[-1])
        _switch(settings, model)
    return model


def models_folder(settings: Settings) -> Path:
    return settings.paths.state / "models"


def _good(models: Path) -> list[str]:
    """Names of the models that could be active, oldest first."""
    return [listed.name for listed in list_models(models) if listed.info and not listed.info.refused]


def _nothing_learned(models: Path, samples: Sequence[Sample]) -> str:
    """Why an empty model should not replace a trained one; "" if it may."""
    old = next((m.info for m in list_models(models) if m.active and m.info), None)
    if samples or old is None or not old.rows:
        return ""
    return f"the history holds no runs to train on, and the active model was trained on {counted(old.rows, 'run')}"


def _unjudged(models: Path) -> str:
    """Why there is no model to compare with although one is active; any new model is better than none then."""
    active = active_name(models)
    if not active or usable(models, active) or any(name < active for name in _good(models)):
        return ""
    return f"the active model {active} cannot be used and no older good one exists: not compared with any"


def _switch(settings: Settings, model: Model) -> None:
    point_at(models_folder(settings), model.name)
    replace_file(settings.paths.hook / table.FILE_NAME, model.data)


def _fitter(options: PredictSettings, progress: Progress) -> Callable[[Sequence[Sample]], Entries]:
    return lambda samples: fit(options.predictor, examples_of(samples), options.trees, options.seed, progress)


def _compared(models: Path, samples: Sequence[Sample], fit: Callable[[Sequence[Sample]], Entries]) -> Comparison:
    """Compare with the active model; or, if too few runs have ended since it was trained, with an older one, so
    that many small steps for the worse are noticed too. If there is none, check that imported files do not make the
    model worse."""
    active = active_name(models)
    for name in sorted({*_good(models), *usable(models, active)}, reverse=True):
        if name <= active:
            old = load_model(models, name)
            verdict = compare(fit, samples, name, parse_table(in_seconds(old.data)), old.info.trained_until)
            if verdict.reference:
                return verdict
    return compare_without_imports(fit, samples)


def _info(options: PredictSettings, samples: Sequence[Sample], verdict: Comparison, refused: str) -> ModelInfo:
    groups = len({sample.group for sample in samples})
    until = max((sample.end_time for sample in samples), default=0)
    name, seed, trees = options.predictor, options.seed, options.trees
    return ModelInfo("", name, seed, trees, len(samples), groups, until, verdict.new, refused)


@contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """Hold the lock for changes of models: the kernel releases it when the process ends. Raises RetrainError."""
    state, hook = settings.paths.state, settings.paths.hook
    try:
        make_folder(state, 0o700)
        make_folder(hook, 0o755)
        descriptor = os.open(state / "retrain.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        give_to_folder_owner(state / "retrain.lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise RetrainError("another retraining is in progress; wait for it to end") from None
        finally:
            os.close(descriptor)
    except OSError as error:
        where = error.filename or state
        raise RetrainError(f"{where}: {error.strerror}; run as the daemon's user, or set paths.*") from error
