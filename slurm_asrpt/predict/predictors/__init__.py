"""Predictors by name, and the function that fits them to a history."""

from slurm_asrpt.history.store import TRAINING_STATES
from slurm_asrpt.predict.predictors import backoff, by_group, forest  # noqa: F401  (imported to register themselves)
from slurm_asrpt.predict.predictors.base import (
    Chain,
    Example,
    Features,
    Predictor,
    make_predictor,
    predictor_names,
    register,
)
from slurm_asrpt.predict.predictors.fitting import examples_of, fit, training_samples

__all__ = [
    "TRAINING_STATES",
    "Chain",
    "Example",
    "Features",
    "Predictor",
    "examples_of",
    "fit",
    "make_predictor",
    "predictor_names",
    "register",
    "training_samples",
]
